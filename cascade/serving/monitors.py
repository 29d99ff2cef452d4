"""The results of audits for each certificate, kept as long as an orchestrator lives; alarms in the policy directory.

An audit counts for a certificate, whichever level or directory has it. Results are stored by the certificate's id and
kept when the policy in service is replaced, so that a certificate that comes back does not start with a clean record.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from logging import getLogger
from typing import NamedTuple

from cascade.config.schema import GuaranteeConfig
from cascade.conformal.certificate import Certificate
from cascade.conformal.monitor import Monitor, is_drawn
from cascade.conformal.promise import Judge, Promise
from cascade.forks import after_fork
from cascade.identity import identity, storable
from cascade.money import exact_dollars
from cascade.policies.directory import withdraw, withdrawal
from cascade.text import percent
from cascade.types import Question

logger = getLogger("cascade")


class AuditOutcome(NamedTuple):
    """The result of recording the truth about an answer: whether it was missed, and whether or why not it counted."""

    missed: bool | None = None
    counted: bool = False
    reason: str = ""


def group_of(question: Question) -> str:
    """Return the name of what a question belongs to; without a group, equal requests belong together."""
    return question.group or identity(question.text, question.context)


def judge(right: Judge | str | Sequence[str], matcher: str) -> Judge:
    """Return a function that decides whether a text is right, from a truth value or from the accepted answers."""
    if callable(right):
        return right
    from cascade.matching import get_matcher

    rule, gold = get_matcher(matcher), (right,) if isinstance(right, str) else tuple(right)
    return lambda text: rule.matches(text, gold)


@dataclass(frozen=True, slots=True)
class CertificateMonitor:
    """The audit results of one certificate.

    Attributes:
        monitor: the monitor after the audits so far.
        alarm: the reason why audits or canaries withdrew the certificate, in words.
        by_canaries: whether it was canaries.
    """

    monitor: Monitor | None = None
    alarm: str | None = None
    by_canaries: bool = False


UNAUDITED = CertificateMonitor()


def _after(monitor: Monitor, promise: Promise) -> CertificateMonitor:
    """Return the results of the audits that a certificate's monitor has counted."""
    alarm = (
        f"it was withdrawn: audits found {monitor.misses} of {monitor.audits} questions missed, and at most "
        f"{percent(promise.risk)} were promised; calibrate again"
    )
    return CertificateMonitor(monitor, alarm if monitor.alarmed else None)


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """Counts of the questions that an orchestrator has answered, for its operator.

    Attributes:
        answered: how many were answered.
        certified: how many of these answers have a certificate.
        uncertified_nano_usd: the cost of the answers without a certificate; None if the cost of one is unknown.
        audits: audited answers whose truth was recorded and counted.
        missed: how many of these were missed.
        missing: audited answers whose truth was recorded but shows nothing, since a call failed or a step was of a
            kind that the calibration did not have.
    """

    answered: int = 0
    certified: int = 0
    uncertified_nano_usd: int | None = 0
    audits: int = 0
    missed: int = 0
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

    Guarantee: the certificates in service share `monitor.level` evenly; the shares are computed again when certificates
    change. So the probability of any false alarm while these serve is at most that level, for any number of levels and
    segments (Bonferroni: each monitor counts as having run at its present share from its first audit on).
    """

    def __init__(self, settings: GuaranteeConfig) -> None:
        self.folder: str | None = None
        """The policy directory in service, where any process may record why a certificate is withdrawn."""
        self.settings = settings
        self._begin()
        after_fork(self._begin)
        self._known: dict[str, CertificateMonitor] = {}
        self.status = ServiceStatus()
        """Counts of all answered questions."""
        # How many answers without a certificate each reason has; one answer may have several.
        self.uncovered = Counter[str]()
        self._drawn, self._heard = set[tuple[str, str]](), set[tuple[str, str]]()
        self._level, audit = settings.monitor.level, settings.audit
        seed = secrets.randbits(64) if audit is None or audit.seed is None else audit.seed
        self._key = f"audit {seed}"

    def drawn(self, certificate: Certificate | None, question: Question) -> bool:
        """Whether a question is audited: the first one of its group under a certificate, if the group is drawn."""
        audit = self.settings.audit
        if audit is None or not is_drawn(self._key, audit.probability, group := group_of(question)):
            return False
        name = "" if certificate is None else certificate.id, storable(group)  # a client's name may be long
        with self._lock:
            first = name not in self._drawn
            self._drawn.add(name)
        return first

    def _begin(self) -> None:
        """Make the lock, again in a forked child: another thread may have held it at the fork."""
        self._lock = threading.Lock()

    def of(self, certificate: Certificate) -> CertificateMonitor:
        """Return the audit results of a certificate. What withdrew it in any process is final."""
        known = self._known.get(certificate.id, UNAUDITED)
        if known.alarm is None and self.folder and (withdrawn := withdrawal(self.folder, certificate)):
            by, reason = withdrawn
            with self._lock:
                known = self._known.get(certificate.id, UNAUDITED)
                if known.alarm is None:  # and no audit of another thread has raised it meanwhile
                    known = self._known[certificate.id] = replace(known, alarm=reason, by_canaries=by == "canaries")
                    logger.error("certificate %s: %s", certificate.id, reason)
        return known

    def answered(self, certified: bool, cost_nano_usd: int | None, uncovered: Iterable[str] = ()) -> None:
        """Count an answer; `uncovered`: what kept it from a certificate, from a small set of words."""
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

    @property
    def withdrawn(self) -> frozenset[str]:
        """The ids of all certificates about which audits ever raised an alarm."""
        return frozenset([name for name, known in self._known.items() if known.alarm is not None])

    def share(self, certificates: Iterable[Certificate]) -> None:
        """Divide the probability of a false alarm among these certificates, all that are in service from now on."""
        names = {certificate.id for certificate in certificates}
        with self._lock:
            self._level = self.settings.monitor.level / max(len(names), 1)
            for name in names & self._known.keys():
                if (monitor := self._known[name].monitor) is not None:
                    # The level is only the limit of the evidence: this is the monitor that began at it.
                    self._known[name] = replace(self._known[name], monitor=replace(monitor, level=self._level))

    def count(self, certificate: Certificate, missed: bool, group: str) -> AuditOutcome:
        """Update the monitor of a certificate in service with an audited question, `missed` or not as it was served.

        Its group (`group_of`) counts once, however often an outcome is recorded.
        """
        name = certificate.id
        with self._lock:
            before = self._known.get(name, UNAUDITED)
            if before.alarm is not None:
                return AuditOutcome(missed, reason="its certificate was withdrawn in the meantime")
            if (name, group) in self._heard:
                return AuditOutcome(missed, reason="its group was counted before, and counts once")
            self._heard.add((name, group))
            status = self.status
            self.status = replace(status, audits=status.audits + 1, missed=status.missed + missed)
            monitor = before.monitor or self._new_monitor(certificate)
            after = self._known[name] = _after(monitor.update(missed), certificate.promise)
        if after.alarm is not None:
            logger.error("certificate %s: %s", name, after.alarm)
            try:
                if self.folder is not None:
                    withdraw(self.folder, name, after.alarm)
            except OSError as error:
                logger.warning("other processes serve it, and so does this one after a restart: %s", error)
        return AuditOutcome(missed, True, "missed" if missed else "not missed")

    def _new_monitor(self, certificate: Certificate) -> Monitor:
        """Return a monitor at its share of the level."""
        promise = certificate.promise
        return Monitor.start(risk=promise.risk, n=certificate.n, k=promise.rank(certificate.n), level=self._level)
