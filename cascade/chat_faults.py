"""What is wrong with a message that answers a chat request: an unknown tool, arguments that break the schema.

A message with a fault is never served while another model can be asked; the last model's is served with a warning. Each
fault has a number in `design/faults.md`, and a test that fails without its check.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from cascade.chat import ChatRequest, calls_of, function_of, parsed, refusal_of, text_of
from cascade.errors import MissingExtraError

MOST_ARGUMENT_CHARS = 1_000_000
"""Longer arguments of one call are a fault (F115)."""
_SHOWN_CHARS = 200


def message_faults(request: ChatRequest, message: Mapping[str, Any], finish_reason: str) -> tuple[str, ...]:
    """Return what is wrong with a message, in words; nothing for one that can be served.

    Args:
        request: what it answers.
        message: the assistant's message, in OpenAI's form.
        finish_reason: why the model stopped.
    """
    found: list[str] = []
    calls = calls_of(message)
    if refusal_of(message).strip() or finish_reason == "content_filter":
        found.append("the model or its filter refused to answer")  # F110
    elif not calls and not text_of(message.get("content")).strip():
        found.append("the reply holds neither text nor a tool call")  # F109
    if finish_reason == "length":
        found.append("the reply was cut at its token limit")  # F107
    found += _choice_faults(request, calls)
    given = message.get("tool_calls")
    if isinstance(given, list) and len(calls) < len(given):
        found.append("a tool call is not a JSON object")  # F103
    for call in calls:
        found += _call_faults(request, call)
    if not calls and not found and request.wants_json:
        found += _json_faults(request, text_of(message.get("content")))
    return tuple(dict.fromkeys(found))


def _choice_faults(request: ChatRequest, calls: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """Yield where the number or the names of the calls are not what the request allows."""
    choice = request.options.get("tool_choice")
    if len(calls) > 1 and request.options.get("parallel_tool_calls") is False:
        yield f"{len(calls)} tools were called where one call is allowed"  # F105
    if calls and choice == "none":
        yield "a tool was called where none may be"  # F105
    if not calls and choice == "required" and request.tools:
        yield "no tool was called where one must be"  # F106
    if isinstance(choice, Mapping):
        wanted = function_of(choice).get("name")
        if wanted and wanted not in [function_of(call).get("name") for call in calls]:
            yield f"the tool {wanted!r} was not called, and the request demands it"  # F106


def _call_faults(request: ChatRequest, call: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with one tool call."""
    kind = call.get("type") or "function"
    called = call.get(kind) if isinstance(kind, str) else None
    called = called if isinstance(called, Mapping) else {}
    name, given = called.get("name"), called.get("arguments")
    tool = _tool(request, str(kind), name)
    if tool is None:
        yield f"the tool {str(name)[:_SHOWN_CHARS]!r} was not offered"  # F102
        return
    if kind != "function":
        return  # the input of a tool of another kind is free text
    if isinstance(given, str) and len(given) > MOST_ARGUMENT_CHARS:
        yield f"the arguments of {name} have more than {MOST_ARGUMENT_CHARS:,} characters"  # F115
        return
    try:
        arguments = given if isinstance(given, Mapping) else parsed(given or "{}")
    except (ValueError, TypeError):
        yield f"the arguments of {name} are not JSON"  # F101
        return
    if not isinstance(arguments, Mapping):
        yield f"the arguments of {name} are not a JSON object"  # F103
        return
    wrong = schema_problem(tool.get("parameters"), arguments)
    if wrong is not None:
        yield f"the arguments of {name} break its schema: {wrong}"  # F104


def _tool(request: ChatRequest, kind: str, name: object) -> Mapping[str, Any] | None:
    """Return the tool of a kind that a request offers under a name; None where it offers none."""
    old = request.options.get("functions") if kind == "function" else None
    offered = [*request.tools, *({"function": one} for one in (old if isinstance(old, list) else ()))]
    found = [held for tool in offered if isinstance(held := tool.get(kind), Mapping) and held.get("name") == name]
    return found[-1] if found and isinstance(name, str) else None


def _json_faults(request: ChatRequest, text: str) -> Iterator[str]:
    try:
        value = parsed(text)
    except ValueError:
        yield "the reply is not JSON, and the request asks for JSON"  # F108
        return
    wrong = schema_problem(request.json_schema, value)
    if wrong is not None:
        yield f"the reply breaks the request's JSON schema: {wrong}"  # F108


def schema_problem(schema: object, value: object) -> str | None:
    """Return where a value breaks a JSON schema; None where it keeps it, or where the schema itself is wrong.

    References to other documents are not followed: nothing leaves the machine.

    >>> schema_problem({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "2"})
    "$.n: '2' is not of type 'integer'"
    """
    if not isinstance(schema, Mapping) or not schema:
        return None
    check = _checker(json.dumps(schema, sort_keys=True))
    return None if check is None else check(value)


@lru_cache(maxsize=1_024)
def _checker(schema: str) -> Callable[[object], str | None] | None:
    """Return the check of a schema, made once; None where the schema itself is wrong."""
    try:
        from jsonschema import Draft202012Validator
        from jsonschema.exceptions import SchemaError
        from referencing import Registry
    except ModuleNotFoundError:
        raise MissingExtraError("jsonschema", "requests with tools or a JSON schema") from None
    document = json.loads(schema)
    try:
        Draft202012Validator.check_schema(document)
    except (SchemaError, RecursionError):
        return None
    empty: Registry[Any] = Registry()
    validator = Draft202012Validator(document, registry=empty)

    def check(value: object) -> str | None:
        try:
            error = next(validator.iter_errors(value), None)
        except Exception:  # noqa: BLE001 - a reference that leads nowhere, a pattern that is none: the schema's fault
            return None
        return None if error is None else f"{error.json_path}: {error.message}"[:_SHOWN_CHARS]

    return check
