"""`evaluate`: what one policy costs, loses and serves on a log; with `audits`, whether its certificates still hold."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from cascade.api.logs import Files, LogAsked, LogGiven, Models, ReviewOptions, Where, read_judged, read_log, reads_for
from cascade.api.output import Result, Tell, shown, warn
from cascade.api.policies import PolicyGiven, current_directory, settings_of
from cascade.api.study import default_promise
from cascade.checks import share_problems
from cascade.config.policies import DirectoryConfig
from cascade.conformal.fingerprint import differences, of_log
from cascade.conformal.promise import Promise
from cascade.episodes.reading import read
from cascade.errors import CascadeError, NotCertifiedError, UsageError
from cascade.logs.schema import Dropped
from cascade.policies.directory import PolicyDirectory, Requests
from cascade.reports.evaluation import Served, audits_of, evaluation, served, watch
from cascade.reports.report import Report


@dataclass(frozen=True, slots=True)
class EvaluationResult(Result):
    """A report for each data set of a log; of audits one."""

    reports: tuple[Report, ...]

    @property
    def error(self) -> CascadeError | None:
        """That audits show that a certificate no longer holds; None if they do not."""
        if not any(report.document.get("alarmed") for report in self.reports):
            return None
        return NotCertifiedError(
            "A certificate no longer holds by these audits. Serve the reference alone, and fit on newer requests: "
            "cascade fit LOG --promise … -o NEW"
        )

    def parts(self, width: int) -> Iterator[RenderableType]:  # noqa: ARG002 - a table is not cut
        """Yield the parts of the printed result."""
        for report in self.reports:
            yield Text(shown(report.text(details=True)), no_wrap=True, overflow="ignore")

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`: a report for each data set, figures as [mean, low, high]."""
        return {"reports": [dict(report.document) for report in self.reports]}


def evaluate(
    log: LogGiven,
    policy: PolicyGiven,
    *,
    audits: bool = False,
    level: float = 0.05,
    where: Where = None,
    matcher: str | None = None,
    models: Models = None,
    reviews: Files = None,
    label_rate: float | None = None,
    seed: int = 0,
    tell: Tell = warn,
) -> EvaluationResult:
    """Play one policy on a log: its cost, its losses and what is right, with intervals. No model is asked.

    With audits, weigh the audited requests of a log or a trace store as evidence that its certificates still hold.

    Args:
        log: a log (.jsonl, .parquet, a store's URL), demo, demo-ladder or demo-requests.
        policy: a policy directory, a policy's settings as in cascade.yaml, or a configuration.
        audits: test the certificates on the audits of the log, in the order they were asked.
        level: with audits, the probability that a false alarm is ever raised.
        where: only rows with COLUMN=VALUE. Repeatable.
        matcher: judge the answers again, against the gold answers, with this matcher.
        models: CHEAP,DEAR: use only these models of the log, in this order; the last is the reference.
        reviews: a file of reviews (`cascade review`): they decide what is right. Repeatable, for several reviewers.
        label_rate: use only the reviews drawn at this rate. By default all that were drawn.
        seed: seed of the random draws.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or policy, or the policy cannot be played on the log.
        ConfigError: the policy cannot be read.

    >>> found = evaluate("demo", {"kind": "threshold", "threshold": 0.3}, tell=lambda notice: None)
    >>> found.reports[0].document["requests"]
    244
    """
    asked, settings = LogAsked(log, where, matcher, models=models), settings_of(policy)
    held = _directory(settings.path) if isinstance(settings, DirectoryConfig) else None
    promise = None if held is None else held.promise
    if audits:
        if held is None or promise is None:
            raise UsageError("Audits test certificates: name a policy directory that has some.")
        if problems := share_problems(level=level):
            raise UsageError(f"{'; '.join(problems)}.")
        return _audited(asked, held, promise, level, tell)
    kind = None if promise is None else promise.kind
    opened, reports = read_judged(asked, ReviewOptions.of(reviews, label_rate), kind, tell), list[Report]()
    for data in reads_for(opened, kind, matcher or _comparator(held)):
        part, wanted = data.log, promise or default_promise(data)
        ways = {"policy": Served(*settings.rule(part.nodes))} if held is None else served(held, part)
        requests = Requests() if held is None else held.requests
        reports.append(evaluation(part, wanted, ways, requests, seed))
    return EvaluationResult(tuple(reports))


def _directory(path: str) -> PolicyDirectory:
    read = current_directory(Path(path))
    if read.promise is None or not read.certificates:
        raise UsageError(f"{path} has no certificate yet: fit it with cascade fit LOG --promise … --policy {path}.")
    return read


def _comparator(held: PolicyDirectory | None) -> str | None:
    return None if held is None else next(iter(held.certificates.values())).comparator


def _audited(asked: LogAsked, held: PolicyDirectory, promise: Promise, level: float, tell: Tell) -> EvaluationResult:
    audits, dropped = audits_of(read_log(asked, tell).rows()), Dropped()
    reading = read(lambda: audits.rows, dropped, matcher=asked.matcher)
    if dropped.describe():
        tell(dropped.describe())
    (data,) = reads_for(reading, promise.kind, asked.matcher or _comparator(held))
    first = next(iter(held.certificates.values()))
    for change in differences(first.made_for, of_log(data.log, data.facts)):
        tell(f"{change}: it holds only for that cascade")
    return EvaluationResult((watch(held, data.log, audits, level),))
