"""The collector: runs every walk of every question, and makes a log's rows from the record."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any

from cascade.budget.charges import SharedBudget, failed_call, paid_call
from cascade.collection.baselines import RecordedBaseline
from cascade.config import CascadeConfig
from cascade.engine import drive, run
from cascade.episodes.journal import Journal
from cascade.episodes.questions import AskedQuestion
from cascade.episodes.schema import call_row, request_digest, rows
from cascade.errors import BudgetExceededError, CascadeError, ProviderError, UsageError
from cascade.factory import build_strategy
from cascade.matching import Matcher, get_matcher, judge_rows
from cascade.orchestrator import Orchestrator
from cascade.policies.fixed import FixedPolicy
from cascade.types import Answer, Completion, Request

logger = logging.getLogger("cascade")

MAX_FAILURES_IN_A_ROW = 20
"""So many questions failing one after the other is an outage, not bad luck: it is no use to ask the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is.

    `spent_nano_usd` is what was paid so far, calls on record included; exact only if `cost_known`: what is not known
    counts at the most that it can have been, and without a price not at all.
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
        """Seconds left at the pace so far; None before there is one."""
        return None if not self.done else self.elapsed_s / self.done * (self.total - self.done)


@dataclass(frozen=True, slots=True)
class Collected:
    """The result of a collection: the log holds `questions` questions with all their steps, in `rows` rows.

    `failures` are question ids with their errors; `stopped` says why the collection ended early, if it did.
    `unused_calls` are calls in the journal that the log does not use, as after a change of the settings or with fewer
    questions; they stay in the journal.
    """

    progress: Progress
    questions: int
    rows: int
    failures: tuple[tuple[str, str], ...]
    stopped: CascadeError | None
    unused_calls: int = 0


class _HoleError(Exception):
    """A call failed or is not on record. No `ProviderError`: a walk would catch that and go on without the answer."""

    def __init__(self, error: ProviderError | None = None) -> None:
        super().__init__(error)
        self.error = error


class _StoppedError(Exception):
    """It was stopped: no further call is made."""


@dataclass(slots=True)
class _Tally:
    """Counters that the threads share."""

    done: int = 0
    made: int = 0
    reused: int = 0
    unknown_cost: bool = False
    failures: list[tuple[str, str]] = field(default_factory=list)
    failed_in_a_row: int = 0
    stopped: CascadeError | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)


