"""Decides how questions are served under certificates, and evaluates their audits. `monitors` has the state.

This module makes no model calls. `CertifiedPolicy.plan` decides how a question is run; `CertifiedPolicy.record` records
whether an answer was right. If a certificate does not hold for this configuration, or no longer, answers do not get it:
they have a warning with the reason, or an error is raised if a certificate is required. After an alarm a fallback
serves until there is a new certificate. `ServingState` has the policies by level: levels differ in their promises, so
each has its own certificate and threshold, and each certificate its own monitor.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path

from cascade.checks import hint_at
from cascade.config import CascadeConfig
from cascade.config.policies import DirectoryConfig
from cascade.config.schema import GuaranteeConfig
from cascade.conformal.certificate import Certificate
from cascade.conformal.promise import Judge
from cascade.conformal.scope import PROPERTIES, Scope, has_chats, kind_of, unlike
from cascade.engine import RunPlan
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.factory import build_policy, serving_of
from cascade.identity import identity
from cascade.plans.nodes import Plan
from cascade.policies.base import Selection
from cascade.policies.directory import PolicyDirectory
from cascade.policies.live import LivePolicy
from cascade.policies.policy import drawn_number
from cascade.policies.signals import OF_CONFIDENCE
from cascade.serving.conditions import void_reasons
from cascade.serving.monitors import AuditOutcome, CertificateMonitors, differing, group_of, loss_of
from cascade.types import NO_CERTIFICATE, Answer, Question, Run

CALIBRATE = "make one with: cascade fit LOG --promise … -o DIR, and name it: policy: DIR"


def today_utc() -> date:
    """Return today's date, UTC."""
    return datetime.now(UTC).date()


