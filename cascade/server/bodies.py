"""Reads the JSON object in a request's body, within limits of size, depth and time; and notices who hangs up."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any, TypeAlias

from cascade.config.schema import ServerConfig
from cascade.server.refusals import Refused

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's: returns the next event of a request."""


class ClientLeftError(Exception):
    """The client hung up, so no answer is sent."""


async def read_object(receive: Receive, content_type: str, settings: ServerConfig) -> dict[str, Any]:
    """Return the JSON object in a request's body.

    Raises:
        Refused: it is not JSON (400, 415), too large (413), too deep (400), or does not arrive in time (408).
        ClientLeftError: the client hung up before its end.
    """
    if content_type.partition(";")[0].strip().lower() != "application/json":
        # A web page cannot send this type to another host without asking that host first.
        raise Refused(415, "Send the request as JSON, with Content-Type: application/json.")
    try:
        async with asyncio.timeout(settings.body_s):
            body = await _read(receive, settings.max_body_bytes)
    except TimeoutError:
        raise Refused(
            408, f"The request did not arrive within {settings.body_s:g} s.", code="request_timeout"
        ) from None
    return parsed_object(body, settings.max_depth)


async def _read(receive: Receive, most: int) -> bytes:
    pieces, size, more = list[bytes](), 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientLeftError
        piece = event.get("body", b"")
        size += len(piece)
        if size > most:
            raise Refused(413, f"The request has more than {most:,} bytes (server.max_body_bytes).", code="too_large")
        pieces.append(piece)
        more = event.get("more_body", False)
    return b"".join(pieces)


def parsed_object(body: bytes, most_depth: int) -> dict[str, Any]:
    """Return the object in a JSON text. Raises Refused (400) for anything else.

    >>> parsed_object(b'{"model": "cascade"}', 10)
    {'model': 'cascade'}
    """
    import orjson

    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise Refused(400, f"The request is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise Refused(400, "The request is not a JSON object.", code="invalid_json")
    if deeper_than(value, most_depth):
        raise Refused(400, f"The request is nested deeper than {most_depth} (server.max_depth).", code="too_deep")
    if _LONG.search(body):
        json.loads(body, parse_int=_refuse_rounded)
    return value


_LONG = re.compile(rb"[0-9]{19}")
"""The fewest digits of a whole number beyond 64 bits; a text may have that many digits, too."""
_LEAST, _MOST = -(2**63), 2**64 - 1


def _refuse_rounded(written: str) -> None:
    """Refuse a whole number that orjson would round. Raises Refused (400)."""
    if len(written) > len(str(_LEAST)) or not _LEAST <= int(written) <= _MOST:
        said = f"The whole number {written[:40]} has more than 64 bits and would be rounded. Write it as a text."
        raise Refused(400, said, code="invalid_json")


def deeper_than(value: object, most: int) -> bool:
    """Whether lists and objects are nested deeper than `most`.

    >>> deeper_than({"a": [1]}, 2), deeper_than({"a": [[1]]}, 2)
    (False, True)
    """
    level: list[object] = [value]
    for _ in range(most):
        level = [inner for outer in level for inner in _inside(outer) if isinstance(inner, dict | list)]
        if not level:
            return False
    return True


def _inside(value: object) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


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
