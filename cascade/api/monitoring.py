"""`monitor`: tests whether a certificate still holds on audited questions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import LogAsked, LogGiven, Models, Where
from cascade.api.output import Result, Tell, plain_text, warn
from cascade.api.policies import certified_directory
from cascade.api.tables_of_logs import read_log, tables_for, tell_pooled
from cascade.calibration.monitoring import Watch, Watched, logged, watch
from cascade.errors import CascadeError, NotCertifiedError
from cascade.factory import read_levels
from cascade.guarantees.base import Kind, get
from cascade.text import counted


@dataclass(frozen=True, slots=True)
class MonitoringResult(Result):
    """The result of testing a policy's certificates on audited questions.

    Attributes:
        directory: the policy directory.
        level: the probability that a false alarm is ever raised.
        watches: the result for each level by its name; without levels one result, under "".
        default: the level that serves a question that names none; None without levels.
    """

    directory: str
    level: float
    watches: Mapping[str, Watch]
    default: str | None = None

    @property
    def error(self) -> CascadeError | None:
        """That certificates no longer hold; None if all do."""
        if not self.alarmed:
            return None
        return NotCertifiedError(
            f"{self.alarmed} of {self.watched} certificates no longer hold by these audits. Serve with another "
            f"policy, and certify it on newer ones: cascade fit LOG --promise … --policy {self.directory} -o NEW"
        )

    @property
    def alarmed(self) -> int:
        """How many certificates no longer hold."""
        return sum(len(one.alarmed) for one in self.watches.values())

    @property
    def watched(self) -> int:
        """How many certificates were watched."""
        return sum(len(one.watched) for one in self.watches.values())

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - sentences
        """Yield the parts of the printed result, for a terminal `width` columns wide."""
        for name, result in self.watches.items():
            for one in result.watched:
                yield Text(plain_text(f"{name and f'level {name}: '}{says(one)}"), no_wrap=True, overflow="ignore")
        yield from dict.fromkeys(said for one in self.watches.values() for said in _beyond(one))

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `monitor --json`; with levels the figures are those of the default level."""
        each = {name: watch_document(one) for name, one in self.watches.items()}
        if self.default is None:
            return {"level": self.level, **each[""]}
        levels = {"alarmed": self.alarmed > 0, "default": self.default, "levels": each}
        return {"level": self.level, **each[self.default], **levels}


def monitor(
    directory: str | Path,
    log: LogGiven,
    *,
    level: float = 0.05,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    tell: Tell = warn,
) -> MonitoringResult:
    """Read audited questions in the order they were asked, and report whether the guarantee still holds.

    An audit runs every step, so it counts for each level of a policy with levels; the levels
    share the probability of a false alarm.

    Args:
        directory: a policy directory with its certificates.
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        level: the probability that a false alarm is ever raised.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory.
    """
    given = certified_directory(Path(directory))
    levels = read_levels(Path(directory))
    each = {"": given} if levels is None else levels.policies
    opened = read_log(LogAsked(log, where, matcher, models=models), tell)
    tell_pooled(opened.tables, tell)
    about = logged(opened.rows())
    found = {
        name: watch(
            one.artifact,
            one.policy,
            tables_for(opened, one.artifact.certificates[0].kind, one.artifact),
            about,
            level / len(each),
        )
        for name, one in each.items()
    }
    for said in dict.fromkeys(said for one in found.values() for said in _besides(one)):
        tell(said)
    return MonitoringResult(str(directory), level, found, None if levels is None else levels.levels.default)


def says(one: Watched) -> str:
    """Return the state of one monitor in words."""
    monitor, name = one.monitor, one.certificate.segment
    whom = "" if name is None else f"segment {name}: "
    if not one.audits:
        return f"{whom}no audit yet"
    rate = f"{one.misses} of {one.audits} audits missed ({one.misses / one.audits:.1%})"
    needed = f"evidence against it {monitor.e_value:.3g}, an alarm needs {1 / monitor.level:.3g}"
    state = "no alarm" if monitor.alarmed_after is None else f"ALARM after {monitor.alarmed_after} audits"
    return f"{whom}{state}: {rate}, α is {monitor.alpha:.1%}; {needed}"


