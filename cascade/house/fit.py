"""Fit: choose a policy on a log, and certify what it promises. One way for every promise.

Where a walk to the end keeps the promise, a menu of tests shares the level, and all requests certify what learns
nothing (`menu`). Otherwise one policy, named beforehand or learned, is certified: for a set of answers from the
strictest threshold on; for a single answer along points that other requests have put in order (`conformal.order`).

What learns does so on whole groups that certify nothing. How often these requests certified before is counted
(`attempts`). If nothing cheaper than the reference is proven, the reference alone is asked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade.checks import did_you_mean, share_problems
from cascade.conformal.certify import Certified, certify
from cascade.conformal.order import order
from cascade.conformal.path import Path as TestedPath
from cascade.conformal.path import Point, Walks, along, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError, UsageError
from cascade.house.attempts import Attempts, count, level_of
from cascade.house.divide import Parts, Usable, divided, drawn, usable
from cascade.house.drift import Drift, drift
from cascade.house.learned import Learned, learn
from cascade.house.menu import Member, Tested, cheapest, menu, run_tests, simple_members
from cascade.house.policy import Policy
from cascade.house.simple import POLICIES, Alone, Depth, named_policy
from cascade.table import Floats, Ints, Log

AUTO = "auto"
CHOICES = (AUTO, *POLICIES, Learned.kind)
"""What `FitSettings.policy` may be."""
REPLICATES = 400
"""Bootstrap replicates of the saving's interval."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit.

    Attributes:
        policy: "auto", or the kind of policy to certify.
        learns: the share of the groups that learns, or orders points, where that is needed.
        newest: the share of the rows, the newest, that certifies; None: all.
        by_segment: whether each segment gets a certificate of its own.
        abstain: whether answers may be withheld; not for a set.
        seed: decides every draw: the same log, settings and seed give the same policy and certificate.

    Raises:
        UsageError: lists every problem.
    """

    policy: str = AUTO
    learns: float = 0.3
    newest: float | None = None
    by_segment: bool = False
    abstain: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        problems = share_problems(learns=self.learns, newest=self.newest)
        if self.policy not in CHOICES:
            problems.append(f"there is no policy {self.policy!r}{did_you_mean(self.policy, CHOICES)}")
        if problems:
            raise UsageError(f"This cannot be fitted: {'; '.join(problems)}.")


class Saving(NamedTuple):
    """What is spent as a share of the reference's cost, with a 90 % interval; None where the log has no costs.

    Attributes:
        cost_share: the cost of the served policy / that of asking the reference alone, on the certifying requests.
        low, high: the 5 % and 95 % quantiles over a bootstrap of groups, at the fixed threshold.
        requests: how many requests it is a mean of.
    """

    cost_share: float | None
    low: float | None
    high: float | None
    requests: int


@dataclass(frozen=True, slots=True)
class Fit:
    """A policy and what is certified about it: every figure that a report prints, computed once.

    Attributes:
        promise: what was asked for.
        settings: how.
        policy: the policy to serve.
        certified: the proven point of each certificate by name, "" where there is one for all requests; empty for the
            reference alone, which keeps the promise by definition.
        tested: everything that was tested, in order.
        saving: what the served policy costs.
        log: the requests that certify, one of each group.
        learned_from: how many requests learned or ordered points.
        repeated, unknown: rows left out: repeated requests, and those without the reference's answer.
        attempt: the number of this attempt on these requests.
        level: the level that it could spend; None for a promise on average.
        too_small: for certificates by segment, the segments that nothing certifies, with their numbers of requests.
        losses_drift, doubt_drift: trends over the rows of the log; None if none can be computed.
    """

    promise: Promise
    settings: FitSettings
    policy: Policy
    certified: Mapping[str, Certified]
    tested: tuple[Tested, ...]
    saving: Saving
    log: Log = field(repr=False)
    learned_from: int
    repeated: int
    unknown: int
    attempt: Attempts
    level: float | None
    too_small: Mapping[str, int] = field(default_factory=dict)
    losses_drift: Drift | None = None
    doubt_drift: Drift | None = None

    def point_of(self, segment: str | None) -> Point:
        """Return the point at which a request of a segment is served: the strictest where nothing certifies it."""
        name = (segment or "") if self.settings.by_segment else ""
        return self.certified[name].point if name in self.certified else Point(-np.inf)

    @property
    def saves(self) -> bool:
        """Whether it is proven to cost less than the reference alone."""
        return self.saving.cost_share is not None and self.saving.cost_share < 1


def fit(log: Log, promise: Promise, settings: FitSettings | None = None, *, attempts: Path | None = None) -> Fit:
    """Choose and certify a policy.

    Args:
        log: the log, its rows in the order of time.
        promise: what is promised.
        settings: how to fit; see `FitSettings`.
        attempts: the file that counts how often these requests certified (`attempts.place_of`); None: unknown.

    Guarantee: if the requests are independent draws of one kind (on average: exchangeable), every certificate keeps its
    promise with probability 1 − δ over all attempts on these requests (on average: the promise holds).

    Raises:
        UsageError: the log lacks what the promise or the policy needs.
        NotCertifiedError: nothing is proven, and no reference keeps the promise by definition.
    """
    how = settings or FitSettings()
    if how.abstain and promise.rules.of_set:
        raise UsageError(f"Answers are withheld where one is served, and {promise.kind} is about a set.")
    ready = usable(log, promise)
    if how.newest is not None:
        ready = ready._replace(log=ready.log.take(np.arange(round((1 - how.newest) * ready.log.n), ready.log.n)))
    if not ready.log.n:
        raise UsageError(f"{log.name} has no request that {promise.kind} could be about.")
    if promise.rules.safe_last(ready.log) and not how.abstain and not how.by_segment:
        return _from_menu(ready, promise, how, attempts)
    return _from_policy(ready, promise, how, attempts)


def _from_menu(ready: Usable, promise: Promise, how: FitSettings, attempts: Path | None) -> Fit:
    """Certify the members of a menu, and take the cheapest."""
    certifies = drawn(ready.log, how.seed)
    attempt, level = _level(certifies, promise, how, attempts)
    assert level is not None  # noqa: S101 - these promises have a confidence
    learns = _learns(ready.log, how)
    members = _members(certifies, learns, promise, how, level)
    tested = run_tests(certifies, members, promise, level)
    best = cheapest(tested)
    proven = {} if best is None or best.certified is None else {"": best.certified}
    policy = best.policy if best is not None and proven else Alone()
    done = _finished(ready, promise, how, policy, proven, tuple(tested), certifies, attempt, level)
    return replace(done, learned_from=learns.n if any(member.rows is not None for member in members) else 0)


def _learns(log: Log, how: FitSettings) -> Log:
    """Return the requests that may learn: a share of the groups, none of a log of one group."""
    return divided(log, how.learns, how.seed).learns if len(set(log.groups)) > 1 else log.take(np.zeros(0, np.int64))


def _members(certifies: Log, learns: Log, promise: Promise, how: FitSettings, level: float) -> list[Member]:
    if how.policy in (AUTO, Learned.kind):
        members = menu(certifies, learns, promise, level)
        if how.policy == AUTO:
            return members
        learned = [member._replace(share=1.0) for member in members if member.name == Learned.kind]
        if not learned:
            raise UsageError(f"{certifies.name} has too few requests to learn from, or calls that hang together.")
        return learned
    if how.policy == "threshold":
        return simple_members(certifies)
    policy = POLICIES[how.policy].read({}, {})
    return [Member(how.policy, 1.0, lambda: policy)]


def _from_policy(ready: Usable, promise: Promise, how: FitSettings, attempts: Path | None) -> Fit:
    """Certify one policy: for all requests, or for each segment."""
    parts = Parts(ready.log.take(np.zeros(0, dtype=np.int64)), ready.log)
    orders = not promise.rules.of_set and not (promise.rules.safe_last(ready.log) and not how.abstain)
    if orders or how.policy == Learned.kind:
        parts = divided(ready.log, how.learns, how.seed)
    policy = _policy(ready.log, parts.learns, promise, how)
    certifies = drawn(parts.certifies, how.seed, by_segment=how.by_segment)
    attempt, level = _level(certifies, promise, how, attempts)
    points = _points(policy.walks(parts.learns), promise, how) if orders else None
    proven, too_small = dict[str, Certified](), dict[str, int]()
    for name, rows in _segments(certifies, how).items():
        path = _path(policy.walks(certifies.take(rows)), promise, points)
        found = certify(path, promise, level)
        if found is not None and found.silent < found.n:
            proven[name] = found
        else:
            too_small[name] = int(rows.size)
    tested = (Tested(policy.kind, policy, level or 0.0, certifies.n, proven.get(""), None),)
    if not proven and not promise.rules.reference_keeps_it:
        raise NotCertifiedError(
            f"{promise.kind} is not proven at a risk of {promise.risk:g} on {certifies.n} requests: log more of them, "
            "or allow a higher risk."
        )
    served = policy if proven else Alone()
    done = _finished(ready, promise, how, served, proven, tested, certifies, attempt, level)
    return replace(done, learned_from=parts.learns.n, too_small=too_small if how.by_segment else {})


def _policy(log: Log, learns: Log, promise: Promise, how: FitSettings) -> Policy:
    if how.policy == AUTO:
        return named_policy(log) or Depth()
    if how.policy == Learned.kind:
        return learn(learns, promise.rules, promise.tested_risk)
    return POLICIES[how.policy].read({}, {})


def _points(walks: Walks, promise: Promise, how: FitSettings) -> tuple[Point, ...]:
    return order(walks, promise.rules.at_stop(walks), promise.risk, abstain=how.abstain)


def _path(walks: Walks, promise: Promise, points: tuple[Point, ...] | None) -> TestedPath:
    if points is None:
        return strict_to_lenient(walks, promise.rules.jumps(walks))
    return along(walks, promise.rules.at_stop(walks), points)


def _segments(log: Log, how: FitSettings) -> dict[str, Ints]:
    """Return the rows that each certificate is made from, by its name."""
    if not how.by_segment:
        return {"": np.arange(log.n)}
    names = sorted({name for name in log.segments if name is not None})
    if not names:
        raise UsageError(f"{log.name} has no segments: name what requests belong to in its column segment.")
    segments = np.array(log.segments, dtype=object)
    return {name: np.flatnonzero(segments == name) for name in names}


def _level(log: Log, promise: Promise, how: FitSettings, file: Path | None) -> tuple[Attempts, float | None]:
    """Count this attempt, and return the level that it may spend."""
    attempt = count(file, log.ids, _fingerprint(log, promise, how))
    delta = promise.delta
    return attempt, None if delta is None else level_of(attempt.number, delta)


def _fingerprint(log: Log, promise: Promise, how: FitSettings) -> str:
    """Return a hash of everything that decides a fit: the promise, the settings and the log."""
    head = [promise.kind, promise.risk, promise.confidence, promise.rate]
    head += [how.policy, how.learns, how.newest, how.by_segment, how.abstain, how.seed, list(log.nodes), log.ids]
    found = hashlib.sha256(json.dumps(head).encode())
    for name, column in sorted({"answer": log.answer, "right": log.right, **log.signals}.items()):
        found.update(name.encode() + np.ascontiguousarray(column).tobytes())
    found.update(log.cost_nano_usd.tobytes() + log.bought.tobytes() + log.complete.tobytes())
    return found.hexdigest()


def _finished(
    ready: Usable,
    promise: Promise,
    how: FitSettings,
    policy: Policy,
    proven: Mapping[str, Certified],
    tested: tuple[Tested, ...],
    log: Log,
    attempt: Attempts,
    level: float | None,
) -> Fit:
    walked = policy.walks(log)
    kappa = _thresholds(log, proven)
    return Fit(
        promise, how, policy, proven, tested, _saving(walked, kappa, log, how.seed), log, 0, ready.repeated,
        ready.unknown, attempt, level, {}, *_trends(walked, promise),
    )  # fmt: skip


def _thresholds(log: Log, proven: Mapping[str, Certified]) -> Floats:
    """Return the threshold that each request is served at, float64 (n,): where nothing certifies it, the strictest."""
    if set(proven) <= {""}:
        return np.full(log.n, proven[""].point.kappa if proven else -np.inf)
    each = {name: certified.point.kappa for name, certified in proven.items()}
    return np.array([-np.inf if name is None else each.get(name, -np.inf) for name in log.segments])


def _saving(walked: Walks, kappa: Floats, log: Log, seed: int) -> Saving:
    """Return the cost share with a bootstrap interval over groups."""
    if log.reference is None or not log.priced.any():
        return Saving(None, None, None, 0)
    spent = walked.cost.at(kappa)
    priced = log.priced
    ours, alone = spent[priced].astype(np.float64), log.reference.cost_nano_usd[priced].astype(np.float64)
    if not alone.sum():
        return Saving(None, None, None, 0)
    weights = np.random.default_rng([seed, 7]).multinomial(ours.size, np.full(ours.size, 1 / ours.size), REPLICATES)
    shares = (weights @ ours) / (weights @ alone)
    low, high = np.quantile(shares, [0.05, 0.95]).tolist()
    return Saving(float(ours.sum() / alone.sum()), low, high, int(ours.size))


def _trends(walked: Walks, promise: Promise) -> tuple[Drift | None, Drift | None]:
    """Return the trends of the losses at the first place to stop, and of the doubt there, over the rows."""
    if walked.log.width < 2 or promise.rules.of_set:
        return None, None
    first = promise.rules.at_stop(walked)[:, 0]
    doubt = np.where(np.isfinite(walked.reach[:, 1]), walked.reach[:, 1], np.nan)
    return drift(first), drift(doubt)
