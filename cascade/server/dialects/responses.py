"""OpenAI's responses, without state: nothing is kept between requests, so each carries its whole conversation.

Items of earlier reasoning are left out: only the servers that wrote them can read them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from cascade.server.dialects.base import Said, content_of, event, objects, text_field
from cascade.server.refusals import Refusal, Refused
from cascade.types import Answer

_READ = {"input", "instructions", "tools", "tool_choice", "text", "max_output_tokens", "reasoning", "include", "store"}
_READ |= {"previous_response_id", "conversation", "background", "truncation", "stream_options", "top_logprobs"}
_STATE = ("previous_response_id", "conversation", "prompt")
_LOGPROBS = "message.output_text.logprobs"
_REPEATED = ("instructions", "max_output_tokens", "metadata", "temperature", "text", "tool_choice", "top_p", "user")
_CUT = {"length": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    """`POST /v1/responses`."""

    path = "/v1/responses"

    def request(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Translate a body into that of a chat completion."""
        for name in _STATE:
            if body.get(name) is not None:
                raise Refused(400, f"{name}: nothing is kept between requests. Send the conversation.", param=name)
        if body.get("background"):
            raise Refused(400, "background: every request is answered in its own response.", param="background")
        found = {name: value for name, value in body.items() if name not in _READ}
        found["messages"] = [*_instructions(body), *_turns(body.get("input"))]
        if body.get("max_output_tokens") is not None:
            found["max_completion_tokens"] = body["max_output_tokens"]
        if body.get("tools"):
            found["tools"] = [_tool(tool, f"tools[{n}]") for n, tool in enumerate(objects(body["tools"], "tools"))]
        if body.get("tool_choice") is not None:
            found["tool_choice"] = _choice(body["tool_choice"])
        if isinstance(body.get("reasoning"), Mapping) and body["reasoning"].get("effort") is not None:
            found["reasoning_effort"] = body["reasoning"]["effort"]
        return found | _text(body.get("text")) | _logprobs(body)

    def whole(
        self, answer: Answer, body: Mapping[str, Any], trace_id: str, extension: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return an answer as a response."""
        return _Response(body, trace_id).ended(Said(answer), extension)

    def writer(self, body: Mapping[str, Any], trace_id: str) -> ResponseEvents:
        """Return a writer of the events of one answer."""
        return ResponseEvents(_Response(body, trace_id))

    def refused(self, refusal: Refusal, trace_id: str) -> dict[str, Any]:  # noqa: ARG002 - it is in a header
        """Return OpenAI's error object."""
        return refusal.body


class _Response:
    """The response object of one request."""

    def __init__(self, body: Mapping[str, Any], trace_id: str) -> None:
        self._body, self._trace_id = body, trace_id
        self._created = int(datetime.now(UTC).timestamp())

    def item_id(self, place: int) -> str:
        """Return the id of one item of the output."""
        return f"item_{self._trace_id}_{place}"

    def begun(self, model: str) -> dict[str, Any]:
        """Return the response object before any output."""
        body = self._body
        return {
            **{name: body.get(name) for name in _REPEATED},
            "id": f"resp_{self._trace_id}",
            "object": "response",
            "created_at": self._created,
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

    def ended(self, said: Said, extension: Mapping[str, Any] | None) -> dict[str, Any]:
        """Return the complete response object."""
        cut = _CUT.get(said.finish)
        usage = said.usage
        found = self.begun(said.model) | {
            "status": "incomplete" if cut else "completed",
            "incomplete_details": {"reason": cut} if cut else None,
            "output": self.output(said),
            "service_tier": said.completion.get("service_tier"),
            "usage": {
                "input_tokens": usage["read"],
                "input_tokens_details": {"cached_tokens": usage["cached"], "cache_write_tokens": usage["cache_write"]},
                "output_tokens": usage["written"],
                "output_tokens_details": {"reasoning_tokens": usage["reasoning"]},
                "total_tokens": usage["read"] + usage["written"],
            },
        }
        return found if extension is None else found | {"cascade": extension}

    def output(self, said: Said) -> list[dict[str, Any]]:
        """Return the items: a message, if the model says something, and its tool calls."""
        parts: list[dict[str, Any]] = []
        if said.text or not (said.refusal or said.calls):
            logprobs = (said.logprobs or {}).get("content") or []
            parts.append({"type": "output_text", "text": said.text, "annotations": [], "logprobs": logprobs})
        if said.refusal:
            parts.append({"type": "refusal", "refusal": said.refusal})
        items: list[dict[str, Any]] = []
        status = "incomplete" if said.finish in _CUT else "completed"
        if parts:
            items.append({"type": "message", "role": "assistant", "status": status, "content": parts})
        for call, name, arguments in said.calls:
            items.append(
                {"type": "function_call", "call_id": call, "name": name, "arguments": arguments, "status": status}
            )
        return [{"id": self.item_id(place), **item} for place, item in enumerate(items)]


class ResponseEvents:
    """One answer as events, each with its number."""

    counts = True

    def __init__(self, response: _Response) -> None:
        self._response = response
        self._number = 0
        self._said = False

    def text(self, text: str, model: str) -> bytes:
        """Return the next piece of the text."""
        begun = b""
        if not self._said:
            self._said = True
            begun = self._begin(model) + self._open_text()
        return begun + self._delta(text, [])

    def ending(self, answer: Answer, extension: Mapping[str, Any] | None) -> Iterator[bytes]:
        """Yield the rest of an answer."""
        said = Said(answer)
        if not self._said:
            yield self._begin(said.model)
        for place, item in enumerate(self._response.output(said)):
            if item["type"] == "message":
                yield from self._message(place, item)
            else:
                yield from self._function_call(place, item)
        ended = self._response.ended(said, extension)
        yield self._event(f"response.{ended['status']}", response=ended)

    def broken(self, refusal: Refusal) -> bytes:
        """Return the event of an error, with the error in both places where client libraries look for it."""
        error = refusal.body["error"]
        fields = {name: error[name] for name in ("code", "message", "param")}
        return self._event("error", **fields, error=error)

    def _event(self, name: str, /, **fields: Any) -> bytes:
        data = event({"type": name, "sequence_number": self._number, **fields}, name)
        self._number += 1
        return data

    def _begin(self, model: str) -> bytes:
        begun = self._response.begun(model)
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def _open_text(self) -> bytes:
        """Begin a message and its text, before the rest of the message is known."""
        item = {"id": self._response.item_id(0), "type": "message", "role": "assistant", "content": []}
        part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        return self._event(
            "response.output_item.added", output_index=0, item=item | {"status": "in_progress"}
        ) + self._part("added", 0, 0, part)

    def _part(self, what: str, place: int, index: int, part: Mapping[str, Any]) -> bytes:
        return self._event(
            f"response.content_part.{what}",
            item_id=self._response.item_id(place),
            output_index=place,
            content_index=index,
            part=part,
        )

    def _delta(self, text: str, logprobs: list[Any]) -> bytes:
        where = {"item_id": self._response.item_id(0), "output_index": 0, "content_index": 0}
        return self._event("response.output_text.delta", **where, delta=text, logprobs=logprobs)

    def _message(self, place: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        sent = self._said
        if not sent:
            yield self._event(
                "response.output_item.added", output_index=place, item={**item, "content": [], "status": "in_progress"}
            )
        for index, part in enumerate(item["content"]):
            field = "text" if part["type"] == "output_text" else "refusal"
            name = "response.output_text" if field == "text" else "response.refusal"
            where = {"item_id": item["id"], "output_index": place, "content_index": index}
            logprobs = {"logprobs": part["logprobs"]} if field == "text" else {}
            if not (sent and field == "text"):
                empty = {**part, field: "", **({"logprobs": []} if field == "text" else {})}
                yield self._part("added", place, index, empty)
                yield self._event(f"{name}.delta", **where, delta=part[field], **logprobs)
            yield self._event(f"{name}.done", **where, **{field: part[field]}, **logprobs)
            yield self._part("done", place, index, part)
        yield self._event("response.output_item.done", output_index=place, item=item)

    def _function_call(self, place: int, item: Mapping[str, Any]) -> Iterator[bytes]:
        where = {"item_id": item["id"], "output_index": place}
        empty = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=place, item=empty)
        yield self._event("response.function_call_arguments.delta", **where, delta=item["arguments"])
        yield self._event(
            "response.function_call_arguments.done", **where, name=item["name"], arguments=item["arguments"]
        )
        yield self._event("response.output_item.done", output_index=place, item=item)


def _instructions(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    said = body.get("instructions")
    if said is not None and not isinstance(said, str):
        raise Refused(400, "instructions must be a text.", param="instructions")
    return [{"role": "system", "content": said}] if said else []


def _turns(given: object) -> list[dict[str, Any]]:
    """Return the items of a conversation as messages; the tool calls of one turn become one message."""
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    turns: list[dict[str, Any]] = []
    for number, item in enumerate(objects(given, "input")):
        where, kind = f"input[{number}]", item.get("type", "message")
        if kind == "message":
            turns.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
        elif kind == "function_call":
            if not turns or turns[-1]["role"] != "assistant":
                turns.append({"role": "assistant", "content": None})
            turns[-1].setdefault("tool_calls", []).append(_call(item, where))
        elif kind == "function_call_output":
            said = item.get("output")
            content = said if isinstance(said, str) else _content(said, where)
            turns.append({"role": "tool", "tool_call_id": text_field(item, "call_id", where), "content": content})
        elif kind != "reasoning":
            raise Refused(400, f"{where}: an item of type {str(kind)[:100]!r} cannot be passed on.", param=where)
    return turns


def _call(item: Mapping[str, Any], where: str) -> dict[str, Any]:
    function = {name: text_field(item, name, where) for name in ("name", "arguments")}
    return {"id": text_field(item, "call_id", where), "type": "function", "function": function}


def _content(content: object, where: str) -> Any:
    if isinstance(content, str):
        return content
    return content_of([_part(part, f"{where}.content") for part in objects(content, f"{where}.content")]) or ""


def _part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if kind in ("input_text", "output_text"):
        return {"type": "text", "text": text_field(part, "text", where)}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text_field(part, "refusal", where)}
    if kind == "input_image" and part.get("image_url") is not None:
        detail = {"detail": part["detail"]} if "detail" in part else {}
        return {"type": "image_url", "image_url": {"url": text_field(part, "image_url", where), **detail}}
    if kind == "input_file" and part.get("file_url") is None:
        return {"type": "file", "file": {name: value for name, value in part.items() if name != "type"}}
    if kind == "input_audio":
        return dict(part)
    raise Refused(400, f"{where}: a part of type {str(kind)[:100]!r} cannot be passed on in this form.", param=where)


def _tool(tool: Mapping[str, Any], where: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Refused(400, f"{where}: {str(tool.get('type'))[:100]} runs on OpenAI's servers only.", param=where)
    given = {name: value for name, value in tool.items() if name != "type" and value is not None}
    return {"type": "function", "function": given}


def _choice(choice: Any) -> Any:
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": text_field(choice, "name", "tool_choice")}}
    return choice


def _text(text: object) -> dict[str, Any]:
    """Return the wanted length and format of the reply."""
    given = text if isinstance(text, Mapping) else {}
    found = {name: value for name, value in given.items() if name == "verbosity" and value is not None}
    wanted = given.get("format")
    if not isinstance(wanted, Mapping) or wanted.get("type") == "text":
        return found
    if wanted.get("type") == "json_schema":
        schema = {name: value for name, value in wanted.items() if name != "type" and value is not None}
        return {**found, "response_format": {"type": "json_schema", "json_schema": schema}}
    return {**found, "response_format": dict(wanted)}


def _logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    include = body.get("include")
    if body.get("top_logprobs") is None and not (isinstance(include, list) and _LOGPROBS in include):
        return {}
    return {"logprobs": True, "top_logprobs": body.get("top_logprobs") or 0}
