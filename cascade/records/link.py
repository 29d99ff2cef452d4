"""The way from a request to a store: each call in a thread, within a limit. One that fails is left alone for a while.

Without it one request after another would wait for a store that hangs, until no thread is left.
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
"""How long a request waits for a store at most, unless `timeouts.per_store_s` says otherwise."""
AGAIN_S = 1.0
"""For how long no call is made to a store that failed. Then one call at a time tries again."""
LATE_S = 0.1
"""How long after its deadline a request waits for a store in which it books or notes what was done."""
_THREADS = 8


class StoreLink:
    """The way to one store. Tasks of several event loops may share it.

    Args:
        name: the store's name in logs, headers and metrics.
        limit_s: how long a call may take; None: `LIMIT_S`.

    Attributes:
        problem: why the store failed; None once a call succeeded.
        failures: how many calls failed or were late.
    """

    def __init__(self, name: str, limit_s: float | None = None) -> None:
        self.name, self.limit_s = name, LIMIT_S if limit_s is None else limit_s
        self.problem: str | None = None
        self.failures = 0
        self._worked_s = self._again_s = float("-inf")
        self._begin()
        after_fork(self._begin)

    def _begin(self) -> None:
        from concurrent.futures import ThreadPoolExecutor  # which cannot be loaded while a process ends

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
        """Return what `act` returns in a thread.

        Args:
            act: asks the store.
            values: its arguments.
            within_s: how long the caller can wait, if that is less than the limit.
            late: is given the result, in a thread, if nobody waits for it any more.
            always: whether it is done even if the store just failed, or nobody waits any more.

        Raises:
            StoreError: it failed, was late, or just failed before. What had begun may still be done.
        """
        began_s = time.monotonic()
        if not always:
            self._admit(began_s)
        work = self._threads.submit(act, *values)
        future = asyncio.wrap_future(work)
        future.add_done_callback(lambda done: done.cancelled() or done.exception())  # of a late error nobody hears
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
            self._succeeded()  # it answered: no
            raise
        self._succeeded()
        return value

    def _admit(self, now_s: float) -> None:
        """Raise StoreError for a while after a failure; then let one call try, and others wait for its result."""
        if now_s < self._again_s:
            raise StoreError(self.problem or "it failed just now", retryable=True)
        if self.problem is not None:
            self._again_s = now_s + AGAIN_S

    def _ended_late(self, began_s: float, late: Callable[[_T], object] | None, work: Future[_T]) -> None:
        """Note a late failure; pass on a late result."""
        if work.cancelled():
            return
        if (error := work.exception()) is not None:
            self.failed(str(error), began_s)
        elif late is not None:
            self._threads.submit(late, work.result())

    def was_late(self, began_s: float, within_s: float) -> StoreError:
        """Count a call that was late, and return its error. Of a caller in a hurry it says nothing of the store."""
        self.failures += 1
        problem = f"the store of {self.name} did not answer within {min(self.limit_s, max(0.0, within_s)):.2g} s"
        if within_s >= self.limit_s:
            self.failed(problem, began_s)
        return StoreError(f"{problem}.", retryable=True, busy=True)

    def failed(self, problem: str, began_s: float) -> None:
        """Note a failure of a call that began then. If another has succeeded since, the store is not left alone."""
        if self._worked_s >= began_s:
            return
        if self.problem is None:
            logger.error("the store of %s fails: %s", self.name, redact(problem))
        self.problem, self._again_s = problem, time.monotonic() + AGAIN_S

    def _succeeded(self) -> None:
        self._worked_s = time.monotonic()
        if self.problem is not None:
            self.problem, self._again_s = None, float("-inf")
            logger.warning("the store of %s answers again", self.name)

    @property
    def rests(self) -> bool:
        """Whether calls fail at once now, as one has just failed."""
        return time.monotonic() < self._again_s

    def close(self) -> None:
        """Begin nothing more; what is under way ends by itself."""
        self._threads.shutdown(wait=False)
