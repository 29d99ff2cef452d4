"""A question whose text is shown as it is written: what of each reply is shown, on the drivers of `engine`."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, closing
from dataclasses import replace

from cascade.engine import Run, aplay, play
from cascade.episodes.traces import Trace
from cascade.strategies.reply import AnswerText
from cascade.types import Answer, Completion, Request, Step, TextDelta

_ANSWERING = frozenset({"answer", "direct"})
"""What calls are for whose replies hold an answer; the others judge or decide."""


class _Shown:
    """What is shown of one call's reply: all of it if `raw`, else its answer."""

    def __init__(self, request: Request, *, raw: bool) -> None:
        self._request, self._answer = request, AnswerText()
        self._answers = request.purpose in _ANSWERING
        self._raw = raw or request.chat is not None  # a message is shown as it is written

    def of(self, event: TextDelta) -> Iterator[TextDelta]:
        """Yield what is shown of a piece of the reply, if anything."""
        if self._raw:
            yield event
        elif self._answers and (text := self._answer.add(event.text)):
            yield replace(event, text=text)

    def rest(self, completion: Completion) -> Iterator[TextDelta]:
        """Yield the answer that was held back to the end of a whole reply, if there is one."""
        if self._raw or not self._answers or completion.truncated:
            return
        if text := self._answer.rest():
            yield TextDelta(text, self._request.role, self._request.step)


def stream(
    walk: Run, answer: Callable[[Request], Iterator[TextDelta | Completion]], trace: Trace, *, raw: bool
) -> Iterator[TextDelta | Step | Answer]:
    """Run a question to its end, blocking, and yield text, steps, and the answer after its trace is settled.

    The text is that of the answers, or with `raw` everything that the models write.
    """

    def shown(request: Request) -> Iterator[TextDelta | Completion]:
        completion, reply = None, _Shown(request, raw=raw)
        for event in answer(request):
            if isinstance(event, Completion):
                completion = event
            else:
                yield from reply.of(event)
        if completion is not None:
            yield from reply.rest(completion)
            yield completion

    with closing(play(walk, shown)) as events:
        for event in events:
            yield trace.settle(event) if isinstance(event, Answer) else event


async def astream(
    walk: Run, answer: Callable[[Request], AsyncGenerator[TextDelta | Completion, None]], trace: Trace, *, raw: bool
) -> AsyncGenerator[TextDelta | Step | Answer, None]:
    """Do as `stream` without blocking; cancelling closes the walk."""

    async def shown(request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        completion, reply = None, _Shown(request, raw=raw)
        async with aclosing(answer(request)) as pieces:
            async for event in pieces:
                if isinstance(event, Completion):
                    completion = event
                else:
                    for piece in reply.of(event):
                        yield piece
        if completion is not None:
            for piece in reply.rest(completion):
                yield piece
            yield completion

    async with aclosing(aplay(walk, shown)) as events:
        async for event in events:
            yield await trace.asettle(event) if isinstance(event, Answer) else event