class CertifiedPolicy:
    """A policy in service with its certificates. Only the audit results change. Threads may share it.

    Args:
        certificates: its certificates: one, or one for each segment.
        monitors: the audit results so far, shared with the other levels.
        level: the name of its level, if the policy has levels.
        own_risk: whether the policy keeps its own risk, since that of the section `guarantee` is for the default level.

    Raises:
        NotCertifiedError: a certificate is required, and none holds.
        ConfigError: the requested monitoring is impossible with this kind of certificate.
    """

    def __init__(
        self,
        config: CascadeConfig,
        strategy: Plan,
        policy: LivePolicy,
        certificates: Iterable[Certificate],
        monitors: CertificateMonitors,
        *,
        level: str | None = None,
        own_risk: bool = False,
    ) -> None:
        self._wanted = config.guarantee or GuaranteeConfig()
        self._whole, self._plain = strategy, RunPlan.of(strategy, policy)
        self._strategy = self._plain.strategy
        self._reference = strategy.only(Selection(reference=True))
        self.monitors, self._level = monitors, level
        self.policy = policy
        """The policy in service, at the threshold for questions without a segment."""
        self._live = functools.lru_cache(1_024)(policy.for_segment)  # a new one first scores an empty request
        self.answers_uncovered = self._wanted.uncovered
        """What answers a question that no certificate covers: "guide" or "policy"."""
        self._by_segment: Mapping[str | None, Certificate] = {
            certificate.segment: certificate for certificate in certificates
        }
        self.certificates = tuple(self._by_segment.values())
        """The certificates in service: one, or one per segment."""
        promises = [certificate.promise for certificate in self.certificates]
        unshown = dict.fromkeys(promise.kind for promise in promises if not promise.rules.monitored)
        if unshown and config.audits is not None:
            raise ConfigError(f"audits: a single answer shows nothing about {kind}" for kind in unshown)
        templates = self._strategy.prompts  # the prompts in service, not those now on the disk
        self._voided = {
            certificate.id: tuple(void_reasons(config, certificate, templates, own_risk=own_risk))
            for certificate in self.certificates
        }
        insists = self._wanted.required or self.answers_uncovered == "guide"
        reads = None if policy.columns is None else policy.columns.union(policy.reads, OF_CONFIDENCE)
        self._scopes = {
            certificate.id: Scope.of(certificate.made_for, reads, insists=insists) for certificate in self.certificates
        }
        missing = [] if self._by_segment else [f"the policy has none; {CALIBRATE}"]
        reasons = dict.fromkeys([*missing, *(reason for _, reasons in self.holding for reason in reasons)])
        if self._wanted.required and reasons:
            raise NotCertifiedError(_refusal(reasons))

    @property
    def holding(self) -> list[tuple[Certificate, tuple[str, ...]]]:
        """The certificates, each with the reasons why it does not hold here today; no reasons if it holds."""
        alarms = [(at, self.monitors.of(at).alarm) for at in self.certificates]
        return [(at, (*self._reasons(at), *([] if alarm is None else [alarm]))) for at, alarm in alarms]

    # --- serving ---

    def uncovered(self, question: Question) -> tuple[str, ...]:
        """Return why no certificate covers a question, as far as known before a call; empty if one does."""
        return tuple([reason for _, reason in self._uncovered(question)])

    def _uncovered(self, question: Question) -> Iterator[tuple[str, str]]:
        """Yield each such reason, preceded by a short label that contains nothing a client wrote."""
        certificate = self._covering(question)
        kind = "no certificate" if certificate is None else "a certificate that does not hold"
        yield from ((kind, reason) for reason in self._reasons(certificate, question.segment))
        if certificate is None:
            return
        _, by, alarm = self.monitors.of(certificate)
        if alarm is not None:
            yield "canaries" if by == "canaries" else kind, alarm
        for name, reason in unlike(kind_of(question.chat), certificate.made_for.get("requests")).items():
            yield name if name in PROPERTIES else "other content", reason

    def plan(self, question: Question) -> RunPlan:
        """Return the run plan of a question. If no certificate covers it, `guarantee.uncovered` says what answers it.

        A policy without any certificate promises nothing, so it answers itself.

        Raises:
            NotCertifiedError: a certificate is required, and none covers the question.
        """
        certificate, reasons = self._covering(question), self.uncovered(question)
        audit = self.monitors.drawn(certificate, question)
        if reasons and self._wanted.required:
            raise NotCertifiedError(_refusal(reasons))
        plain = RunPlan(self._strategy, audit=audit, level=self._level)
        plain = plain._replace(warnings=tuple([f"{NO_CERTIFICATE}{reason}" for reason in reasons]))
        alarmed = certificate is not None and self.monitors.of(certificate).alarm is not None
        if alarmed and self.falls_back_on_all:
            return plain
        if alarmed or (reasons and self.answers_uncovered == "guide" and self._by_segment):
            # An audit of another strategy would say nothing about the configured one.
            return plain._replace(strategy=self._reference, audit=False, walk=self._whole.reference_walk)
        plain = plain._replace(policy=self._live(question.segment), walk=self._plain.walk)
        if reasons or certificate is None:
            return plain
        return plain._replace(certificate=certificate, scope=self._scopes[certificate.id])

    @property
    def falls_back_on_all(self) -> bool:
        """Whether every step is run after an alarm, which keeps a promise on sets, instead of only the reference."""
        default = "everything" if any(at.promise.rules.of_set for at in self.certificates) else "guide"
        return (self.monitors.settings.fallback or default) == "everything"

    def _covering(self, question: Question) -> Certificate | None:
        """Return the certificate of a question's segment, else the one for all questions."""
        return self._by_segment.get(question.segment, self._by_segment.get(None))

    def counted(self, walk: Run) -> Run:
        """Follow the walk to its end and count its answer (`status`), and its audit if that can be compared at once."""
        answer = yield from walk
        certified = answer.certificate is not None
        of_calls = {"a call failed or was unlike the certified ones"}
        kinds = set[str]() if certified else {kind for kind, _ in self._uncovered(answer.question)} or of_calls
        self.monitors.answered(certified, answer.cost_nano_usd, kinds)
        if answer.certificate is not None and answer.audited and self._compares(answer.certificate):
            self._counted(answer, answer.certificate, self.compared(answer, answer.certificate))
        return answer

    def _compares(self, certificate: Certificate) -> bool:
        """Return whether an audit contains the output that the answer is compared with, so that it counts at once."""
        return certificate.promise.rules.compares and not self._strategy.is_joint

    def _reasons(self, certificate: Certificate | None, name: str | None = None) -> tuple[str, ...]:
        """Return why an answer cannot be given a certificate today."""
        if certificate is None:
            whom = "the policy has none" if name is None else f"the policy has none for the segment {name!r}"
            return (f"{whom}; {CALIBRATE}",)
        expired = (f"it expired on {certificate.expires}; fit again",) if certificate.expired(today_utc()) else ()
        return (*self._voided[certificate.id], *expired)

    # --- audits ---

    def compared(self, answer: Answer, certificate: Certificate) -> float | str:
        """Return the loss of an audited answer, compared with the reference's output in its steps (`loss_of`)."""
        horizon, kind = self._strategy.horizon, certificate.promise.rules
        return loss_of(answer, kind, differing(answer, horizon, certificate.comparator), horizon, by_itself=True)

    def record(self, answer: Answer, right: Judge, reference_right: bool | None = None) -> AuditOutcome:
        """Record the truth about an answer. Raises as `Orchestrator.record_outcome` does."""
        certificate, plan = answer.certificate, self._strategy
        if not answer.audited or certificate is None:
            reason = "given without a certificate" if answer.audited else "not drawn for an audit"
            return AuditOutcome(reason=f"it was {reason}")
        if self._compares(certificate):
            return AuditOutcome(reason="it was compared with the reference's as soon as it was given")
        given = certificate.promise.rules, right, plan.horizon, reference_right
        return self._counted(answer, certificate, loss_of(answer, *given, by_itself=not plan.is_joint))

    def _counted(self, answer: Answer, certificate: Certificate, loss: float | str) -> AuditOutcome:
        """Count an audit with its loss, or with the reason why it shows none."""
        if isinstance(loss, str):
            return self.monitors.missing(loss)
        # A graded loss counts as a miss with the loss as the probability, so that the rate of misses is the mean loss.
        missed = loss > drawn_number(f"{certificate.id}|{identity(answer.question.text, answer.question.context)}")
        if certificate.id not in self._voided:
            return AuditOutcome(missed, reason="it was given under an earlier certificate")
        return self.monitors.count(certificate, missed, group_of(answer.question))


