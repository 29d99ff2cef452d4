"""The drivers of a question whose text is shown as it is written: one blocking, one not. `engine` has those without."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from dataclasses import replace

from cascade.engine import Run
from cascade.episodes.traces import Trace
from cascade.errors import ProviderError
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

    def rest(self, completion: Completion | None) -> Iterator[TextDelta]:
        """Yield the answer that was held back to the end of a whole reply, if there is one."""
        if self._raw or not self._answers or completion is None or completion.truncated:
            return
        if text := self._answer.rest():
            yield TextDelta(text, self._request.role, self._request.step)


def stream(
    walk: Run, answer: Callable[[Request], Iterator[TextDelta | Completion]], trace: Trace, *, raw: bool
) -> Iterator[TextDelta | Step | Answer]:
    """Run a question to its end, blocking, and yield text, steps, and the answer after its trace is settled.

    The text is that of the answers, or with `raw` everything that the models write.
    """
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                yield item
                item = next(walk)
                continue
            try:
                completion, shown = None, _Shown(item, raw=raw)
                for event in answer(item):
                    if isinstance(event, Completion):
                        completion = event
                    else:
                        yield from shown.of(event)
                yield from shown.rest(completion)
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield trace.settle(end.value)
    finally:
        walk.close()


async def astream(
    walk: Run, answer: Callable[[Request], AsyncGenerator[TextDelta | Completion, None]], trace: Trace, *, raw: bool
) -> AsyncGenerator[TextDelta | Step | Answer, None]:
    """Do as `stream` without blocking; cancelling closes the walk."""
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                yield item
                item = next(walk)
                continue
            try:
                completion, shown = None, _Shown(item, raw=raw)
                async with aclosing(answer(item)) as events:
                    async for event in events:
                        if isinstance(event, Completion):
                            completion = event
                        else:
                            for piece in shown.of(event):
                                yield piece
                for piece in shown.rest(completion):
                    yield piece
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield await trace.asettle(end.value)
    finally:
        walk.close()
