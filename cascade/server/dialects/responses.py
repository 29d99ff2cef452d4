"""OpenAI's responses, without state: nothing is kept between requests, so each carries its whole conversation.

The encrypted content of a reasoning item holds all that the model wrote of it, in any form (`histories.packed`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cascade.chat import fields_in
from cascade.providers.fields import CACHE_MARKS
from cascade.providers.histories import taken_back
from cascade.server.dialects import (
    Dialect,
    ServedMessage,
    cascade_field,
    content_of,
    event,
    marked,
    not_kept,
    objects,
    only,
    text_field,
    unknown_kind,
    without,
)
from cascade.server.errors import GatewayError, Refusal

_READ = {"input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "reasoning", "include", "store"}
_READ |= {"previous_response_id", "conversation", "background", "truncation", "stream_options", "top_logprobs"}
_READ_ALONE = {*_READ, "parallel_tool_calls"}  # without tools: chat completions refuse the field then
_STATE = ("previous_response_id", "conversation", "prompt")
_LOGPROBS, _ENCRYPTED = "message.output_text.logprobs", "reasoning.encrypted_content"
_REPEATED = ("instructions", "max_output_tokens", "metadata", "temperature", "text", "tool_choice", "top_p", "user")
_REASONING = ("effort", "summary", "generate_summary")
_BEGUN = {"content": [], "summary": [], "arguments": "", "text": "", "refusal": "", "logprobs": []}
_BEGUN |= {"status": "in_progress"}
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses(Dialect):
    """OpenAI's responses."""

    path = "/v1/responses"
    _events = 0
    _spaced: Mapping[str, Mapping[str, str]] = {}
    """The name and the namespace of each function in a namespace, by the name that is sent to models."""

    def request(self) -> Mapping[str, Any]:
        """Translate the body into the body of a chat completion."""
        body = self.body
        for name in _STATE:
            if body.get(name) is not None:
                raise not_kept(name)
        if body.get("background"):
            raise GatewayError(400, "background: every request is answered in its own response.", param="background")
        instructions, tools = body.get("instructions"), objects(body.get("tools") or [], "tools")
        if instructions is not None and not isinstance(instructions, str):
            raise GatewayError(400, "instructions must be a text.", param="instructions")
        request = {name: value for name, value in body.items() if name not in (_READ if tools else _READ_ALONE)}
        request |= {"include": [_ENCRYPTED]} if self._asks_reasoning else {}
        system = [{"role": "system", "content": instructions}] if instructions else []
        request["messages"] = [*system, *_turns(body.get("input"))]
        if body.get("max_output_tokens") is not None:
            request["max_completion_tokens"] = body["max_output_tokens"]
        if tools:
            request["tools"] = self._functions(tools)
        if body.get("tool_choice") not in (None, *(() if tools else ("auto", "none"))):
            request["tool_choice"] = _choice(body["tool_choice"], "tool_choice")
        if (effort := only(body.get("reasoning"), "reasoning", *_REASONING).get("effort")) is not None:
            request["reasoning_effort"] = effort
        include, most = body.get("include"), body.get("top_logprobs")
        if most is not None or (isinstance(include, list) and _LOGPROBS in include):
            request |= {"logprobs": True, "top_logprobs": most or 0}
        return request | _text(body.get("text"))

    def _functions(self, tools: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the functions of all tools, and record which belong to a namespace. Raises GatewayError."""
        listed = [each for number, tool in enumerate(tools) for each in _tools(tool, f"tools[{number}]")]
        self._spaced = {tool["function"]["name"]: named for tool, named in listed if named}
        functions = [tool for tool, _ in listed]
        if self._spaced and len({tool["function"]["name"] for tool in functions}) < len(functions):
            raise GatewayError(400, "tools: two functions have the same full name.", param="tools")
        return functions

    def whole(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return an answer as a response."""
        cut, usage = _CUT.get(reply.finish), reply.usage
        read = {"cached_tokens": usage["cached"], "cache_write_tokens": usage["cache_write"]}
        read |= {} if usage["writes"] is None else {"cache_creation_token_details": usage["writes"]}
        ended = {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self._output(reply),
            "service_tier": reply.completion.get("service_tier"),
            "usage": {
                "input_tokens": usage["read"],
                "input_tokens_details": read,
                "output_tokens": usage["written"],
                "output_tokens_details": {"reasoning_tokens": usage["reasoning"]},
                "total_tokens": usage["read"] + usage["written"],
            },
        }
        return self._head(reply.model) | ended | cascade_field(extension)

    def ending(self, reply: ServedMessage, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer."""
        if not self.begun:
            yield self._start(reply.model)
        response = self.whole(reply, extension)
        for number, entry in enumerate(response["output"][len(self.before) :], len(self.before)):
            yield from self._item(number, entry)
        yield self._event(f"response.{response['status']}", response=response)

    def _item(self, number: int, entry: Mapping[str, Any]) -> Iterator[bytes]:
        if not (self.begun and entry["type"] == "message"):
            yield self._event("response.output_item.added", output_index=number, item=_begun(entry))
        yield from (self._function_call if entry["type"] == "function_call" else self._texts)(number, entry)
        yield self._event("response.output_item.done", output_index=number, item=entry)

    def broken(self, refusal: Refusal) -> bytes:
        """Return the event of an error, with the error in both places where client libraries look for it."""
        error = refusal.body["error"]
        return self._event("error", **{name: error[name] for name in ("code", "message", "param")}, error=error)

    def _head(self, model: str) -> dict[str, Any]:
        """Return the response object before any output."""
        body = self.body
        return {
            **{name: body.get(name) for name in _REPEATED},
            "id": f"resp_{self.trace_id}",
            "object": "response",
            "created_at": self.created,
            "model": model,
            "status": "in_progress",
            "output": [],
            "tools": body.get("tools") or [],
            "tool_choice": body.get("tool_choice") or "auto",
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "metadata": body.get("metadata") or {},
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "text": body.get("text") or {"format": {"type": "text"}},
            "truncation": "disabled",
            "store": False,
            "previous_response_id": None,
            "error": None,
            "incomplete_details": None,
            "usage": None,
        }

    def _output(self, reply: ServedMessage) -> list[dict[str, Any]]:
        """Return the items: reasoning, a message unless there are only tool calls, and the tool calls."""
        status = "incomplete" if reply.finish in _CUT else "completed"
        contents: list[dict[str, Any]] = []
        if reply.text or not (reply.refusal or reply.calls):
            logprobs = (reply.logprobs or {}).get("content") or []
            contents.append({"type": "output_text", "text": reply.text, "annotations": [], "logprobs": logprobs})
        if reply.refusal:
            contents.append({"type": "refusal", "refusal": reply.refusal})
        message = {"type": "message", "role": "assistant", "status": status, "content": contents}
        items = self._in_order(reply, [message] if contents else [])
        for call, name, arguments in reply.calls:
            fields = {"call_id": call, "name": name, **self._spaced.get(name, {}), "arguments": arguments}
            items.append({"type": "function_call", **fields, "status": status})
        return [{"id": self._item_id(number), **entry} for number, entry in enumerate(items)]

    @property
    def _asks_reasoning(self) -> bool:
        """Whether the client asks for reasoning that it can hand back."""
        include = self.body.get("include")
        return isinstance(include, list) and _ENCRYPTED in include

    @property
    def _wants_thinking(self) -> bool:
        return self._asks_reasoning or self.body.get("reasoning") is not None

    def _thought(self, thinking: str) -> dict[str, Any]:
        readable = self._readable(thinking)
        summary = [{"type": "summary_text", "text": readable}] if readable else []
        return {"type": "reasoning", "summary": summary, "encrypted_content": thinking}

    def _item_id(self, number: int) -> str:
        return f"item_{self.trace_id}_{number}"

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = event({"type": name, "sequence_number": self._events, **fields}, name)
        self._events += 1
        return data

    def _start(self, model: str) -> bytes:
        head = self._head(model)
        return self._event("response.created", response=head) + self._event("response.in_progress", response=head)

    def _begin(self, model: str) -> bytes:
        """Begin a message and its text, before the rest of the message is known."""
        head, number = self._start(model), len(self.before)
        self.before = [{"id": self._item_id(index), **entry} for index, entry in enumerate(self.before)]
        thoughts = [data for index, entry in enumerate(self.before) for data in self._item(index, entry)]
        entry = {"id": self._item_id(number), "type": "message", "role": "assistant", "content": []}
        content = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        added = {"output_index": number, "item": {**entry, "status": "in_progress"}}
        begun = b"".join([head, *thoughts, self._event("response.output_item.added", **added)])
        return begun + self._event("response.content_part.added", **self._at(number, 0), part=content)

    def _piece(self, text: str) -> bytes:
        return self._event("response.output_text.delta", **self._at(len(self.before), 0), delta=text, logprobs=[])

    def _at(self, number: int, index: int, owner: str = "content") -> dict[str, Any]:
        return {"item_id": self._item_id(number), "output_index": number, f"{owner}_index": index}

    def _texts(self, number: int, entry: Mapping[str, Any]) -> Iterator[bytes]:
        """Yield a message's contents, or the summary of reasoning."""
        owner, prefix = ("content", "response.") if "content" in entry else ("summary", "response.reasoning_")
        for index, content in enumerate(entry[owner]):
            name, field = prefix + content["type"], "refusal" if "refusal" in content else "text"
            position = self._at(number, index, owner)
            logprobs = {"logprobs": content["logprobs"]} if "logprobs" in content else {}
            if not (self.begun and logprobs):
                yield self._event(f"{prefix}{owner}_part.added", **position, part=_begun(content))
                yield self._event(f"{name}.delta", **position, delta=content[field], **logprobs)
            yield self._event(f"{name}.done", **position, **{field: content[field]}, **logprobs)
            yield self._event(f"{prefix}{owner}_part.done", **position, part=content)

    def _function_call(self, number: int, entry: Mapping[str, Any]) -> Iterator[bytes]:
        position, arguments = {"item_id": entry["id"], "output_index": number}, entry["arguments"]
        yield self._event("response.function_call_arguments.delta", **position, delta=arguments)
        yield self._event("response.function_call_arguments.done", **position, name=entry["name"], arguments=arguments)


def _begun(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return an item, or one of its texts, as it is before anything of it is written."""
    return {name: _BEGUN.get(name, value) for name, value in entry.items()}


def _turns(conversation: object) -> list[dict[str, Any]]:
    """Return the items of a conversation as messages; reasoning and tool calls of one turn become one message."""
    if isinstance(conversation, str):
        return [{"role": "user", "content": conversation}]
    turns: list[dict[str, Any]] = []
    for number, entry in enumerate(objects(conversation, "input")):
        path, kind = f"input[{number}]", entry.get("type", "message")
        if kind == "message":
            content = _content(entry.get("content"), path)
            last = turns[-1] if turns else {}
            is_open = last.get("role") == "assistant" and last["content"] is None
            if entry.get("role") == "assistant" and is_open:  # that turn has no text so far
                last["content"] = content
            else:
                turns.append({"role": entry.get("role"), "content": content})
            continue
        if kind in ("function_call", "reasoning") and (not turns or turns[-1]["role"] != "assistant"):
            turns.append({"role": "assistant", "content": None})
        if kind == "function_call":
            function = {"name": _name(entry, path), "arguments": text_field(entry, "arguments", path)}
            call = {"id": text_field(entry, "call_id", path), "type": "function", "function": function}
            turns[-1].setdefault("tool_calls", []).append(call)
        elif kind == "function_call_output":
            content = _content(entry.get("output"), path)
            turns.append({"role": "tool", "tool_call_id": text_field(entry, "call_id", path), "content": content})
        elif kind == "reasoning":
            turns[-1] = taken_back(turns[-1], entry, "reasoning_items")
        else:
            raise not_kept(path) if kind == "item_reference" else unknown_kind(path, kind)
    return turns


def _content(content: object, path: str) -> Any:
    if isinstance(content, str):
        return content
    blocks = objects(content, f"{path}.content")
    return content_of([marked(_part(block, f"{path}.content"), block) for block in blocks]) or ""


def _part(content: Mapping[str, Any], path: str) -> dict[str, Any]:
    kind = content.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": text_field(content, "text", path)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text_field(content, "refusal", path)}
    if kind == "input_image":
        detail = {"detail": content["detail"]} if "detail" in content else {}
        return {"type": "image_url", "image_url": {"url": text_field(content, "image_url", path), **detail}}
    if kind == "input_file" and content.get("file_url") is None:
        return {"type": "file", "file": {name: value for name, value in content.items() if name != "type"}}
    if kind == "input_audio":
        return dict(content)
    raise unknown_kind(path, kind)


def _name(entry: Mapping[str, Any], path: str) -> str:
    """Return the name under which a function is sent to models, since a chat completion has no namespaces."""
    space = "" if entry.get("namespace") is None else text_field(entry, "namespace", path) + "__"
    return space + text_field(entry, "name", path)


def _tools(tool: Mapping[str, Any], path: str) -> Iterator[tuple[dict[str, Any], dict[str, str]]]:
    """Yield a tool, or the functions of a namespace, each with its name and its namespace."""
    if tool.get("type") != "namespace":
        yield _tool(tool, path), {}
        return
    for number, function in enumerate(objects(tool.get("tools"), f"{path}.tools")):
        at = f"{path}.tools[{number}]"
        named = {"name": text_field(function, "name", at), "namespace": text_field(tool, "name", path)}
        about = [text for text in (tool.get("description"), function.get("description")) if text]
        yield _tool({**function, "name": _name(named, at), "description": "\n\n".join(map(str, about))}, at), named


def _tool(tool: Mapping[str, Any], path: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unknown_kind(path, tool.get("type"))
    named = {**without(tool, "type", *CACHE_MARKS), "name": text_field(tool, "name", path)}
    return marked({"type": "function", "function": named}, tool)


def _choice(choice: Any, path: str) -> Any:
    """Return which tools may or must be called, each name in an object of its own, as in a chat completion."""
    if not isinstance(choice, Mapping):
        return choice
    if choice.get("type") == "function":
        return {"type": "function", "function": {"name": _name(choice, path)}}
    if choice.get("type") != "allowed_tools":
        raise unknown_kind(path, choice.get("type"))
    tools = [_choice(tool, f"{path}.tools") for tool in objects(choice.get("tools"), f"{path}.tools")]
    return {"type": "allowed_tools", "allowed_tools": {"mode": choice.get("mode"), "tools": tools}}


def _text(text: object) -> dict[str, Any]:
    """Return the wanted length and format of the reply."""
    fields = only(text, "text", "verbosity", "format")
    request, wanted = without({"verbosity": fields.get("verbosity")}), fields_in(fields.get("format"))
    if wanted.get("type") == "json_schema":
        wanted = {"type": "json_schema", "json_schema": without(wanted, "type")}
    return request if wanted in ({}, {"type": "text"}) else {**request, "response_format": wanted}
