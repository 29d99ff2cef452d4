"""The results of audits for each certificate, and its alarm. Both are recorded in the policy directory.

An audit counts for a certificate, whichever level or directory has it. Results are stored by the certificate's id and
kept when the policy in service is replaced or the process ends, so that a certificate that is served again does not
start with a clean record.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cascade.config.schema import AuditsConfig
from cascade.conformal.certificate import Certificate
from cascade.conformal.monitor import Monitor, is_drawn
from cascade.conformal.promise import Judge, Kind
from cascade.errors import UsageError, logger, refused_for_good
from cascade.forks import now_and_after_fork
from cascade.identity import hash_of, identity
from cascade.matching import answer_key
from cascade.money import exact_dollars
from cascade.policies.directory import audits_on_record, record_audit, withdraw, withdrawal
from cascade.table import Log, Node, Reference
from cascade.text import percent
from cascade.types import Answer, Question, Step


class AuditOutcome(NamedTuple):
    """The result of recording the truth about an answer: whether it was missed, whether that counted, and why (not)."""

    missed: bool | None = None
    counted: bool = False
    reason: str = ""


def group_of(question: Question) -> str:
    """Return the hash of a question's group; without a group, equal requests belong together."""
    return hash_of(question.group or identity(question.text, question.context))


def judge(right: Judge | str | Sequence[str], matcher: str) -> Judge:
    """Return a function that decides whether a text is right, from a truth value or from the accepted answers."""
    if callable(right):
        return right
    from cascade.matching import get_matcher

    rule, gold = get_matcher(matcher), (right,) if isinstance(right, str) else tuple(right)
    return lambda text: rule.matches(text, gold)


def differing(answer: Answer, horizon: int, comparator: str | None) -> Judge:
    """Return a check that a text equals the output of the reference, which answers in the last step."""
    from cascade.episodes.reading import same
    from cascade.matching import default_for, get_matcher

    chat = answer.question.chat
    rule = get_matcher(comparator or default_for(chat).name)
    outputs = [output.text for step in answer.steps if step.number == horizon for output in step.candidates]
    return lambda text: bool(outputs) and same(rule, text, outputs[0], chat)


def loss_of(
    answer: Answer, rules: Kind, right: Judge, horizon: int, reference_right: bool | None = None, *, by_itself: bool
) -> float | str:
    """Return the loss of an audited answer, in 0..1, or a text that says why the audit does not show it.

    It is the loss in a log of this request only, so that audits count as the certifying requests did: an audit with a
    failed call shows nothing, and a call that the model refused is not on record. `horizon` is the number of the last
    step, which has the reference's own answer if `by_itself`; `reference_right`: whether the reference alone is right.

    Raises:
        UsageError: the promise needs `reference_right`, and it is None.
    """
    failed = [call for call in answer.calls if call.error is not None]
    for call in failed:
        if not refused_for_good(call.failed_with) or any(  # another model may have answered in its place
            step.candidates for step in answer.steps if step.number == call.request.step
        ):
            return f"the call of {call.request.role} at step {call.request.step} failed ({call.failed_with})"
    steps = {step.number: step for step in answer.steps if step.number not in {call.request.step for call in failed}}
    complete = horizon in steps or (not by_itself and any(step.final for step in answer.steps))
    log, candidates, node = _log_of(
        answer, {number: steps.get(number) for number in range(1, max([horizon, *steps]) + 1)}, right, complete=complete
    )
    alone = math.nan if reference_right is None else float(reference_right)
    if reference_right is None and by_itself and complete:  # without an answer it is wrong, as in a log
        alone = 0.0 if log.answer[0, -1] < 0 else log.right[0, -1]
    log = replace(log, reference=Reference(np.array([alone]), np.array([-1]), by_itself))
    loss, unknown = rules.served(log, candidates, node), math.isnan(alone) and not rules.covers_all
    if loss and unknown and not by_itself:
        raise UsageError("Say whether the reference alone would have been right: record_outcome(…, reference_right=…).")
    return "not every step was run, or an answer has no verdict" if loss is None or (unknown and by_itself) else loss


