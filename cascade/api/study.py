"""The functions that try a policy on a log and ask no model: `prove`, `compare`, `evaluate` and `verify`."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any

from cascade.api.logs import Log, LogOptions, read_judged, read_log, reads_for
from cascade.checks import share_problems
from cascade.config import CascadeConfig, load, policy_section
from cascade.config.policies import DirectoryConfig
from cascade.conformal.certificate import differences
from cascade.conformal.promise import Promise
from cascade.conformal.scope import of_log
from cascade.episodes.opening import SHIPPED
from cascade.episodes.reading import Reading, mispriced, read
from cascade.episodes.rows import joined
from cascade.errors import ConfigError, NotCertifiedError, UsageError
from cascade.fitting.attempts import counted, place_of
from cascade.logs.schema import GUIDE_ONLY, Dropped
from cascade.policies.directory import PolicyDirectory, Requests
from cascade.policies.networks import NetworkSettings
from cascade.reports.evaluation import Served, audits_of, evaluation, served, watch
from cascade.reports.notices import about_data_sets, about_requests, reference_of
from cascade.reports.report import Report, Result, Show, Tell, promise_options, warn
from cascade.reports.study import of_study
from cascade.scale import HERE
from cascade.serving.made_for import made_for
from cascade.studies.proof import Check, checks, counted_as, same_cascade, same_reference
from cascade.studies.study import Study, default_promise, study
from cascade.studies.ways import ways


@dataclass(frozen=True, repr=False, kw_only=True)
class StudyResult(Result):
    """What a cascade would save on a log, and what every other way costs: a study and a report for each data set."""

    studies: tuple[Study, ...]


def prove(
    log: Log,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    on: str = HERE,
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
        on: where splits are played, with the same result: here, processes or ray (extra ray).
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.
        WorkersLostError: the processes or the cluster are lost.

    >>> result = prove("demo-ladder", Promise("regret", 0.1, 0.9), splits=2)
    >>> result.studies[0].requests
    244
    """
    return replace(compare(log, promise, splits=splits, seed=seed, on=on, show=show, tell=tell), detailed=False)


