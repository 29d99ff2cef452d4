"""Anthropic's messages: system prompts, blocks and tools that the application runs.

Three things have no counterpart in a chat completion and are left out: `cache_control`, which changes only prices;
blocks of earlier thinking, which only the model that wrote them can read; and citations.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cascade.server.dialects.base import Said, arguments_object, content_of, event, objects, text_field
from cascade.server.refusals import Refusal, Refused
from cascade.types import Answer

_READ = {"messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking"}
_READ |= {"output_config", "output_format"}
_EFFORTS = ((4_096, "high"), (2_048, "medium"), (0, "low"))
"""Pairs of a minimum thinking budget in tokens and the reasoning effort, as in LiteLLM."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_UNREAD = ("thinking", "redacted_thinking")
_FAILED = "The tool failed:"


class Messages:
    """`POST /v1/messages`."""

    path = "/v1/messages"

    def request(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Translate a body into that of a chat completion."""
        found = {name: value for name, value in body.items() if name not in _READ}
        found["messages"] = [*_system(body.get("system")), *_turns(body.get("messages"))]
        if body.get("stop_sequences"):
            found["stop"] = body["stop_sequences"]
        if body.get("tools"):
            found["tools"] = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(objects(body["tools"], "tools"))]
        if body.get("tool_choice") is not None:
            found |= _choice(body["tool_choice"])
        if isinstance(body.get("metadata"), Mapping):
            found |= _metadata(body["metadata"])
        if _thinks(body):
            budget = body["thinking"].get("budget_tokens")
            tokens = budget if isinstance(budget, int) else 0
            found["reasoning_effort"] = next(effort for least, effort in _EFFORTS if tokens >= least)
        return found | _format(body)

    def whole(
        self,
        answer: Answer,
        body: Mapping[str, Any],
        trace_id: str,
        extension: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Return an answer as a message."""
        said = Said(answer)
        message = _message(trace_id, said.model, _blocks(said, _thinks(body)), _usage(said)) | _end(said)
        return message if extension is None else message | {"cascade": extension}

    def writer(self, body: Mapping[str, Any], trace_id: str) -> MessageEvents:
        """Return a writer of the events of one answer."""
        return MessageEvents(trace_id, thinks=_thinks(body))

    def refused(self, refusal: Refusal, trace_id: str) -> dict[str, Any]:
        """Return Anthropic's error object."""
        kind = _KINDS.get(refusal.status, "invalid_request_error" if refusal.status < 500 else "api_error")
        error = {"type": kind, "message": refusal.body["error"]["message"], "code": refusal.body["error"]["code"]}
        return {"type": "error", "error": error, "request_id": trace_id}


class MessageEvents:
    """One answer as events.

    Args:
        trace_id: the answer's id is made from it.
        thinks: whether the client asked for the model's thoughts. If the text was streamed, they follow it.
    """

    counts = True

    def __init__(self, trace_id: str, *, thinks: bool = False) -> None:
        self._trace_id, self._thinks = trace_id, thinks
        self._said = False

    def text(self, text: str, model: str) -> bytes:
        """Return the next piece of the text; the number of tokens read is unknown before the end."""
        begun = b""
        if not self._said:
            self._said = True
            begun = self._start(model, {"input_tokens": 0, "output_tokens": 0})
            begun += _event("content_block_start", index=0, content_block={"type": "text", "text": ""})
        return begun + _event("content_block_delta", index=0, delta={"type": "text_delta", "text": text})

    def ending(self, answer: Answer, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer."""
        said = Said(answer)
        blocks = _blocks(said, self._thinks)
        if self._said:
            blocks.sort(key=lambda block: block["type"] == "thinking")
            yield _event("content_block_stop", index=0)
        else:
            yield self._start(said.model, {**_usage(said), "output_tokens": 0})
        for index, block in enumerate(blocks):
            if not (self._said and block["type"] == "text" and index == 0):
                yield from _block_events(index, block)
        more = {} if extension is None else {"cascade": extension}
        yield _event("message_delta", delta=_end(said), usage=_usage(said), **more)
        yield _event("message_stop")

    def broken(self, refusal: Refusal) -> bytes:
        """Return an event with the error object."""
        return event(Messages().refused(refusal, self._trace_id), "error")

    def _start(self, model: str, usage: Mapping[str, int]) -> bytes:
        head = {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=_message(self._trace_id, model, [], usage) | head)


def _event(name: str, /, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    empty: dict[str, Any]
    if block["type"] == "text":
        empty, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": block["text"]}
    elif block["type"] == "thinking":
        empty, delta = {**block, "thinking": ""}, {"type": "thinking_delta", "thinking": block["thinking"]}
    else:
        empty = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
    yield _event("content_block_start", index=index, content_block=empty)
    yield _event("content_block_delta", index=index, delta=delta)
    yield _event("content_block_stop", index=index)


def _message(trace_id: str, model: str, blocks: list[dict[str, Any]], usage: Mapping[str, int]) -> dict[str, Any]:
    head = {"id": f"msg_{trace_id}", "type": "message", "role": "assistant", "model": model}
    return {**head, "content": blocks, "usage": dict(usage)}


def _thinks(body: Mapping[str, Any]) -> bool:
    """Whether a client asks the model to think, and for its thoughts."""
    wanted = body.get("thinking")
    return isinstance(wanted, Mapping) and wanted.get("type") == "enabled"


def _blocks(said: Said, thinks: bool) -> list[dict[str, Any]]:
    """Return a message's blocks. Thoughts that came through a chat completion have no known signature."""
    thoughts = [{"type": "thinking", "thinking": said.thoughts, "signature": ""}] if thinks and said.thoughts else []
    texts = [{"type": "text", "text": text} for text in (said.text, said.refusal) if text]
    return [
        *thoughts,
        *texts,
        *(
            {"type": "tool_use", "id": call, "name": name, "input": arguments_object(arguments)}
            for call, name, arguments in said.calls
        ),
    ]


def _end(said: Said) -> dict[str, Any]:
    return {"stop_reason": "refusal" if said.refusal else _ENDS.get(said.finish, "end_turn"), "stop_sequence": None}


def _usage(said: Said) -> dict[str, int]:
    """Return token counts; Anthropic counts separately the tokens read from a cache and written to it."""
    usage = said.usage
    return {
        "input_tokens": usage["read"] - usage["cached"] - usage["cache_write"],
        "cache_creation_input_tokens": usage["cache_write"],
        "cache_read_input_tokens": usage["cached"],
        "output_tokens": usage["written"],
    }


def _system(system: object) -> list[dict[str, Any]]:
    if system is None:
        return []
    content = system if isinstance(system, str) else content_of(_parts(system, "system"))
    return [] if content is None else [{"role": "system", "content": content}]


def _turns(messages: object) -> Iterator[dict[str, Any]]:
    for number, message in enumerate(objects(messages, "messages")):
        where, content = f"messages[{number}]", message.get("content")
        others = {name: value for name, value in message.items() if name not in {"role", "content"}}
        role = message.get("role")
        if isinstance(content, str):
            yield {"role": role, "content": content, **others}
            continue
        blocks = objects(content, f"{where}.content")
        results = [block for block in blocks if block.get("type") == "tool_result"]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        if (results and role != "user") or (uses and role != "assistant"):
            raise Refused(400, f"{where}: tool_use is the assistant's, tool_result the user's.", param=where)
        for block in results:
            yield _result(block, f"{where}.content")
        rest = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use")]
        turn = {"role": role, "content": content_of(_parts(rest, f"{where}.content")), **others}
        if uses:
            turn["tool_calls"] = [_use(block, f"{where}.content") for block in uses]
        if turn["content"] is not None or uses:
            yield turn


def _result(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    content = block.get("content", "")
    said: Any = content if isinstance(content, str) else content_of(_parts(content, where)) or ""
    if block.get("is_error"):
        parts = [{"type": "text", "text": said}] if isinstance(said, str) else said
        said = [{"type": "text", "text": _FAILED}, *parts]
    return {"role": "tool", "tool_call_id": text_field(block, "tool_use_id", where), "content": said}


def _use(block: Mapping[str, Any], where: str) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": text_field(block, "name", where), "arguments": arguments}
    return {"id": text_field(block, "id", where), "type": "function", "function": function}


def _parts(blocks: object, where: str) -> list[dict[str, Any]]:
    """Return blocks as the parts of a message. Raises Refused for a kind that only Anthropic's servers read."""
    found = []
    for block in objects(blocks, where):
        kind = block.get("type")
        if kind in _UNREAD:
            continue
        reads = _PARTS.get(str(kind))
        if reads is None:
            raise Refused(400, f"{where}: a block of type {str(kind)[:100]!r} cannot be passed on.", param=where)
        found += reads(block, where)
    return found


def _document(block: Mapping[str, Any], where: str) -> list[dict[str, Any]]:
    said = [{"type": "text", "text": block[name]} for name in ("title", "context") if isinstance(block.get(name), str)]
    source = _source(block, where)
    if source.get("type") == "text":
        return [*said, {"type": "text", "text": text_field(source, "data", where)}]
    if source.get("type") == "content":
        inner = source.get("content")
        return [*said, *_parts([{"type": "text", "text": inner}] if isinstance(inner, str) else inner, where)]
    if source.get("type") != "base64":
        raise Refused(400, f"{where}: send the document itself (source.type base64 or text).", param=where)
    name = block["title"] if isinstance(block.get("title"), str) else "document.pdf"
    return [*said, {"type": "file", "file": {"filename": name, "file_data": _url(block, where)}}]


def _source(block: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    source = block.get("source") or {}
    if not isinstance(source, Mapping):
        raise Refused(400, f"{where}.source must be an object.", param=where)
    return source


def _url(block: Mapping[str, Any], where: str) -> str:
    source = _source(block, where)
    if source.get("type") == "url":
        return text_field(source, "url", f"{where}.source")
    if source.get("type") != "base64":
        raise Refused(400, f"{where}: source.type must be base64 or url.", param=where)
    return f"data:{text_field(source, 'media_type', where)};base64,{text_field(source, 'data', where)}"


_PARTS: Mapping[str, Callable[[Mapping[str, Any], str], list[dict[str, Any]]]] = {
    "text": lambda block, where: [{"type": "text", "text": text_field(block, "text", where)}],
    "image": lambda block, where: [{"type": "image_url", "image_url": {"url": _url(block, where)}}],
    "document": _document,
}


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise Refused(400, f"{where}: {str(tool['type'])[:100]} runs on Anthropic's servers only.", param=where)
    function = {name: tool[name] for name in ("name", "description", "strict") if name in tool}
    return {"type": "function", "function": {**function, "parameters": tool.get("input_schema") or {}}}


def _choice(choice: object) -> dict[str, Any]:
    given = choice if isinstance(choice, Mapping) else {}
    kind = given.get("type")
    if kind == "tool":
        found: Any = {"type": "function", "function": {"name": text_field(given, "name", "tool_choice")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        found = _CHOICES[kind]
    else:
        raise Refused(400, "tool_choice.type must be auto, any, none or tool.", param="tool_choice")
    alone = {"parallel_tool_calls": False} if given.get("disable_parallel_tool_use") else {}
    return {"tool_choice": found, **alone}


def _metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    others = {name: value for name, value in metadata.items() if name != "user_id"}
    user = {"user": metadata["user_id"]} if metadata.get("user_id") is not None else {}
    return {**user, **({"metadata": others} if others else {})}


def _format(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema that the reply has to follow, if any; the rest of `output_config` is passed on."""
    config = body.get("output_config")
    config = dict(config) if isinstance(config, Mapping) else {}
    wanted = config.pop("format", None) or body.get("output_format")
    found: dict[str, Any] = {"output_config": config} if config else {}
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
        schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
        found["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted is not None:
        raise Refused(400, "output_config.format.type must be json_schema.", param="output_config")
    return found
