"""The drivers of a question whose text is shown as it is written: one blocking, one not. `engine` has those without."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

from cascade.engine import Run
from cascade.episodes.follow import Trace
from cascade.errors import ProviderError
from cascade.types import Answer, Completion, Request, Step, TextDelta


def stream(
    walk: Run, answer: Callable[[Request], Iterator[TextDelta | Completion]], trace: Trace
) -> Iterator[TextDelta | Step | Answer]:
    """Run a question to its end, blocking, and yield text, steps, and the answer after its trace is settled."""
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                yield item
                item = next(walk)
                continue
            try:
                completion = None
                for event in answer(item):
                    if isinstance(event, Completion):
                        completion = event
                    else:
                        yield event
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield trace.settle(end.value)
    finally:
        walk.close()


async def astream(
    walk: Run, answer: Callable[[Request], AsyncGenerator[TextDelta | Completion, None]], trace: Trace
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
                completion = None
                async with aclosing(answer(item)) as events:
                    async for event in events:
                        if isinstance(event, Completion):
                            completion = event
                        else:
                            yield event
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        yield await trace.asettle(end.value)
    finally:
        walk.close()
