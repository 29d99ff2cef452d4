"""Decides how questions are served under a certificate, and evaluates its audits. `monitors` has the state.

This module makes no model calls. `CertifiedPolicy.plan` decides how a question is run; `CertifiedPolicy.record` records
whether an answer was right. Answers get no certificate that does not hold for this configuration, or no longer holds:
the answer has a warning with the reason, or an error is raised if a certificate is required. After an alarm a fallback
serves until there is a new certificate.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING

from cascade.config import CascadeConfig
from cascade.config.schema import GuaranteeConfig
from cascade.conformal.scope import Scope, failures, kind_of, unlike
from cascade.engine import Run
from cascade.episodes.schema import identity
from cascade.errors import ConfigError, NotCertifiedError
from cascade.guarantees.base import Audit, Judge, get
from cascade.guarantees.certificate import of_segment
from cascade.policies.base import Policy, Takes
from cascade.policies.fixed import FixedPolicy
from cascade.serving.monitors import UNAUDITED, AuditOutcome, CertificateMonitors
from cascade.serving.plan import RunPlan, reference_walk
from cascade.strategies.base import Strategy
from cascade.types import NO_CERTIFICATE, Answer, Certificate, Question, Step

if TYPE_CHECKING:
    from cascade.conformal.monitor import Monitor
    from cascade.policies.artifact import PolicyArtifact

CALIBRATE = "make one with: cascade fit LOG --promise … -o DIR, and name it: policy: DIR"


def today_utc() -> date:
    """Return today's date, UTC."""
    return datetime.now(UTC).date()


