"""Reads the JSON object in a request's body within limits of size, breadth, depth and time; notices hang-ups."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping
from typing import Any, TypeAlias, TypeVar

from cascade.config.schema import ServerConfig
from cascade.providers.histories import packed_json
from cascade.server.admission import Visit
from cascade.server.errors import GatewayError

Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]
"""ASGI's `receive`, which returns the next event of a request."""
_T = TypeVar("_T")
_ON_LOOP_BYTES, _ON_LOOP_VALUES = 65_536, 2_000
"""A larger body, or one with more values, is read in a thread, so that other requests do not wait for it."""


class ClientLeftError(Exception):
    """The client hung up, so no answer is sent."""


async def read_object(
    receive: Receive, headers: Mapping[str, str], visit: Visit, read: Callable[[dict[str, Any]], _T]
) -> _T:
    """Take a place; return what `read` makes of the JSON object in a request's body. A large one is read in a thread.

    Raises:
        GatewayError: it is not JSON (400, 415), too large (413), too wide or too deep (400), late (408), or there is no
            room for it (503), or the key is at one of its limits (429).
        ClientLeftError: the client hung up before its end.
    """
    visit.begin()
    settings, coding = visit.admission.settings, headers.get("content-encoding", "").strip().lower()
    if coding not in {"", "identity"}:
        message = f"The request is compressed (Content-Encoding: {coding[:40]}). Send it as it is."
        raise GatewayError(415, message, code="compressed")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        # A web page cannot send this type to another host without asking that host first.
        raise GatewayError(415, "Send the request as JSON, with Content-Type: application/json.")
    try:
        async with asyncio.timeout(settings.body_s):
            body = await _body(receive, visit)
    except TimeoutError:
        message = f"The request did not arrive within {settings.body_s:g} s."
        raise GatewayError(408, message, code="request_timeout") from None
    if len(body) <= _ON_LOOP_BYTES and _marks(body) <= _ON_LOOP_VALUES:
        return read(parsed_object(body, settings))
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(visit.admission.reading, lambda: read(parsed_object(body, settings)))


async def _body(receive: Receive, visit: Visit) -> bytes:
    pieces, more = list[bytes](), True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientLeftError
        piece = event.get("body", b"")
        visit.buffer(len(piece))
        pieces.append(piece)
        more = event.get("more_body", False)
    return b"".join(pieces)


def parsed_object(body: bytes, settings: ServerConfig) -> dict[str, Any]:
    """Return the object in a JSON text. Raises GatewayError (400) for anything else.

    >>> parsed_object(b'{"model": "cascade"}', ServerConfig())
    {'model': 'cascade'}
    """
    import orjson

    too_wide = f"The request has more than {settings.max_elements:,} values (server.max_elements)."
    if wider_than(settings.max_elements, body):  # before parsing, which would hold up all other requests
        raise GatewayError(400, too_wide, code="too_wide")
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise GatewayError(400, f"The request is not JSON: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise GatewayError(400, "The request is not a JSON object.", code="invalid_json")
    texts = list[str]()
    if deeper_than(value, settings.max_depth, texts):
        message = f"The request is nested deeper than {settings.max_depth} (server.max_depth)."
        raise GatewayError(400, message, code="too_deep")
    packed = [inside for text in texts if (inside := packed_json(text)) is not None]
    if wider_than(settings.max_elements, *packed):
        raise GatewayError(400, too_wide, code="too_wide")
    if _LONG.search(body):
        json.loads(body, parse_int=_refuse_rounded)
    return value


_LONG = re.compile(rb"(?<![0-9])[0-9]{19}")
"""Finds 19 digits, the fewest of a whole number beyond 64 bits; a text may have that many digits, too."""
_LEAST, _MOST = -(2**63), 2**64 - 1


def _refuse_rounded(written: str) -> None:
    """Refuse a whole number that orjson would round. Raises GatewayError (400)."""
    if len(written) > len(str(_LEAST)) or not _LEAST <= int(written) <= _MOST:
        message = f"The whole number {written[:40]} has more than 64 bits and would be rounded. Write it as a text."
        raise GatewayError(400, message, code="invalid_json")


def wider_than(most: int, *bodies: bytes) -> bool:
    """Return whether JSON texts may have more than `most` values in total, by the commas and brackets outside strings.

    >>> wider_than(4, b'{"a": [1, 2, "x,[{"]}'), wider_than(3, b'{"a": [1, 2, 3]}')
    (False, True)
    """
    if sum(map(_marks, bodies)) <= most:  # nearly always
        return False
    plain = [body.replace(rb"\\", b"__").replace(rb"\"", b"__") for body in bodies]
    if sum(text.count(b'"') for text in plain) > 4 * most:  # each value has at most two strings, itself and its name
        return True
    return sum(_marks(b"".join(text.split(b'"')[::2])) for text in plain) > most


def _marks(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def deeper_than(value: dict[str, Any] | list[Any], most: int, texts: list[str] | None = None) -> bool:
    """Return whether lists and objects are nested deeper than `most`; add the strings in them to `texts`.

    >>> deeper_than({"a": [1]}, 2), deeper_than({"a": [[1]]}, 2)
    (False, True)
    """
    level: list[Any] = [value]
    for _ in range(most):
        outers, level = level, []
        for outer in outers:
            for inner in outer.values() if isinstance(outer, dict) else outer:
                if isinstance(inner, dict | list):
                    level.append(inner)
                elif texts is not None and isinstance(inner, str):
                    texts.append(inner)
        if not level:
            return False
    return True


async def connected(receive: Receive, work: Coroutine[Any, Any, _T]) -> _T:
    """Await `work`. As soon as the client hangs up, cancel it and raise ClientLeftError.

    `receive` must have returned the whole body before. It also reports the end of the response, so send that only
    after the work.
    """
    left = asyncio.timeout(None)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        left.reschedule(0.0)

    try:
        async with left:
            watcher = asyncio.create_task(watch())
            try:
                return await work
            finally:
                watcher.cancel()
    except TimeoutError:
        if left.expired():
            raise ClientLeftError from None
        raise
