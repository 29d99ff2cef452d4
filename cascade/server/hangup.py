"""Cancels the work for a client that hangs up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cascade.server.bodies import ClientLeftError, Receive


@asynccontextmanager
async def connected(receive: Receive) -> AsyncIterator[None]:
    """Cancel the block as soon as the client hangs up.

    Args:
        receive: ASGI's, after the whole body was read. It also reports the end of the response, so send that end only
            after the block.

    Raises:
        ClientLeftError: the client hung up.
    """
    task = asyncio.current_task()
    assert task is not None  # noqa: S101 - a coroutine runs in a task
    left, done, before = False, False, task.cancelling()

    async def watch() -> None:
        nonlocal left
        while (await receive())["type"] != "http.disconnect":
            continue
        if not done:
            left = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        yield
    except asyncio.CancelledError:
        if left and task.uncancel() <= before:
            raise ClientLeftError from None
        raise
    finally:
        done = True
        watcher.cancel()