def _refusal(reasons: Iterable[str]) -> str:
    return f"A certificate is required (guarantee.required), and none holds: {'; '.join(reasons)}."


# --- the policies in service, by level ---


def no_level(level: str, levels: Mapping[str, float]) -> UsageError:
    """Return the error for a level that the policy does not have; `levels` are those it has, with their risks."""
    if not levels:
        command = "cascade fit LOG --promise agreement --confidence 0.9 --levels low=0.1,high=0.02 -o DIR"
        return UsageError(
            f"The policy has no levels, and the level {level!r} was asked for; one with levels is made with: {command}"
        )
    listed = ", ".join(f"{name} (risk {risk:g})" for name, risk in levels.items())
    return UsageError(f"There is no level {level!r}{hint_at(level, levels) or '.'} There is {listed}.")


@dataclass(frozen=True, slots=True)
class ServingState:
    """The policies in service. The object is immutable; a reload replaces it.

    Attributes:
        default: the policy for questions without a level.
        strategy: the strategy of all levels.
        monitors: the audit results of all certificates, with those on record in the policy directory.
        levels: the risk of each level, the cheapest level first; empty for a policy without levels.
        by_level: the policy of each level; without levels, the only policy under the name "".
    """

    default: CertifiedPolicy
    strategy: Plan
    monitors: CertificateMonitors
    levels: Mapping[str, float]
    by_level: Mapping[str, CertifiedPolicy]

    def after(self, before: CertificateMonitors) -> ServingState:
        """Return the state with the audit results so far, so that a withdrawn certificate stays withdrawn."""
        now = self.monitors
        before.settings, before.draws, before.folder = now.settings, now.draws, now.folder
        before.share(certificate for serving in self.by_level.values() for certificate in serving.certificates)
        for serving in self.by_level.values():
            serving.monitors = before
        return replace(self, monitors=before)

    def at(self, level: str | None) -> CertifiedPolicy:
        """Return the policy of a level, by default the default one. Raises UsageError if there is no such level."""
        if level is None:
            return self.default
        if level not in self.levels:
            raise no_level(level, self.levels)
        return self.by_level[level]

    def of(self, answer: Answer) -> CertifiedPolicy:
        """Return the policy that gave an answer; the default policy for a level that no longer exists."""
        return self.by_level.get(answer.level or "", self.default)

    @property
    def alarm(self) -> str | None:
        """Why certificates were withdrawn, a sentence for each level and segment; None if none was."""
        alarms = [
            ({"level": level, "segment": certificate.segment}, self.monitors.of(certificate).alarm)
            for level, serving in self.by_level.items()
            for certificate in serving.certificates
        ]
        sentences = [[*(f"{of} {name}" for of, name in at.items() if name), alarm] for at, alarm in alarms if alarm]
        return "; ".join(map(": ".join, sentences)) or None

    @property
    def covers_no_chat(self) -> bool:
        """Whether no certificate covers a chat request, since all come from logs of questions."""
        served = [certificate for serving in self.by_level.values() for certificate in serving.certificates]
        return bool(served) and not any(has_chats(certificate.made_for.get("requests")) for certificate in served)

    @property
    def holding(self) -> list[tuple[Certificate, tuple[str, ...]]]:
        """The certificates of all levels, each with the reasons why it does not hold here today."""
        return [certificate for serving in self.by_level.values() for certificate in serving.holding]


