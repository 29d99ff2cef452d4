"""Anthropic's messages: system prompts, blocks and tools that the application runs.

Citations have no counterpart in a chat completion and are left out. The signature of a thinking block holds all that
the model wrote of its thinking, in any form (`histories.packed`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any

from cascade.chat import fields_in
from cascade.providers.fields import CACHE_MARKS, thinks
from cascade.providers.histories import taken_back
from cascade.server.dialects import (
    Dialect,
    ServedMessage,
    arguments_object,
    cascade_field,
    content_of,
    event,
    marked,
    not_kept,
    objects,
    text_field,
    unknown_kind,
    without,
)
from cascade.server.errors import GatewayError, Refusal

_READ = {"messages", "system", "stop_sequences", "tools", "tool_choice", "metadata", "thinking"}
_READ |= {"output_config", "output_format"}
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}
_ENDS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}
_KINDS = {413: "request_too_large", 503: "overloaded_error"}
_ERRORS = {"server_error": "api_error", "insufficient_quota": "rate_limit_error"}
"""The error types that differ from OpenAI's, by status and by OpenAI's type."""
_TOO_LONG = "prompt is too long"  # the words by which Claude Code and LangChain know to shorten the prompt
_UNREAD = ("thinking", "redacted_thinking")
_TIERS = {"default": "standard", "standard": "standard", "priority": "priority", "batch": "batch"}
_UNSIGNED = {"signature": ""}
_FAILED = "The tool failed:"
_USER_CHARS = 64
"""The longest name of a user that OpenAI takes; Claude Code's has 150. A longer one is sent as its SHA-256."""


