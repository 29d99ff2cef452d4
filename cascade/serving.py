"""How questions are served under a certificate, and what audits tell of it: the state, and the decisions on it.

Nobody is asked here. `Serving.order` says how one question is to be run; `Serving.record` takes what became known of an
answer. A certificate that does not hold for this configuration, or not any more, is not handed out: the answer
says why, or nothing is served where one is required. After an alarm a fallback serves until a new certificate comes.
"""

from __future__ import annotations

import functools
import itertools
import math
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from logging import getLogger
from typing import TYPE_CHECKING, NamedTuple

from cascade.config import CascadeConfig
from cascade.conformal.audits import AuditPlan
from cascade.conformal.guarantee import KINDS, UNWATCHED, of_group
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.truth import Judge, Truth, critical_of, missed_in_set, served_wrong
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.policies.base import Policy
from cascade.policies.fixed import FixedPolicy
from cascade.sections import AuditConfig, GuaranteeConfig
from cascade.strategies.base import Strategy
from cascade.strategies.base_guide import BaseGuide
from cascade.strategies.ladder import Ladder
from cascade.types import Answer, Certificate, Question

if TYPE_CHECKING:
    from cascade.conformal.monitor import Monitor
    from cascade.conformal.online import OnlineThreshold
    from cascade.policies.artifact import PolicyArtifact
    from cascade.policies.calibrated import CalibratedPolicy

logger = getLogger("cascade")

CALIBRATE = "make one with: cascade calibrate EPISODES --policy … -o DIR, and name it: policy: DIR"


def today_utc() -> date:
    """Return today's date, UTC."""
    return datetime.now(UTC).date()


class Order(NamedTuple):
    """How one question is to be run.

    `walk` is its name on record where it is not run by the strategy configured; `level` that of the policy's levels.
    """

    strategy: Strategy
    policy: Policy
    certificate: Certificate | None = None
    abstain_below: float | None = None
    audit: bool = False
    warnings: tuple[str, ...] = ()
    walk: str | None = None
    level: str | None = None


class Place(NamedTuple):
    """Which level of a policy is served, None for one without, and among how many: they share the monitors' level."""

    level: str | None = None
    among: int = 1


@dataclass(frozen=True, slots=True)
class _Watch:
    """What audits have told of one certificate. `alarm` says in words what they found."""

    monitor: Monitor | None = None
    online: OnlineThreshold | None = None
    alarm: str | None = None

    def after(self, certificate: Certificate, missed: bool, critical: float | None) -> _Watch:
        """Return what is known after one more audit.

        Args:
            certificate: whose promise it is about.
            missed: whether the question was missed as it was served.
            critical: the question's critical value, where a threshold follows the audits: it tells whether a threshold
                misses the question. The monitor speaks of the certified one, whatever served meanwhile.
        """
        certified = missed if critical is None else not (critical > -math.inf and certificate.kappa <= critical)
        monitor = None if self.monitor is None else self.monitor.update(certified)
        online, alarm = self.online, None
        if online is not None:
            online = online.update(missed if critical is None else online.missed(critical))
        if monitor is not None and monitor.alarmed:
            from cascade.conformal.certificate import percent

            share = percent(certificate.alpha or 0.0)
            alarm = (
                f"it was withdrawn: audits found {monitor.misses} of {monitor.audits} questions missed, and at most "
                f"{share} were promised; calibrate again"
            )
        return _Watch(monitor, online, alarm)


NO_WATCH, NO_LEVELS = _Watch(), Place()


class _Draws:
    """Which questions are audited: by chance alone, in the order in which they come."""

    def __init__(self, asked: AuditConfig | None) -> None:
        seed = secrets.randbits(64) if asked is None or asked.seed is None else asked.seed
        self._plan = None if asked is None else AuditPlan(asked.probability, seed)
        self._numbers = itertools.count()

    def drawn(self) -> bool:
        """Whether the next question is audited."""
        return self._plan is not None and self._plan.draw(next(self._numbers))


