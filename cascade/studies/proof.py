"""A fit as a policy directory, and the proof of a directory computed again from a log, without trusting its files.

The requests that certified show whether the same data give the same thresholds. Requests whose groups neither made nor
certified the policy test the promise: it is refuted if as many losses as are seen have a probability of at most 5 %.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import date, timedelta
from fractions import Fraction
from typing import Any, Literal, NamedTuple

import numpy as np

from cascade.conformal.binomial import lower_bound, lower_tail, misses_p_value, upper_bound
from cascade.conformal.certificate import Certificate, canonical
from cascade.conformal.certify import Certified, certify
from cascade.conformal.path import Point
from cascade.fitting.divide import drawn, usable
from cascade.fitting.fit import Fit, path_of, points_of, promises
from cascade.policies.directory import PolicyDirectory, Requests, hashed
from cascade.policies.simple import Alone
from cascade.table import Bools, Log, Node

REFUTES = 0.05
"""A promise is refuted if its p-value is at most this."""
ASSUMPTIONS = (
    "Requests in service are like those that prove it; those of a group are one draw.",
    "The models, prompts, prices and settings are those that it was made for.",
)


def written(
    done: Fit,
    plan: tuple[Node, ...],
    today: date,
    *,
    before: Requests | None = None,
    made_for: Callable[[Log], Mapping[str, Any]] = lambda log: {},  # noqa: ARG005 - the name is the interface
    **about: Any,
) -> PolicyDirectory:
    """Return the policy directory of a fit.

    Args:
        done: the fit.
        plan: the nodes of the log's plan.
        today: the day on which it is made.
        before: the requests that made the policy earlier, if it is certified again.
        made_for: says what a certificate holds for, by the requests that prove it.
        about: further fields of each certificate: `reference`, `comparator`.
    """
    earlier = before or Requests()
    fitted = tuple(sorted({*hashed(done.fitted), *earlier.fitted}))
    requests = Requests(fitted, tuple(sorted({*hashed(done.chose), *earlier.chose})), hashed(done.log.ids))
    bare = PolicyDirectory(plan, done.policy, done.promise, {}, requests)
    days = done.settings.expires_days
    expires = None if days is None else (today + timedelta(days)).isoformat()
    grouped = done.repeated > 0 or len(set(done.log.groups)) < done.log.n
    each = {"attempts": done.attempt.number, "expires": expires, "assumptions": ASSUMPTIONS, **about}
    each["unit"] = "group" if grouped else "request"
    levels = promises(done.promise, done.settings)
    certificates = []
    for name, proven in _proven(done).items():
        covers: Literal["all", "segment", "level"] = (
            "all" if not name else "segment" if done.settings.by_segment else "level"
        )
        part = _part(done.log, covers, name)
        certificates.append(
            Certificate(
                levels[name] if covers == "level" else done.promise, proven.point.kappa, proven.n,
                float(proven.losses), sha256_of(part), bare.policy_sha256, today.isoformat(), bar=proven.point.bar,
                level=proven.level, covers=covers, name=name, made_for=made_for(part), **each,
            )
        )  # fmt: skip
    return bare.certified(*certificates)


def _proven(done: Fit) -> Mapping[str, Certified]:
    """Return the certificates by name, with those that hold by definition: a walk to the end asks the reference."""
    ends_safely = done.promise.rules.safe_last(done.log) or isinstance(done.policy, Alone)
    if done.settings.by_segment or not (done.promise.rules.reference_keeps_it and ends_safely):
        return done.certified
    by_definition = Certified(Point(-np.inf), 0, 1, done.log.n, Fraction(0), 0, 0, done.level)
    return {name: done.certified.get(name, by_definition) for name in promises(done.promise, done.settings)}


def _part(log: Log, covers: str, name: str) -> Log:
    """Return the requests that a certificate is made from."""
    if covers != "segment":
        return log
    return log.take(np.array([each == name for each in log.segments], dtype=np.bool_))


def sha256_of(log: Log) -> str:
    """Return a hash of everything in a log that a certificate depends on, whatever the order of its rows."""
    columns = {"right": log.right, "cost": log.cost_nano_usd, "bought": log.bought, "confidence": log.confidence}
    columns |= {"complete": log.complete, **{f"signal {name}": values for name, values in log.signals.items()}}
    columns |= {f"feature {name}": values for name, values in log.features.items()}
    if log.reference is not None:
        columns |= {"reference": log.reference.right, "its cost": log.reference.cost_nano_usd}
    if log.drawn is not None:
        columns["drawn"] = log.drawn
    known = {name: values for name, values in sorted(columns.items()) if not np.isnan(values).all()}
    first = np.array([[row.tolist().index(answer) for answer in row] for row in log.answer]).reshape(log.answer.shape)
    known["answer"] = np.where(log.answers, first, -1)  # equal answers, whatever their numbers
    rows = sorted(
        hashlib.sha256(
            canonical([name, *(np.asarray(values[row], dtype=np.float64).tobytes().hex() for values in known.values())])
        ).digest()
        for row, name in enumerate(log.ids)
    )
    return hashlib.sha256(canonical([list(known), log.width]) + b"".join(rows)).hexdigest()


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and a sentence about the finding."""

    name: str
    ok: bool
    text: str


def among(log: Log, hashes: tuple[str, ...]) -> Bools:
    """Return whether each request is among hashed ones, bool (n,)."""
    known = set(hashes)
    return np.array([hashed([name])[0] in known for name in log.ids], dtype=np.bool_)


