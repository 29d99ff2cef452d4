"""Run every walk of every question, and make a log's rows from the journal.

Besides the steps, it logs baselines: asking only the guide, and models that decide when to stop.
"""

from __future__ import annotations

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from cascade.budget.charges import Budget, failed_call, paid_call
from cascade.checks import did_you_mean, max_cost_nano_usd, refuse
from cascade.collection.adding import LoggedCalls
from cascade.config import CascadeConfig, policies
from cascade.engine import RunPlan, RunTerms, drive, run
from cascade.episodes.journal import Journal
from cascade.errors import BudgetExceededError, CascadeError, ProviderError, UsageError, logger
from cascade.factory import build_policy, build_strategy
from cascade.logs.questions import AskedQuestion
from cascade.logs.schema import call_row, request_digest, rows
from cascade.matching import Matcher, get_matcher, judge_rows
from cascade.orchestrator import Orchestrator
from cascade.plans import presets as strategies
from cascade.plans.presets import BaseGuideConfig
from cascade.resilience import event_loop
from cascade.text import counted
from cascade.types import GUIDE_ONLY, Answer, Completion, Request

MAX_FAILURES_IN_A_ROW = 20
"""This many consecutive failures mean an outage; the remaining questions are not asked."""
_LAST = "the last with {} All paid answers are recorded: continue with --resume."

BASELINES = BaseGuideConfig.baselines
"""The names of the baselines of rounds of base and guide."""


def recorded_baselines(config: CascadeConfig, names: Iterable[str] | None = None) -> tuple[RunPlan, ...]:
    """Return the named baselines (by default all) of the configured strategy (`StrategyConfig.baselines`).

    Raises:
        UsageError: there is no baseline of that name.
    """
    own = config.strategy.baselines
    chosen = own if names is None else tuple(dict.fromkeys(names))
    for name in chosen:
        if name not in {*BASELINES, *own}:
            raise UsageError(f"There is no baseline {name!r}{did_you_mean(name, {'all', 'none', *BASELINES, *own})}.")
    return tuple([_named(name, config) for name in chosen if name in own])


