"""A request and an output as lines of text: nothing is cut, and values that are not text are shown as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cascade.review.pairs import Output, Pair, request_body


def request_lines(pair: Pair) -> Iterator[str]:
    """Yield the lines of a request: a chat request message by message with its tools, or question and context."""
    body = request_body(pair)
    if body is None:
        yield from pair.asked.split("\n")
        if pair.context is not None:
            yield "[context]"
            yield from pair.context.split("\n")
        return
    for message in body.get("messages", ()):
        yield f"[{message.get('role', 'message')}]"
        yield from _message(message)
    for name, value in body.items():
        if name != "messages":
            yield f"[{name}]"
            yield from _value(value)


def output_lines(output: Output) -> Iterator[str]:
    """Yield the lines of an output: a message's text and calls, JSON over several lines, any other text as it is."""
    message = _json(output.message) if output.message is not None else None
    if isinstance(message, Mapping):
        yield from _message(message)
    elif output.text.lstrip()[:1] in {"{", "["} and (value := _json(output.text)) is not None:
        yield from _value(value)
    else:
        yield from output.text.split("\n")


def _message(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield a message's content and every other field with a value; calls with their arguments as JSON."""
    content = message.get("content")
    if isinstance(content, str):
        value = _json(content) if content.lstrip()[:1] in {"{", "["} else None
        yield from content.split("\n") if value is None else _value(value)
    elif content is not None:
        for part in content if isinstance(content, list) else [content]:
            is_text = isinstance(part, Mapping) and part.keys() == {"type", "text"}
            yield from part["text"].split("\n") if is_text else _value(part)
    for name, value in message.items():
        if name == "tool_calls" and isinstance(value, list):
            for call in value:
                yield from _call(call)
        elif name not in {"role", "content"} and value not in (None, [], ""):
            yield f"{name}:"
            yield from _value(value)


def _call(call: Any) -> Iterator[str]:
    """Yield a tool call without its id, which is random and would reveal whose output it is."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        yield from _value(call)
        return
    arguments = function.get("arguments")
    value = _json(arguments) if isinstance(arguments, str) else arguments
    yield f"call {function.get('name')}"
    yield from _value(arguments if value is None else value)


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield from value.split("\n")
    else:
        yield from json.dumps(value, ensure_ascii=False, indent=2, sort_keys=True).split("\n")


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
