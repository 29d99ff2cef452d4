"""Makes the calls of a question whose reference is called early (a hedge). `hedging` decides when.

`HedgedCalls` makes the calls of one question. An early call runs together with the next one: in a thread if the caller
blocks, else in a task. Its result is kept until its step is reached, and nothing of it is shown before. If the question
ends first, the call is stopped. A stopped call ends by itself and settles its holds; `Orchestrator.close` waits for it
as for a question.
"""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import aclosing, suppress
from typing import TypeAlias

from cascade.engine import Run
from cascade.errors import BudgetExceededError, ClosedError, ProviderError, ProviderUnavailableError
from cascade.resilience.halting import Halt
from cascade.serving.hedging import Begin, End, Hedging, Outcome, Purse
from cascade.serving.plan import Calls
from cascade.serving.spending import Beside, SpendingGuard
from cascade.types import Answer, Completion, Request, TextDelta

Event: TypeAlias = TextDelta | Completion
_tasks: set[asyncio.Task[None]] = set()
"""The running tasks: an event loop keeps only weak references to its tasks."""


class HedgedCalls(Calls):
    """The calls of one question, one of which may be started early.

    Args:
        calls: makes the other calls.
        hedging: decides which call is started early.
    """

    __slots__ = ("_begin", "_begun", "_hedging")

    def __init__(self, calls: Calls, hedging: Hedging) -> None:
        super().__init__(calls.guards, calls.deadline, calls.halt, calls.key)
        self._hedging = hedging
        self._begin: Begin | None = None
        self._begun: tuple[Request, _InThread | _InTask] | None = None

    @property
    def purse(self) -> Purse:
        """The cap of the question, from which its walk spends."""
        return self._hedging.purse

    def follow(self, plain: Run) -> Run:
        """Follow the walk, and start and stop the early calls that `Hedging` requests."""
        walk = self._hedging.follow(plain)
        try:
            item = next(walk)
            while True:
                if isinstance(item, Begin):
                    self._begin = item
                    item = walk.send(None)
                elif isinstance(item, End):
                    item = walk.send(self._ended())
                else:
                    try:
                        sent = yield item
                    except (ProviderError, BudgetExceededError) as error:
                        item = walk.throw(error)
                    else:
                        item = walk.send(sent)
        except StopIteration as end:
            answer: Answer = end.value
            return answer
        finally:
            walk.close()
            self._ended()

    def _ended(self) -> Outcome:
        """Stop the early call; return its result, or None if it was still running."""
        if self._begun is None:
            return None
        (_, call), self._begun = self._begun, None
        return call.end()

    # --- blocking ---

    def complete(self, request: Request) -> Completion:
        """Make a call, or take the result of the early one."""
        call = self._thread(request, pieces=False)
        if call is None:
            return super().complete(request)
        return next(event for event in call.events(shows=False) if isinstance(event, Completion))

    def stream(self, request: Request) -> Iterator[Event]:
        """Like `complete`, but yield the reply as it is written."""
        call = self._thread(request, pieces=True)
        yield from super().stream(request) if call is None else call.events(shows=True)

    def _thread(self, request: Request, *, pieces: bool) -> _InThread | None:
        """Return the early call if it is this call. Otherwise start the early call that belongs to this one."""
        begun = self._taken(request)
        if begun is not None:
            assert isinstance(begun, _InThread)  # noqa: S101 - a question is asked in one way
            return begun
        if (begin := self._due()) is None:
            return None

        held = threading.Event()
        guard = self.guards(begin.request, self.key, Beside(begin.beside, held.set))

        def made(halt: Halt) -> Iterator[Event]:
            if pieces:
                return iter(guard.stream(begin.request, self.deadline, halt))
            return iter((guard.complete(begin.request, self.deadline, halt),))

        self._begun = begin.request, _InThread(made, self.halt, held.set)
        if isinstance(guard, SpendingGuard):
            held.wait()
        return None

    # --- without blocking ---

    async def acomplete(self, request: Request) -> Completion:
        """Make a call, or take the result of the early one, without blocking."""
        call = await self._task(request, pieces=False)
        if call is None:
            return await super().acomplete(request)
        async with aclosing(call.events(shows=False)) as events:
            async for event in events:
                if isinstance(event, Completion):
                    return event
        raise AssertionError("a call ends with its completion")  # pragma: no cover

    async def astream(self, request: Request) -> AsyncGenerator[Event, None]:
        """Like `acomplete`, but yield the reply as it is written."""
        call = await self._task(request, pieces=True)
        made = super().astream(request) if call is None else call.events(shows=True)
        async with aclosing(made) as events:
            async for event in events:
                yield event

    async def _task(self, request: Request, *, pieces: bool) -> _InTask | None:
        """Do as `_thread`. If the text may be streamed later, start the call as a stream."""
        begun = self._taken(request)
        if begun is not None:
            assert isinstance(begun, _InTask)  # noqa: S101 - a question is asked in one way
            return begun
        if (begin := self._due()) is None:
            return None
        if self.shows is not None:
            pieces = self.shows(begin.request)

        held = asyncio.Event()
        guard = self.guards(begin.request, self.key, Beside(begin.beside, held.set))

        async def made() -> AsyncGenerator[Event, None]:
            if pieces:
                async with aclosing(guard.astream(begin.request, self.deadline, self.halt)) as events:
                    async for event in events:
                        yield event
            else:
                yield await guard.acomplete(begin.request, self.deadline, self.halt)

        self._begun = begin.request, _InTask(made, self.halt, held.set)
        if isinstance(guard, SpendingGuard):
            await held.wait()
        return None

    def _taken(self, request: Request) -> _InThread | _InTask | None:
        if self._begun is None or self._begun[0] is not request:
            return None
        (_, call), self._begun = self._begun, None
        return call

    def _due(self) -> Begin | None:
        begin, self._begin = self._begin, None
        return begin