class Collector:
    """Runs every walk of every question, at most `concurrency` questions at a time.

    Args:
        config: the models, the strategy whose steps are logged, and the provider.
        baselines: other ways to answer the same questions, logged beside (`baselines.recorded_baselines`).
        orchestrator: who makes the calls.
        journal: what is on record, and where each answer is written down.
        max_cost_nano_usd: what the log may cost as a whole, calls on record included; None is no cap.
    """

    def __init__(
        self,
        config: CascadeConfig,
        orchestrator: Orchestrator,
        journal: Journal,
        baselines: Sequence[RecordedBaseline] = (),
        max_cost_nano_usd: int | None = None,
    ) -> None:
        strategy = build_strategy(config)
        everything = RecordedBaseline(None, strategy, FixedPolicy("both", strategy.horizon))
        self._walks = (everything, *baselines)
        self._orchestrator = orchestrator
        self._journal = journal
        self._prices = config.prices()
        self._budget = SharedBudget(max_cost_nano_usd, journal.spent_nano_usd)
        self._tally = _Tally()
        self._whole = 0
        self._logged: set[str] = set()
        self._started = time.monotonic()

    def run(
        self, questions: Sequence[AskedQuestion], *, concurrency: int, tell: Callable[[Progress], None] = lambda _: None
    ) -> Progress:
        """Make every call that is not on record yet; return once all are done, or none can be paid any more."""
        total, waiting = len(questions), iter(questions)
        in_flight: set[Future[None]] = set()
        with ThreadPoolExecutor(concurrency, thread_name_prefix="cascade-collect") as threads:
            try:
                while True:
                    while len(in_flight) < concurrency and self._tally.stopped is None:
                        question = next(waiting, None)
                        if question is None:
                            break
                        in_flight.add(threads.submit(self._one, question))
                    if not in_flight:
                        return self.progress(total)
                    finished, in_flight = wait(in_flight, return_when=FIRST_COMPLETED)
                    for future in finished:
                        future.result()
                    tell(self.progress(total))
            except BaseException:
                self._stop(UsageError("stopped"))
                raise

    def progress(self, total: int) -> Progress:
        """Return the progress of the collection."""
        tally = self._tally
        return Progress(
            tally.done,
            total,
            len(tally.failures),
            tally.made,
            tally.reused,
            self._budget.spent_nano_usd,
            self._journal.cost_known and not tally.unknown_cost,
            time.monotonic() - self._started,
        )

    def outcome(self, total: int, rows: int) -> Collected:
        """Return the result of the collection; `rows` is the number of rows written from `log`."""
        # An agent's answer is logged and has no call of its own on record: its calls are.
        tally, unused = self._tally, sum(digest not in self._logged for digest in self._journal)
        return Collected(self.progress(total), self._whole, rows, tuple(tally.failures), tally.stopped, unused)

    def log(
        self, questions: Iterable[AskedQuestion], matcher: Matcher | None, dataset: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the log's rows from the record alone.

        A question whose steps are not all on record is left out; so is a named walk by itself.
        """
        everything, *named = self._walks
        self._whole = 0
        judge_named = functools.cache(get_matcher)
        for asked in questions:
            judge = matcher or judge_named(asked.matcher or "exact")
            whole = self._on_record(everything, asked)
            if whole is None:
                continue
            self._whole += 1
            yield from judge_rows(self._rows(everything, whole, asked, dataset), judge)
            for walk in named:
                answer = self._on_record(walk, asked)
                if answer is not None:
                    yield from judge_rows(self._rows(walk, answer, asked, dataset), judge)

    def _on_record(self, walk: RecordedBaseline, asked: AskedQuestion) -> Answer | None:
        """Return a walk rebuilt from the recorded calls; None if one of its calls is not on record."""
        try:
            return self._walk(walk, asked, self._recorded)
        except _HoleError:
            return None

    def _one(self, asked: AskedQuestion) -> None:
        """Run one question's walks."""
        tally = self._tally
        try:
            for walk in self._walks:
                self._walk(walk, asked, self._paid)
        except _StoppedError:
            return
        except BudgetExceededError as error:
            said = "What was paid for is on record: raise the cap and go on with --resume."
            self._stop(BudgetExceededError(f"{error} {said}"))
        except _HoleError as hole:
            self._failed(asked, f"{type(hole.error).__name__}: {hole.error}")
        else:
            with tally.lock:
                tally.done += 1
                tally.failed_in_a_row = 0

    def _failed(self, asked: AskedQuestion, said: str) -> None:
        tally = self._tally
        with tally.lock:
            tally.done += 1
            tally.failures.append((asked.id, said))
            tally.failed_in_a_row += 1
            outage = tally.failed_in_a_row >= MAX_FAILURES_IN_A_ROW
        if outage:
            self._stop(
                ProviderError(
                    f"{MAX_FAILURES_IN_A_ROW} questions failed one after the other, the last with {said} "
                    "What was paid for is on record: go on with --resume."
                )
            )

    def _stop(self, error: CascadeError) -> None:
        with self._tally.lock:
            self._tally.stopped = self._tally.stopped or error

    def _walk(self, walk: RecordedBaseline, asked: AskedQuestion, call: Callable[[Request], Completion]) -> Answer:
        """Follow one walk to its end. A call that fails breaks it off: a log with a hole is no full information."""
        return drive(run(asked.question, strategy=walk.strategy, policy=walk.policy, prices=self._prices), call)

    def _recorded(self, request: Request) -> Completion:
        """Answer from the record."""
        found = self._journal.completion(request_digest(request))
        if found is None:
            raise _HoleError
        return found

    def _paid(self, request: Request) -> Completion:
        """Answer from the record, or else make the call and write it to disk before it is used."""
        with self._journal.claim(request_digest(request)) as recorded:
            if recorded is not None:
                with self._tally.lock:
                    self._tally.reused += 1
                return recorded
            if self._tally.stopped is not None:
                raise _StoppedError
            return self._pay(request)

    def _pay(self, request: Request) -> Completion:
        price = self._prices.get(request.model)
        hold = self._budget.hold(request, price)
        # Under a cap a call that may be billed is not tried again: only one was held for.
        asked = request if self._budget.limit_nano_usd is None else request._replace(at_most_once=True)
        try:
            completion = self._orchestrator.complete(asked)
        except ProviderError as error:
            failed = failed_call(request, error, price)
            self._budget.settle(hold, failed.cost_bound_nano_usd)
            with self._tally.lock:
                self._tally.unknown_cost |= failed.cost_nano_usd is None or failed.billed == "maybe"
            raise _HoleError(error) from None
        except BaseException:
            self._budget.settle(hold, None)
            raise
        call = paid_call(request, completion, price)
        self._budget.settle(hold, call.cost_bound_nano_usd if call.cost_nano_usd is None else call.cost_nano_usd)
        self._journal.add([call_row(call, completion)])
        with self._tally.lock:
            self._tally.made += 1
        return completion

    def _rows(
        self, walk: RecordedBaseline, answer: Answer, asked: AskedQuestion, dataset: str | None
    ) -> Iterator[dict[str, Any]]:
        last = answer.steps[-1]
        horizon = last.number if last.final else walk.strategy.horizon
        columns = {
            "episode_id": asked.id,
            "walk": walk.name,
            "dataset": dataset,
            "split": asked.split,
            "group": asked.group,
            "gold": list(asked.gold) or None,
        }
        for row in rows(answer, horizon=horizon, **columns):
            digest = row["signals"]["replay"]["request"]
            self._logged.add(digest)
            record = self._journal.row(digest)
            row["created_at"] = row["created_at"] if record is None else record["created_at"]
            if walk.name is None:
                row["kept"] = None
            yield row
