"""Fit: choose a policy on a log and certify its promise, in the same way for every kind of promise.

If a walk to the end keeps the promise, the tests of a menu share the significance level, and all requests certify what
learns nothing (`menu`). Otherwise one policy, named beforehand or learned, is certified: for a set of answers from the
strictest threshold on; for a single answer at points that other requests have put in order (`conformal.certify`).

A policy learns from whole groups that do not certify it. How often these requests certified before is counted
(`attempts`). If nothing cheaper than the reference is proven, only the reference is asked.

With levels, one policy is certified at the risk of each. The tests of each have the whole significance level to
share, so each certificate by itself keeps its promise with probability 1 − δ. The policy is chosen for the default
level or, if nothing is proven there, for the strictest level at which something is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Any, cast

import numpy as np

from cascade.checks import did_you_mean, refuse, share_problems, whole_problems
from cascade.conformal.binomial import most_losses
from cascade.conformal.certificate import plain
from cascade.conformal.certify import Certified, certify, path_of, points_of, spent
from cascade.conformal.path import UNITS
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError, UsageError
from cascade.fitting.attempts import Attempts, count, fingerprint
from cascade.fitting.divide import Split, Usable, divided, drawn, usable
from cascade.fitting.menu import (
    Member,
    MemberResult,
    cheapest,
    cost_share,
    levels,
    menu,
    reference_costs,
    run_tests,
    simple_members,
)
from cascade.policies.directory import ROOMS, gather
from cascade.policies.live import refuse_unlike_live
from cascade.policies.policy import (
    KNOWN,
    LEARNED,
    NETWORKS,
    POLICIES,
    Depth,
    Policy,
    ReferenceOnly,
    Threshold,
    known_score,
    score_policy,
    tie_of,
)
from cascade.table import Floats, Ints, Log

AUTO, RUNGS = "auto", "rungs"
"""The menu, or the score named beforehand; and one threshold per rung, all learned together."""
LEARNERS = (LEARNED, RUNGS, *NETWORKS)
"""The kinds that learn from requests."""
CHOICES = (AUTO, *POLICIES, *LEARNERS)
"""The kinds that `FitSettings.policy` may name."""
OWN = replace(ROOMS, by_place=True)
"""The policies that `fit` takes by name, including a user's class as "module:Class", which a directory cannot name."""
LOG_COSTS = (
    "Log what calls cost (NAME_cost_usd in a flat table, else cost_nano_usd), or import again with --cost MODEL=USD."
)
_UNCERTIFIED = "CPO and CPO online have no threshold to certify: fit cpo_batch or ccpo; compare --networks 1000 has all"
_POINTS = frozenset({"threshold", "depth", "probability"})
_SET_BY_HAND = ": fit finds it. To set it by hand, put the policy into cascade.yaml"
_FAR = 5.0
"""In standard errors: a share further than this from the rate is not due to chance."""
_MOST_DAYS = 365_000
LEAST_GROUPS = 6
"""With fewer groups there is no interval: by chance, n differences all have one sign with probability 2^(1 − n)."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """How to fit.

    Attributes:
        policy: auto, a kind of policy, a kind with its settings as in {kind: ccpo, steps: 300}, or a policy directory
            that is certified again. In Python also a policy.
        train_share: the share of the groups that a policy learns from, or that orders points, if that is needed.
        newest: the share of the rows that is used, the newest; all by default.
        by_segment: certify each segment by itself.
        levels: certify the policy at several risks, of which a request names one, as in low=0.1,high=0.02. The default
            is the highest that is not above the risk of the promise, or else the lowest.
        expires_days: the days after which the certificates expire; never by default.
        seed: decides every draw: the same log, settings and seed give the same policy and certificates.

    Raises:
        UsageError: lists every problem.

    >>> FitSettings(levels="low=0.1,high=0.02").levels
    {'low': 0.1, 'high': 0.02}
    """

    policy: str | Mapping[str, Any] | Policy = AUTO
    train_share: float = 0.3
    newest: float | None = None
    by_segment: bool = False
    levels: str | Mapping[str, float] | None = None
    expires_days: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        problems, policy = share_problems(train_share=self.train_share, newest=self.newest), cast("object", self.policy)
        problems += whole_problems(seed=self.seed)
        if isinstance(self.levels, str):
            object.__setattr__(self, "levels", _levels(self.levels, problems))
        risks = self.risks
        problems += [
            f"level {name}: {problem}" for name, risk in risks.items() for problem in share_problems(risk=risk)
        ]
        if len(set(risks.values())) < len(risks) or len(risks) == 1 or "" in risks:
            problems.append("there must be two levels, each with a name, and no two with the same risk")
        if risks and self.by_segment:
            problems.append("certificates are by level or by segment, not both")
        if isinstance(policy, str | Mapping):
            kind = self.kind
            folder = isinstance(policy, str) and Path(policy).is_dir()
            try:
                if kind not in CHOICES and not folder and OWN.find(kind) is None:
                    unknown = f"there is no policy {kind!r}{did_you_mean(kind, CHOICES)}"
                    problems.append(_UNCERTIFIED if kind.lower() in {"cpo", "cpo_online"} else unknown)
            except UsageError as error:  # the class cannot be imported, or is none
                problems.append(str(error).removesuffix("."))
            problems += _option_problems(kind, self.options)
        elif not isinstance(policy, Policy):
            problems.append(f"a policy is a kind, with its settings or without, or a Policy, not {policy!r}")
        if self.expires_days is not None and self.expires_days not in range(_MOST_DAYS):
            problems.append(f"a certificate expires after 0 days or more, less than {_MOST_DAYS:,}")
        refuse(problems, "This cannot be fitted")

    @property
    def risks(self) -> Mapping[str, float]:
        """The risk of each level by name; empty without levels."""
        return self.levels if isinstance(self.levels, Mapping) else {}

    @property
    def kind(self) -> str:
        """The kind of policy requested; for a directory, its path."""
        if isinstance(self.policy, Policy):
            return self.policy.kind
        return self.policy if isinstance(self.policy, str) else str(self.policy.get("kind", self.policy))

    @property
    def options(self) -> dict[str, Any]:
        """The settings of the policy; empty if only its kind is requested."""
        section = self.policy if isinstance(self.policy, Mapping) else dict[str, Any]()
        return {name: value for name, value in section.items() if name != "kind"}

    @property
    def learner(self) -> bool:
        """Whether the policy has yet to be learned from requests."""
        return not isinstance(self.policy, Policy) and self.kind in LEARNERS

    def default(self, promise: Promise) -> str:
        """Return the level of a request that names none; "" without levels.

        It is the most lenient level whose risk is within the promise's, or the strictest if there is none.
        """
        within = {name: risk for name, risk in self.risks.items() if risk <= promise.risk}
        return (
            max(within, key=within.__getitem__) if within else min(self.risks, key=self.risks.__getitem__, default="")
        )


def _option_problems(kind: str, options: Mapping[str, Any]) -> list[str]:
    """Return the problems with settings, as far as they are known before the fit counts as an attempt."""
    problems = list[str]()
    if kind in NETWORKS:
        from cascade.policies.networks import NetworkSettings

        with gather(problems, ""):
            NetworkSettings(**options)
    elif kind in CHOICES:
        names = [entry.name for entry in fields(cast("Any", POLICIES[kind]))] if kind in POLICIES else []
        hints = {name: _SET_BY_HAND if name in _POINTS else did_you_mean(name, names) for name in options}
        problems += [f"{kind} has no setting {name}{hint}" for name, hint in hints.items() if name not in names]
    return problems


def _levels(text: str, problems: list[str]) -> dict[str, float]:
    """Return the risks of levels by name; add what cannot be read to `problems`."""
    risks = dict[str, float]()
    for entry in text.split(","):
        name, _, risk = (word.strip() for word in entry.partition("="))
        if not name or name in risks:
            problems.append(f"each level has a name of its own, as in low=0.1,high=0.02, not {entry!r}")
        try:
            risks[name] = float(risk)
        except ValueError:
            problems.append(f"levels are written as in low=0.1,high=0.02, not {entry!r}")
    return risks


@dataclass(frozen=True)
class Saving:
    """The cost of the served policy and of asking only the reference, on all requests of the certifying groups.

    Attributes:
        spent, alone: the cost of the policy and of the reference, nano-USD, float64, by group; empty if unknown.
        requests: the number of requests with known costs, over which they are sums.
        choices: the number of certified members from which the served one, the cheapest, was chosen on these requests.
    """

    spent: Floats
    alone: Floats
    requests: int
    choices: int = 1

    @property
    def cost_share(self) -> float | None:
        """The policy's cost as a share of the reference's; None if it is unknown."""
        return float(self.spent.sum() / self.alone.sum()) if self.spent.size else None

    @cached_property
    def interval(self) -> tuple[float, float] | None:
        """The two-sided 90 % interval of that share over groups at the fixed threshold; None if too few groups pay.

        Normal, by the delete-one jackknife (Efron & Stein, 1981), in which groups count by their cost; one more group
        that costs nothing, or as much as the reference, is added: if almost none goes on, the others show no spread.
        The cheapest of several looks too cheap, so the upper end holds for all choices at once (Bonferroni).
        """
        share, paid = self.cost_share, np.count_nonzero(self.alone > 0)
        if share is None or paid < LEAST_GROUPS:
            return None
        apart = (self.spent - share * self.alone) / (self.alone.sum() - self.alone)
        half = math.sqrt(1 - 1 / paid) * math.hypot(float(np.linalg.norm(apart)), max(share, 1 - share) / paid)
        down, up = (NormalDist().inv_cdf(1 - 0.05 / many) for many in (1, self.choices))
        return max(0.0, share - down * half), share + up * half


@dataclass(frozen=True, slots=True, repr=False)
class Fit:
    """A policy and what is certified about it: every figure that a report prints, computed once.

    Attributes:
        promise: the requested promise; with levels, that of the default level.
        settings: how the fit was made.
        policy: the policy to serve.
        certified: the proven point of each certificate by name, "" if it is for all requests; empty for the reference
            alone, which keeps the promise by definition.
        tested: everything that was tested, in order; with levels, at the one that the policy was chosen for.
        saving: the cost of the served policy; with levels, at the default one.
        cost_shares: the cost of the requests of each certificate as a share of the reference's; None if unknown.
        log: the requests that certify, one of each group.
        fitted, chose: the ids of the requests that the policy learned from, and of those that put points in order.
        requests: how many requests the certifying groups have; `log` has one of each group.
        lost: the share of these requests that is lost when served by the policy, 0..1; None without a certificate.
        repeated, unknown: rows left out: repeated requests, and those without the reference's answer.
        attempt: which attempt on these requests it was, and the level that it could spend.
        default: the level of a request that names none; "" without levels.
        too_small: for certificates by segment, the segments that nothing certifies, with their numbers of requests.
    """

    promise: Promise
    settings: FitSettings
    policy: Policy
    certified: Mapping[str, Certified]
    tested: tuple[MemberResult, ...]
    saving: Saving
    cost_shares: Mapping[str, float | None]
    log: Log
    fitted: tuple[str, ...]
    chose: tuple[str, ...]
    requests: int
    lost: float | None
    repeated: int
    unknown: int
    attempt: Attempts
    default: str
    too_small: Mapping[str, int]

    def __repr__(self) -> str:
        return f"Fit({self.promise}, {self.policy.kind}, cost_share={self.saving.cost_share}, requests={self.log.n})"

    @property
    def saves(self) -> bool:
        """Whether the policy costs less than the reference alone on these requests."""
        return self.saving.cost_share is not None and self.saving.cost_share < 1

    @property
    def learned_from(self) -> int:
        """How many requests learned or put points in order."""
        return len({*self.fitted, *self.chose})


def fit(log: Log, promise: Promise, settings: FitSettings | None = None, *, attempts: Path | None = None) -> Fit:
    """Choose and certify a policy.

    Args:
        log: the log, its rows in the order of time.
        promise: what is promised.
        settings: how to fit; see `FitSettings`.
        attempts: the file that counts how often these requests certified (`attempts.place_of`); None: unknown.

    Guarantee: if the requests are i.i.d., each certificate keeps its promise with probability 1 − δ, counting all
    attempts on these requests. A promise on average needs only exchangeable requests, and then holds on average.

    Raises:
        UsageError: the log lacks what the promise or the policy needs.
        NotCertifiedError: nothing is proven, and no reference keeps the promise by definition; or no cost is known,
            which is found before the fit counts as an attempt.
    """
    settings = settings or FitSettings()
    promise = replace(promise, risk=settings.risks.get(settings.default(promise), promise.risk))
    ready = usable(log, promise)
    if settings.newest is not None:
        ready = ready._replace(log=ready.log.take(np.arange(round((1 - settings.newest) * ready.log.n), ready.log.n)))
    if not ready.log.n:
        raise UsageError(f"{log.name} has no request that {promise.kind} could be about.")
    _check_drawn(ready.log, promise)
    if promise.rules.safe_last(ready.log) and not settings.by_segment:
        if not reference_costs(ready.log).sum():  # then nothing is known to cost less
            lacking = [
                node.name for node, cost in zip(log.nodes, ready.log.cost_nano_usd.T, strict=True) if max(cost) < 0
            ]
            lack = f"costs of {', '.join(lacking)} are unknown" if lacking else "reference has no known cost above 0"
            raise NotCertifiedError(f"The {lack} in {log.name}: nothing is known to cost less. {LOG_COSTS}")
        return _from_menu(ready, promise, settings, attempts)
    return _from_policy(ready, promise, settings, attempts)


def _check_drawn(log: Log, promise: Promise) -> None:
    """Raise UsageError if people judged another share of the requests than the promise says."""
    if log.drawn is None:
        return
    share, spread = float(log.drawn.mean()), math.sqrt(promise.rate * (1 - promise.rate) / log.n)
    if abs(share - promise.rate) > _FAR * spread:
        raise UsageError(
            f"A share of {share:.3g} of the requests of {log.name} was drawn for people to judge, but the promise "
            f"assumes a rate of {promise.rate:g}: name the rate at which they were drawn."
        )


def promises(promise: Promise, settings: FitSettings) -> Mapping[str, Promise]:
    """Return the promise of each level by name; without levels, the promise itself as ""."""
    return {name: replace(promise, risk=risk) for name, risk in settings.risks.items()} or {"": promise}


def _from_menu(ready: Usable, promise: Promise, settings: FitSettings, attempts: Path | None) -> Fit:
    """Certify the members of a menu and choose the cheapest."""
    calibration, training = drawn(ready.log, settings.seed), ready.log.take(np.zeros(0, np.int64))
    if any(group != ready.log.groups[0] for group in ready.log.groups):
        training = divided(ready.log, settings.train_share, settings.seed).training
    risks = promises(promise, settings)

    def spends(level: float) -> float:
        members = _members(calibration, training, promise, settings, level)
        return max(levels(calibration.n, members, at, level)[1] for at in risks.values())

    attempt = _counted(ready.log, promise, settings, attempts, spends)
    level = attempt.level
    assert level is not None  # noqa: S101 - these promises have a confidence
    members = [
        member._replace(make=cache(member.make)) for member in _members(calibration, training, promise, settings, level)
    ]
    tested = {name: run_tests(calibration, ready.log, members, at, level) for name, at in risks.items()}
    listed = tested[settings.default(promise)]
    in_turn = [listed, *(tested[name] for name in sorted(settings.risks, key=settings.risks.__getitem__))]
    listed = next((tests for tests in in_turn if cheapest(tests) is not None), listed)
    best = cheapest(listed)
    if best is None or best.certified is None:
        return _finished(ready, promise, settings, ReferenceOnly(), {}, listed, calibration, attempt)
    position = listed.index(best)
    each_level = {name: tests[position].certified for name, tests in tested.items()}
    proven = {name: certified for name, certified in each_level.items() if certified is not None}
    rows = members[position].rows
    proving = calibration if rows is None else calibration.take(rows)
    done = _finished(ready, promise, settings, best.policy, proven, listed, proving, attempt)
    return done if rows is None else replace(done, fitted=training.ids)


def _members(calibration: Log, training: Log, promise: Promise, settings: FitSettings, level: float) -> list[Member]:
    if settings.policy == AUTO:
        return menu(calibration, training, promise, level)
    if settings.policy == Threshold.kind:
        return simple_members(calibration)
    if not settings.learner:  # made now, so that a policy that cannot be made is not counted as a fit
        policy = _policy(calibration, training, promise, settings, promise.tested_risk)
        return [Member(settings.kind, 1.0, lambda: policy)]
    rows = np.flatnonzero(~calibration.in_groups(set(training.groups)))
    allowed = max((most_losses(rows.size, promise.tested_risk, level) or 0) / rows.size, promise.tested_risk / 3)
    return [Member(settings.kind, 1.0, lambda: _policy(calibration, training, promise, settings, allowed), rows)]


def _from_policy(ready: Usable, promise: Promise, settings: FitSettings, attempts: Path | None) -> Fit:
    """Certify one policy: for all requests, for each segment, or for each level."""
    orders = not promise.rules.of_set and not promise.rules.safe_last(ready.log)
    division = Split(ready.log.take(np.zeros(0, dtype=np.int64)), ready.log)
    if orders or settings.learner:
        division = divided(ready.log, settings.train_share, settings.seed)
    policy = _policy(ready.log, division.training, promise, settings, promise.tested_risk)
    calibration = drawn(division.calibration, settings.seed, by_segment=settings.by_segment)
    segments, risks = _segments(calibration, settings), promises(promise, settings)

    def spends(level: float) -> float:
        return max(spent(rows.size, at, level) for rows in segments.values() for at in risks.values())

    attempt = _counted(ready.log, promise, settings, attempts, spends)
    ordering = policy.walks(division.training) if orders else None
    proven, too_small = dict[str, Certified](), dict[str, int]()
    for level_name, at in risks.items():
        points = None if ordering is None else points_of(ordering, at)
        for segment, rows in segments.items():
            certified = certify(path_of(policy.walks(calibration.take(rows)), at, points), at, attempt.level)
            if certified is not None:
                proven[level_name or segment] = certified
            else:
                too_small[level_name or segment] = int(rows.size)
    default = settings.default(promise)
    tested = (MemberResult(policy.kind, policy, attempt.level or 0.0, calibration.n, proven.get(default), None),)
    if not promise.rules.reference_keeps_it and (not proven or default not in {"", *proven}):
        text = f"{promise.kind} is not proven at a risk of {promise.risk:g} on {calibration.n} requests"
        elsewhere = f"; it is at {', '.join(proven)}" if proven else ""
        raise NotCertifiedError(f"{text}{elsewhere}: log more of them, or allow a higher risk.")
    done = _finished(ready, promise, settings, policy, proven, tested, calibration, attempt)
    learned, chose = (division.training.ids if used else () for used in (settings.learner, orders))
    return replace(done, fitted=learned, chose=chose, too_small=too_small if settings.by_segment else {})


def _policy(log: Log, training: Log, promise: Promise, settings: FitSettings, allowed: float) -> Policy:
    """Return the requested policy; one that learns may lose a share `allowed` of requests on average.

    Raises:
        UsageError: the log lacks what it reads or learns from, its settings are wrong, or it is a user's policy that
            scores live requests differently from those of a log.
    """
    own = settings.policy
    policy = own if isinstance(own, Policy) else _built(log, training, promise, settings, allowed)
    if hidden := log.hidden & {*policy.reads, getattr(policy, "tie", None)}:
        raise UsageError(f"The policy reads {', '.join(hidden)}, which may show what {promise.kind} loses.")
    policy.refuse_lacking(log)
    refuse_unlike_live(policy, log, settings.seed)
    return policy


def _built(log: Log, training: Log, promise: Promise, settings: FitSettings, allowed: float) -> Policy:
    """Return the policy that settings name.

    Raises:
        UsageError: lists every problem of its settings.
    """
    kind, options, problems = settings.kind, settings.options, list[str]()
    named_score, simple = known_score(log), score_policy(log)
    if kind in NETWORKS:
        from cascade.policies.networks import NetworkSettings, train

        return train(training, promise, kind, NetworkSettings(**options), settings.seed)
    if kind == RUNGS and named_score is None:
        raise UsageError(f"{log.name} has no signal of a known meaning, which thresholds could read.")
    if kind in LEARNERS:
        from cascade.policies.learned import learn

        signals = (named_score.signal,) if named_score and kind == RUNGS else None
        return learn(training, promise.rules, allowed, signals=signals)
    if kind == AUTO or (kind == Threshold.kind and not options and simple is not None):
        return simple or Depth()
    if kind == Threshold.kind:
        signs = {score.signal: {"sign": score.sign} for score in KNOWN}
        options = {"tie": tie_of(log), **signs.get(str(options.get("signal")), {}), **options}
    room = OWN.find(kind)
    assert room is not None  # noqa: S101 - `FitSettings` has checked the kind
    with gather(problems, ""):
        return room.read(options, {})
    raise UsageError(f"The policy {kind} cannot be made of {settings.options}: {'; '.join(problems)}.")


def _segments(log: Log, settings: FitSettings) -> dict[str, Ints]:
    """Return the rows from which each certificate is made, by its name."""
    if not settings.by_segment:
        return {"": np.arange(log.n)}
    names = sorted({name for name in log.segments if name})  # an empty name is no segment
    if not names:
        raise UsageError(f"{log.name} has no segments: name what requests belong to in its column segment.")
    segments = np.array(log.segments, dtype=object)
    return {name: np.flatnonzero(segments == name) for name in names}


def _counted(
    log: Log, promise: Promise, settings: FitSettings, file: Path | None, spends: Callable[[float], float]
) -> Attempts:
    """Count this attempt on the log's requests.

    Only the same fit of the same log is the same attempt. `spends` returns how much of a level its tests use.
    """
    delta = promise.delta
    named_kind = None if isinstance(settings.policy, Policy) else ROOMS.find(settings.kind)
    kind = type(settings.policy) if isinstance(settings.policy, Policy) else named_kind
    asked_for = {name: value for name, value in plain(settings).items() if name not in {"policy", "expires_days"}}
    attempt = count(
        file,
        log.ids,  # another seed draws other requests of the same groups, which are the same evidence
        fingerprint(log, promise, settings.policy, (kind, type(promise.rules)), **asked_for),
        lambda share: share if delta is None else spends(share * delta) / delta,
    )
    return attempt._replace(level=None if delta is None else attempt.share * delta)


def _finished(
    ready: Usable, promise: Promise, settings: FitSettings, policy: Policy, proven: Mapping[str, Certified],
    tested: Sequence[MemberResult], log: Log, attempt: Attempts,
) -> Fit:  # fmt: skip
    """Return the fit, with its cost and losses on the groups that certify; without a proof it asks the reference."""
    default, policy = settings.default(promise), policy if proven else ReferenceOnly()
    every = ready.log if ready.log.n == log.n else ready.log.take(ready.log.in_groups(set(log.groups)))
    walked = policy.walks(every)
    kappa = thresholds(every, proven, by_segment=settings.by_segment, default=default)
    uncertified, kappa = np.isnan(kappa), np.fmax(kappa, -np.inf)
    lost = float(promise.rules.jumps(walked).at(kappa).mean() / UNITS) if proven else None
    costs = walked.cost.at(kappa)
    if every.reference is not None and (settings.by_segment or promise.rules.reference_keeps_it):
        costs = np.where(uncertified, every.reference.cost_nano_usd, costs)  # the reference is asked at once
    choices, parts = max(1, sum(member.certified is not None for member in tested)), _segments(every, settings)
    rows = {name: parts[name if settings.by_segment else ""] for name in proven}
    shares = {name: cost_share(walked.take(at), proven[name].kappa, every.take(at)) for name, at in rows.items()}
    return Fit(
        promise, settings, policy, proven, tuple(tested), _saving(costs, every, choices), shares, log, (), (), every.n,
        lost, ready.repeated, ready.unknown, attempt, default, {},
    )  # fmt: skip


def thresholds(log: Log, proven: Mapping[str, Certified], *, by_segment: bool, default: str) -> Floats:
    """Return the threshold at which each request is served, float64 (n,); NaN where nothing certifies it."""
    names = [segment or "" for segment in log.segments] if by_segment else [default] * log.n
    return np.array([proven[name].kappa if name in proven else np.nan for name in names])


def _saving(costs: Ints, log: Log, choices: int) -> Saving:
    """Return, by group, the cost of the served answers and the cost of asking only the reference."""
    rows, alone = log.priced, reference_costs(log)
    if not alone.sum():
        return Saving(np.zeros(0), np.zeros(0), 0)
    number = {name: at for at, name in enumerate(dict.fromkeys(log.groups))}
    group = np.fromiter(map(number.__getitem__, log.groups), np.int64, log.n)[rows]
    spent, by_reference = (np.asarray(np.bincount(group, cost), dtype=np.float64) for cost in (costs[rows], alone))
    return Saving(spent, by_reference, int(group.size), choices)