def unseen(log: Log, *hashes: tuple[str, ...]) -> Log:
    """Return the requests of groups of which none is among hashed ones."""
    seen = np.zeros(log.n, dtype=np.bool_)
    for each in hashes:
        seen |= among(log, each)
    groups = {log.groups[row] for row in np.flatnonzero(seen)}
    return log.take(np.array([group not in groups for group in log.groups], dtype=np.bool_))


def checks(read: PolicyDirectory, log: Log, today: date) -> Iterator[Check]:
    """Check the certificates of a directory on a log: the requests that certified, fresh ones, or both.

    Guarantee: if fresh requests are like those that certified, each kept promise is refuted with probability at most
    5 % (with a confidence 1 − δ: at most δ more). All other checks are exact. What `cascade promote` certified is not
    computed again: only the server's store says which conversations were drawn.
    """
    certificates, requests = read.certificates, read.requests
    if not certificates or read.promise is None:
        yield Check("file", False, "there is no certificate in this directory")
        return
    first = next(iter(certificates.values()))
    many = f"{len(certificates)} certificates" if len(certificates) > 1 else f"certificate {first.id}"
    yield Check("file", True, f"{many}, made on {first.created}; all hashes match")
    text = "holds without end" if first.expires is None else f"holds until {first.expires}"
    yield Check("expiry", not first.expired(today), f"{text}; today is {today.isoformat()}")
    whole = usable(log, read.promise).log
    both = len({*requests.fitted, *requests.chose} & {*requests.certified})
    text = f"{both} requests that certify it also made it" if both else "no request that made the policy certifies it"
    yield Check("seen", not both, text)
    if first.unit == "group":
        yield Check("threshold", True, "it was tested on whole conversations, which no log has; audits watch it")
        return
    mine = whole.take(among(whole, requests.certified))
    if mine.n == len(requests.certified):
        for certificate in certificates.values():
            yield _again(read, certificate, mine, whole)
    fresh = drawn(
        unseen(whole, requests.fitted, requests.chose, requests.certified), 0, by_segment=first.covers == "segment"
    )
    if mine.n < len(requests.certified) and (mine.n or not fresh.n):
        text = f"{mine.n} of the {len(requests.certified)} requests that certify are in this log"
        yield Check("threshold", fresh.n > 0, f"{text}: the threshold cannot be computed again")
    for certificate in certificates.values():
        part = _part(fresh, certificate.covers, certificate.name)
        if part.n:
            yield _on_fresh(read, certificate, part)


def _whom(certificate: Certificate) -> str:
    return f"{certificate.covers} {certificate.name}: " if certificate.name else ""


def _again(read: PolicyDirectory, certificate: Certificate, mine: Log, whole: Log) -> Check:
    """Check that the requests that certified give the certificate again."""
    whom, part, policy = _whom(certificate), _part(mine, certificate.covers, certificate.name), read.policy
    if sha256_of(part) != certificate.data_sha256:
        return Check("threshold", False, f"{whom}the log has the requests that certify, but their data have changed")
    if certificate.promise.rules.reference_keeps_it and certificate.kappa == -np.inf and not certificate.losses:
        return Check("threshold", True, f"{whom}it holds by definition: the reference answers")
    chose = whole.take(among(whole, read.requests.chose))
    if read.requests.chose and chose.n < len(read.requests.chose):
        text = "the requests that put the thresholds in order are not in this log, so the order is not computed again"
        return Check("threshold", True, f"{whom}{text}")
    found: Certified | None = None
    for abstain in (False, True):
        points = points_of(policy.walks(chose), certificate.promise, abstain) if chose.n else None
        path = path_of(policy.walks(part), certificate.promise, points)
        found = certify(path, certificate.promise, certificate.level)
        if found is not None and found.point == certificate.point and float(found.losses) == certificate.losses:
            text = f"the {part.n:,} requests give the same threshold again, {certificate.kappa:.6g}"
            return Check("threshold", True, f"{whom}{text}, with {certificate.losses:g} lost")
    data = "nothing" if found is None else f"the threshold {found.point.kappa:.6g} with {float(found.losses):g} lost"
    return Check(
        "threshold", False,
        f"{whom}it says {certificate.kappa:.6g} with {certificate.losses:g} lost, and the data prove {data}",
    )  # fmt: skip


def _on_fresh(read: PolicyDirectory, certificate: Certificate, fresh: Log) -> Check:
    """Test a promise on requests that neither made nor certified the policy."""
    from cascade.studies.ways import play  # which a fit does without

    promise = certificate.promise
    did = play(read.policy, certificate.point, fresh, promise)
    walked = read.policy.walks(fresh)
    stop, rows = walked.stop(certificate.kappa), np.arange(fresh.n)
    known = ~walked.log.open_end[rows, stop] & (stop >= 0)  # else the log does not say how the request ends
    lost, many = int(np.floor(did.loss[known].sum() + 1e-9)), int(np.count_nonzero(known))
    if not many:
        return Check("fresh", False, f"{_whom(certificate)}the log lacks a call of every fresh request")
    risk = promise.tested_risk
    if promise.confidence is None:
        p = misses_p_value(lost, many, certificate.n, round(certificate.losses) + 1)
    else:
        p = lower_tail(many - lost, many, float(1 - Fraction(repr(risk))))
    low, high = lower_bound(lost, many, REFUTES), upper_bound(lost, many, REFUTES)
    word = "refuted" if p <= REFUTES else "not refuted"
    text = f"{lost} of {many} fresh requests lost: a rate above {low:.4f} and below {high:.4f}, each at 95 %"
    return Check("fresh", p > REFUTES, f"{_whom(certificate)}{text}; a risk of {risk:g} is {word} (p = {p:.3g})")
