"""The functions that try a policy on a log: `prove`, `compare`, `evaluate`, `verify`. Only canaries call a model."""

from __future__ import annotations

import asyncio
import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from cascade.api.logs import Log, LogOptions, config_here, datasets_for, parse_where, read_judged, read_log
from cascade.budget.charges import failed_call, most_nano_usd, paid_call
from cascade.budget.tokens import estimate_tokens
from cascade.checks import kind_problems, refuse, share_problems, whole_problems
from cascade.collection.adding import LoggedCalls
from cascade.config import CascadeConfig, load, policy_section
from cascade.config.policies import DirectoryConfig
from cascade.conformal.certificate import differences
from cascade.conformal.monitor import uniform
from cascade.conformal.promise import PROMISE, Promise
from cascade.engine import RunPlan, drive
from cascade.engine import run as walk
from cascade.episodes.opening import rows_of
from cascade.episodes.reading import Reading, mispriced, price_problem, read
from cascade.episodes.rows import joined
from cascade.errors import ConfigError, NotCertifiedError, ProviderError, UsageError
from cascade.fitting.attempts import counted, place_of
from cascade.fitting.certificates import of_log
from cascade.identity import hash_of, identity
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import Dropped, is_hashed
from cascade.money import Usage, dollars, total_nano_usd, usd_or_none
from cascade.orchestrator import Orchestrator
from cascade.parallel import HERE
from cascade.plans.nodes import Plan, PlanNode, judges_of
from cascade.plans.prompts import load as load_prompts
from cascade.plans.verdict import ALTERNATIVES, example_verdicts
from cascade.plans.verdict import read as read_verdict
from cascade.policies.canaries import LEAST, MOST, REPEATS, RUNS_A_YEAR, Canaries, Canary, runs_of
from cascade.policies.directory import PolicyDirectory, Requests, withdrawal
from cascade.policies.networks import NetworkSettings
from cascade.reports.evaluation import audits_of, evaluation, served, watch
from cascade.reports.notices import about_data_sets, about_requests, reference_of
from cascade.reports.report import Report, Result, Show, Tell, promise_options, warn
from cascade.reports.study import study_report
from cascade.resilience import event_loop
from cascade.runtime import Runtime
from cascade.serving.conditions import made_for
from cascade.studies.diagnosis import Signal, break_even
from cascade.studies.methods import Served, methods
from cascade.studies.proof import Check, checks, counted_as, same_cascade, same_reference
from cascade.studies.study import Study, default_promise, study
from cascade.table import Log as Columns
from cascade.types import Call, Completion, Message, Question, Request


