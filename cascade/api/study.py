"""`prove` and `compare`: what a cascade would save on a log, beside every other way to answer. No model is asked."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from cascade.api.logs import Log, LogOptions, read_judged, reads_for
from cascade.api.notices import tell_requests
from cascade.api.output import Result, Tell, warn
from cascade.conformal.promise import Promise, kind_of
from cascade.episodes.rows import Read
from cascade.logs.schema import GUIDE_ONLY
from cascade.policies.networks import NetworkSettings
from cascade.reports.report import Report
from cascade.reports.study import answers_of, of_study
from cascade.studies.study import Study, study
from cascade.studies.ways import ways

RISK, SET_RISK, CONFIDENCE = 0.05, 0.1, 0.9
"""The promise that is looked at where none is asked for: of one answer served, and of a set of answers."""
Show: TypeAlias = Callable[[str, int, int], None]
"""A callback for progress: the name of the task, the number of parts done, and the number of parts."""


@dataclass(frozen=True, slots=True)
class StudyResult(Result):
    """What a cascade would save on a log, and what every other way costs.

    Attributes:
        studies: one for each data set of the log.
        reports: a report for each.
        compares: whether the ways are shown without being asked for.
    """

    studies: tuple[Study, ...]
    reports: tuple[Report, ...]
    compares: bool = False

    def text(self, *, details: bool = False) -> str:
        """Return it for a terminal: five lines for each data set, with `details` the tables too."""
        return Result.text(self, details=details or self.compares)

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `--json`: a study for each data set."""
        return {"studies": [dict(report.document) for report in self.reports]}


def prove(
    log: Log,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    show: Show = lambda _name, _done, _total: None,
    tell: Tell = warn,
) -> StudyResult:
    """Estimate what a cascade would save on a log, at which promise, how sure that is, and what to do next.

    `cascade fit` is repeated on random splits, and played on the requests left out. No key is needed.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: how many random splits.
        seed: of the random draws.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.

    >>> result = prove("demo-ladder", Promise("regret", 0.1, 0.9), splits=2)
    >>> result.studies[0].requests
    244
    """
    return _studied(log, promise, None, splits, seed, show, tell)


def compare(
    log: Log,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    networks: NetworkSettings | None = None,
    show: Show = lambda _name, _done, _total: None,
    tell: Tell = warn,
) -> StudyResult:
    """Compare every way to answer on the same random splits of a log.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: how many random splits.
        seed: of the random draws.
        networks: also train policy networks like this on each split; by far the slowest. Needs the extra train.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.

    >>> result = compare("demo", Promise("coverage", 0.1), splits=2)
    >>> result.studies[0].rows[0].name
    'reference alone'
    """
    return replace(_studied(log, promise, networks, splits, seed, show, tell), compares=True)


def _studied(
    log: Log,
    promise: Promise | None,
    networks: NetworkSettings | None,
    splits: int,
    seed: int,
    show: Show,
    tell: Tell,
) -> StudyResult:
    kind = None if promise is None else promise.kind
    reading = read_judged(LogOptions.of(log), kind, tell)
    reads, studies = reads_for(reading, kind), list[Study]()
    tell_requests(reads, tell, reference=True)
    for read in reads:
        goal = promise or default_promise(read)
        others = None if networks is None else ways(read.log, goal, networks)
        studies.append(study(read.log, goal, others, splits=splits, seed=seed, show=show))
        if "base" in read.facts.sources and read.facts.reference == GUIDE_ONLY:
            tell(f"{read.log.name} can also be read as a ladder, without judging: put ladder: before the log's name")
    reports = list[Report]()
    for each in studies:
        dataset = [f"--where {shlex.quote(f'dataset={each.log}')}"] if len(studies) > 1 else []
        command = ["cascade fit", reading.command, *dataset, *promise_options(each.promise), "-o policy"]
        reports.append(of_study(each, " ".join(command), answers_of(reading, each.why.differ)))
    return StudyResult(tuple(studies), tuple(reports))


def default_promise(
    read: Read, kind: str | None = None, risk: float | None = None, confidence: float | None = None
) -> Promise:
    """Return a promise, with what is not given as follows.

    Its kind is agreement where the reference's output is the truth, or what people were asked; regret where the log has
    the reference's answers; else coverage. Of one answer served it is broken on 5 % of requests at most, with
    confidence 90 %; a set lacks a right answer on 10 % on average.
    """
    truth = read.facts.truth
    if kind is None and truth is not None:
        kind = truth.kind or "agreement"
    kind = kind or ("coverage" if read.log.reference is None else "regret")
    rules = kind_of(kind)
    of_set = rules is not None and rules.of_set
    risk = (SET_RISK if of_set else RISK) if risk is None else risk
    return Promise(kind, risk, CONFIDENCE if confidence is None and not of_set else confidence)


def promise_options(promise: Promise) -> list[str]:
    """Return a promise as options of a command line."""
    sure = [] if promise.confidence is None else [f"--confidence {promise.confidence:g}"]
    return [f"--promise {promise.kind}", f"--risk {promise.risk:g}", *sure]