@dataclass(frozen=True, slots=True)
class Held:
    """What is certified: the policy, its certificates by group, and by their ids why they do not hold here, if so.

    `directory` says whether the policy comes from a policy directory. The questions in it are not kept in memory.
    """

    config: CascadeConfig
    place: Place
    policy: Policy
    directory: bool
    certificates: Mapping[str | None, Certificate]
    voided: Mapping[str, tuple[str, ...]]


class Serving:
    """The certificates of a policy in service. It may be shared between threads.

    Args:
        config: the configuration.
        strategy: the strategy that it describes.
        policy: the policy that it describes, at its certified threshold where there is one.
        artifact: what is certified; None for a policy that comes from no policy directory.
        place: which level it is, of a policy that has some.
        today: the clock.

    Raises:
        NotCertifiedError: a certificate is required, and one that holds is not there.
        ConfigError: what is to be watched cannot be, with this kind of certificate.
    """

    def __init__(
        self,
        config: CascadeConfig,
        strategy: Strategy,
        policy: Policy,
        artifact: PolicyArtifact | None,
        *,
        place: Place = NO_LEVELS,
        today: Callable[[], date] = today_utc,
    ) -> None:
        self._wanted = config.guarantee or GuaranteeConfig()
        self._strategy = strategy
        self._today = today
        self._lock = threading.Lock()
        self._watches: dict[str, _Watch] = {}
        self._audits = _Draws(self._wanted.audit)
        self._held = self.checked(config, policy, artifact, place)

    def checked(
        self, config: CascadeConfig, policy: Policy, artifact: PolicyArtifact | None, place: Place = NO_LEVELS
    ) -> Held:
        """Return what is certified, after looking at whether it holds here. Raises as when made."""
        certificates = () if artifact is None else artifact.certificates
        voided: dict[str, tuple[str, ...]] = {}
        if certificates:
            from cascade.calibration.holding import voids, watch_problems

            problems = list(watch_problems(self._wanted, certificates))
            if problems:
                raise ConfigError(problems)
            voided = {one.calibration_id: tuple(voids(config, one)) for one in certificates}
        held = Held(config, place, policy, artifact is not None, {one.group: one for one in certificates}, voided)
        if self._wanted.required:
            reasons = [said for one in certificates for said in self._reasons(held, one)]
            if not certificates:
                reasons = [f"the policy has none; {CALIBRATE}"]
            if reasons:
                raise NotCertifiedError(_refusal(dict.fromkeys(reasons)))
        return held

    def install(self, held: Held) -> None:
        """Serve what was `checked` from now on; what audits told of certificates that stay is kept."""
        with self._lock:
            self._watches = {name: watch for name, watch in self._watches.items() if name in held.voided}
            self._held = held

    @property
    def withdrawn(self) -> frozenset[str]:
        """The ids of the certificates that audits raised an alarm about."""
        return frozenset([name for name, watch in self._watches.items() if watch.alarm is not None])

    @property
    def policy(self) -> Policy:
        """The policy in service, at the threshold for questions without a group."""
        return self._held.policy

    @property
    def holding(self) -> tuple[tuple[Certificate, tuple[str, ...]], ...]:
        """The certificates, each with why it does not hold here today; nothing where it holds."""
        held = self._held
        return tuple([(one, self._reasons(held, one)) for one in held.certificates.values()])

    # --- serving ---

    def order(self, question: Question) -> Order:
        """Return how a question is to be run.

        Raises:
            NotCertifiedError: a certificate is required, and none holds any more.
        """
        held, audit = self._held, self._audits.drawn()
        certificate = of_group(held.certificates, question.group)
        watch = NO_WATCH if certificate is None else self._watches.get(certificate.calibration_id, NO_WATCH)
        reasons = self._reasons(held, certificate, question.group)
        if watch.alarm is not None:
            reasons = (*reasons, watch.alarm)
        if reasons and self._wanted.required:
            raise NotCertifiedError(_refusal(reasons))
        warnings = tuple([f"no certificate: {said}" for said in reasons])
        if watch.alarm is not None and certificate is not None:
            strategy, fallback = fallback_of(self._wanted.monitor.fallback, certificate.kind, self._strategy)
            if strategy is not self._strategy:  # no audit of it tells anything about the strategy configured
                return Order(strategy, fallback, warnings=warnings, walk=LAST_ONLY, level=held.place.level)
            return Order(strategy, fallback, audit=audit, warnings=warnings, level=held.place.level)
        policy = _policy_for(held.policy, question.group, watch.online)
        below: float | None = getattr(policy, "abstain_below", None)
        shown = None if reasons else certificate
        return Order(self._strategy, policy, shown, below, audit, warnings, level=held.place.level)

    def _reasons(self, held: Held, certificate: Certificate | None, group: str | None = None) -> tuple[str, ...]:
        """Return why an answer cannot be given a certificate today."""
        if certificate is None:
            if held.config.guarantee is None and not held.directory:
                return ()
            whom = "the policy has none" if group is None else f"the policy has none for the group {group!r}"
            return (f"{whom}; {CALIBRATE}",)
        reasons = held.voided[certificate.calibration_id]
        if certificate.expires is not None:
            from cascade.conformal.certificate import expired

            if expired(certificate, self._today()):
                reasons = (*reasons, f"it expired on {certificate.expires}; calibrate again")
        return reasons

    # --- audits ---

    @property
    def alarm(self) -> str | None:
        """What the audits found that withdrew a certificate, in words; None while all is well."""
        return next((watch.alarm for watch in self._watches.values() if watch.alarm is not None), None)

    @property
    def monitors(self) -> dict[str | None, Monitor]:
        """The monitors that have seen an audit, by the group that their certificate speaks of."""
        watches = self._watches
        found = {group: watches.get(one.calibration_id) for group, one in self._held.certificates.items()}
        return {group: watch.monitor for group, watch in found.items() if watch and watch.monitor}

    def record(self, answer: Answer, right: Judge, reference_right: bool | None = None) -> Truth:
        """Take what is true of an answer. Raises as `Orchestrator.record_truth` does."""
        certificate = answer.certificate
        if not answer.audited:
            return Truth(None, counted=False, says="it was not drawn for an audit")
        if certificate is None:
            return Truth(None, counted=False, says="it was given without a certificate")
        if not KINDS[certificate.kind].monitored:
            return Truth(None, counted=False, says=f"{certificate.kind} is no promise on single questions")
        right = functools.cache(right)  # to judge may cost money
        missed = self._missed(certificate.kind, answer, right, reference_right)
        if missed is None:
            return Truth(None, counted=False, says="no step has a right answer, and the promise speaks of others only")
        critical = None if self._wanted.online is None else critical_of(answer, right, complete=self._complete(answer))
        return self._count(certificate, missed, critical)

    def _complete(self, answer: Answer) -> bool:
        """Whether all steps were run that the strategy has."""
        return bool(answer.steps) and (answer.steps[-1].final or answer.steps[-1].number >= self._strategy.horizon)

    def _missed(self, kind: str, answer: Answer, right: Judge, reference_right: bool | None) -> bool | None:
        if KINDS[kind].speaks_of != "single":
            return missed_in_set(answer, right, complete=self._complete(answer), only_solvable=kind == "solvable")
        wrong = served_wrong(answer, right)
        if kind == "error" or not wrong:
            return wrong
        if reference_right is None and isinstance(self._strategy, Ladder):
            last = [step for step in answer.steps if step.number == self._strategy.horizon]
            # Where the last model was not reached it might have been right; where it gave no answer it was not.
            return not last or any(right(one.text) is not False for one in last[0].candidates)
        if reference_right is None:
            raise UsageError(
                "The certificate is on regret: say whether the reference alone would have been right, "
                "record_truth(answer, …, reference_right=…)."
            )
        return reference_right

    def _count(self, certificate: Certificate, missed: bool, critical: float | None) -> Truth:
        """Let the monitor and the online threshold of a certificate learn of a miss, or of none."""
        name = certificate.calibration_id
        with self._lock:
            if name not in self._held.voided:
                return Truth(missed, counted=False, says="it was given under an earlier certificate")
            watch = self._watches.get(name) or _Watch(self._new_monitor(certificate), self._new_online(certificate))
            if watch.monitor is None and watch.online is None:
                return Truth(missed, counted=False, says=UNWATCHED)
            if watch.alarm is not None:
                return Truth(missed, counted=False, says="its certificate was withdrawn meanwhile")
            watch = watch.after(certificate, missed, critical)
            self._watches = {**self._watches, name: watch}
        if watch.alarm is not None:
            logger.error("certificate %s: %s", name, watch.alarm)
        return Truth(missed, counted=True, says="missed" if missed else "not missed")

    def _new_monitor(self, certificate: Certificate) -> Monitor | None:
        """Return a monitor; the certificates of all levels share its level, so that one false alarm of any is as rare.

        A pool has none: its audits mix small groups in other shares than its calibration questions do, so they are not
        exchangeable with those. The promise is about one question beside the calibration's.
        """
        if certificate.pool:
            return None
        from cascade.conformal.monitor import Monitor

        watched = self._held.place.among * sum(not one.pool for one in self._held.certificates.values())
        return Monitor.start(
            alpha=certificate.alpha or 0.0,  # a promise on questions has one
            n=certificate.n,
            k=certificate.k,
            delta=certificate.delta,
            level=self._wanted.monitor.level / watched,
            null="risk" if certificate.k is None else None,  # cross-calibration: the rate itself is watched
        )

    def _new_online(self, certificate: Certificate) -> OnlineThreshold | None:
        """Return a threshold that starts at the certified one and never rises above it.

        So every answer that is kept at the certified threshold is kept, and the certificate holds on.
        """
        asked = self._wanted.online
        kappa, alpha = certificate.kappa, certificate.alpha
        if asked is None or alpha is None or certificate.keeps_everything or not math.isfinite(kappa):
            return None
        from cascade.conformal.online import OnlineThreshold

        return OnlineThreshold.warm(kappa, certificate.n, alpha=alpha, step=asked.step, decay=asked.decay, upper=kappa)