def _besides(found: Watch) -> list[str]:
    """Return the notices beside the result."""
    said = [f"{one}: it holds only for that cascade" for one in found.changed]
    if found.again:
        said.append(
            f"{found.again} audits are of groups of which another one counts: a group counts once, by a random question"
        )
    if found.others:
        said.append(f"{found.others} episodes were not audited (split is not audit) and are left out")
    if found.missing:
        said.append(
            f"{counted(found.missing, 'audit')} missing: a call of a model failed, or a step was of a kind that no "
            "calibration question showed. They count neither as missed nor as not missed"
        )
    if found.more_odd:
        before, n = found.odd_before
        said.append(
            f"{found.odd} of {counted(found.audits, 'audit')} have a step without an answer or a signal; at "
            f"calibration {before} of {n} had one: significantly fewer. Check the models"
        )
    if found.undated:
        said.append(f"{found.undated} audits have no date; they are counted first, in the order of the log")
    if found.calibrated:
        said.append(
            f"{found.calibrated} audited questions are among those that the certificate was made from: they support "
            "it even if the traffic has changed"
        )
    if found.trained:
        said.append(
            f"{found.trained} audited questions were used to make the policy, which does better on them than on fresh "
            "questions: they hide misses"
        )
    if found.more_unanswered and not _rules(found).counts_unanswered:
        said.append(
            "significantly more questions than at calibration have no right answer in any step, and the promise and "
            "its alarm are about the others: check the models and the questions"
        )
    beside = ((found.uncounted, _rules(found).unspoken), (found.uncovered, "are of segments without a certificate"))
    return [*said, *(f"{many} audits {why}; the promise does not cover them" for many, why in beside if many)]


def _rules(found: Watch) -> Kind:
    return get(found.watched[0].certificate.kind)


def _beyond(found: Watch) -> Iterator[str]:
    """Yield the number of audits on which no step is right, if the promise is not about them."""
    if not found.unanswered or _rules(found).counts_unanswered:
        return
    shares = [f"{found.unanswered} of {found.audits} audits ({found.unanswered / found.audits:.1%})"]
    if found.unanswered_before is not None:
        many, n = found.unanswered_before
        shares.append(f"at calibration {many} of {n} ({many / n:.1%})")
    yield f"no step is right on {'; '.join(shares)}"


def watch_document(found: Watch) -> dict[str, Any]:
    """Return a monitor's result as plain values."""
    before = found.unanswered_before
    return {
        "alarmed": bool(found.alarmed),
        "audits": found.audits,
        "not_audited": found.others,
        "undated": found.undated,
        "calibration_questions": found.calibrated,
        "training_questions": found.trained,
        "unanswered": found.unanswered,
        "unanswered_at_calibration": None if before is None else before[0] / before[1],
        "uncounted": found.uncounted,
        "missing": found.missing,
        "uncovered": found.uncovered,
        "lacking": found.odd,
        "lacking_at_calibration": list(found.odd_before) if found.odd_before[1] else None,
        "changed": list(found.changed),
        "certificates": [_watched_document(one) for one in found.watched],
    }


def _watched_document(one: Watched) -> dict[str, Any]:
    monitor = one.monitor
    return {
        "segment": one.certificate.segment,
        "calibration_id": one.certificate.calibration_id,
        "says": says(one),
        "alarmed": monitor.alarmed,
        "audits": one.audits,
        "misses": one.misses,
        "alpha": one.certificate.alpha,
        "e_value": monitor.e_value,
        "alarm_at": 1 / monitor.level,
        "alarmed_after": monitor.alarmed_after,
    }
