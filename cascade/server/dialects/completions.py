"""OpenAI's chat completions: the form that a chat request already has."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cascade.chat import text_of
from cascade.server.dialects.base import event
from cascade.server.refusals import Refusal
from cascade.types import Answer

DONE = b"data: [DONE]\n\n"


def completion_id(trace_id: str) -> str:
    """Return the id of a response, from which one finds its trace."""
    return f"chatcmpl-{trace_id}"


class ChatCompletions:
    """`POST /v1/chat/completions`."""

    path = "/v1/chat/completions"

    def request(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the body as it is."""
        return body

    def whole(
        self,
        answer: Answer,
        body: Mapping[str, Any],  # noqa: ARG002 - other dialects repeat it
        trace_id: str,
        extension: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return an answer as a chat completion."""
        completion = answer.to_openai() | {"id": completion_id(trace_id)}
        return completion if extension is None else completion | {"cascade": extension}

    def writer(self, body: Mapping[str, Any], trace_id: str) -> Chunks:
        """Return a writer of the chunks of one answer."""
        return Chunks(trace_id, usage=bool((body.get("stream_options") or {}).get("include_usage")))

    def refused(self, refusal: Refusal, trace_id: str) -> dict[str, Any]:  # noqa: ARG002 - it is in a header
        """Return OpenAI's error object."""
        return refusal.body


class Chunks:
    """One answer as chunks.

    Args:
        trace_id: the chunks' id is made from it.
        usage: whether the client asked for a last chunk with the usage.
    """

    def __init__(self, trace_id: str, *, usage: bool = False) -> None:
        self._trace_id, self.counts = trace_id, usage
        self._created = int(datetime.now(UTC).timestamp())
        self._said = False
        self._model: str | None = None  # all chunks keep the name in the first one: the model reports its own name only
        # in its last chunk
        self._told: dict[str, Any] = {}

    def text(self, text: str, model: str) -> bytes:
        """Return the next piece of the text."""
        return self._chunk({"content": text}, model)

    def ending(self, answer: Answer, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer."""
        completion = answer.to_openai()
        choice, model = completion["choices"][0], completion["model"]
        self._told = {name: completion[name] for name in ("system_fingerprint", "service_tier") if name in completion}
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
        if self.counts:
            yield event({**self._head(model), "choices": [], "usage": completion["usage"]})
        yield DONE

    def broken(self, refusal: Refusal) -> bytes:
        """Return an event with the error object."""
        return event(refusal.body)

    def _chunk(self, delta: dict[str, Any], model: str, **more: Any) -> bytes:
        finish, logprobs = more.pop("finish", None), more.pop("logprobs", None)
        if not self._said:
            self._said, delta = True, {"role": "assistant", **delta}
        choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": logprobs}
        return event({**self._head(model), "choices": [choice], **more})

    def _head(self, model: str) -> dict[str, Any]:
        self._model = self._model or model
        return {
            "id": completion_id(self._trace_id),
            "object": "chat.completion.chunk",
            "created": self._created,
            "model": self._model,
            **self._told,
        }