def fallback_of(wanted: str | None, kind: str, strategy: Strategy) -> tuple[Strategy, Policy]:
    """Return what serves after an alarm: all answers of all steps, or the guide's of the first step.

    Without a wish it is all answers for a promise on the set of answers, which they keep whatever has changed, and the
    guide for one on the answer served. The guide of a ladder is its last model, asked alone.
    """
    if (wanted or ("guide" if KINDS[kind].speaks_of == "single" else "everything")) == "everything":
        return strategy, FixedPolicy("both", strategy.horizon)
    if isinstance(strategy, Ladder):
        return replace(strategy, rungs=strategy.rungs[-1:]), FixedPolicy()
    return strategy, FixedPolicy("guide" if isinstance(strategy, BaseGuide) else "both")


def _policy_for(policy: Policy, group: str | None, online: OnlineThreshold | None) -> Policy:
    """Return the policy at a group's threshold, or at the one that audits led to, which is no higher."""
    for_group: Callable[[str | None], CalibratedPolicy] | None = getattr(policy, "for_group", None)
    if for_group is None:
        return policy
    chosen = for_group(group)
    if online is None:
        return chosen
    return replace(chosen, threshold=chosen.threshold._replace(kappa=online.kappa))


def _refusal(reasons: Iterable[str]) -> str:
    return f"A certificate is required (guarantee.required), and none holds: {'; '.join(reasons)}."
