"""`evaluate`: what one policy costs, loses and serves on a log; with `audits`, whether its certificates still hold."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cascade.api.logs import Log, LogOptions, read_judged, read_log, reads_for
from cascade.api.policies import PolicyGiven, read_directory, settings_of
from cascade.checks import share_problems
from cascade.config.policies import DirectoryConfig
from cascade.conformal.certificate import differences
from cascade.conformal.promise import Promise
from cascade.conformal.scope import of_log
from cascade.episodes.reading import read
from cascade.errors import CascadeError, NotCertifiedError, UsageError
from cascade.logs.schema import Dropped
from cascade.policies.directory import PolicyDirectory, Requests
from cascade.reports.evaluation import Served, audits_of, evaluation, served, watch
from cascade.reports.report import Report, Result, Tell, warn
from cascade.studies.study import default_promise


@dataclass(frozen=True, slots=True, repr=False)
class EvaluationResult(Result):
    """A report for each data set of a log; of audits one."""

    reports: tuple[Report, ...]
    detailed = True
    listed_as = "reports"

    @property
    def error(self) -> CascadeError | None:
        """That audits show that a certificate no longer holds; None if they do not."""
        if not any(report.document.get("alarmed") for report in self.reports):
            return None
        return NotCertifiedError(
            "A certificate no longer holds by these audits. Serve the reference alone, and fit on newer requests: "
            "cascade fit LOG --promise … -o NEW"
        )


def evaluate(
    log: Log,
    policy: PolicyGiven,
    *,
    audits: bool = False,
    level: float = 0.05,
    seed: int = 0,
    tell: Tell = warn,
) -> EvaluationResult:
    """Play one policy on a log: its cost, its losses and what is right, with intervals. No model is asked.

    With audits, weigh the audited requests of a log or a trace store as evidence that its certificates still hold.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        policy: a policy directory, a policy's settings as in cascade.yaml, or a configuration.
        audits: test the certificates on the audits of the log, in the order they were asked.
        level: with audits, the probability that a false alarm is ever raised.
        seed: seed of the random draws.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or policy, or the policy cannot be played on the log.
        ConfigError: the policy cannot be read.

    >>> result = evaluate("demo", {"kind": "uala", "threshold": 0.3}, tell=lambda notice: None)
    >>> result.reports[0].document["requests"]
    244
    """
    options, settings = LogOptions.of(log), settings_of(policy)
    directory = _certified(settings.path) if isinstance(settings, DirectoryConfig) else None
    promise = None if directory is None else directory.promise
    if audits:
        if directory is None or promise is None:
            raise UsageError("Audits test certificates: name a policy directory that has some.")
        if problems := share_problems(level=level):
            raise UsageError(f"{'; '.join(problems)}.")
        return _audited(options, directory, promise, level, tell)
    kind = None if promise is None else promise.kind
    reading, reports = read_judged(options, kind, tell), list[Report]()
    for data in reads_for(reading, kind, options.matcher or _comparator(directory)):
        part, goal = data.log, promise or default_promise(data)
        ways = {"policy": Served(*settings.rule(part.nodes))} if directory is None else served(directory, part)
        requests = Requests() if directory is None else directory.requests
        reports.append(evaluation(part, goal, ways, requests, seed))
    return EvaluationResult(tuple(reports))


def _certified(path: str) -> PolicyDirectory:
    directory = read_directory(Path(path))
    if directory.promise is None or not directory.certificates:
        raise UsageError(f"{path} has no certificate yet: fit it with cascade fit LOG --promise … --policy {path}.")
    return directory


def _comparator(directory: PolicyDirectory | None) -> str | None:
    return None if directory is None else next(iter(directory.certificates.values())).comparator


def _audited(
    options: LogOptions, directory: PolicyDirectory, promise: Promise, level: float, tell: Tell
) -> EvaluationResult:
    audits, dropped = audits_of(read_log(options, None, tell).rows()), Dropped()
    reading = read(lambda: audits.rows, dropped, matcher=options.matcher)
    if dropped.describe():
        tell(dropped.describe())
    (data,) = reads_for(reading, promise.kind, options.matcher or _comparator(directory))
    first = next(iter(directory.certificates.values()))
    for change in differences(first.made_for, of_log(data.log, data.facts)):
        tell(f"{change}: it holds only for that cascade")
    return EvaluationResult((watch(directory, data.log, audits, level),))
