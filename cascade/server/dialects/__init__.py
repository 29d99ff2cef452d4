"""The form of one path of the API: from a client's body to a chat request, and from an answer back to that form.

The JSON that is sent contains no line break, so no text of a model can add a server-sent event.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, ClassVar

from cascade.chat import calls_of, fields_in, function_of, parsed, refusal_of, spoken_text, text_of
from cascade.errors import BadResponseError
from cascade.providers.fields import CACHE_MARKS
from cascade.providers.histories import packed, thinking_of, unpacked, with_mark
from cascade.server.errors import GatewayError, Refusal
from cascade.types import Answer

DONE = b"data: [DONE]\n\n"


class Dialect(ABC):
    """One request in the form of one path of the API, and its answer, whole or as a stream.

    A stream is, in order: `text` for each piece as it is written, then `ending`, or `broken`. The ids in the answer
    are made from `trace_id`.

    Attributes:
        id_header: where its client library looks for the id of a request.
        counts: whether a stream ends with counts of tokens, and so with the cost.
        begun: whether text was written.
        before: the block, item or fields with the thinking that was written before the text, if the client wants it.
    """

    path: ClassVar[str]
    id_header: ClassVar[bytes] = b"x-request-id"
    counts = True

    def __init__(self, body: Mapping[str, Any], trace_id: str) -> None:
        self.body, self.trace_id, self.begun = body, trace_id, False
        self.before: list[dict[str, Any]] = []
        self._thinking: str | None = None

    @cached_property
    def created(self) -> int:
        """When the answer began, in seconds since 1970."""
        return int(datetime.now(UTC).timestamp())

    @abstractmethod
    def request(self) -> Mapping[str, Any]:
        """Return the body of a chat completion. Fields without a counterpart are passed on.

        Raises GatewayError if the body cannot be read, or asks for what a cascade cannot do.
        """

    @abstractmethod
    def whole(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an answer as one response; `extension` is its field `cascade`, if any."""

    def text(self, text: str, model: str, thinking: str | None = None) -> bytes:
        """Return the events of the next piece of the text; the first call begins the stream, with packed thinking."""
        head = b"" if self.begun else self._open(model, thinking)
        self.begun = True
        return head + self._piece(text)

    def _open(self, model: str, thinking: str | None) -> bytes:
        if thinking is not None and self._wants_thinking:
            self.before, self._thinking = [self._thought(thinking)], thinking
        return self._begin(model)

    @abstractmethod
    def ending(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer: its text if none was written yet, its tool calls, why it ended."""

    @classmethod
    def refused(cls, refusal: Refusal, trace_id: str) -> dict[str, Any]:  # noqa: ARG003 - it is in a header
        """Return the body of an error: OpenAI's error object."""
        return refusal.body

    def broken(self, refusal: Refusal) -> bytes:
        """Return the last event of a stream that fails after its first text."""
        return event(self.refused(refusal, self.trace_id))

    @abstractmethod
    def _begin(self, model: str) -> bytes: ...

    @property
    def _wants_thinking(self) -> bool:
        return True

    @abstractmethod
    def _thought(self, thinking: str) -> dict[str, Any]:
        """Return packed thinking in the form of this path, without the thoughts that were written before."""

    def _readable(self, thinking: str) -> str:
        now, before = [str((unpacked(each) or {}).get("reasoning_content", "")) for each in (thinking, self._thinking)]
        return now.removeprefix(before)

    def _in_order(self, reply: ServedMessage, texts: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return an answer's thinking and texts; thinking comes first, unless it arrived after a text was written."""
        thinking = reply.packed(wanted=self._wants_thinking)
        rest = [] if thinking in (None, self._thinking) else [self._thought(thinking)]
        return [*self.before, *texts, *rest] if self.begun else [*rest, *texts]

    @abstractmethod
    def _piece(self, text: str) -> bytes: ...


class ChatCompletions(Dialect):
    """OpenAI's chat completions: the form that a chat request already has."""

    path = "/v1/chat/completions"

    def __init__(self, body: Mapping[str, Any], trace_id: str) -> None:
        super().__init__(body, trace_id)
        self.counts = bool(fields_in(body.get("stream_options")).get("include_usage"))
        self._head: dict[str, Any] = {}
        self._role: dict[str, str] = {}

    def request(self) -> Mapping[str, Any]:
        """Return the body as it is."""
        return self.body

    def whole(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an answer as a chat completion."""
        choice = reply.completion["choices"][0] | {"message": with_mark(reply.message, reply.writer)}
        head = {"id": f"chatcmpl-{self.trace_id}", "choices": [choice]}
        return reply.completion | head | cascade_field(extension)

    def ending(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer in chunks. All keep the model name of the first one."""
        completion, message = reply.completion, with_mark(reply.message, reply.writer)
        if not self.begun:
            yield self._open(reply.model, packed(reply.message, reply.writer))
        sent = self.before[0] if self.before else {}
        late = {name: str(message.get(name) or "").removeprefix(text) or None for name, text in sent.items()}
        rest = without({**message, **late}, "role", "content", "tool_calls")
        if not self.begun:
            content = message.get("content")
            rest = {"content": None if content is None else text_of(content), **rest}
        self._head |= {name: completion[name] for name in ("system_fingerprint", "service_tier") if name in completion}
        if rest:
            yield self._chunk(rest, logprobs=reply.logprobs)
        calls = message.get("tool_calls") or ()
        for index, call in enumerate(calls):  # one per chunk, as OpenAI sends them: LlamaIndex reads no second one
            yield self._chunk({"tool_calls": [{"index": index, **call}]})
        yield self._chunk({}, finish=reply.finish, **cascade_field(extension))
        if self.counts:
            yield event({**self._head, "choices": [], "usage": completion["usage"]})
        yield DONE

    def _begin(self, model: str) -> bytes:
        """Fix what all chunks have in common; return those of the thinking."""
        head = {"id": f"chatcmpl-{self.trace_id}", "object": "chat.completion.chunk", "created": self.created}
        self._head, self._role = head | {"model": model}, {"role": "assistant"}
        return b"".join([self._chunk(fields) for fields in self.before if fields])

    def _thought(self, thinking: str) -> dict[str, str]:
        """Return the readable thinking; blocks are sent whole, at the end, since a client cannot join them."""
        return {name: text for name, text in thinking_of(unpacked(thinking) or {}).items() if isinstance(text, str)}

    def _piece(self, text: str) -> bytes:
        return self._chunk({"content": text})

    def _chunk(self, delta: dict[str, Any], *, finish: str | None = None, logprobs: Any = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": {**self._role, **delta}, "finish_reason": finish, "logprobs": logprobs}
        self._role = {}  # the first chunk has it
        return event({**self._head, "choices": [choice], **more})


class ServedMessage:
    """A served message, in the parts that the dialects need.

    Attributes:
        model: the model whose message it is, by its own name.
        writer: the same, by the name under which it was requested.
        finish: why the message ended, as chat completions have it.
        logprobs: its log-probs, None if the client asked for none.

    Raises:
        GatewayError: nothing is served, as no reply could be kept.
    """

    def __init__(self, answer: Answer) -> None:
        if (served := answer.served) is None:
            raise GatewayError(422, "No step of the cascade gave an answer.", code="no_answer")
        self.completion = answer.to_openai()
        choice = self.completion["choices"][0]
        self.message: Mapping[str, Any] = choice["message"]
        self.model = str(self.completion["model"])
        self.writer = served[1].request.wire_model
        self.finish: str = choice["finish_reason"]
        self.logprobs = choice["logprobs"]

    @cached_property
    def text(self) -> str:
        """The message's text, "" if it has none."""
        return spoken_text(self.message)

    @cached_property
    def refusal(self) -> str:
        """Why the model refused, "" if it did not."""
        return refusal_of(self.message)

    def packed(self, *, wanted: bool) -> str | None:
        """Return the model's thinking as one text that only the server reads; None if there is none or none is needed.

        It is needed if it is `wanted`, or if the conversation goes on within a turn, after tool calls.
        """
        return packed(self.message, self.writer) if wanted or self.calls else None

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """Its tool calls: id, name, arguments as they were written."""
        return [_call(number, call) for number, call in enumerate(calls_of(self.message))]

    @property
    def usage(self) -> dict[str, Any]:
        """Tokens read, how many of these came from a cache or were new to it; tokens written, how many were reasoning.

        `writes` has those new to a cache by how long they are kept, `iterations` the runs of models; None if unknown.

        Other unknown counts are 0, since the dialects need a number.
        """
        usage = self.completion["usage"] or {}
        read, written = usage.get("prompt_tokens_details", {}), usage.get("completion_tokens_details", {})
        return {
            "read": usage.get("prompt_tokens", 0),
            "cached": read.get("cached_tokens", 0),
            "cache_write": read.get("cache_write_tokens", 0),
            "writes": read.get("cache_creation_token_details"),
            "written": usage.get("completion_tokens", 0),
            "reasoning": written.get("reasoning_tokens", 0),
            "iterations": usage.get("iterations"),
        }


def _call(number: int, call: Mapping[str, Any]) -> tuple[str, str, str]:
    function = function_of(call)
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else encoded(arguments or {}).decode()
    return str(call.get("id") or f"call_{number}"), str(function.get("name")), text


def cascade_field(extension: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a response's field `cascade`, if it has one."""
    return {} if extension is None else {"cascade": extension}


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


def arguments_object(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object, for a dialect that allows nothing else. Raises BadResponseError."""
    try:
        value = parsed(arguments) if arguments.strip() else {}
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise BadResponseError("The model called a tool with arguments that are not a JSON object.")
    return value


def objects(value: object, path: str) -> list[Mapping[str, Any]]:
    """Return a list of JSON objects. Raises GatewayError (400) for anything else."""
    if not isinstance(value, list) or not all(isinstance(element, Mapping) for element in value):
        raise GatewayError(400, f"{path} must be a list of objects.", param=path)
    return value


def text_field(owner: Mapping[str, Any], name: str, path: str) -> str:
    """Return a text field of an object. Raises GatewayError (400) if it is not a text."""
    value = owner.get(name)
    if not isinstance(value, str):
        raise GatewayError(400, f"{path}.{name} must be a text.", param=f"{path}.{name}")
    return value


def content_of(contents: list[dict[str, Any]]) -> str | list[dict[str, Any]] | None:
    """Return parts as a message's content: just the text if there is only one text, None if there are no parts."""
    if len(contents) == 1 and contents[0].keys() == {"type", "text"}:
        return str(contents[0]["text"])
    return contents or None


def marked(converted: dict[str, Any], source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a part, call, tool or message with the prompt-cache marks of its source."""
    return converted | {name: source[name] for name in CACHE_MARKS if source.get(name) is not None}


def without(fields: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """Return an object without some of its fields, and without those that are null."""
    return {name: value for name, value in fields.items() if name not in names and value is not None}


def unknown_kind(path: str, kind: object) -> GatewayError:
    """Return the refusal of a part or a tool whose kind has no counterpart in a chat completion."""
    return GatewayError(400, f"{path}: the type {str(kind)[:100]!r} cannot be passed on.", param=path)


def not_kept(path: str, code: str | None = None) -> GatewayError:
    """Return the refusal of a field that refers to something stored on a vendor's server."""
    why = "nothing is kept between requests. Send the conversation (in client libraries: store or thread false)."
    return GatewayError(400, f"{path}: {why}", param=path, code=code)


def only(value: object, path: str, *names: str) -> Mapping[str, Any]:
    """Return an object that has fields of these names only. Raises GatewayError (400) for another field."""
    if not (value is None or isinstance(value, Mapping)):
        raise GatewayError(400, f"{path} must be an object.", param=path)
    for name in without(value or {}, *names):
        raise GatewayError(400, f"{path}.{name[:100]} cannot be passed on.", param=f"{path}.{name}")
    return value or {}
