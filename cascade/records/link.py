"""Store access for requests: each call runs in a thread with a timeout, and a failing store is not called for a while.

Without this, one request after another would wait for a store that hangs, until no thread is left.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from logging import getLogger
from typing import Any, TypeVar

from cascade.errors import StoreError
from cascade.forks import after_fork, keep
from cascade.safety import redact

_T = TypeVar("_T")
logger = getLogger("cascade")
LIMIT_S = 1.0
"""The longest time that a request waits for a store, unless `timeouts.per_store_s` is set."""
AGAIN_S = 1.0
"""How long a store that failed is not called. After that, one call per such interval tries again."""
LATE_S = 0.1
"""How long after its deadline a request still waits for a store to record what was done."""
_THREADS = 8


class StoreLink:
    """Access to one store. Tasks of several event loops may share it.

    Args:
        name: the store's name in logs, headers and metrics.
        limit_s: how long a call may take; None: `LIMIT_S`.

    Attributes:
        problem: why the store failed; None once a call succeeded.
        failures: how many calls failed or timed out.
    """

    def __init__(self, name: str, limit_s: float | None = None) -> None:
        self.name, self.limit_s = name, LIMIT_S if limit_s is None else limit_s
        self.problem: str | None = None
        self.failures = 0
        self._worked_s = self._again_s = float("-inf")
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # cannot be loaded while a process ends

        keep(vars(self).get("_threads"))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"cascade-{self.name}")

    async def call(
        self,
        act: Callable[..., _T],
        *values: Any,
        within_s: float = float("inf"),
        late: Callable[[_T], object] | None = None,
        always: bool = False,
    ) -> _T:
        """Run `act` in a thread, and return its result.

        Args:
            act: calls the store.
            values: its arguments.
            within_s: how long the caller can wait, if that is less than the limit.
            late: called with the result, in a thread, if the caller no longer waits for it.
            always: whether to run `act` even if the store has just failed, or the caller no longer waits.

        Raises:
            StoreError: the call failed or timed out, or the store has just failed. A call that began may still finish.
        """
        began_s = time.monotonic()
        if not always:
            self._admit(began_s)
        work = self._threads.submit(act, *values)
        future = asyncio.wrap_future(work)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio logs a late error
        try:
            async with asyncio.timeout(max(0.0, min(self.limit_s, within_s))):
                value = await asyncio.shield(future)
        except StoreError as error:
            self.failures += 1
            self.failed(str(error), began_s)
            raise
        except (TimeoutError, asyncio.CancelledError) as error:
            if always or not work.cancel():
                work.add_done_callback(partial(self._ended_late, began_s, late))
            if not isinstance(error, TimeoutError):
                raise
            raise self.was_late(began_s, within_s) from None
        except Exception:
            self._succeeded()  # the store answered, with an error
            raise
        self._succeeded()
        return value

    def _admit(self, now_s: float) -> None:
        """Raise StoreError for a while after a failure; then let one call try, and refuse others until it succeeds."""
        if now_s < self._again_s:
            raise StoreError(self.problem or "it failed just now", retryable=True)
        if self.problem is not None:
            self._again_s = now_s + AGAIN_S

    def _ended_late(self, began_s: float, late: Callable[[_T], object] | None, work: Future[_T]) -> None:
        """Record the failure of a late call, or pass on its result."""
        if work.cancelled():
            return
        if (error := work.exception()) is not None:
            self.failed(str(error), began_s)
        elif late is not None:
            self._threads.submit(late, work.result())

    def was_late(self, began_s: float, within_s: float) -> StoreError:
        """Count a late call, and return its error. The store counts as failing only if the caller waited the limit."""
        self.failures += 1
        problem = f"the {self.name} store did not answer within {min(self.limit_s, max(0.0, within_s)):.2g} s"
        if within_s >= self.limit_s:
            self.failed(problem, began_s)
        return StoreError(f"{problem}.", retryable=True, busy=True)

    def failed(self, problem: str, began_s: float) -> None:
        """Record that a call that began at `began_s` failed, unless another call has succeeded since then."""
        if self._worked_s >= began_s:
            return
        if self.problem is None:
            logger.error("the %s store fails: %s", self.name, redact(problem))
        self.problem, self._again_s = problem, time.monotonic() + AGAIN_S

    def _succeeded(self) -> None:
        self._worked_s = time.monotonic()
        if self.problem is not None:
            self.problem, self._again_s = None, float("-inf")
            logger.warning("the %s store answers again", self.name)

    @property
    def rests(self) -> bool:
        """Whether calls are refused for now, because one has just failed."""
        return time.monotonic() < self._again_s

    def close(self) -> None:
        """Start no more calls; those in progress end by themselves."""
        self._threads.shutdown(wait=False)