@dataclass(frozen=True, repr=False, kw_only=True)
class StudyResult(Result):
    """What a cascade would save on a log, and what every other method costs: a study and a report for each data set."""

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
    """Estimate what a cascade would save on a log under a promise, how sure that is, and what to do next.

    `cascade fit` is repeated on random splits, and played on the requests left out. No key is needed.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: the number of random splits.
        seed: the seed of the random draws.
        on: where splits are played, with the same result: here, processes or ray (extra ray).
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log is too small, or lacks what the promise needs.
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
    """Compare every method on the same random splits of a log.

    Args:
        log: a log, or its name; `open_log` takes what chooses or judges its rows.
        promise: what is promised. By default `default_promise`.
        splits: the number of random splits.
        seed: the seed of the random draws.
        on: where splits are played, as for `prove`.
        networks: also train policy networks with these settings on each split; by far the slowest. Extra: train.
        show: is called with the progress.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log is too small, or lacks what the promise needs.

    >>> result = compare("demo", Promise("coverage", 0.1), splits=2)
    >>> result.studies[0].rows[0].name
    'reference alone'
    """
    refuse(kind_problems(Promise | None, PROMISE, promise=promise) + whole_problems(splits=splits, seed=seed))
    kind = None if promise is None else promise.kind
    reading = read_judged(LogOptions.of(log), kind, tell)
    datasets, studies = datasets_for(reading, kind), list[Study]()
    for notice in about_requests(datasets, reference=True):
        tell(notice)
    for data in datasets:
        goal = promise or default_promise(data)
        trained = None if networks is None else methods(data.log, goal, networks)
        studies.append(study(data.log, goal, trained, splits=splits, seed=seed, on=on, show=show))
    (configured, why), reports = config_here(reading, datasets), list[Report]()
    if why:
        tell(why)
    for data, result in zip(datasets, studies, strict=True):
        dataset = [f"--where {shlex.quote(f'dataset={result.log}')}"] if len(studies) > 1 else []
        served = [] if configured is None else ["--config cascade.yaml"]
        command = ["cascade fit", reading.command, *dataset, *promise_options(result.promise), *served, "-o policy"]
        reports.append(study_report(result, " ".join(command), tuple(_addable(data.log, configured))))
    return StudyResult(reports=tuple(reports), detailed=True, listed_as="studies", studies=tuple(studies))


def _addable(log: Columns, config: CascadeConfig | None) -> Iterator[Signal]:
    """Yield a configuration's judges and other models that a log of single calls lacks, with a high cost estimate."""
    if config is None or log.reference is None or not log.decides.all():
        return
    lengths = [log.signals.get(name, np.full((1, 1), np.nan))[:, 0] for name in ("prompt_tokens", "reply_tokens")]
    read, written = (math.ceil(np.nanmean(each)) if not np.isnan(each).all() else None for each in lengths)
    statement = sum(estimate_tokens(message.content) for message in example_verdicts(load_prompts())[0])
    logged = {known for node in log.nodes for known in (node.name, node.model)}
    for name, entry in config.models.items():
        judges, price, cost = entry.kind == "decision", config.prices()[entry.id], None
        if logged & ({name, entry.id} if judges else {name, entry.id, entry.model}):
            continue
        if price is not None and read is not None and written is not None:
            cost = price.cost_nano_usd(Usage(read + written + statement, 1) if judges else Usage(read, written))
        yield Signal(name, frozenset(), (), cost, break_even(log, cost), is_held=False)


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

    With audits, weigh the audited requests of a log or a trace store as evidence against its certificates.

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
    refuse(whole_problems(seed=seed) + share_problems(level=level))
    options, named = LogOptions.of(log), {"kind": "directory", "path": str(policy)}
    settings = policy_section(policy if isinstance(policy, Mapping) else named)
    directory = _certified(settings.path) if isinstance(settings, DirectoryConfig) else None
    promise = None if directory is None else directory.promise
    kind, options = None if promise is None else promise.kind, _as_certified(options, directory)
    if audits:
        if directory is None or promise is None:
            raise UsageError("Audits test certificates: name a policy directory that has some.")
        return _audited(options, directory, promise, level, tell)
    reading, reports = read_judged(options, kind, tell), list[Report]()
    for data in datasets_for(reading, kind, options.matcher or _comparator(directory)):
        part, goal = data.log, promise or default_promise(data)
        methods = {"policy": Served(*settings.rule(part.nodes))} if directory is None else served(directory, part)
        requests = Requests() if directory is None else directory.requests
        reports.append(evaluation(part, goal, methods, requests, seed))
    return Result(reports=tuple(reports), detailed=True, listed_as="reports")


def _certified(path: str) -> PolicyDirectory:
    directory = _read(path)
    if directory.promise is None or not directory.certificates:
        raise UsageError(f"{path} has no certificate yet: fit it with cascade fit LOG --promise … --policy {path}.")
    return directory


def _comparator(directory: PolicyDirectory | None) -> str | None:
    first = None if directory is None else next(iter(directory.certificates.values()), None)
    return None if first is None else first.comparator


def _as_certified(options: LogOptions, directory: PolicyDirectory | None) -> LogOptions:
    """Return the options with the matcher that judged the answers of a policy's certificates, if none is named."""
    if directory is None or directory.promise is None or directory.promise.rules.compares:  # see `datasets_for`
        return options
    is_open = isinstance(options.log, Reading)
    return options if is_open or options.matcher else options._replace(matcher=_comparator(directory))


