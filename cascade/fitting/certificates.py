"""A fit as a policy directory: its policy, and a certificate for each proven point.

A certificate names what its promise depends on: the requests and the policy, each by a hash of its data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from datetime import date, timedelta
from fractions import Fraction
from typing import Any, Literal

import numpy as np

from cascade.conformal.certificate import SETTINGS, Certificate, MadeFor, canonical, differences, moving
from cascade.conformal.certify import Certified
from cascade.conformal.scope import seen, shown
from cascade.episodes.rows import Facts
from cascade.fitting.fit import Fit, promises
from cascade.policies.directory import PolicyDirectory, Requests, hashed
from cascade.policies.policy import ReferenceOnly, as_read
from cascade.table import Log, Node

_DISTINCT = "A request that is repeated counts once: the promise is about distinct requests."
ASSUMPTIONS = (
    "Requests in service are like those that prove it; those of a group are one draw.",
    "The models, prompts, prices and settings are those that it was made for.",
)
_COUNTED = (
    "It is fit {} of these requests, as counted in the folder of their log; fits elsewhere, or before the count was "
    "deleted, are not counted."
)
_LEFT_OUT = "It does not speak of requests like the {:,} of the log that lack a label or the reference's answer."
_UNCOUNTED = "It is the first fit of these requests: earlier ones were not counted."


def policy_directory(
    done: Fit,
    plan: tuple[Node, ...],
    today: date,
    *,
    before: Requests | None = None,
    unlabelled: int = 0,
    made_for: Callable[[Log], Mapping[str, Any]] = lambda log: {},  # noqa: ARG005 - the name is the interface
    **about: Any,
) -> PolicyDirectory:
    """Return the policy directory of a fit.

    Args:
        done: the fit.
        plan: the nodes of the log's plan.
        today: the day on which it is made.
        before: the requests that earlier made the policy, if it is certified again.
        unlabelled: how many requests were left out before the fit, since it is unknown which answers are right.
        made_for: returns what a certificate holds for, given the requests that prove it.
        about: further fields of each certificate: `reference`, `comparator`.
    """
    earlier = before or Requests()
    fitted = tuple(sorted({*hashed(done.fitted), *earlier.fitted}))
    requests = Requests(fitted, tuple(sorted({*hashed(done.chose), *earlier.chose})), hashed(done.log.ids))
    bare = PolicyDirectory(plan, done.policy, done.promise, {}, requests)
    expires = None if (days := done.settings.expires_days) is None else (today + timedelta(days)).isoformat()
    unit = "group" if done.repeated > 0 or done.requests > done.log.n else "request"
    left_out, attempt = unlabelled + done.unknown, done.attempt.number
    not_of = [_LEFT_OUT.format(left_out)] * bool(left_out)
    rests_on = _DISTINCT, *ASSUMPTIONS, *not_of, _UNCOUNTED if attempt is None else _COUNTED.format(attempt)
    shared = {"attempts": attempt, "expires": expires, "unit": unit, "policy_sha256": bare.policy_sha256, **about}
    covers: Literal["all", "segment", "level"] = (
        "segment" if done.settings.by_segment else "level" if done.settings.risks else "all"
    )
    proofs = [(name, proven, covered(done.log, covers, name)) for name, proven in _points_proven(done).items()]
    return bare.certified(*[
        Certificate(
            promises(done.promise, done.settings).get(name, done.promise), proven.kappa, proven.n,
            float(proven.losses), sha256_of(proving), created=today.isoformat(), level=proven.level, covers=covers,
            name=name, made_for=made_of, assumptions=(*rests_on, *moving(made_of)), **shared,
        )
        for (name, proven, proving), made_of in zip(proofs, [made_for(proof[2]) for proof in proofs], strict=True)
    ])  # fmt: skip


def _points_proven(done: Fit) -> Mapping[str, Certified]:
    """Return the proven points by name, including those that hold by definition: walks to the end ask the reference."""
    ends_safely = done.promise.rules.safe_last(done.log) or isinstance(done.policy, ReferenceOnly)
    if done.settings.by_segment or not (done.promise.rules.reference_keeps_it and ends_safely):
        return done.certified
    by_definition = Certified(-np.inf, done.log.n, Fraction(0), done.attempt.level)
    return {name: done.certified.get(name, by_definition) for name in promises(done.promise, done.settings)}


def covered(log: Log, covers: str, name: str) -> Log:
    """Return the requests that a certificate is made from."""
    if covers != "segment":
        return log
    return log.take(np.array([segment == name for segment in log.segments], dtype=np.bool_))


_AT_ONCE = 10_000
"""The rows of a log that are hashed at a time, which limits the memory used."""


def sha256_of(log: Log) -> str:
    """Return a hash of everything in a log that a certificate depends on, independent of the order of its rows."""
    columns = {"right": log.right, "cost": log.cost_nano_usd, "bought": log.bought, "confidence": log.confidence}
    columns |= {"complete": log.complete, **{f"signal {name}": values for name, values in log.signals.items()}}
    columns |= {f"feature {name}": values for name, values in log.features.items()}
    if log.reference is not None:
        columns |= {"reference": log.reference.right, "its cost": log.reference.cost_nano_usd}
    if log.drawn is not None:
        columns["drawn"] = log.drawn
    recorded = {name: values for name, values in sorted(columns.items()) if not np.isnan(values).all()}
    first = np.stack([(log.answer == column[:, None]).argmax(axis=1) for column in log.answer.T], axis=1)
    recorded["answer"] = np.where(log.answers, first, -1)  # which answers are equal, whatever their numbers
    numbers = [np.asarray(values, dtype=np.float64).reshape(log.n, -1) for values in recorded.values()]
    rows = bytearray()
    for start in range(0, log.n, _AT_ONCE):
        digits = np.concatenate([columns[start : start + _AT_ONCE] for columns in numbers], axis=1)
        width, raw = digits[:1].nbytes, digits.tobytes()
        for row, name in enumerate(log.ids[start : start + _AT_ONCE]):  # the numbers of all rows have the same length
            rows += hashlib.sha256(name.encode("utf-8", "replace") + raw[row * width : (row + 1) * width]).digest()
    digests = np.frombuffer(rows, dtype=">u8").reshape(log.n, 4)
    rising = digests[np.lexsort(digests.astype(np.uint64).T[::-1])].tobytes()
    return hashlib.sha256(canonical([list(recorded), log.width]) + rising).hexdigest()


# --- what a log records about a cascade ---


def of_log(log: Log, calls: Facts) -> MadeFor:
    """Return the part of a cascade that a log records."""
    unsaid = dict.fromkeys(SETTINGS)
    return {
        **dict.fromkeys(("strategy", "prices", "prompts_sha256", "served_by")),
        "horizon": int(log.steps[-1]) + 1,
        "models": {role: {"name": " or ".join(names), **unsaid} for role, names in calls.models.items()} or None,
        "step_models": list(calls.step_models) if any(calls.step_models) else None,
        "echoes": {model: list(names) for model, names in calls.echoes.items()} or None,
    }


def certified_for(
    log: Log, bought: Log, calls: Facts, cascade: MadeFor | None = None, earlier: MadeFor | None = None
) -> MadeFor:
    """Return what a new certificate is made for: the cascade, and what its requests and their steps were like.

    `shown` has the counts of the requests at each step, `requests` their kinds: the certificate covers no others.

    Args:
        log: the requests that prove it.
        bought: the same requests, with only the nodes that the policy buys.
        calls: what the whole log says about its calls.
        cascade: the configured cascade; None: as the log records it.
        earlier: what an earlier certificate of the policy is made for. A log records less than a configuration, so
            without a configuration its parts are kept, unless the log is of another cascade.
    """
    logged = of_log(log, calls)
    recorded = {**(logged if cascade is None else cascade)}
    if cascade is None and earlier is not None and not any(differences(earlier, logged)):
        recorded |= {name: value for name, value in earlier.items() if value is not None}
    return {**recorded, "shown": shown(as_read(bought)), "echoes": logged["echoes"], "requests": seen(log.kinds)}