def compare(
    log: Log,
    promise: Promise | None = None,
    *,
    splits: int = 20,
    seed: int = 0,
    on: str = HERE,
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
        on: where splits are played, as for `prove`.
        networks: also train policy networks like this on each split; by far the slowest. Needs the extra train.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log allows no answer.

    >>> result = compare("demo", Promise("coverage", 0.1), splits=2)
    >>> result.studies[0].rows[0].name
    'reference alone'
    """
    kind = None if promise is None else promise.kind
    reading = read_judged(LogOptions.of(log), kind, tell)
    reads, studies = reads_for(reading, kind), list[Study]()
    for notice in about_requests(reads, reference=True):
        tell(notice)
    for data in reads:
        goal = promise or default_promise(data)
        trained = None if networks is None else ways(data.log, goal, networks)
        studies.append(study(data.log, goal, trained, splits=splits, seed=seed, on=on, show=show))
        if "base" in data.facts.sources and data.facts.reference == GUIDE_ONLY:
            tell(f"{data.log.name} can also be read as a ladder, without judging: put ladder: before the log's name")
    reports = list[Report]()
    for result in studies:
        dataset = [f"--where {shlex.quote(f'dataset={result.log}')}"] if len(studies) > 1 else []
        served = ["--config cascade.yaml"] if Path("cascade.yaml").is_file() and reading.command not in SHIPPED else []
        command = ["cascade fit", reading.command, *dataset, *promise_options(result.promise), *served, "-o policy"]
        reports.append(of_study(result, " ".join(command)))
    return StudyResult(reports=tuple(reports), detailed=True, listed_as="studies", studies=tuple(studies))


# --- evaluate ---


def evaluate(
    log: Log,
    policy: str | PathLike[str] | Mapping[str, Any],
    *,
    audits: bool = False,
    level: float = 0.05,
    seed: int = 0,
    tell: Tell = warn,
) -> Result:
    """Play one policy on a log: its cost, its losses and what is right, with intervals. No model is asked.

    With audits, weigh the audited requests of a log or a trace store as evidence that its certificates still hold.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        policy: a policy directory, or a policy's settings as in a configuration.
        audits: test the certificates on the audits of the log, in the order they were asked.
        level: with audits, the probability that a false alarm is ever raised.
        seed: seed of the random draws.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory, or the policy cannot be played on the log.
        ConfigError: the policy cannot be read.

    >>> result = evaluate("demo", {"kind": "uala", "threshold": 0.3}, tell=lambda notice: None)
    >>> result.reports[0].document["requests"]
    244
    """
    options, named = LogOptions.of(log), {"kind": "directory", "path": str(policy)}
    settings = policy_section(policy if isinstance(policy, Mapping) else named)
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
    return Result(reports=tuple(reports), detailed=True, listed_as="reports")


def _certified(path: str) -> PolicyDirectory:
    directory = _read(path)
    if directory.promise is None or not directory.certificates:
        raise UsageError(f"{path} has no certificate yet: fit it with cascade fit LOG --promise … --policy {path}.")
    return directory


def _comparator(directory: PolicyDirectory | None) -> str | None:
    return None if directory is None else next(iter(directory.certificates.values())).comparator


def _audited(options: LogOptions, directory: PolicyDirectory, promise: Promise, level: float, tell: Tell) -> Result:
    audits, dropped = audits_of(read_log(options, None, tell).rows()), Dropped()
    reading = read(lambda: audits.rows, dropped, matcher=options.matcher)
    if dropped.describe():
        tell(dropped.describe())
    (data,) = reads_for(reading, promise.kind, options.matcher or _comparator(directory))
    first = next(iter(directory.certificates.values()))
    for change in differences(first.made_for, of_log(data.log, data.facts)):
        tell(f"{change}: it holds only for that cascade")
    report, alarm = watch(directory, data.log, audits, level), None
    if report.document["alarmed"]:
        alarm = NotCertifiedError(
            "A certificate no longer holds by these audits. Serve the reference alone, and fit on newer requests: "
            "cascade fit LOG --promise … -o NEW"
        )
    return Result(reports=(report,), error=alarm, detailed=True, listed_as="reports")


def _read(folder: str | PathLike[str]) -> PolicyDirectory:
    """Read a policy directory. Raises UsageError if there is no such folder, ConfigError if it holds another thing."""
    if not Path(folder).is_dir():
        make = "cascade fit LOG --promise agreement --confidence 0.9"
        raise UsageError(f"There is no policy directory '{folder}'. Make one with: {make} -o {folder}")
    return PolicyDirectory.read(Path(folder))


# --- verify ---


@dataclass(frozen=True, repr=False, kw_only=True)
class VerificationResult(Result):
    """The checks of a policy's certificates; `error` lists those that failed."""

    checks: tuple[Check, ...]

    @classmethod
    def of(cls, *checks: Check) -> VerificationResult:
        """Return the result of these checks, with a line for each."""
        failed = "; ".join([f"{check.name} ({check.text})" for check in checks if not check.ok])
        error = NotCertifiedError(f"The certificate does not hold. What failed: {failed}.") if failed else None
        lines = tuple([f"{'ok' if check.ok else 'no'}  {check.name:10}{check.text}" for check in checks])
        document = {"ok": not failed, "checks": [check._asdict() for check in checks]}
        return cls(reports=(Report(lines, document=document),), error=error, checks=checks)

    @property
    def ok(self) -> bool:
        """Whether every check holds."""
        return self.error is None

    @property
    def failed(self) -> tuple[str, ...]:
        """The names of the checks that failed."""
        return tuple([check.name for check in self.checks if not check.ok])


def verify(
    directory: str | Path, log: Log, *, config: str | Path | None = None, tell: Tell = warn
) -> VerificationResult:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the same data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    Args:
        directory: a policy directory with its certificates.
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        config: the configuration that will serve: models, prices, prompts, strategy.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory.
        ConfigError: the configuration cannot be read.
    """
    settings, options = None if config is None else load(Path(config)), LogOptions.of(log)
    try:
        policy = _read(directory)
    except ConfigError as error:
        source = "" if error.source is None else f"{error.source}: "
        return VerificationResult.of(Check("file", False, source + "; ".join(error.problems)))
    kind = None if policy.promise is None else policy.promise.kind
    first = next(iter(policy.certificates.values()), None)
    reading = read_log(options, kind, tell)
    reads = reads_for(reading, kind, options.matcher or (None if first is None else first.comparator))
    for notice in about_data_sets(reads):
        tell(notice)
    logged = joined(reads)
    try:
        policy.refuse_other_plan(logged.log)
    except UsageError as error:
        return VerificationResult.of(Check("cascade", False, str(error)))
    results = list(checks(policy, logged.log, datetime.now(UTC).date()))
    if first is not None:
        configured = None if settings is None else made_for(settings)
        results.insert(2, same_cascade(first.made_for, of_log(logged.log, logged.facts), configured))
    if first is not None and first.unit != "conversation":  # the server's store counts the looks at these
        results.append(same_reference(policy, None if logged.log.reference is None else reference_of(logged)))
        ledger = None if reading.file is None else place_of(reading.file)
        results.append(counted_as(policy, counted(ledger, policy.requests.certified)))
    return VerificationResult.of(*results, *([] if settings is None else [_prices(reading, settings)]))


def _prices(log: Reading, config: CascadeConfig) -> Check:
    """Check that the log's costs were computed at the prices of the configuration."""
    if differing := [model.describe() for model in mispriced(log.rows(), config.prices())]:
        text = f"the log was costed at other prices than the configuration: {'; '.join(differing)}"
        return Check("prices", False, text)
    return Check("prices", True, "every call of the log costs the same at the configured prices")
