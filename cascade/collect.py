"""Questions become a log of episodes: all T steps of each are run, so that any policy can be judged on it exactly.

Every answer of a model is written down before it is used (`episodes.journal`), and a call on record is not made again:
a run that is killed goes on where it was. The log itself is made at the end, from the record, whole or not at all.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade.budget.ledger import SharedBudget
from cascade.building import build_strategy
from cascade.config import CascadeConfig
from cascade.engine import drive, failed_call, paid_call, run
from cascade.episodes.files import read_rows, write_rows
from cascade.episodes.journal import Journal
from cascade.episodes.matching import Matcher
from cascade.episodes.questions import AskedQuestion
from cascade.episodes.schema import call_row, request_digest, rows
from cascade.errors import BadRequestError, BudgetExceededError, CascadeError, ProviderError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.policies.fixed import FixedPolicy
from cascade.providers.base import Provider
from cascade.types import Answer, Completion, Request
from cascade.walks import NamedWalk

MAX_FAILURES_IN_A_ROW = 20
"""So many questions failing one after the other is an outage, not bad luck: it is no use to ask the others."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a collection is. `spent_nano_usd` is what the log has cost so far, calls on record included."""

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
    """What came of it. `failures` are question ids with what went wrong; `stopped` why it ended early, if it did."""

    progress: Progress
    rows: int
    failures: tuple[tuple[str, str], ...]
    stopped: CascadeError | None


