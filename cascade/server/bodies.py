"""Reads the JSON object in a request's body, within limits of size, depth and time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
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
    return value


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
