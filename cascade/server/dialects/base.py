"""The base of a dialect: a translator between a client library's form and a chat request, for one path of the API.

JSON contains no line end, so no text of a model can add a server-sent event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from cascade.chat import calls_of, function_of, parsed, refusal_of, said_by
from cascade.errors import BadResponseError
from cascade.server.refusals import Refusal, Refused
from cascade.types import Answer


class ReplyWriter(Protocol):
    """One answer as a stream, in order: `text` for each piece as it is written, then `ending`, or `broken`.

    Attributes:
        counts: whether the stream ends with counts of tokens, and so with the cost.
    """

    counts: bool

    def text(self, text: str, model: str) -> bytes:
        """Return the events of the next piece of the text; the first call also returns those that begin the stream."""
        ...

    def ending(self, answer: Answer, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer: its text if none was written yet, its tool calls, why it ended.

        Raises:
            UsageError: nothing is served.
        """
        ...

    def broken(self, refusal: Refusal) -> bytes:
        """Return the last event of a stream that fails after its first text."""
        ...


class Dialect(Protocol):
    """The form of one path of the API.

    Attributes:
        path: the path of the API.
    """

    path: str

    def request(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Translate a body into that of a chat completion. Fields without a counterpart are passed on.

        Raises:
            Refused: the body cannot be read, or asks for something that a cascade cannot do.
        """
        ...

    def whole(
        self, answer: Answer, body: Mapping[str, Any], trace_id: str, extension: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return an answer as one response.

        Args:
            answer: the answer served.
            body: what the client sent; some responses repeat it.
            trace_id: the ids in the response are made from it.
            extension: the response's field `cascade`, if any.

        Raises:
            UsageError: nothing is served.
        """
        ...

    def writer(self, body: Mapping[str, Any], trace_id: str) -> ReplyWriter:
        """Return a writer of one answer as a stream."""
        ...

    def refused(self, refusal: Refusal, trace_id: str) -> dict[str, Any]:
        """Return the body of an error."""
        ...


def encoded(value: object) -> bytes:
    """Return a value as JSON; numbers that are not finite become null."""
    import orjson

    return orjson.dumps(value)


def event(value: object, name: str | None = None) -> bytes:
    r"""Return one server-sent event, with a name or without.

    >>> event({"content": "a\n\ndata: [DONE]"})
    b'data: {"content":"a\\n\\ndata: [DONE]"}\n\n'
    >>> event({}, "ping")
    b'event: ping\ndata: {}\n\n'
    """
    head = b"" if name is None else b"event: " + name.encode("ascii") + b"\n"
    return head + b"data: " + encoded(value) + b"\n\n"


class Said:
    """The content of a served message, in the parts that every dialect needs.

    Attributes:
        completion: the answer as a chat completion.
        text: the message's text, "" if it has none.
        refusal: why the model refused, "" if it did not.
        thoughts: the model's thoughts before it, "" if the server does not send them.
        calls: its tool calls: id, name, arguments as they were written.
        finish: why the message ended, as chat completions have it.
    """

    def __init__(self, answer: Answer) -> None:
        self.completion = answer.to_openai()
        choice = self.completion["choices"][0]
        message = choice["message"]
        self.text = said_by(message)
        self.refusal = refusal_of(message)
        thoughts = message.get("reasoning_content")
        self.thoughts = thoughts if isinstance(thoughts, str) else ""
        self.calls = [_call(place, call) for place, call in enumerate(calls_of(message))]
        self.finish: str = choice["finish_reason"]
        self.logprobs = choice["logprobs"]

    @property
    def model(self) -> str:
        """The model whose message it is."""
        return str(self.completion["model"])

    @property
    def usage(self) -> dict[str, int]:
        """Tokens read, how many of them from a cache and new to it; tokens written, how many of them reasoning.

        Unknown counts are 0, since the forms need a number.
        """
        usage = self.completion["usage"] or {}
        return {
            "read": usage.get("prompt_tokens", 0),
            "cached": usage.get("prompt_tokens_details", {}).get("cached_tokens", 0),
            "cache_write": usage.get("prompt_tokens_details", {}).get("cache_write_tokens", 0),
            "written": usage.get("completion_tokens", 0),
            "reasoning": usage.get("completion_tokens_details", {}).get("reasoning_tokens", 0),
        }


def _call(place: int, call: Mapping[str, Any]) -> tuple[str, str, str]:
    function = function_of(call)
    arguments = function.get("arguments")
    return (
        str(call.get("id") or f"call_{place}"),
        str(function.get("name")),
        arguments if isinstance(arguments, str) else encoded(arguments or {}).decode(),
    )


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object, for a form that allows nothing else.

    Raises:
        BadResponseError: they are not an object.
    """
    try:
        found = parsed(arguments) if arguments.strip() else {}
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise BadResponseError("The model called a tool with arguments that are not a JSON object.")
    return found


def objects(value: object, where: str) -> list[Mapping[str, Any]]:
    """Return a list of JSON objects. Raises Refused (400) for anything else."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise Refused(400, f"{where} must be a list of objects.", param=where)
    return value


def text_field(holder: Mapping[str, Any], name: str, where: str) -> str:
    """Return a text field of an object. Raises Refused (400) if it is not a text."""
    value = holder.get(name)
    if not isinstance(value, str):
        raise Refused(400, f"{where}.{name} must be a text.", param=f"{where}.{name}")
    return value


def content_of(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Return parts as a message's content: the text itself if it is the only part, None if there are no parts."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return str(parts[0]["text"])
    return parts or None
