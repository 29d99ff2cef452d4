"""Store access for requests: each call runs in a thread with a timeout, and a failing store is not called for a while.

Without this, one request after another would wait for a store that hangs, until no thread is left.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from cascade.errors import StoreError, logger
from cascade.forks import keep, now_and_after_fork
from cascade.safety import redact

_T = TypeVar("_T")
LIMIT_S = 1.0
"""The longest time that a request waits for a store, unless `timeouts.per_store_s` is set."""
AGAIN_S = 1.0
"""How long a store that failed is not called. After that, one call per such interval tries again."""
LATE_S = 0.1
"""How long after its deadline a request still waits for a store to record what was done."""


@dataclass(eq=False, slots=True)
class _Flight:
    """A run in a thread, whose callers share it if it has `values`, one of each. It has begun once `began_s` is set."""

    values: list[Any] = field(default_factory=list)
    began_s: float = 0.0
    work: Future[Sequence[Any]] = field(default_factory=Future)


class StoreLink:
    """Access to one store. Tasks of several event loops may share it.

    Args:
        name: the store's name in logs, headers and metrics.
        limit_s: how long a call may take once it has begun; None: `LIMIT_S`.
        url: the store's. A server is sent eight calls at once; a file one, since it answers one at a time.

    Attributes:
        problem: why the store failed; None once a call succeeded.
        failures: how many calls failed or timed out.
    """

    def __init__(self, name: str, limit_s: float | None = None, url: str = "") -> None:
        self.name, self.limit_s = name, LIMIT_S if limit_s is None else limit_s
        self.problem: str | None = None
        self.failures, self.threads = 0, 1 if url.startswith("sqlite:") else 8
        self._worked_s = self._again_s = float("-inf")
        now_and_after_fork(self._begin)

    def _begin(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # cannot be loaded while a process ends

        keep(vars(self).get("_threads"))
        self._threads = ThreadPoolExecutor(self.threads, thread_name_prefix=f"cascade-{self.name}")
        self._lock, self._next = threading.Lock(), dict[Callable[..., Any], _Flight]()

    async def call(
        self,
        act: Callable[..., _T],
        *values: Any,
        within_s: float = float("inf"),
        late: Callable[[_T], object] | None = None,
    ) -> _T:
        """Run `act` in a thread, and return its result.

        It waits for a thread as long as the store answers other calls within the limit, and then the limit.

        Args:
            act: calls the store.
            values: its arguments.
            within_s: how long the caller can wait in all.
            late: called with the result, in a thread, if the caller no longer waits for it.

        Raises:
            StoreError: the call failed or timed out, or the store has just failed. A call that began may still finish.
        """
        return await self.together(lambda _: [act(*values)], None, within_s, late)

    async def together(
        self,
        act: Callable[[list[Any]], Sequence[_T]],
        value: object,
        within_s: float = float("inf"),
        late: Callable[[_T], object] | None = None,
    ) -> _T:
        """Do as `call` does; `act` runs once for all callers that came before it began, and returns their results."""
        called_s, submit = time.monotonic(), self._threads.submit
        with self._lock:
            run = self._next.get(act)
            if run is None or run.began_s or self.problem or run.work.cancelled():
                self._admit(called_s)
                run = _Flight()
                run.work = submit(self._results, act, run)
                if value is not None:
                    self._next[act] = run
            number = len(run.values)
            run.values.append(value)
        future = asyncio.wrap_future(run.work)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs a late error
        try:
            await self._done(run, future, called_s, within_s)
        except (StoreError, asyncio.CancelledError):
            with self._lock:
                dropped = len(run.values) == 1 and run.work.cancel()
            if late is not None and not dropped:
                run.work.add_done_callback(lambda work: work.exception() or submit(late, work.result()[number]))
            raise
        self.failures += isinstance(future.exception(), StoreError)
        return cast("_T", future.result()[number])

    async def _done(self, run: _Flight, future: asyncio.Future[Any], called_s: float, within_s: float) -> None:
        """Wait for the end of a run. Raises StoreError if it is late."""
        ends_s = float("-inf")
        while not future.done():
            since_s, before_s = run.began_s or max(called_s, self._worked_s), ends_s
            ends_s = min(since_s + self.limit_s, called_s + within_s)
            if ends_s <= before_s:
                self.failures += 1
                problem = f"the {self.name} store did not answer within {min(self.limit_s, max(0.0, within_s)):.2g} s"
                if ends_s == since_s + self.limit_s:  # else the caller was in a hurry
                    self._failed(problem, since_s)
                raise StoreError(f"{problem}.", retryable=True, busy=True)
            await asyncio.wait([future], timeout=max(0.0, ends_s - time.monotonic()))

    def _results(self, act: Callable[[list[Any]], Sequence[_T]], run: _Flight) -> Sequence[_T]:
        """Call the store in a thread; record when that began, and whether the store answered in time."""
        with self._lock:
            run.began_s = time.monotonic()
        try:
            return act(run.values)
        except StoreError as error:
            self._failed(str(error), run.began_s)
            raise
        finally:
            if not isinstance(sys.exception(), StoreError) and time.monotonic() <= run.began_s + self.limit_s:
                self._worked_s = time.monotonic()  # any other error is an answer, too
                if self.problem is not None:
                    self.problem, self._again_s = None, float("-inf")
                    logger.warning("the %s store answers again", self.name)

    def _admit(self, now_s: float) -> None:
        """Raise StoreError for a while after a failure; then let one call try, and refuse others until it succeeds."""
        if now_s < self._again_s:
            raise StoreError(self.problem or "it failed just now", retryable=True)
        if self.problem is not None:
            self._again_s = now_s + AGAIN_S

    def _failed(self, problem: str, since_s: float) -> None:
        """Record a failure, unless the store has answered after `since_s`."""
        if self._worked_s > since_s:
            return
        if self.problem is None:
            logger.error("the %s store fails: %s", self.name, redact(problem))
        self.problem, self._again_s = problem, time.monotonic() + AGAIN_S

    @property
    def rests(self) -> bool:
        """Whether calls are refused for now, because one has just failed."""
        return time.monotonic() < self._again_s

    def close(self) -> None:
        """Start no more calls; those in progress end by themselves."""
        self._threads.shutdown(wait=False)