class _InThread:
    """A call in a thread of its own.

    Args:
        made: makes the call; its argument is the switch that stops it.
        halt: stops every call of the orchestrator.
        began: is called once the call's money is held or refused.
    """

    def __init__(self, made: Callable[[Halt], Iterator[Event]], halt: Halt, began: Callable[[], None]) -> None:
        self._made, self._all, self._began = made, halt, began
        self._halt = Halt()
        self._came: queue.SimpleQueue[Event | BaseException] = queue.SimpleQueue()
        self._outcome: Completion | BaseException | None = None
        context = contextvars.copy_context()
        threading.Thread(target=context.run, args=(self._run,), name="cascade-early", daemon=True).start()

    def _run(self) -> None:
        last: Completion | BaseException | None = None
        try:
            with self._all.working(), self._all.over(self._halt.stop):
                for event in self._made(self._halt):
                    if isinstance(event, TextDelta):
                        self._came.put(event)
                    else:
                        last = event
        except BaseException as error:  # noqa: BLE001 - it is raised where the reply is waited for
            last = error
        self._outcome = last
        self._began()
        if last is not None:
            self._came.put(last)

    def events(self, *, shows: bool) -> Generator[Event, None, None]:
        """Yield the call's pieces so far and to come; `shows` says whether its text is passed on.

        Raises:
            ProviderError: it failed; `early` is set if nothing was passed on.
        """
        passed, failed = False, isinstance(self._outcome, BaseException)
        event: Event | BaseException | None = None
        try:
            while not isinstance(event, Completion):
                event = self._outcome if failed else self._came.get()
                if event is None or isinstance(event, BaseException):
                    raise _early(event, passed=passed)
                passed = passed or shows
                yield event
        finally:
            self._halt.stop()

    def end(self) -> Outcome:
        """Stop the call; return its result, or None if it was still running."""
        self._halt.stop()
        return _outcome(self._outcome)


class _InTask:
    """A call in a task of its own; arguments as for `_InThread`."""

    def __init__(self, made: Callable[[], AsyncGenerator[Event, None]], halt: Halt, began: Callable[[], None]) -> None:
        self._made, self._all, self._began = made, halt, began
        self._came: asyncio.Queue[Event | BaseException] = asyncio.Queue()
        self._outcome: Completion | BaseException | None = None
        self._task = asyncio.get_running_loop().create_task(self._run())
        _tasks.add(self._task)
        self._task.add_done_callback(_tasks.discard)

    async def _run(self) -> None:
        last: Completion | BaseException | None = None
        try:
            with self._all.working():
                async with aclosing(self._made()) as events:
                    async for event in events:
                        if isinstance(event, TextDelta):
                            self._came.put_nowait(event)
                        else:
                            last = event
        except asyncio.CancelledError:
            last = ClosedError(_STOPPED)
        except Exception as error:  # noqa: BLE001 - it is raised where the reply is waited for
            last = error
        self._outcome = last
        self._began()
        if last is not None:
            self._came.put_nowait(last)

    async def events(self, *, shows: bool) -> AsyncGenerator[Event, None]:
        """Do as `_InThread.events` without blocking."""
        passed, failed = False, isinstance(self._outcome, BaseException)
        event: Event | BaseException | None = None
        try:
            while not isinstance(event, Completion):
                event = self._outcome if failed else await self._came.get()
                if event is None or isinstance(event, BaseException):
                    raise _early(event, passed=passed)
                passed = passed or shows
                yield event
        finally:
            self.end()

    def end(self) -> Outcome:
        """Stop the call; return its result, or None if it was still running."""
        with suppress(RuntimeError):  # its event loop was closed
            self._task.cancel()
        return _outcome(self._outcome)


_STOPPED = "The call was stopped."


def _outcome(last: Completion | BaseException | None) -> Outcome:
    """Return the result of a call that is not needed; a call that the budget refused cost nothing."""
    if isinstance(last, BudgetExceededError):
        return _early(last, passed=False)
    return last if isinstance(last, Completion | ProviderError) else None


def _early(error: BaseException | None, *, passed: bool) -> ProviderError:
    """Return the error of an early call; `passed`: whether some of its text was passed on.

    Raises:
        ClosedError: the orchestrator was closed, or the question stopped.
    """
    if isinstance(error, ClosedError) or (error is not None and not isinstance(error, Exception)):
        raise error
    if not isinstance(error, ProviderError):
        billed = "no" if isinstance(error, BudgetExceededError) else "maybe"
        error = ProviderUnavailableError(f"not begun early: {type(error).__name__}: {error}", billed=billed)
    error.early = not passed
    return error