@dataclass(slots=True)
class _Tally:
    """What the threads count together."""

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
        walks: other ways to answer the same questions, logged beside (`walks.named_walks`).
        orchestrator: who makes the calls.
        journal: what is on record, and where each answer is written down.
        max_cost_nano_usd: what the log may cost as a whole, calls on record included; None is no cap.
    """

    def __init__(
        self,
        config: CascadeConfig,
        orchestrator: Orchestrator,
        journal: Journal,
        walks: Sequence[NamedWalk] = (),
        max_cost_nano_usd: int | None = None,
    ) -> None:
        strategy = build_strategy(config)
        everything = NamedWalk(None, strategy, FixedPolicy("both", strategy.horizon))
        self._walks = (everything, *walks)
        self._orchestrator = orchestrator
        self._journal = journal
        self._prices = config.prices()
        self._budget = SharedBudget(max_cost_nano_usd, journal.spent_nano_usd)
        self._tally = _Tally()
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
        """Return how far it is."""
        tally = self._tally
        return Progress(
            tally.done,
            total,
            len(tally.failures),
            tally.made,
            tally.reused,
            self._budget.spent_nano_usd,
            not tally.unknown_cost,
            time.monotonic() - self._started,
        )

    @property
    def failures(self) -> tuple[tuple[str, str], ...]:
        """The questions that failed, by id, with what went wrong."""
        return tuple(self._tally.failures)

    @property
    def stopped(self) -> CascadeError | None:
        """Why it ended before all questions were asked, if it did."""
        return self._tally.stopped

    def log(
        self, questions: Iterable[AskedQuestion], matcher: Matcher, dataset: str | None
    ) -> Iterator[dict[str, Any]]:
        """Yield the log's rows from the record alone.

        A question whose steps are not all on record is left out; so is a named walk by itself.
        """
        everything, *named = self._walks
        for asked in questions:
            whole = self._on_record(everything, asked)
            if whole is None:
                continue
            yield from self._rows(everything, whole, asked, matcher, dataset)
            for walk in named:
                answer = self._on_record(walk, asked)
                if answer is not None:
                    yield from self._rows(walk, answer, asked, matcher, dataset)

    def _on_record(self, walk: NamedWalk, asked: AskedQuestion) -> Answer | None:
        """Return a walk as it is on record, None if a call of it is not."""
        try:
            return self._walk(walk, asked, self._recorded)
        except ProviderError:
            return None

    def _one(self, asked: AskedQuestion) -> None:
        """Run one question's walks."""
        tally = self._tally
        try:
            for walk in self._walks:
                self._walk(walk, asked, self._paid)
        except BudgetExceededError as error:
            self._stop(error)
            return
        except ProviderError as error:
            with tally.lock:
                tally.done += 1
                tally.failures.append((asked.id, f"{type(error).__name__}: {error}"))
                tally.failed_in_a_row += 1
                outage = tally.failed_in_a_row >= MAX_FAILURES_IN_A_ROW
            if outage:
                self._stop(error)
            return
        with tally.lock:
            tally.done += 1
            tally.failed_in_a_row = 0

    def _stop(self, error: CascadeError) -> None:
        with self._tally.lock:
            self._tally.stopped = self._tally.stopped or error

    def _walk(self, walk: NamedWalk, asked: AskedQuestion, call: Callable[[Request], Completion]) -> Answer:
        """Follow one walk to its end.

        Raises:
            ProviderError: a call failed. A log with a hole would be no full information, so the question has failed.
        """
        answer = drive(run(asked.question, strategy=walk.strategy, policy=walk.policy, prices=self._prices), call)
        for made in answer.calls:
            if made.completion is None:
                raise ProviderError(f"a call of {made.request.model} failed: {made.error}", model=made.request.model)
        return answer

    def _recorded(self, request: Request) -> Completion:
        """Answer from the record."""
        found = self._journal.completion(request_digest(request))
        if found is None:
            raise BadRequestError("this call is not on record", model=request.model)
        return found

    def _paid(self, request: Request) -> Completion:
        """Answer from the record, or else make the call, and have it on the disk before anybody sees it."""
        recorded = self._journal.completion(request_digest(request))
        if recorded is not None:
            with self._tally.lock:
                self._tally.reused += 1
            return recorded
        if self._tally.stopped is not None:
            raise self._tally.stopped
        price = self._prices.get(request.model)
        hold = self._budget.hold(request, price)
        try:
            capped = self._budget.limit_nano_usd is not None
            completion = self._orchestrator.complete(request._replace(at_most_once=True) if capped else request)
        except ProviderError as error:
            failed = failed_call(request, error, price)
            self._budget.settle(hold, failed.cost_nano_usd if failed.billed != "maybe" else failed.cost_bound_nano_usd)
            raise
        except BaseException:
            self._budget.settle(hold, None)
            raise
        call = paid_call(request, completion, price)
        self._budget.settle(hold, call.cost_bound_nano_usd if call.cost_nano_usd is None else call.cost_nano_usd)
        self._journal.add([call_row(call, completion)])
        with self._tally.lock:
            self._tally.made += 1
            self._tally.unknown_cost |= call.cost_nano_usd is None
        return completion

    def _rows(
        self, walk: NamedWalk, answer: Answer, asked: AskedQuestion, matcher: Matcher, dataset: str | None
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
            record = self._journal.row(row["signals"]["replay"]["request"])
            row["created_at"] = row["created_at"] if record is None else record["created_at"]
            if row["answer"] is not None and asked.gold:
                row["correct"] = matcher.matches(row["answer"], asked.gold).correct
            if walk.name is None:
                row["kept"] = None
            yield row


def collect(
    config: CascadeConfig,
    questions: Sequence[AskedQuestion],
    output: Path,
    *,
    walks: Sequence[NamedWalk] = (),
    matcher: Matcher,
    dataset: str | None = None,
    resume: bool = False,
    concurrency: int = 8,
    max_cost_nano_usd: int | None = None,
    providers: Mapping[str, Provider] | None = None,
    tell: Callable[[Progress], None] = lambda _: None,
) -> Collected:
    """Log all steps of every question.

    Args:
        config: models, strategy and provider.
        questions: what is asked, with the accepted answers.
        output: the log that is written, as its ending says. Beside it lies a journal until all is done.
        walks: other ways to answer, logged beside (`walks.named_walks`).
        matcher: decides which answers are right.
        dataset: what the questions are called in the log.
        resume: go on with a journal, or a log, that is there; without, an output that is there is an error.
        concurrency: questions at a time.
        max_cost_nano_usd: the most that the log may cost, calls on record included.
        providers: ready-made providers by kind, as for `Orchestrator.from_config`.
        tell: called with the progress after every question.

    Raises:
        UsageError: there is an output and `resume` is off; or a price is not known under a cap.
        KeyboardInterrupt: the user's; what was paid for is on record.
    """
    journal_path = output.with_name(output.name + ".journal")
    _check(config, output, journal_path, resume=resume, capped=max_cost_nano_usd is not None)
    with Journal(journal_path) as journal, Orchestrator.from_config(config, providers=providers) as orchestrator:
        if output.exists():
            recall(output, journal)
        collector = Collector(config, orchestrator, journal, walks, max_cost_nano_usd)
        progress = collector.run(questions, concurrency=concurrency, tell=tell)
        finished = collector.log(questions, matcher, dataset)
        first = next(finished, None)
        written = 0 if first is None else write_rows(output, itertools.chain([first], finished))
    if not collector.failures and collector.stopped is None:
        journal_path.unlink()
    return Collected(progress, written, collector.failures, collector.stopped)


def _check(config: CascadeConfig, output: Path, journal: Path, *, resume: bool, capped: bool) -> None:
    """Refuse what would fail later, all at once."""
    problems = [
        f"{path} exists. Add --resume to go on with it, or choose another output."
        for path in (output, journal)
        if path.exists() and not resume
    ]
    if not output.parent.is_dir():
        problems.append(f"There is no folder {output.parent}.")
    if capped:
        unknown = [model for model, price in config.prices().items() if price is None]
        problems += [
            f"{model} has no known price, so no cap can be kept: give it one under models." for model in unknown
        ]
    if problems:
        raise UsageError("\n".join(problems))


def recall(log: Path, journal: Journal) -> int:
    """Put a finished log's calls back on record, so that a larger set of questions pays only for what is new."""
    known = len(journal)
    journal.add(row for row in read_rows(log) if "request" in (row["signals"] or {}).get("replay", {}))
    return len(journal) - known
