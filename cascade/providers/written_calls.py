"""Read tool calls that a model wrote as text, as small open models do on any server.

Qwen's models write `{"name": …, "arguments": …}` in a code fence or in `<tool_call>` tags; llama.cpp's own reader takes
only the tags. A text that does not call an offered tool stays text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from cascade.chat import ChatRequest, calls_of, function_of
from cascade.providers.base import Payload

_FENCED = re.compile(r"```(?:json)?\s*(.*?)```", re.DOTALL)
_TAGGED = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
_decoder = json.JSONDecoder()


def body_for(chat: ChatRequest, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return a body that llama.cpp answers well: without `tool_choice: required`, which makes it write garbage."""
    made = dict(body)
    if made.get("tool_choice") == "required" or isinstance(made.get("tool_choice"), Mapping):
        made["tool_choice"] = "auto"
    if not chat.tools:
        made.pop("tool_choice", None)
        made.pop("parallel_tool_calls", None)
    return made


def with_tool_calls(payload: Payload, chat: ChatRequest) -> Payload:
    """Return a completion with tool calls in the client's form if the model wrote calls as text."""
    choices = payload.get("choices")
    if not chat.tools or not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return payload
    message = choices[0].get("message")
    if not isinstance(message, Mapping) or calls_of(message) or not isinstance(message.get("content"), str):
        return payload
    offered = [function_of(tool).get("name") for tool in chat.tools]  # a client may write anything for a name
    calls = list(_written(message["content"]))
    if not calls or any(call.get("name") not in offered for call in calls):
        return payload
    made = {**message, "content": None, "tool_calls": [_call(index, call) for index, call in enumerate(calls)]}
    finish = choices[0].get("finish_reason")
    first = {**choices[0], "message": made, "finish_reason": "tool_calls" if finish == "stop" else finish}
    return {**payload, "choices": [first, *choices[1:]]}


def _written(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the calls in a text that contains nothing else; yield none for any other text."""
    pieces = _TAGGED.findall(text) or _FENCED.findall(text) or [text]
    for piece in pieces:
        for value in _values(piece.strip()):
            for one in value if isinstance(value, list) else [value]:
                if isinstance(one, Mapping) and isinstance(one.get("name"), str):
                    yield one


def _values(text: str) -> Iterator[Any]:
    """Yield the consecutive JSON values of a text that contains nothing else; yield none for any other text."""
    found, place = [], 0
    while place < len(text):
        try:
            value, end = _decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return
        found.append(value)
        place = end + len(text[end:]) - len(text[end:].lstrip(" \t\r\n,;"))
    yield from found


def _call(index: int, call: Mapping[str, Any]) -> dict[str, Any]:
    arguments = call.get("arguments", call.get("parameters", {}))
    said = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return {"id": f"call_{index}", "type": "function", "function": {"name": call["name"], "arguments": said}}
