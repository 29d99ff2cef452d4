"""`prove` and `compare`: what a cascade would save on a log, beside every other way to answer. No model is asked."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from cascade.api.logs import Log, LogOptions, read_judged, reads_for
from cascade.conformal.promise import Promise
from cascade.episodes.opening import SHIPPED
from cascade.logs.schema import GUIDE_ONLY
from cascade.policies.networks import NetworkSettings
from cascade.reports.notices import about_requests
from cascade.reports.report import Report, Result, Show, Tell, promise_options, warn
from cascade.reports.study import answers_of, of_study
from cascade.studies.study import Study, default_promise, study
from cascade.studies.ways import ways


@dataclass(frozen=True, slots=True, repr=False)
class StudyResult(Result):
    """What a cascade would save on a log, and what every other way costs.

    Attributes:
        studies: one for each data set of the log.
        reports: a report for each.
        detailed: whether the tables are shown unasked.
    """

    studies: tuple[Study, ...]
    reports: tuple[Report, ...]
    detailed: bool = False
    listed_as = "studies"


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
    return replace(_studied(log, promise, networks, splits, seed, show, tell), detailed=True)


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
    for notice in about_requests(reads, reference=True):
        tell(notice)
    for read in reads:
        goal = promise or default_promise(read)
        trained = None if networks is None else ways(read.log, goal, networks)
        studies.append(study(read.log, goal, trained, splits=splits, seed=seed, show=show))
        if "base" in read.facts.sources and read.facts.reference == GUIDE_ONLY:
            tell(f"{read.log.name} can also be read as a ladder, without judging: put ladder: before the log's name")
    reports = list[Report]()
    for result in studies:
        dataset = [f"--where {shlex.quote(f'dataset={result.log}')}"] if len(studies) > 1 else []
        served = ["--config cascade.yaml"] if Path("cascade.yaml").is_file() and reading.command not in SHIPPED else []
        command = ["cascade fit", reading.command, *dataset, *promise_options(result.promise), *served, "-o policy"]
        reports.append(of_study(result, " ".join(command), answers_of(reading, result.why.differ)))
    return StudyResult(tuple(studies), tuple(reports))
