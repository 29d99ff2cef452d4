"""Parses a chat request from its body and its headers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.server.catalog import Catalog, Route
from cascade.server.dialects.base import Dialect
from cascade.server.receipt import flag
from cascade.server.refusals import Refused


class Asked(NamedTuple):
    """One chat request.

    Attributes:
        name: the model that the client named.
        route: the cascade at one of its levels, or one model.
        request: the request that is sent to the models.
        body: the body that the client sent.
        stream: whether the client reads server-sent events.
        explain: whether the response explains the answer step by step.
        deadline_s: how long the client waits; None if it does not say.
    """

    name: str
    route: Route
    request: ChatRequest
    body: Mapping[str, Any]
    stream: bool = False
    explain: bool = False
    deadline_s: float | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: Mapping[str, str], catalog: Catalog, dialect: Dialect) -> Asked:
        """Read a request.

        Args:
            body: the body in the form of the dialect.
            headers: by their names in lower case. Read are `x-cascade-bypass`, `x-cascade-deadline-s`,
                `x-cascade-explain`, `x-cascade-group` and `x-cascade-segment`.
            catalog: the models that the server has.
            dialect: the protocol that the client speaks.

        Raises:
            Refused: there is no such model, or a field of the envelope is wrong.
            UsageError: the request cannot be sent to a model.
        """
        route = catalog.route(body.get("model"), bypass=flag(headers, "x-cascade-bypass"))
        stream, options = body.get("stream"), body.get("stream_options")
        if not (stream is None or isinstance(stream, bool)):
            raise Refused(400, "stream must be true or false.", param="stream")
        if not (options is None or isinstance(options, Mapping)):
            raise Refused(400, "stream_options must be an object.", param="stream_options")
        request = ChatRequest.from_openai(
            dialect.request(body), group=headers.get("x-cascade-group"), segment=headers.get("x-cascade-segment")
        )
        explain, deadline_s = flag(headers, "x-cascade-explain"), _seconds(headers.get("x-cascade-deadline-s"))
        return cls(body["model"], route, request, body, bool(stream), explain, deadline_s)


def _seconds(written: str | None) -> float | None:
    """Return a header's number of seconds. Raises Refused if it is not a number above 0."""
    if written is None:
        return None
    try:
        seconds = float(written)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise Refused(400, "x-cascade-deadline-s must be a number of seconds above 0.", param="x-cascade-deadline-s")
    return seconds