class Messages(Dialect):
    """Anthropic's messages."""

    path, id_header = "/v1/messages", b"request-id"

    def request(self) -> Mapping[str, Any]:
        """Translate the body into the body of a chat completion."""
        body = self.body
        if body.get("thread"):
            raise not_kept("thread", "thread_unsupported_request")  # its tool runner then sends whole conversations
        request = {name: value for name, value in body.items() if name not in _READ}
        request["messages"] = [*_system(body.get("system")), *_turns(body.get("messages"))]
        if body.get("stop_sequences"):
            request["stop"] = body["stop_sequences"]
        if tools := objects(body.get("tools") or [], "tools"):
            request["tools"] = [_tool(tool, f"tools[{number}]") for number, tool in enumerate(tools)]
        if body.get("tool_choice") is not None:
            request |= _choice(body["tool_choice"])
        metadata = fields_in(body.get("metadata"))
        user = metadata.get("user_id")
        if isinstance(user, str) and len(user) > _USER_CHARS:
            user = sha256(user.encode("utf-8", "replace")).hexdigest()
        request |= without({"user": user, "metadata": without(metadata, "user_id") or None})
        request |= _format(body)
        return request | without({"thinking": body.get("thinking")})

    def whole(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an answer as a message."""
        return self._message(reply.model, self._blocks(reply), _usage(reply)) | _end(reply) | cascade_field(extension)

    def ending(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer."""
        blocks, sent = self._blocks(reply), 0
        if self.begun:
            yield _event("content_block_stop", index=len(self.before))
            sent = len(self.before) + bool(reply.text)
        else:
            yield self._start(reply.model, {**_usage(reply), "output_tokens": 0})
        for index, block in enumerate(blocks[sent:], sent):
            yield from _block_events(index, block)
        yield _event("message_delta", delta=_end(reply), usage=_usage(reply), **cascade_field(extension))
        yield _event("message_stop")

    @classmethod
    def refused(cls, refusal: Refusal, trace_id: str) -> dict[str, Any]:
        """Return Anthropic's error object."""
        of = refusal.body["error"]
        kind = _KINDS.get(refusal.status, _ERRORS.get(of["type"], of["type"]))
        unsaid = of["code"] == "context_length_exceeded" and _TOO_LONG not in of["message"].lower()
        error = {"type": kind, "message": f"{_TOO_LONG}: " * unsaid + of["message"], "code": of["code"]}
        error["details"] = {"error_code": of["code"]}
        return {"type": "error", "error": error, "request_id": trace_id}

    def broken(self, refusal: Refusal) -> bytes:
        """Return an event with the error object."""
        return event(self.refused(refusal, self.trace_id), "error")

    def _begin(self, model: str) -> bytes:
        """Begin a message and its text; the number of tokens read is unknown before the end."""
        head = self._start(model, {"input_tokens": 0, "output_tokens": 0})
        thought = [event for index, block in enumerate(self.before) for event in _block_events(index, block)]
        block = {"type": "text", "text": ""}
        return b"".join([head, *thought, _event("content_block_start", index=len(self.before), content_block=block)])

    def _piece(self, text: str) -> bytes:
        return _event("content_block_delta", index=len(self.before), delta={"type": "text_delta", "text": text})

    @property
    def _wants_thinking(self) -> bool:
        return thinks(self.body)

    def _thought(self, thinking: str) -> dict[str, Any]:
        """Return a block of thinking, readable if the client asks for it."""
        if not self._wants_thinking:
            return {"type": "redacted_thinking", "data": thinking}
        hides = self.body["thinking"].get("display") == "omitted"
        return {"type": "thinking", "thinking": "" if hides else self._readable(thinking), "signature": thinking}

    def _start(self, model: str, usage: Mapping[str, Any]) -> bytes:
        message = self._message(model, [], usage) | {"stop_reason": None, "stop_sequence": None}
        return _event("message_start", message=message)

    def _message(self, model: str, blocks: list[dict[str, Any]], usage: Mapping[str, Any]) -> dict[str, Any]:
        head = {"id": f"msg_{self.trace_id}", "type": "message", "role": "assistant", "model": model}
        return {**head, "content": blocks, "usage": dict(usage)}

    def _blocks(self, reply: ServedMessage) -> list[dict[str, Any]]:
        texts = [{"type": "text", "text": text} for text in (reply.text, reply.refusal) if text]
        return self._in_order(reply, texts) + [
            {"type": "tool_use", "id": call, "name": name, "input": arguments_object(arguments)}
            for call, name, arguments in reply.calls
        ]


def _event(name: str, /, **fields: Any) -> bytes:
    return event({"type": name, **fields}, name)


def _block_events(index: int, block: Mapping[str, Any]) -> Iterator[bytes]:
    kind = block["type"]
    delta: dict[str, Any] | None
    if kind == "tool_use":
        empty: dict[str, Any] = {**block, "input": {}}
        delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"], ensure_ascii=False)}
    elif kind == "redacted_thinking":
        empty, delta = dict(block), None
    else:
        empty, delta = {**block, kind: ""}, {"type": f"{kind}_delta", kind: block[kind]}
    signature = empty.pop("signature", None)
    yield _event("content_block_start", index=index, content_block=empty | ({} if signature is None else _UNSIGNED))
    if delta is not None:
        yield _event("content_block_delta", index=index, delta=delta)
    if signature is not None:
        yield _event("content_block_delta", index=index, delta={"type": "signature_delta", "signature": signature})
    yield _event("content_block_stop", index=index)


def _end(reply: ServedMessage) -> dict[str, Any]:
    return {"stop_reason": "refusal" if reply.refusal else _ENDS.get(reply.finish, "end_turn"), "stop_sequence": None}


def _usage(reply: ServedMessage) -> dict[str, Any]:
    """Return token counts; Anthropic counts tokens read from a cache and written to it separately."""
    usage = reply.usage
    return {
        "input_tokens": usage["read"] - usage["cached"] - usage["cache_write"],
        "cache_creation_input_tokens": usage["cache_write"],
        "cache_read_input_tokens": usage["cached"],
        "output_tokens": usage["written"],
        **without({"cache_creation": usage["writes"], "iterations": usage["iterations"]}),
        **without({"service_tier": _TIERS.get(str(reply.completion.get("service_tier")))}),
    }


def _system(system: object) -> list[dict[str, Any]]:
    content = system if system is None or isinstance(system, str) else content_of(_parts(system, "system"))
    return [] if content is None else [{"role": "system", "content": content}]


def _turns(messages: object) -> Iterator[dict[str, Any]]:
    for number, message in enumerate(objects(messages, "messages")):
        path, content, role = f"messages[{number}]", message.get("content"), message.get("role")
        others = {name: value for name, value in message.items() if name not in {"role", "content"}}
        if isinstance(content, str):
            yield {"role": role, "content": content, **others}
            continue
        blocks = objects(content, f"{path}.content")
        results = [block for block in blocks if block.get("type") == "tool_result"]
        uses = [block for block in blocks if block.get("type") == "tool_use"]
        if (results and role != "user") or (uses and role != "assistant"):
            raise GatewayError(400, f"{path}: tool_use is the assistant's, tool_result the user's.", param=path)
        for block in results:
            yield _result(block, f"{path}.content")
        rest = [block for block in blocks if block.get("type") not in ("tool_result", "tool_use")]
        turn = {"role": role, "content": content_of(_parts(rest, f"{path}.content")), **others}
        if uses:
            turn["tool_calls"] = [_use(block, f"{path}.content") for block in uses]
        thoughts = [block for block in rest if block.get("type") in _UNREAD] if role == "assistant" else []
        for block in thoughts:
            turn = taken_back(turn, block, "thinking_blocks")
        if turn["content"] is not None or uses or thoughts:
            yield turn


def _result(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    content = block.get("content", "")
    output: Any = content if isinstance(content, str) else content_of(_parts(content, path)) or ""
    if block.get("is_error"):
        contents = [{"type": "text", "text": output}] if isinstance(output, str) else output
        output = [{"type": "text", "text": _FAILED}, *contents]
    answer = {"role": "tool", "tool_call_id": text_field(block, "tool_use_id", path), "content": output}
    return marked(answer, block)


def _use(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": text_field(block, "name", path), "arguments": arguments}
    return marked({"id": text_field(block, "id", path), "type": "function", "function": function}, block)


def _parts(blocks: object, path: str) -> list[dict[str, Any]]:
    """Return blocks as the parts of a message. Raises GatewayError for a kind that only Anthropic's servers read."""
    contents: list[dict[str, Any]] = []
    for block in objects(blocks, path):
        kind = block.get("type")
        if kind == "text":
            contents.append(marked({"type": "text", "text": text_field(block, "text", path)}, block))
        elif kind == "image":
            image = {"type": "image_url", "image_url": {"url": _url(fields_in(block.get("source")), path)}}
            contents.append(marked(image, block))
        elif kind == "document":
            *before, last = _document(block, path)
            contents += [*before, marked(last, block)]
        elif kind not in _UNREAD:
            raise unknown_kind(path, kind)
    return contents


def _document(block: Mapping[str, Any], path: str) -> list[dict[str, Any]]:
    head = [{"type": "text", "text": block[name]} for name in ("title", "context") if isinstance(block.get(name), str)]
    source = fields_in(block.get("source"))
    if source.get("type") == "text":
        return [*head, {"type": "text", "text": text_field(source, "data", path)}]
    if source.get("type") == "content":
        inner = source.get("content")
        return [*head, *_parts([{"type": "text", "text": inner}] if isinstance(inner, str) else inner, path)]
    if source.get("type") != "base64":
        raise GatewayError(400, f"{path}: send the document itself (source.type base64 or text).", param=path)
    name = block["title"] if isinstance(block.get("title"), str) else "document.pdf"
    return [*head, {"type": "file", "file": {"filename": name, "file_data": _url(source, path)}}]


def _url(source: Mapping[str, Any], path: str) -> str:
    if source.get("type") == "url":
        return text_field(source, "url", f"{path}.source")
    if source.get("type") != "base64":
        raise GatewayError(400, f"{path}: source.type must be base64 or url.", param=path)
    return f"data:{text_field(source, 'media_type', path)};base64,{text_field(source, 'data', path)}"


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unknown_kind(path, tool["type"])
    function = without(tool, "type", "input_schema", "eager_input_streaming", *CACHE_MARKS)
    function["parameters"] = tool.get("input_schema") or {}
    return marked({"type": "function", "function": function}, tool)


def _choice(choice: object) -> dict[str, Any]:
    fields = fields_in(choice)
    kind = fields.get("type")
    if kind == "tool":
        chosen: Any = {"type": "function", "function": {"name": text_field(fields, "name", "tool_choice")}}
    elif isinstance(kind, str) and kind in _CHOICES:
        chosen = _CHOICES[kind]
    else:
        raise GatewayError(400, "tool_choice.type must be auto, any, none or tool.", param="tool_choice")
    return {"tool_choice": chosen} | ({"parallel_tool_calls": False} if fields.get("disable_parallel_tool_use") else {})


def _format(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON schema that the reply has to follow, if any; the rest of `output_config` is passed on."""
    config = dict(fields_in(body.get("output_config")))
    wanted = config.pop("format", None) or body.get("output_format")
    fields: dict[str, Any] = {"output_config": config} if config else {}
    if isinstance(wanted, Mapping) and wanted.get("type") == "json_schema":
        schema = {"name": "output", "schema": wanted.get("schema"), "strict": True}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif wanted is not None:
        raise GatewayError(400, "output_config.format.type must be json_schema.", param="output_config")
    return fields
