"""Recompute the proof of a policy directory from a log, without trusting the directory's files.

The requests that certified show whether the same data give the same thresholds. Requests whose groups neither made nor
certified the policy test the promise: it is refuted if so many losses have a probability of at most 5 % under it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import date
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cascade.conformal.binomial import lower_bound, lower_tail, misses_p_value, upper_bound
from cascade.conformal.certificate import Certificate, MadeFor, differences, models_said, unknown
from cascade.conformal.certify import certify, path_of, points_of
from cascade.fitting.attempts import FIRST
from cascade.fitting.certificates import covered, sha256_of
from cascade.fitting.divide import among, drawn, unseen, usable
from cascade.policies.directory import PolicyDirectory
from cascade.studies.methods import Served
from cascade.table import Log

_ROUNDED = 1 + 1e-9
REFUTES = 0.05
"""A promise is refuted if its p-value is at most this."""


class Check(NamedTuple):
    """The result of one check: its name, whether it passed, and the finding in a sentence."""

    name: str
    ok: bool
    text: str


def checks(read: PolicyDirectory, log: Log, today: date) -> Iterator[Check]:
    """Check the certificates of a directory on a log: the requests that certified, fresh ones, or both.

    Guarantee: if fresh requests are like those that certified, each promise that holds is refuted with probability at
    most 5 % (with a confidence of 1 − δ, at most δ more). All other checks are exact. What `cascade promote` certified
    is not recomputed, because only the server's store knows which conversations were drawn.
    """
    certificates, requests = read.certificates, read.requests
    if not certificates or read.promise is None:
        yield Check("file", False, "there is no certificate in this directory")
        return
    first = next(iter(certificates.values()))
    subject = f"{len(certificates)} certificates" if len(certificates) > 1 else f"certificate {first.id}"
    yield Check("file", True, f"{subject}, made on {first.created}; all hashes match")
    text = "holds without end" if first.expires is None else f"holds until {first.expires}"
    yield Check("expiry", not first.expired(today), f"{text}; today is {today.isoformat()}")
    logged = usable(log, read.promise).log
    shared = len({*requests.fitted, *requests.chose} & {*requests.certified})
    text = f"the policy was made from {shared or 'none'} of the requests that certify it"
    yield Check("seen", not shared, text)
    if first.unit == "conversation":
        text = "it was tested on whole conversations, which no log has, so it cannot be computed again; audits watch it"
        yield Check("threshold", False, text)
        return
    mine = logged.take(among(logged, requests.certified))
    if mine.n == len(requests.certified):
        for certificate in certificates.values():
            yield _recomputed(read, certificate, mine, logged)
    fresh = drawn(
        unseen(logged, requests.fitted, requests.chose, requests.certified), 0, by_segment=first.covers == "segment"
    )
    if mine.n < len(requests.certified) and (mine.n or not fresh.n):
        text = f"{mine.n} of the {len(requests.certified)} requests that certify are in this log"
        yield Check("threshold", fresh.n > 0, f"{text}: the threshold cannot be computed again")
    for certificate in certificates.values():
        proving = covered(fresh, certificate.covers, certificate.name)
        if proving.n:
            yield _on_fresh(read, certificate, proving)


def same_cascade(certified: MadeFor, logged: MadeFor, configured: MadeFor | None) -> Check:
    """Check that a log and the configuration belong to the cascade that a certificate was made for."""
    changed = [f"in the log, {text}" for text in differences(certified, logged)]
    if configured is not None:
        now = differences(certified, configured) or differences(logged, configured, "the log")
        changed += [f"as configured, {text}" for text in now]
    if changed:
        return Check("cascade", False, "; ".join(changed))
    unrecorded = unknown(certified)
    rest = f"; not recorded, and not checked: {', '.join(unrecorded)}" if unrecorded else ""
    return Check("cascade", True, f"made for {models_said(certified) or 'unknown models'}{rest}")


def counted_as(read: PolicyDirectory, shares: Mapping[int, float]) -> Check:
    """Check the number of the fit that each certificate names, and the part of δ that it spends.

    Args:
        read: the directory.
        shares: the part of δ that each counted fit of its requests may spend, by number; empty if none was counted.
    """
    for certificate in read.certificates.values():
        number, whom = certificate.attempts, _whom(certificate)
        if shares and number not in shares:
            listed = ", ".join(map(str, sorted(shares)))
            return Check("attempts", False, f"{whom}it says fit {number or 'unknown'}, and fits {listed} were counted")
        most = shares.get(number or 0, FIRST)
        delta = certificate.promise.delta
        if delta is not None and certificate.level is not None and certificate.level > most * delta * _ROUNDED:
            text = f"its level is {certificate.level:.3g}, and fit {number or 1} may spend {most * delta:.3g}"
            return Check("attempts", False, f"{whom}{text}")
    rest = "" if shares else "; the folder of this log has no count"
    numbers = ", ".join(sorted({f"fit {each.attempts}" for each in read.certificates.values() if each.attempts}))
    return Check("attempts", True, f"{numbers or 'a fit of unknown number'} of these requests{rest}")


def same_reference(read: PolicyDirectory, reference: str | None) -> Check:
    """Check that the certificates have the same reference as a log; None means no reference."""
    others = sorted({str(each.reference) for each in read.certificates.values() if each.reference != reference})
    if others:
        text = f"it compares with {', '.join(others)}, and in the log the reference is {reference}"
        return Check("reference", False, text)
    return Check("reference", True, f"answers are compared with {reference or 'labels alone'}")


def _whom(certificate: Certificate) -> str:
    return f"{certificate.covers} {certificate.name}: " if certificate.name else ""


def _recomputed(read: PolicyDirectory, certificate: Certificate, mine: Log, logged: Log) -> Check:
    """Check that the requests that certified give the same certificate again."""
    whom, proving, policy = _whom(certificate), covered(mine, certificate.covers, certificate.name), read.policy
    if sha256_of(proving) != certificate.data_sha256:
        return Check("threshold", False, f"{whom}the log has the requests that certify, but their data have changed")
    if certificate.n != proving.n:
        text = f"{whom}it says that {certificate.n:,} requests prove it, and there are {proving.n:,}"
        return Check("threshold", False, text)
    if certificate.promise.rules.reference_keeps_it and certificate.kappa == -np.inf and not certificate.losses:
        return Check("threshold", True, f"{whom}it holds by definition: the reference answers")
    chose = logged.take(among(logged, read.requests.chose))
    if read.requests.chose and chose.n < len(read.requests.chose):
        text = "the requests that put the thresholds in order are not in this log: the order cannot be computed again"
        return Check("threshold", False, f"{whom}{text}")
    points = points_of(policy.walks(chose), certificate.promise) if chose.n else None
    path = path_of(policy.walks(proving), certificate.promise, points)
    certified = certify(path, certificate.promise, certificate.level)
    computed = None if certified is None else (certified.kappa, float(certified.losses))
    if computed == (certificate.kappa, certificate.losses):
        text = f"the {proving.n:,} requests give the same threshold again, {certificate.kappa:.6g}"
        return Check("threshold", True, f"{whom}{text}, with {certificate.losses:g} lost")
    data = "nothing"
    if certified is not None:
        data = f"the threshold {certified.kappa:.6g} with {float(certified.losses):g} lost"
    return Check(
        "threshold", False,
        f"{whom}it says {certificate.kappa:.6g} with {certificate.losses:g} lost, and the data prove {data}",
    )  # fmt: skip


def _on_fresh(read: PolicyDirectory, certificate: Certificate, fresh: Log) -> Check:
    """Test a promise on requests that neither made nor certified the policy."""
    promise = certificate.promise
    played = Served(read.policy, certificate.kappa).play(fresh, promise)
    ended = ~np.isnan(played.length)  # else the log does not say how the request ends
    lost, tested = int(np.floor(played.loss[ended].sum() + 1e-9)), int(np.count_nonzero(ended))
    if not tested:
        return Check("fresh", False, f"{_whom(certificate)}the log lacks a call of every fresh request")
    risk = promise.tested_risk
    if rank := promise.rank(certificate.n):
        p = misses_p_value(lost, tested, certificate.n, rank)
    else:
        p = min(1.0, (1 + promise.rules.graded) * lower_tail(tested - lost, tested, float(1 - Fraction(repr(risk)))))
    low, high = lower_bound(lost, tested, REFUTES), upper_bound(lost, tested, REFUTES)
    word = "refuted" if p <= REFUTES else "not refuted"
    text = f"{lost} of {tested} fresh requests lost: a rate above {low:.4f} and below {high:.4f}, each at 95 %"
    return Check("fresh", p > REFUTES, f"{_whom(certificate)}{text}; a risk of {risk:g} is {word} (p = {p:.3g})")