def _log_of(
    answer: Answer, steps: Mapping[int, Step | None], right: Judge, *, complete: bool
) -> tuple[Log, list[int], int | None]:
    """Return an answer's request as a log of its steps, with a node per answer; the nodes kept, and the one served."""
    nodes, texts, candidates = list[Node](), list[str | None](), list[int]()
    for number, step in steps.items():
        candidates += [len(nodes) + at for at in (step.decision.keep if step and step.decision else ())]
        texts += [candidate.text for candidate in step.candidates] if step and step.candidates else [None]
        nodes += [Node(f"answer {at}", number - 1) for at in range(len(nodes), len(texts))]
    judged = {text: None if text is None else right(text) for text in dict.fromkeys(texts)}  # `right` may cost money
    truth = [[math.nan if (verdict := judged[text]) is None else float(verdict) for text in texts]]
    keys = [None if text is None else answer_key(text, answer.question.chat) for text in texts]
    answers = [[-1 if key is None else keys.index(key) for key in keys]]
    bought, row, ends = [[bool(steps[node.step + 1]) for node in nodes]], ("audit",), np.array([complete])
    columns = np.array(answers), np.array(truth), np.zeros_like(bought, np.int64), np.array(bought), ends
    served = (at for at in candidates or range(len(texts)) if texts[at] is not None and texts[at] == answer.text)
    return Log("", tuple(nodes), row, row, *columns, np.full_like(columns[1], math.nan)), candidates, next(served, None)


