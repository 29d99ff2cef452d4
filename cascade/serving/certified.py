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
from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import Audit, Judge
from cascade.conformal.promise import Kind as Promised
from cascade.conformal.scope import Scope, failures, kind_of, unlike
from cascade.engine import Run
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.identity import identity
from cascade.plans.base import Strategy
from cascade.policies.base import Takes
from cascade.policies.live import Live
from cascade.policies.simple import drawn_number
from cascade.serving.monitors import UNAUDITED, AuditOutcome, CertificateMonitors
from cascade.serving.plan import RunPlan, reference_walk
from cascade.types import NO_CERTIFICATE, Answer, Question, Step

if TYPE_CHECKING:
    from cascade.conformal.monitor import Monitor

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
        certificates: its certificates: one, or one for each segment.
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
        policy: Live,
        certificates: Iterable[Certificate] = (),
        *,
        level: str | None = None,
        monitors: CertificateMonitors | None = None,
        today: Callable[[], date] = today_utc,
    ) -> None:
        self._wanted = config.guarantee or GuaranteeConfig()
        takes = policy.takes
        self._whole = strategy
        self._strategy = strategy if takes is None else strategy.only(takes)
        self._reference = _reference_of(strategy)
        self._walk = reference_walk(strategy) if takes is not None and takes.reference else None
        self._today, self._level = today, level
        self.policy = policy
        """The policy in service, at the threshold for questions without a segment."""
        self._to_guide = self._wanted.uncovered == "guide"
        self._each: Mapping[str | None, Certificate] = {each.segment: each for each in certificates}
        directory = config.policy.kind == "directory"
        self._silent = config.guarantee is None and not directory  # without a promise, no certificate is missing
        self._voided = self._checked(config)
        self._scopes = {each.id: self._scope(each) for each in self.certificates}
        if self._wanted.required:
            missing = [] if self._each else [f"the policy has none; {CALIBRATE}"]
            reasons = [reason for each in self.certificates for reason in self._reasons(each)]
            if reasons := list(dict.fromkeys([*missing, *reasons])):
                raise NotCertifiedError(_refusal(reasons))
        self._monitors = CertificateMonitors(self._wanted) if monitors is None else monitors
        if monitors is None:
            self._monitors.share(self.certificates)

    def _checked(self, config: CascadeConfig) -> Mapping[str, tuple[str, ...]]:
        """Return, by certificate id, the reasons why certificates do not hold here."""
        if not self._each:
            return {}
        from cascade.serving.made_for import void_reasons, watch_problems

        if problems := list(watch_problems(self._wanted, self.certificates)):
            raise ConfigError(problems)
        templates = self._strategy.prompts  # the prompts in service, not those now on the disk
        return {each.id: tuple(void_reasons(config, each, templates)) for each in self.certificates}

    def _scope(self, certificate: Certificate) -> Scope:
        """Return the subject of a certificate."""
        withholds, insists = certificate.bar > float("-inf"), self._wanted.required or self._to_guide
        return Scope.of(certificate.made_for, self.policy.reads, withholds=withholds, insists=insists)

    @property
    def certificates(self) -> tuple[Certificate, ...]:
        """The certificates in service: one, or one per segment."""
        return tuple(self._each.values())

    @property
    def holding(self) -> tuple[tuple[Certificate, tuple[str, ...]], ...]:
        """The certificates, each with the reasons why it does not hold here today; empty if it holds."""
        return tuple([(each, self._reasons(each)) for each in self.certificates])

    # --- serving ---

    def uncovered(self, question: Question) -> tuple[str, ...]:
        """Return why no certificate covers a question, as far as it is known before a call; empty where one does."""
        certificate = self._covering(question)
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
        certificate, reasons = self._covering(question), self.uncovered(question)
        audit = self._monitors.drawn(certificate, _group_of(question))
        known = UNAUDITED if certificate is None else self._monitors.of(certificate)
        if reasons and self._wanted.required:
            raise NotCertifiedError(_refusal(reasons))
        warnings = tuple([f"{NO_CERTIFICATE}{said}" for said in reasons])
        uncovered = bool(reasons and self._to_guide and self._each)
        if uncovered or (known.alarm is not None and certificate is not None):
            rules = next(iter(self._each.values())).promise.rules if certificate is None else certificate.promise.rules
            alarmed = known.alarm is not None
            everything = self._everything(self._wanted.monitor.fallback if alarmed else "guide", rules)
            strategy = self._strategy if everything else self._reference
            # An audit of another strategy would say nothing about the configured one.
            audit = audit and alarmed and strategy is self._strategy
            walk = None if strategy is self._strategy else reference_walk(self._whole)
            return RunPlan(strategy, audit=audit, warnings=warnings, walk=walk, level=self._level)
        policy = self.policy.for_segment(question.segment)
        held = None if reasons else certificate
        scope = None if held is None else self._scopes[held.id]
        if scope is not None and known.odder:
            scope = replace(scope, strict=True)
        return RunPlan(self._strategy, policy, held, audit, warnings, self._walk, self._level, scope)

    def _covering(self, question: Question) -> Certificate | None:
        """Return the certificate of a question's segment, else the one for all questions."""
        return self._each.get(question.segment, self._each.get(None))

    def _everything(self, fallback: str | None, rules: Promised) -> bool:
        """Whether every step serves where no certificate holds: that keeps a promise on the set of answers."""
        return fallback == "everything" or (fallback is None and rules.of_set) or self._reference is self._whole

    def counted(self, walk: Run, *, odd: bool = True) -> Run:
        """Follow the walk, and count its answer at the end (`status`); `odd`: whether to count odd steps too."""
        answer = yield from walk
        if not self._silent:
            said = [one.removeprefix(NO_CERTIFICATE) for one in answer.warnings if one.startswith(NO_CERTIFICATE)]
            self._monitors.answered(answer.certificate is not None, said, answer.cost_nano_usd)
        if answer.certificate is not None and odd:
            scope = self._scopes[answer.certificate.id]
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
        return certificate.promise.rules.compares and self._strategy.ends_with_reference

    def _outage(self, answer: Answer) -> str | None:
        """Return why an audit has no output of the reference; None if it answered, be it with nothing."""
        last = [step for step in answer.steps if step.number == self._strategy.horizon]
        return next(iter(failures(last[0])), None) if last else "the reference was not asked"

    def _by_reference(self, answer: Answer, certificate: Certificate) -> Judge:
        """Return a function that decides whether a text equals the reference's output; None if unknown."""
        given = [one.text for step in answer.steps if step.number == self._strategy.horizon for one in step.candidates]
        if not given:
            return lambda _: None
        from cascade.episodes.reading import same
        from cascade.matching import default_for, get_comparator

        comparator = get_comparator(certificate.comparator or default_for(None).name)
        return lambda text: same(comparator, text, given[0], answer.question.chat)

    def _reasons(self, certificate: Certificate | None, name: str | None = None) -> tuple[str, ...]:
        """Return why an answer cannot be given a certificate today."""
        if certificate is None:
            if self._silent:
                return ()
            whom = "the policy has none" if name is None else f"the policy has none for the segment {name!r}"
            return (f"{whom}; {CALIBRATE}",)
        reasons = self._voided[certificate.id]
        expired = (f"it expired on {certificate.expires}; fit again",) if certificate.expired(self._today()) else ()
        return (*reasons, *expired)

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
        rules, right = certificate.promise.rules, functools.cache(right)  # judging may cost money
        by_steps = {"labels", "reference"} <= set(rules.needs) and self._strategy.ends_with_reference
        by_steps = by_steps and reference_right is None
        if (rules.of_set or by_steps) and (unknown := self._unknown(answer, certificate)) is not None:
            return self._monitors.missing(unknown)
        loss = rules.audited(self._audit(answer, right, reference_right))
        if loss is None:
            return AuditOutcome(None, counted=False, reason="a single answer does not show whether the promise is kept")
        coin = drawn_number(f"{certificate.id}|{identity(answer.question.text, answer.question.context)}")
        missed = loss > coin  # a graded loss is a miss with its own probability, so that misses have the promised rate
        if certificate.id not in self._voided:
            return AuditOutcome(missed, counted=False, reason="it was given under an earlier certificate")
        return self._monitors.count(certificate, missed, _group_of(answer.question))

    def _audit(self, answer: Answer, right: Judge, reference_right: bool | None) -> Audit:
        """Return an audited answer as promises judge it."""
        horizon, steps = self._strategy.horizon, answer.steps

        def by_reference() -> bool | None:
            if reference_right is not None:
                return reference_right
            if not self._strategy.ends_with_reference:
                raise UsageError(
                    "Say whether the reference alone would have been right: record_outcome(…, reference_right=…)."
                )
            last = [step for step in steps if step.number == horizon]
            if not last:  # a cap prevented the call of the last model, which might have been right
                return None
            # If the reference gave no answer, it was wrong, as in a log.
            verdicts = [right(candidate.text) for candidate in last[0].candidates]
            return None if None in verdicts else True in verdicts

        return Audit(
            right,
            by_reference,
            answer.text,
            answer.stopped == "abstained",
            tuple([step.candidates[at].text for step in steps for at in (step.decision.keep if step.decision else ())]),
            tuple([candidate.text for step in steps for candidate in step.candidates]),
            bool(steps) and (steps[-1].final or steps[-1].number >= horizon),
        )

    def _unknown(self, answer: Answer, certificate: Certificate) -> str | None:
        """Return why an audit does not show whether the question was missed; None if it does.

        Counting such audits only when they were served well would hide misses.
        """
        failed = [said for step in answer.steps for said in failures(step)]
        failed += failures(Step(len(answer.steps) + 1, (), {}, calls=answer.loose_calls))
        scope = self._scopes.get(certificate.id)
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
    kind = certificate.promise.rules
    return None if kind.monitored else f"{kind.name} is not a promise on single questions"


def _reference_of(strategy: Strategy) -> Strategy:
    """Return the strategy that asks the reference alone: the guide, or a ladder's last model; itself if it has none."""
    try:
        return strategy.only(Takes(reference=True))
    except UsageError:
        return strategy


def _refusal(reasons: Iterable[str]) -> str:
    return f"A certificate is required (guarantee.required), and none holds: {'; '.join(reasons)}."