def in_service(
    config: CascadeConfig,
    strategy: Plan,
    before: CertificateMonitors | None = None,
) -> ServingState:
    """Return a configuration's policy in service, with its certificates.

    `before` has the audit results so far.

    Raises:
        ConfigError, NotCertifiedError: as for `CertifiedPolicy`; nothing has changed then.
        UsageError: one of the certificates has already been withdrawn.
    """
    monitors = CertificateMonitors(None if config.modes else config.audits) if before is None else before
    if not isinstance(config.policy, DirectoryConfig):
        serving = CertifiedPolicy(config, strategy, build_policy(config), (), monitors)
        return ServingState(serving, strategy, monitors, {}, {"": serving})
    read, by_level = PolicyDirectory.read(config.policy.path), dict[str, CertifiedPolicy]()
    for certificate in read.certificates.values():
        if certificate.id in monitors.withdrawn:
            raise UsageError(
                f"The certificate {certificate.id} is the one that was withdrawn. Fit again on newer requests: "
                "cascade fit LOG --promise … --policy DIR -o NEW"
            )
    for level in read.levels or [""]:
        certificates = [read.certificates[level]] if level else read.certificates.values()
        live, other = serving_of(config, read, level or None), level not in ("", read.default_level)
        try:
            by_level[level] = CertifiedPolicy(
                config, strategy, live, certificates, monitors, level=level or None, own_risk=other
            )
        except NotCertifiedError as error:
            raise (NotCertifiedError(f"Level {level!r}: {error}") if level else error) from None
    monitors.share(read.certificates.values())  # none of them was refused
    monitors.folder = str(Path(config.policy.path).absolute())  # the process may change its working directory
    default = by_level[read.default_level or next(iter(by_level))]
    return ServingState(default, strategy, monitors, read.levels, by_level)