class CertificateMonitor(NamedTuple):
    """The audit results of one certificate.

    Attributes:
        monitor: the monitor after the audits so far.
        by: what withdrew the certificate, "audits" or "canaries"; None if it was not withdrawn.
        alarm: the reason, in words.
    """

    monitor: Monitor | None = None
    by: str | None = None
    alarm: str | None = None


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Counts of the questions that an orchestrator has answered, for its operator.

    Attributes:
        answered: how many questions were answered.
        certified: how many of these answers have a certificate.
        uncertified_nano_usd: the cost of the answers without a certificate; None if the cost of one is unknown.
        missing: audited answers that show nothing (`loss_of`).
    """

    answered: int = 0
    certified: int = 0
    uncertified_nano_usd: int | None = 0
    missing: int = 0

    def describe(self) -> str:
        """Return the share of answers outside the certificate and their cost, as a sentence.

        >>> ServiceStatus(answered=200, certified=190, uncertified_nano_usd=1_500_000).describe()
        '10 of 200 requests (5.0 %) were outside the certificate; answering them cost $0.0015'
        """
        outside = self.answered - self.certified
        spent = self.uncertified_nano_usd
        cost = "at an unknown cost" if spent is None else f"answering them cost {exact_dollars(spent)}"
        share = f"{100 * outside / max(self.answered, 1):.1f} %"
        return f"{outside:,} of {self.answered:,} requests ({share}) were outside the certificate; {cost}"


class CertificateMonitors:
    """The results of audits, by certificate. All policies in service share one object; threads may share it too.

    Guarantee: the certificates in service share `audits.level` evenly; the shares are computed again when certificates
    change. So the probability of any false alarm while these serve is at most that level, for any number of levels and
    segments (Bonferroni: each monitor counts as having run at its present share from its first audit on). Processes
    that serve one policy directory share the evidence, so this holds for all of them together, across restarts.

    Args:
        settings: the section `audits`; without one, no question is audited.
    """

    def __init__(self, settings: AuditsConfig | None) -> None:
        self.folder: str | None = None
        """The policy directory in service, where any process may record why a certificate is withdrawn."""
        self.settings, self.draws = settings or AuditsConfig(), settings is not None
        now_and_after_fork(self._begin)
        self._monitors = dict[str, Monitor]()
        self.withdrawn = dict[str, tuple[str, str]]()  # by id: what withdrew a certificate, and why
        self.status = ServiceStatus()
        """Counts of all answered questions."""
        # The number of answers without a certificate, by reason; one answer may have several reasons.
        self.uncovered = Counter[str]()
        self._groups = dict[tuple[str, str], bool]()  # whether a drawn group has counted, by certificate
        self._read, self._lost = dict[tuple[str, str], int](), False  # bytes read per record; whether any access failed
        self._level, seed = self.settings.level, self.settings.seed
        self._key = f"audit {secrets.randbits(64) if seed is None else seed}"

    def drawn(self, certificate: Certificate | None, question: Question) -> bool:
        """Return whether a question is audited: the first of its group under a certificate, if the group is drawn."""
        if not (self.draws and is_drawn(self._key, self.settings.probability, group := group_of(question))):
            return False
        name = "" if certificate is None else certificate.id, group
        with self._lock:
            first = name not in self._groups
            self._groups.setdefault(name, False)
        return first

    def _begin(self) -> None:
        """Make the lock, also anew in a forked child, since another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def of(self, certificate: Certificate) -> CertificateMonitor:
        """Return the audit results of a certificate. A withdrawal by any process is final."""
        name = certificate.id
        if self.folder is not None and name not in self.withdrawn:
            if (self.folder, name) not in self._read:
                with self._lock:
                    self._catch_up(certificate)
            if withdrawn := withdrawal(self.folder, certificate):
                with self._lock:
                    self._withdraw(name, *withdrawn)
        return CertificateMonitor(self._monitors.get(name), *self.withdrawn.get(name, ()))

    def answered(self, certified: bool, cost_nano_usd: int | None, uncovered: Iterable[str] = ()) -> None:
        """Count an answer; `uncovered` has the reasons why it has no certificate, from a small fixed set of labels."""
        with self._lock:
            self.uncovered.update(uncovered)
            status, spent = self.status, self.status.uncertified_nano_usd
            if not certified:
                spent = None if spent is None or cost_nano_usd is None else spent + cost_nano_usd
            self.status = replace(
                status,
                answered=status.answered + 1,
                certified=status.certified + certified,
                uncertified_nano_usd=spent,
            )

    def missing(self, reason: str) -> AuditOutcome:
        """Count an audit without a result."""
        with self._lock:
            self.status = replace(self.status, missing=self.status.missing + 1)
        return AuditOutcome(reason=f"the audit is missing: {reason}")

    def share(self, certificates: Iterable[Certificate]) -> None:
        """Divide the probability of a false alarm among these certificates, the only ones in service from now on."""
        names = {certificate.id for certificate in certificates}
        with self._lock:
            self._level = self.settings.level / max(len(names), 1)
            for name in names & self._monitors.keys():
                # The level only limits the evidence: the result equals a monitor that began with this level.
                self._monitors[name] = replace(self._monitors[name], level=self._level)

    def count(self, certificate: Certificate, missed: bool, group: str) -> AuditOutcome:
        """Update the monitor of a certificate in service with an audited question, whose served answer missed or not.

        Its group (`group_of`) counts once, however often an outcome is recorded.
        """
        name = certificate.id
        with self._lock:
            self._catch_up(certificate)
            if name in self.withdrawn:
                return AuditOutcome(missed, reason="its certificate was withdrawn in the meantime")
            if not self._add(certificate, group, missed):
                return AuditOutcome(missed, reason="its group was counted before, and counts once")
        with self._on_record(name):
            if self.folder is not None:
                record_audit(self.folder, name, group, missed)
                if name in self.withdrawn:
                    withdraw(self.folder, name, self.withdrawn[name][1])
        return AuditOutcome(missed, True, "missed" if missed else "not missed")

    def _catch_up(self, certificate: Certificate) -> None:
        """Add the audits that other processes have recorded in the meantime. The lock is held."""
        if self.folder is not None:
            at = self.folder, certificate.id
            with self._on_record():  # if that fails, the next request tries again
                audits, self._read[at] = audits_on_record(*at, self._read.get(at, 0))
                for group, missed in audits:
                    self._add(certificate, group, missed)

    @contextmanager
    def _on_record(self, name: str = "") -> Iterator[None]:
        """Wrap access to the record: warn of the first failure, and of each one for a withdrawn certificate."""
        try:
            yield
        except OSError as error:
            if name in self.withdrawn or not self._lost:
                logger.warning("other processes, and this one after a restart, may not know of all audits: %s", error)
            self._lost = True

    def _add(self, certificate: Certificate, group: str, missed: bool) -> bool:
        """Update a monitor; return False if the group had already counted. The lock is held."""
        name, promise, n = certificate.id, certificate.promise, certificate.n
        if self._groups.get((name, group)):
            return False
        self._groups[name, group] = True
        start = Monitor.start(risk=promise.risk, n=n, k=promise.rank(n), level=self._level)
        monitor = self._monitors[name] = self._monitors.get(name, start).update(missed)
        if monitor.alarmed:
            losses = f"audits found {monitor.misses} of {monitor.audits} questions missed"
            why = f"it was withdrawn: {losses}, and at most {percent(promise.risk)} were promised; fit on newer ones"
            self._withdraw(name, "audits", why)
        return True

    def _withdraw(self, name: str, by: str, why: str) -> None:
        """Record and log, once, why a certificate is withdrawn. The lock is held."""
        if name not in self.withdrawn:
            self.withdrawn[name] = by, why
            logger.error("certificate %s: %s", name, why)
