"""Calls under shared caps that go on when their client has left: to be booked at what they cost, not at the most.

Some providers stop when a connection ends, others write and bill on, and thinking may not be streamed. So the reply is
read to its end, within the limits of a call: only its usage tells the bill.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import TypeAlias

from cascade.errors import ProviderTimeoutError
from cascade.providers.guard import Around, Guard
from cascade.resilience.portal import Deadline, Halt
from cascade.serving.spending import Spending, SpendingGuard
from cascade.types import Completion, Request, Requester, TextDelta

_LATE_S = 0.05
"""Seconds after a deadline in which the call itself may say what was late."""
_AHEAD = 4
"""The most pieces of a stream that wait for their reader."""
_Event: TypeAlias = TextDelta | Completion
_Call: TypeAlias = Callable[[Request, Deadline], AsyncGenerator[_Event, None]]


class FinishingGuard(SpendingGuard):
    """Lets each call go on, in a task of its own, when its caller leaves or the caller's deadline is over.

    Args:
        spending: the ledger and the caps.
        guard: makes the calls.
        key: the key that pays.
        halt: the switch that stops them.
    """

    def __init__(self, spending: Spending, guard: Guard | Around, key: str | None, halt: Halt) -> None:
        super().__init__(spending, guard, key)
        self._halt = halt

    async def complete(self, request: Request, deadline: Deadline) -> Completion:
        """Answer a request."""
        call = super().complete

        async def whole(request: Request, deadline: Deadline) -> AsyncGenerator[_Event, None]:
            yield await call(request, deadline)

        async with aclosing(self._awaited(request, deadline, whole)) as events:
            completion = await anext(events)
        assert isinstance(completion, Completion)  # noqa: S101 - `whole` yields nothing else
        return completion

    def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[_Event, None]:
        """Answer a request in pieces."""
        return self._awaited(request, deadline, super().stream)

    async def _awaited(self, request: Request, deadline: Deadline, call: _Call) -> AsyncGenerator[_Event, None]:
        """Yield the events of a call, its completion once it is booked, for as long as the caller stays."""
        caller, room, came = Requester(), asyncio.Semaphore(_AHEAD), asyncio.Queue[_Event | BaseException]()
        events = call(request._replace(caller=caller), deadline)
        task, event = asyncio.create_task(self._made(events, caller, room, came)), None
        try:
            while not isinstance(event, Completion):
                async with asyncio.timeout(min(deadline.remaining_s() + _LATE_S, threading.TIMEOUT_MAX)):
                    event = await came.get()
                if isinstance(event, BaseException):
                    raise event
                room.release()
                yield event
        except TimeoutError:
            says = f"{request.model} was not done in time. Raise timeouts.per_question_s."
            raise ProviderTimeoutError(says, model=request.model, billed="maybe") from None
        finally:
            caller.gone = True
            room.release()
            if not task.done():
                unsettled = self._spending.unsettled
                unsettled[self._key] += caller.held
                task.add_done_callback(lambda _: unsettled.subtract({self._key: caller.held}))

    async def _made(
        self,
        events: AsyncGenerator[_Event, None],
        caller: Requester,
        room: asyncio.Semaphore,
        came: asyncio.Queue[_Event | BaseException],
    ) -> None:
        completion = None
        try:
            with self._halt.covering():
                async with aclosing(events) as pieces:
                    async for piece in pieces:
                        if isinstance(piece, Completion):
                            completion = piece
                        elif not caller.gone:
                            came.put_nowait(piece)
                            await room.acquire()
            assert completion is not None  # noqa: S101 - a guard's last event
            came.put_nowait(completion)
        except BaseException as error:  # noqa: BLE001 - raised in the caller's task
            came.put_nowait(error)