class CertifiedPolicy:
    """The certificates of a policy in service. Only the audit results change. Threads may share it.

    Args:
        config: the configuration.
        strategy: the strategy that it describes.
        policy: the policy that it describes, at its certified threshold if there is one.
        artifact: the policy directory with the certificates; None for a policy from elsewhere. Its questions are not
            kept in memory.
        level: the name of its level, if the policy has levels.
        monitors: the audit results so far, shared with the other levels; by default empty.
        today: returns today's date.

    Raises:
        NotCertifiedError: a certificate is required, and none holds.
        ConfigError: the requested monitoring is impossible with this kind of certificate.
    """

    def __init__(
        self,
        config: CascadeConfig,
        strategy: Strategy,
        policy: Policy,
        artifact: PolicyArtifact | None,
        *,
        level: str | None = None,
        monitors: CertificateMonitors | None = None,
        today: Callable[[], date] = today_utc,
    ) -> None:
        self._wanted = config.guarantee or GuaranteeConfig()
        takes = policy.takes
        self._whole = strategy
        self._strategy = strategy if takes is None else strategy.only(takes)
        self._walk = reference_walk(strategy) if takes is not None and takes.reference else None
        self._today, self._level = today, level
        self.policy = policy
        """The policy in service, at the threshold for questions without a segment."""
        self._to_guide = self._wanted.uncovered == "guide"
        certificates = () if artifact is None else artifact.certificates
        self._silent = config.guarantee is None and artifact is None  # without a promise, no certificate is missing
        self._each: Mapping[str | None, Certificate] = {one.segment: one for one in certificates}
        self._voided = self._checked(config, certificates)
        self._scopes = {one.calibration_id: self._scope(one) for one in certificates}
        if self._wanted.required:
            missing = [] if certificates else [f"the policy has none; {CALIBRATE}"]
            if reasons := dict.fromkeys([*missing, *(said for one in certificates for said in self._reasons(one))]):
                raise NotCertifiedError(_refusal(reasons))
        self._monitors = CertificateMonitors(self._wanted) if monitors is None else monitors
        if monitors is None:
            self._monitors.share(certificates)

    def _checked(self, config: CascadeConfig, certificates: tuple[Certificate, ...]) -> Mapping[str, tuple[str, ...]]:
        """Return, by certificate id, the reasons why certificates do not hold here."""
        if not certificates:
            return {}
        from cascade.serving.made_for import void_reasons, watch_problems

        problems = list(watch_problems(self._wanted, certificates))
        if problems:
            raise ConfigError(problems)
        templates = self._strategy.prompts  # the prompts in service, not those now on the disk
        return {one.calibration_id: tuple(void_reasons(config, one, templates)) for one in certificates}

    def _scope(self, certificate: Certificate) -> Scope:
        """Return the subject of a certificate."""
        return Scope.of(
            certificate.made_for,
            self.policy.reads,
            withholds=certificate.abstain_below is not None,
            insists=self._wanted.required or self._to_guide,
        )

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates in service: one, or one per segment."""
        return tuple(self._each.values())

    @property
    def holding(self) -> tuple[tuple[Certificate, tuple[str, ...]], ...]:
        """The certificates, each with the reasons why it does not hold here today; empty if it holds."""
        return tuple([(one, self._reasons(one)) for one in self.certificates])

    # --- serving ---

    def uncovered(self, question: Question) -> tuple[str, ...]:
        """Return why no certificate covers a question, as far as it is known before a call; empty where one does."""
        certificate = of_segment(self._each, question.segment)
        reasons = self._reasons(certificate, question.segment)
        if certificate is None:
            return reasons
        if (alarm := self._monitors.of(certificate).alarm) is not None:
            reasons = (*reasons, alarm)
        return (*reasons, *unlike(kind_of(question.chat), certificate.made_for.get("requests")))

    def plan(self, question: Question) -> RunPlan:
        """Return the run plan of a question. One that no certificate covers is answered by the guide, if one is set.

        The setting is `guarantee.uncovered`. A policy without any certificate promises nothing, so it answers itself.

        Raises:
            NotCertifiedError: a certificate is required, and none holds any more.
        """
        certificate, reasons = of_segment(self._each, question.segment), self.uncovered(question)
        audit = self._monitors.drawn(certificate, _group_of(question))
        known = UNAUDITED if certificate is None else self._monitors.of(certificate)
        if reasons and self._wanted.required:
            raise NotCertifiedError(_refusal(reasons))
        warnings = tuple([f"{NO_CERTIFICATE}{said}" for said in reasons])
        if known.alarm is not None and certificate is not None:
            strategy, fallback = fallback_of(self._wanted.monitor.fallback, certificate.kind, self._strategy)
            if strategy is not self._strategy:  # an audit of it would say nothing about the configured strategy
                return RunPlan(
                    strategy, fallback, warnings=warnings, walk=reference_walk(self._strategy), level=self._level
                )
            return RunPlan(strategy, fallback, audit=audit, warnings=warnings, level=self._level)
        if reasons and self._to_guide and self._each:
            kind = next(iter(self._each.values())).kind
            strategy, fallback = fallback_of("guide", kind, self._whole)
            alone = None if strategy is self._whole else reference_walk(self._whole)
            return RunPlan(strategy, fallback, warnings=warnings, walk=alone, level=self._level)
        policy = self.policy.for_segment(question.segment)
        held = None if reasons else certificate
        scope = None if held is None else self._scopes[held.calibration_id]
        if scope is not None and known.odder:
            scope = replace(scope, strict=True)
        below, walk = policy.abstain_below, self._walk
        return RunPlan(self._strategy, policy, held, below, audit, warnings, walk, self._level, scope)

    def counted(self, walk: Run, *, odd: bool = True) -> Run:
        """Follow the walk, and count its answer at the end (`status`); `odd`: whether to count odd steps too."""
        answer = yield from walk
        if not self._silent:
            said = [one.removeprefix(NO_CERTIFICATE) for one in answer.warnings if one.startswith(NO_CERTIFICATE)]
            self._monitors.answered(answer.certificate is not None, said, answer.cost_nano_usd)
        if answer.certificate is not None and odd:
            scope = self._scopes[answer.certificate.calibration_id]
            if scope.calibrated[0]:  # otherwise any odd step is outside the scope
                odd = any(scope.odd(step) for step in answer.steps)
                self._monitors.count_odd(answer.certificate, odd, *scope.calibrated)
            if answer.audited and self._compared(answer.certificate) and (outage := self._outage(answer)):
                self._monitors.missing(outage)
            elif answer.audited and self._compared(answer.certificate):
                self._recorded(answer, self._by_reference(answer, answer.certificate), None)
        return answer

    def _compared(self, certificate: Certificate) -> bool:
        """Whether an audit contains the output that the answer is compared with, so that it counts at once."""
        return get(certificate.kind).compares and self._strategy.ends_with_reference

    def _outage(self, answer: Answer) -> str | None:
        """Return why an audit has no output of the reference; None if it answered, be it with nothing."""
        last = [step for step in answer.steps if step.number == self._strategy.horizon]
        return next(iter(failures(last[0])), None) if last else "the reference was not asked"

    def _by_reference(self, answer: Answer, certificate: Certificate) -> Judge:
        """Return a function that decides whether a text equals the reference's output; None if unknown."""
        given = [one.text for step in answer.steps if step.number == self._strategy.horizon for one in step.candidates]
        if not given:
            return lambda _: None
        from cascade.episodes.truth import TEXT, same  # numpy, which answers without a promise do not need
        from cascade.matching import get_comparator

        comparator = get_comparator(certificate.comparator or TEXT)
        return lambda text: same(comparator, text, given[0], answer.question.chat)

    def _reasons(self, certificate: Certificate | None, name: str | None = None) -> tuple[str, ...]:
        """Return why an answer cannot be given a certificate today."""
        if certificate is None:
            if self._silent:
                return ()
            whom = "the policy has none" if name is None else f"the policy has none for the segment {name!r}"
            return (f"{whom}; {CALIBRATE}",)
        reasons = self._voided[certificate.calibration_id]
        if certificate.expires is not None:
            from cascade.guarantees.certificate import expired

            if expired(certificate, self._today()):
                reasons = (*reasons, f"it expired on {certificate.expires}; calibrate again")
        return reasons

    # --- audits ---

    @property
    def alarm(self) -> str | None:
        """A sentence about the audits that withdrew certificates, by segment; None without an alarm."""
        found = {name: self._monitors.of(one).alarm for name, one in self._each.items()}
        said = [told if name is None else f"segment {name}: {told}" for name, told in found.items() if told]
        return "; ".join(said) or None

    @property
    def monitors(self) -> dict[str | None, Monitor]:
        """The monitors that have counted an audit, by the segment of their certificate."""
        found = {name: self._monitors.of(one).monitor for name, one in self._each.items()}
        return {name: monitor for name, monitor in found.items() if monitor is not None}

    def record(self, answer: Answer, right: Judge, reference_right: bool | None = None) -> AuditOutcome:
        """Record the truth about an answer. Raises as `Orchestrator.record_outcome` does."""
        certificate = answer.certificate
        if answer.audited and certificate is not None and self._compared(certificate):
            return AuditOutcome(
                None, counted=False, reason="it was compared with the reference's as soon as it was given"
            )
        return self._recorded(answer, right, reference_right)

    def _recorded(self, answer: Answer, right: Judge, reference_right: bool | None) -> AuditOutcome:
        certificate = answer.certificate
        why = _uncounted(answer)
        if why is not None or certificate is None:
            return AuditOutcome(None, counted=False, reason=why or "")
        right = functools.cache(right)  # judging may cost money
        rules, audit = get(certificate.kind), self._audit(answer, right, reference_right)
        if rules.reads_all_steps(audit) and (unknown := self._unknown(answer, certificate)) is not None:
            return self._monitors.missing(unknown)
        missed = rules.audited(answer, audit)
        if missed is None:
            return AuditOutcome(
                None, counted=False, reason="no step has a right answer, and the promise covers only other questions"
            )
        if certificate.calibration_id not in self._voided:
            return AuditOutcome(missed, counted=False, reason="it was given under an earlier certificate")
        return self._monitors.count(certificate, missed, _group_of(answer.question))

    def _audit(self, answer: Answer, right: Judge, reference_right: bool | None) -> Audit:
        """Return the outcome of an audited answer, as far as it is known."""
        horizon = self._strategy.horizon
        complete = bool(answer.steps) and (answer.steps[-1].final or answer.steps[-1].number >= horizon)
        last = horizon if self._strategy.ends_with_reference else None
        return Audit(right, complete, reference_right, last)

    def _unknown(self, answer: Answer, certificate: Certificate) -> str | None:
        """Return why an audit does not show whether the question was missed; None if it does.

        Counting such audits only when they were served well would hide misses.
        """
        failed = [said for step in answer.steps for said in failures(step)]
        failed += failures(Step(len(answer.steps) + 1, (), {}, calls=answer.loose_calls))
        scope = self._scopes.get(certificate.calibration_id)
        found = [*failed, *(said for step in answer.steps if scope is not None for said in scope.outside(step))]
        return found[0] if found else None


def _group_of(question: Question) -> str:
    """Return the name of what a question belongs to; without a group, equal requests belong together."""
    return question.group or identity(question.text, question.context)


def _uncounted(answer: Answer) -> str | None:
    """Return why the truth about an answer is not counted; None if it is."""
    certificate = answer.certificate
    if not answer.audited:
        return "it was not drawn for an audit"
    if certificate is None:
        return "it was given without a certificate"
    return None if get(certificate.kind).monitored else f"{certificate.kind} is not a promise on single questions"


def fallback_of(wanted: str | None, kind: str, strategy: Strategy) -> tuple[Strategy, Policy]:
    """Return the policy after an alarm: all answers of all steps, or the guide's of the first step.

    By default all answers for a promise on the set of answers, which this always keeps, and the guide for a promise on
    the answer served. The guide of a ladder is its last model, asked alone.
    """
    if (wanted or get(kind).fallback) == "everything":
        return strategy, FixedPolicy("both", strategy.horizon)
    if strategy.ends_with_reference:
        return strategy.only(Takes(reference=True)), FixedPolicy()
    return strategy, strategy.guide_policy


def _refusal(reasons: Iterable[str]) -> str:
    return f"A certificate is required (guarantee.required), and none holds: {'; '.join(reasons)}."