def _named(name: str, config: CascadeConfig) -> RunPlan:
    strategy, policy = config.strategy.baseline(name)
    update = {"strategy": strategies.WRITTEN.read(strategy), "policy": policies.WRITTEN.read(policy)}
    changed = config.model_copy(update=update)
    return RunPlan(build_strategy(changed), build_policy(changed), walk=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectSettings:
    """How to collect.

    Attributes:
        resume: continue an earlier run; nothing is paid twice.
        concurrency: how many questions run at once.
        max_cost_usd: stop before the log costs more than this, in USD, with the calls of earlier runs.
        baselines: those to log too, by name; ("all",) for all, () for none. By default only the guide alone.
        matcher: how answers are judged: exact, label, number, … By default, the form of the questions decides.
        dataset: the name of the questions in the log.
        limit: ask only the first N questions.
        only: nodes of the strategy, by their names or their entries under models. The questions are then a log that
            has the other nodes. Only these nodes are asked, and the new log has their rows and those of the old.
        judge: a judge that is added to a log in this way, as if the ladder had this `judge`.

    Raises:
        UsageError: a number is too small, or there is no such matcher.
    """

    resume: bool = False
    concurrency: int = 8
    max_cost_usd: float | None = None
    baselines: Sequence[str] | None = None
    matcher: str | Matcher | None = None
    dataset: str | None = None
    limit: int | None = None
    only: Sequence[str] | None = None
    judge: str | None = None

    def __post_init__(self) -> None:
        counts = {"concurrency": self.concurrency, "limit": 1 if self.limit is None else self.limit}
        refuse(f"{name} must be 1 or more" for name, count in counts.items() if count < 1)
        max_cost_nano_usd(self.max_cost_usd)
        if isinstance(self.matcher, str):
            object.__setattr__(self, "matcher", get_matcher(self.matcher))

    @property
    def baseline_names(self) -> Sequence[str]:
        """The names of the baselines to log."""
        named = [GUIDE_ONLY] if self.baselines is None else list(self.baselines)
        return [] if named == ["none"] else BASELINES if named == ["all"] else named


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a collection.

    `spent_nano_usd` is the money spent so far, including recorded calls. It is exact only if `cost_known`: an unknown
    cost counts at its upper bound, and a call without a price counts as 0.
    """

    done: int
    total: int
    failed: int
    made_calls: int
    reused_calls: int
    spent_nano_usd: int
    cost_known: bool
    elapsed_s: float

    @property
    def eta_s(self) -> float | None:
        """Estimated seconds left at the present rate; None while the rate is unknown."""
        return None if not self.done else self.elapsed_s / self.done * (self.total - self.done)


class RefusedRole(NamedTuple):
    """A model or an offer that refused some of the logged questions, so that its answer to them is unknown.

    `questions` is their number, `first` the id of one of them, and `error` its error.
    """

    role: str
    questions: int
    first: str
    error: str


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection: the log holds `questions` questions with all their steps, in `rows` rows.

    `failures` are question ids with their errors; `refused` has one entry for each model or offer that refused some of
    the logged questions; `stopped` is the reason why the collection ended early, if it did.
    `unused_calls` counts calls in the journal that the log does not use, for example after a change of settings or with
    fewer questions; they stay in the journal.
    """

    progress: Progress
    questions: int
    rows: int
    failures: tuple[tuple[str, str], ...]
    stopped: CascadeError | None
    unused_calls: int = 0
    refused: tuple[RefusedRole, ...] = ()


class _HoleError(Exception):
    """A call failed or is not recorded. It is not a `ProviderError`, which a walk would catch and ignore."""

    def __init__(self, error: ProviderError | None = None) -> None:
        super().__init__(error)
        self.error = error


class _StoppedError(Exception):
    """The collection was stopped; no further call is made."""


@dataclass(eq=False)
class Collector:
    """Runs every walk of every question, and counts; the arguments are those of `collection.collect`.

    `refused` has the error of each refused call, by its digest; `answered` has the roles that answered any call.
    """

    config: CascadeConfig
    orchestrator: Orchestrator
    journal: Journal
    questions: Sequence[AskedQuestion]
    baselines: Sequence[RunPlan]
    settings: CollectSettings
    recorded: LoggedCalls | None
    done: int = 0
    paid: int = 0
    reused: int = 0
    unknown_cost: bool = False
    failures: list[tuple[str, str]] = field(default_factory=list)
    failed_in_a_row: int = 0
    refused: dict[str, ProviderError] = field(default_factory=dict)
    refused_in_a_row: Counter[str] = field(default_factory=Counter)
    answered: set[str] = field(default_factory=set)
    stopped: CascadeError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._plans = (RunPlan(build_strategy(self.config)), *self.baselines)
        self._may_lack = self.config.strategy.has_parts
        self._prices = self.config.prices()
        self._budget = Budget(max_cost_nano_usd(self.settings.max_cost_usd), self.journal.spent_nano_usd)
        self._whole = 0
        self._logged: set[str] = set()
        self._refusal_of: dict[str, str] = {}
        self._lacking: dict[str, RefusedRole] = {}
        self._started = time.monotonic()

    def run(self, tell: Callable[[Progress], None]) -> None:
        """Make every call that is not recorded yet; return when all are done or the money is spent."""
        waiting, concurrency = iter(self.questions), self.settings.concurrency
        in_flight: set[Future[None]] = set()
        with ThreadPoolExecutor(concurrency, thread_name_prefix="cascade-collect") as threads:
            try:
                while True:
                    while len(in_flight) < concurrency and self.stopped is None:
                        question = next(waiting, None)
                        if question is None:
                            break
                        in_flight.add(threads.submit(self._run_question, question))
                    if not in_flight:
                        return
                    finished, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                    tell(self.progress)
            except BaseException:
                self._stop(UsageError("stopped"))
                if in_flight:  # calls in flight are paid for, and on disk before the executor ends
                    logger.warning("finishing %s; continue with --resume", counted(len(in_flight), "call"))
                raise

    @property
    def progress(self) -> Progress:
        """The progress of the collection."""
        return Progress(
            self.done,
            len(self.questions),
            len(self.failures),
            self.paid,
            self.reused,
            self._budget.spent_nano_usd,
            self.journal.cost_known and not self.unknown_cost,
            time.monotonic() - self._started,
        )

    def outcome(self, rows: int) -> Collected:
        """Return the result of the collection; `rows` is the number of rows written from `log`."""
        # An agent's answer is logged but is not a recorded call; the calls that the agent made are.
        unused = sum(digest not in self._logged for digest in self.journal)
        return Collected(
            self.progress,
            self._whole,
            rows,
            tuple(self.failures),
            self.stopped,
            unused,
            tuple(self._lacking.values()),
        )

    def log(self) -> Iterator[dict[str, Any]]:
        """Yield the log's rows, using recorded calls only.

        A question without all of its steps is left out, and so is an incomplete baseline of a question. If a model
        refused a step, the step is unknown and the question stays: leaving it out would bias the sample.
        """
        everything, *named = self._plans
        judge_named = functools.cache(get_matcher)
        named_for_all = cast("Matcher | None", self.settings.matcher)
        for question in self.questions:
            judge = named_for_all or judge_named(question.matcher or "exact")
            full = self._on_record(everything, question)
            if full is None:
                # The model that refused it answered no question at all, so the question counts as failed.
                refused = self._refusal_of.get(question.id)
                if refused is not None and self.stopped is None and question.id not in dict(self.failures):
                    self.failures.append((question.id, refused))
                continue
            self._whole += 1
            for role, error in _failed_calls(full).items():
                lacking = self._lacking.get(role) or RefusedRole(role, 0, question.id, error)
                self._lacking[role] = lacking._replace(questions=lacking.questions + 1)
            rows = judge_rows(self._rows(everything, full, question), judge)
            if self.recorded is None:
                yield from rows
            else:
                yield from map(self.recorded.merged, rows)
                yield from self.recorded.other_walks(question.id)
            for plan in named:
                answer = self._on_record(plan, question)
                if answer is not None:
                    yield from judge_rows(self._rows(plan, answer, question), judge)

    def _on_record(self, plan: RunPlan, question: AskedQuestion) -> Answer | None:
        """Return a walk rebuilt from the recorded calls; None if a call is missing."""
        try:
            return self._walk(plan, question, self._from_record)
        except (_HoleError, ProviderError):
            return None

    def _run_question(self, question: AskedQuestion) -> None:
        """Run one question's walks."""
        try:
            everything, *named = self._plans
            failed = _failed_calls(self._walk(everything, question, self._paid))
            if failed:
                self._refusal_of[question.id] = next(iter(failed.values()))
            for plan in named:
                self._walk(plan, question, self._paid)
        except _StoppedError:
            return
        except BudgetExceededError as error:
            advice = "All paid answers are recorded: raise the cap and continue with --resume."
            self._stop(BudgetExceededError(f"{error} {advice}"))
        except _HoleError as hole:
            self._failed(question, _in_words(hole.error))
        except ProviderError as error:  # no model answered
            self._failed(question, _in_words(error))
        else:
            with self.lock:
                self.done += 1
                self.failed_in_a_row = 0

    def _failed(self, question: AskedQuestion, problem: str) -> None:
        with self.lock:
            self.done += 1
            self.failures.append((question.id, problem))
            self.failed_in_a_row += 1
            outage = self.failed_in_a_row >= MAX_FAILURES_IN_A_ROW
        if outage:
            self._stop(ProviderError(f"{MAX_FAILURES_IN_A_ROW} consecutive questions failed, {_LAST.format(problem)}"))

    def _stop(self, error: CascadeError) -> None:
        with self.lock:
            self.stopped = self.stopped or error

    def _walk(self, plan: RunPlan, question: AskedQuestion, call: Callable[[Request], Completion]) -> Answer:
        """Follow one walk to its end.

        A failed call ends the walk, because a log needs every step of a question. If each step is a single call, a call
        that the provider refuses for good is logged as a step without a candidate, as in service.
        """
        may_lack = self._may_lack and plan.walk is None

        async def answered(request: Request) -> Completion:
            logged = None if self.recorded is None else self.recorded.completion(question.id, request)
            if isinstance(logged, Completion):
                return logged
            if isinstance(logged, ProviderError):
                raise _HoleError(logged) if logged.another_may_answer or not may_lack else logged
            try:
                return call(request)
            except _HoleError as hole:
                if not may_lack or hole.error is None or request_digest(request) not in self.refused:
                    raise
                raise hole.error from None

        terms = RunTerms(self._prices, fields=self.orchestrator.runtime.fields)
        return _result(drive(run(question.question, plan, terms), answered))

    def _from_record(self, request: Request) -> Completion:
        """Answer from the record."""
        digest = request_digest(request)
        completion = self.journal.completion(digest)
        if completion is None:
            role_answered = request.role in self.answered
            raise _HoleError(self.refused.get(digest) if role_answered else None)
        return completion

    def _paid(self, request: Request) -> Completion:
        """Answer from the record, or else make the call and write it to disk before it is used."""
        with self.journal.claim(request_digest(request)) as recorded:
            if recorded is not None:
                with self.lock:
                    self.reused += 1
                    self.answered.add(request.role)
                return recorded
            if self.stopped is not None:
                raise _StoppedError
            return self._pay(request)

    def _pay(self, request: Request) -> Completion:
        price = self._prices.get(request.model)
        hold = self._budget.hold(request, price)
        # Under a cap, a call that may have been billed is not retried: money was held for one call only.
        sent = request if self._budget.limit_nano_usd is None else request._replace(at_most_once=True)
        try:
            completion = event_loop.run(self.orchestrator.runtime.complete(sent))
        except ProviderError as error:
            failed = failed_call(request, error, price)
            self._budget.settle(hold, failed.cost_bound_nano_usd)
            with self.lock:
                self.unknown_cost |= failed.cost_nano_usd is None or failed.billed == "maybe"
            if not error.another_may_answer:
                self._refuses(request, error)
            raise _HoleError(error) from None
        except BaseException:
            self._budget.settle(hold, None)
            raise
        call = paid_call(request, completion, price)
        self._budget.settle(hold, call.cost_bound_nano_usd if call.cost_nano_usd is None else call.cost_nano_usd)
        self.journal.add([call_row(call, completion)])
        with self.lock:
            self.paid += 1
            self.answered.add(request.role)
            self.refused_in_a_row[request.role] = 0
        return completion

    def _refuses(self, request: Request, error: ProviderError) -> None:
        """Note a refused call; stop if a model or an offer refuses too many consecutive questions."""
        with self.lock:
            self.refused[request_digest(request)] = error
            self.refused_in_a_row[request.role] += 1
            outage = self.refused_in_a_row[request.role] >= MAX_FAILURES_IN_A_ROW
        if outage and self._may_lack:
            calls = f"{request.role} refused {MAX_FAILURES_IN_A_ROW} consecutive calls"
            self._stop(ProviderError(f"{calls}, {_LAST.format(_in_words(error))}"))

    def _rows(self, plan: RunPlan, answer: Answer, question: AskedQuestion) -> Iterator[dict[str, Any]]:
        last = answer.steps[-1]
        horizon = last.number if last.final else plan.strategy.horizon
        columns = {
            "episode_id": question.id,
            "walk": plan.walk,
            "dataset": self.settings.dataset,
            "split": question.split,
            "group": question.group,
            "gold": list(question.gold) or None,
        }
        for row in rows(answer, horizon=horizon, **columns):
            digest = row["signals"]["replay"]["request"]
            self._logged.add(digest)
            record = self.journal.row(digest)
            row["created_at"] = row["created_at"] if record is None else record["created_at"]
            if plan.walk is None:
                row["kept"] = None
            yield row


def _result(walk: Coroutine[Any, Any, Answer]) -> Answer:
    """Return the answer of a walk whose calls block this thread, so that it awaits nothing."""
    try:
        walk.send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("a walk whose calls block awaits nothing")


def _in_words(error: ProviderError | None) -> str:
    return f"{type(error).__name__}: {error}"


def _failed_calls(answer: Answer) -> dict[str, str]:
    """Return the error of the failed calls, by role."""
    return {call.request.role: str(call.error) for call in answer.calls if call.error is not None}
