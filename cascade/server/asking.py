"""What one chat request asks of the server, read from its body and its headers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.server.catalog import Catalog, Route
from cascade.server.receipt import flag
from cascade.server.refusals import Refused


class Asked(NamedTuple):
    """One chat request.

    Attributes:
        name: the model that the client named.
        route: who answers.
        request: what the models are sent.
        stream: whether the client reads server-sent events.
        usage: whether a stream ends with the usage.
        explain: whether the response says what happened, step by step.
    """

    name: str
    route: Route
    request: ChatRequest
    stream: bool = False
    usage: bool = False
    explain: bool = False

    @classmethod
    def of(cls, body: Mapping[str, Any], headers: Mapping[str, str], catalog: Catalog) -> Asked:
        """Read a request.

        Args:
            body: of a chat completion request, in OpenAI's form.
            headers: by their names in lower case; `x-cascade-bypass`, `-explain`, `-group` and `-segment` count.
            catalog: the models that can be asked for.

        Raises:
            Refused: there is no such model, or a field of the envelope is wrong.
            UsageError: it is not a request that can be sent.
        """
        route = catalog.route(body.get("model"), bypass=flag(headers, "x-cascade-bypass"))
        stream, options = body.get("stream") or False, body.get("stream_options") or {}
        if not isinstance(stream, bool):
            raise Refused(400, "stream must be true or false.", param="stream")
        if not isinstance(options, Mapping):
            raise Refused(400, "stream_options must be an object.", param="stream_options")
        return cls(
            body["model"],
            route,
            ChatRequest.from_openai(
                body, group=headers.get("x-cascade-group"), segment=headers.get("x-cascade-segment")
            ),
            stream,
            stream and bool(options.get("include_usage")),
            flag(headers, "x-cascade-explain"),
        )