def _audited(options: LogOptions, directory: PolicyDirectory, promise: Promise, level: float, tell: Tell) -> Result:
    audits, dropped = audits_of(read_log(options, None, tell).rows()), Dropped()
    reading = read(lambda: audits.rows, dropped, matcher=options.matcher)
    if dropped.describe():
        tell(dropped.describe())
    (data,) = datasets_for(reading, promise.kind, options.matcher or _comparator(directory))
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
    """Read a policy directory. Raises UsageError if there is no such folder, ConfigError if it holds something else."""
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
    directory: str | Path,
    log: Log | None = None,
    *,
    config: str | Path | CascadeConfig | None = None,
    canaries: str | None = None,
    runs_a_year: int = RUNS_A_YEAR,
    tell: Tell = warn,
) -> VerificationResult:
    """Check a policy's certificates on a log: hashes, dates, models, and whether the same data give the same threshold.

    On requests that the policy was not made from, it counts the losses and says whether they refute the promise.

    Args:
        directory: a policy directory with its certificates.
        log: a log, or its name; `open_log` takes what chooses or judges its rows. A run of canaries needs none.
        config: the configuration that will serve: models, prices, prompts, strategy.
        canaries: ask the judge instead: "record" up to 100 of its inputs in the log with the jitter of P(yes), or "run"
            them once each. If they show another judge (`policies.canaries`), the certificates are suspended; with too
            few verdicts `error` is a ProviderError.
        runs_a_year: the most runs that may decide in a year; they suspend falsely in at most 1 % of years.
        tell: is called with each notice about the log or the call.

    Raises:
        UsageError: there is no such log or directory, or it cannot have canaries.
        ConfigError: the configuration cannot be read.
    """
    settings = None if config is None else load(config)
    options = None if log is None else LogOptions.of(log)
    if canaries in {"record", "run"}:
        return _watched(Path(directory), options, settings, None if canaries == "run" else runs_a_year, tell)
    if options is None or canaries is not None:
        raise UsageError("Name the log to verify the certificates on; canaries are record, or run, which needs no log.")
    try:
        policy = _read(directory)
    except ConfigError as error:
        source = "" if error.source is None else f"{error.source}: "
        return VerificationResult.of(Check("file", False, source + "; ".join(error.problems)))
    kind = None if policy.promise is None else policy.promise.kind
    first = next(iter(policy.certificates.values()), None)
    options = _as_certified(options, policy)
    reading = read_log(options, kind, tell)
    datasets = datasets_for(reading, kind, options.matcher or _comparator(policy))
    for notice in about_data_sets(datasets):
        tell(notice)
    logged = joined(datasets)
    try:
        policy.refuse_other_plan(logged.log)
    except UsageError as error:
        return VerificationResult.of(Check("cascade", False, str(error)))
    results = list(checks(policy, logged.log, datetime.now(UTC).date()))
    if first is not None:
        configured = None if settings is None else made_for(settings)
        results.insert(2, same_cascade(first.made_for, of_log(logged.log, logged.facts), configured))
    if withdrawn := withdrawal(directory, *policy.certificates.values()):
        results.append(Check(withdrawn[0], False, withdrawn[1]))
    if first is not None and first.unit != "conversation":  # the server's store counts the looks at these
        results.append(same_reference(policy, None if logged.log.reference is None else reference_of(logged)))
        ledger = None if reading.file is None else place_of(reading.file)
        results.append(counted_as(policy, counted(ledger, policy.requests.certified)))
    return VerificationResult.of(*results, *([] if settings is None else [_prices(reading, settings)]))


def _prices(log: Reading, config: CascadeConfig) -> Check:
    """Check that the log's costs were computed at the prices of the configuration."""
    compared, differing = mispriced(log.rows(), config.prices())
    if differing:
        return Check("prices", False, price_problem(differing))
    text = f"of {compared:,} calls whose tokens, cost and price are known, all cost the same at the configured prices"
    return Check("prices", True, text)


# --- canaries ---


def _watched(
    folder: Path, log: LogOptions | None, config: CascadeConfig | None, runs_a_year: int | None, tell: Tell
) -> VerificationResult:
    """Record canaries for `runs_a_year` runs a year, or if that is None, run the recorded ones."""
    policy, now = _read(folder), datetime.now(UTC)
    if config is None or not policy.certificates:
        raise UsageError("Canaries need the configuration that serves (--config), and a policy with a certificate.")
    for certificate in policy.certificates.values():
        if changed := differences(certificate.made_for, made_for(config)):
            raise UsageError(f"The judge in service is not that of the certificate: {'; '.join(changed)}.")
    data = tuple(sorted({certificate.data_sha256 for certificate in policy.certificates.values()}))
    if withdrawn := withdrawal(folder, *policy.certificates.values()):
        return VerificationResult.of(Check(withdrawn[0], False, withdrawn[1]))
    canaries = Canaries.read(folder, data)
    with Orchestrator.from_config(config.unpromised) as orchestrator:
        if (canaries is None) == (runs_a_year is None):
            raise UsageError("Canaries are recorded once for a certificate (--canaries record), and then run.")
        if canaries is not None:
            canaries.refuse_too_many(runs_of(folder), now)
            ((verdicts,), cost) = _ask(orchestrator.runtime, canaries.canaries, 1, tell)
        else:  # the log's verdicts are the first run, by the judge that the fit saw
            if log is None or not runs_a_year or runs_a_year < 1:
                raise UsageError("To record canaries, name the log of the fit, and 1 run a year or more.")
            recorded, verdicts, cost = _recorded(orchestrator.runtime, log, policy, tell)
            canaries = Canaries(data=data, runs_a_year=runs_a_year, canaries=recorded)
            canaries.write(folder)
    run = canaries.judged(verdicts, now, cost)
    run.add(folder)
    counts = f"{run.verdicts} of {run.verdicts + run.unknown} verdicts, jitter {canaries.jitter:.3g}"
    text = f"{counts}, p = {run.p}, suspends at {canaries.level:.3g}; cost {dollars(usd_or_none(cost))}"
    result = VerificationResult.of(Check("canaries", not run.suspends, text))
    return result if run.p is not None else replace(result, error=ProviderError(f"Too few verdicts: {text}."))


