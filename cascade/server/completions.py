"""A chat completion as bytes: whole, or as server-sent events. JSON has no line end, so no text adds an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cascade.chat import text_of
from cascade.types import Answer

DONE = b"data: [DONE]\n\n"


def encoded(value: object) -> bytes:
    """Return a value as JSON; what is not finite becomes null."""
    import orjson

    return orjson.dumps(value)


def event(value: object) -> bytes:
    r"""Return one server-sent event.

    >>> event({"content": "a\n\ndata: [DONE]"})
    b'data: {"content":"a\\n\\ndata: [DONE]"}\n\n'
    """
    return b"data: " + encoded(value) + b"\n\n"


def completion_id(trace_id: str) -> str:
    """Return the id that a response bears: it leads back to the trace."""
    return f"chatcmpl-{trace_id}"


def whole(answer: Answer, trace_id: str, extension: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return an answer as one response. Raises UsageError where nothing is served."""
    completion = answer.to_openai() | {"id": completion_id(trace_id)}
    return completion if extension is None else completion | {"cascade": extension}


@dataclass
class Chunks:
    """One response as the chunks of a stream, in order: `text` for each piece as it is written, then `ending`.

    Args:
        trace_id: what the chunks' id is made from.
        usage: whether the client asked for a last chunk with the usage.
    """

    trace_id: str
    usage: bool = False

    def __post_init__(self) -> None:
        """Begin: the first chunk names the role."""
        self._created = int(datetime.now(UTC).timestamp())
        self._said = False

    def text(self, text: str, model: str) -> bytes:
        """Return the next piece of the text."""
        return self._chunk({"content": text}, model)

    def ending(self, answer: Answer, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield what is left of an answer: its text if none was written yet, its tool calls, why it ended.

        Raises:
            UsageError: nothing is served.
        """
        completion = answer.to_openai()
        choice, model = completion["choices"][0], completion["model"]
        rest = {name: value for name, value in choice["message"].items() if name not in {"role", "content"}}
        if rest.get("tool_calls"):
            rest["tool_calls"] = [{"index": index, **call} for index, call in enumerate(rest["tool_calls"])]
        if not self._said:
            content = choice["message"].get("content")
            rest = {"content": None if content is None else text_of(content), **rest}
        if rest:
            yield self._chunk(rest, model, logprobs=choice["logprobs"])
        more = {} if extension is None else {"cascade": extension}
        yield self._chunk({}, model, finish=choice["finish_reason"], **more)
        if self.usage:
            yield event({**self._head(model), "choices": [], "usage": completion["usage"]})
        yield DONE

    def _chunk(self, delta: dict[str, Any], model: str, **more: Any) -> bytes:
        finish, logprobs = more.pop("finish", None), more.pop("logprobs", None)
        if not self._said:
            self._said, delta = True, {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head(model), "choices": [choice], **more})

    def _head(self, model: str) -> dict[str, Any]:
        return {
            "id": completion_id(self.trace_id),
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": model,
        }