def _recorded(
    runtime: Runtime, log: LogOptions, policy: PolicyDirectory, tell: Tell
) -> tuple[tuple[Canary, ...], list[float | None], int | None]:
    """Return inputs of the judge that the fit saw, drawn by the policy's hash; their P(yes) in the log; the cost."""
    plan, bought = runtime.configured, policy.policy.nodes or range(len(policy.plan))
    steps = {policy.plan[node].step + 1 for node in bought}
    judges = {step: judge for step, judge in judges_of(plan.nodes).items() if step in steps}
    if not judges:
        raise UsageError("The policy asks no judge with a P(yes), so it needs no canaries.")
    where, used = parse_where(log.where or ()), policy.requests
    rows = log.log.rows if isinstance(log.log, Reading) else partial(rows_of, log.path, where)
    requests = {row["episode_id"]: (row["question"] or "", row["context"]) for row in rows()}
    seen = {*used.fitted, *used.chose, *used.certified}
    known = [name for name, request in requests.items() if hash_of(identity(*request)) in seen]
    drawn = {*sorted(known, key=lambda name: uniform(policy.policy_sha256, "canary", name))[:MOST]}
    if not drawn or any(is_hashed(text) for text, _ in requests.values()):
        raise UsageError("A log with hashes instead of texts, or with none of the policy's requests, has no canaries.")
    calls = LoggedCalls([row for row in rows() if row["episode_id"] in drawn], plan, frozenset())
    judged = (state for logged in calls.questions() for state in _judged(plan, judges, calls, logged))
    states = {(canary.step, canary.messages): (canary, p) for canary, p in judged}
    rounds, cost = _ask(runtime, [canary for canary, _ in states.values()][:MOST], REPEATS, tell)
    whole = [(*state, p_yes) for state, *p_yes in zip(states.values(), *rounds, strict=False) if None not in p_yes]
    if len(whole) < LEAST:
        raise UsageError(f"{len(whole)} inputs of a judge had all their verdicts, and {LEAST} are needed.")
    recorded = tuple([canary._replace(recorded=(*p_yes,)) for canary, _, p_yes in whole])
    return recorded, [logged for _, logged, _ in whole], cost


def _judged(
    plan: Plan, judges: Mapping[int, PlanNode], calls: LoggedCalls, logged: AskedQuestion
) -> Iterator[tuple[Canary, float | None]]:
    """Yield the inputs of the judges for a question of a log, with their verdicts."""

    async def replied(request: Request) -> Completion:
        if isinstance(reply := calls.completion(logged.id, request), Completion):
            return reply
        raise reply or ProviderError("no such call")

    try:
        answer = event_loop.run(drive(walk(logged.question, RunPlan(plan)), replied))
    except ProviderError:  # by the log, no model answered
        return
    for step, kind in [(step, judges[step.number].kind) for step in answer.steps if step.number in judges]:
        for request in [call.request for call in step.calls]:
            if request.purpose == kind.call and not request.sample:
                messages = tuple([(message.role, message.content) for message in request.messages])
                yield Canary(step.number, messages), step.signals.get(kind.signal)


def _ask(runtime: Runtime, canaries: Sequence[Canary], repeats: int, tell: Tell) -> tuple[list[Any], int | None]:
    """Send each canary `repeats` times; return P(yes) by repeat, None for no verdict, and the cost in nano-USD."""
    prices, requests, room = runtime.config.prices(), list[Request](), asyncio.Semaphore(8)
    judges = judges_of(runtime.configured.nodes)
    for canary in canaries:
        node, messages = judges[canary.step], [Message(*message) for message in canary.messages]
        about = (node.name, node.kind.call, canary.step, Question("canary"), ALTERNATIVES)
        requests.append(node.use.request(tuple(messages), *about))
    most = total_nano_usd(most_nano_usd(request, prices.get(request.model)).nano_usd for request in requests * repeats)
    tell(f"{repeats * len(requests)} calls of the judge; the most that they can cost: {dollars(usd_or_none(most))}")

    async def call(request: Request) -> Call:
        async with room:
            try:
                return paid_call(request, await runtime.complete(request), prices.get(request.model))
            except ProviderError as error:
                return failed_call(request, error, prices.get(request.model))

    async def every() -> list[list[Call]]:
        return [await asyncio.gather(*map(call, requests)) for _ in range(repeats)]

    rounds = event_loop.run(every())
    p_yes = [[call.completion and read_verdict(call.completion).p_yes for call in calls] for calls in rounds]
    return p_yes, total_nano_usd(call.cost_nano_usd for calls in rounds for call in calls)
