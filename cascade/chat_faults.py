"""Finds faults in a message that answers a chat request, such as an unknown tool or arguments that break the schema.

A message with a fault is not served if another model can be asked; the last model's is served with a warning. Each
fault has a number in `design/faults.md`, and a test that fails without its check.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from cascade.chat import ENDINGS, ChatRequest, calls_of, fields_in, objects_in, parsed, refusal_of, spoken_text
from cascade.errors import MissingExtraError

MOST_ARGUMENT_CHARS = 1_000_000
"""Longer arguments of one call are a fault (F115)."""
_SHOWN_CHARS = 200
MOST_SCHEMA_CHARS = 50_000
"""The maximum length of a schema; reading one of this length takes 0.3 s, once."""
MOST_STEPS = 20_000
"""The maximum number of keywords evaluated for one message, about 0.2 s."""
_MATCHING = 500
"""The number of steps of a pattern match that take as long as one keyword."""


def message_faults(request: ChatRequest, message: Mapping[str, Any], finish_reason: str) -> tuple[str, ...]:
    """Return the faults of a message in words; empty if it can be served.

    Args:
        request: the request that it answers.
        message: the assistant's message, in OpenAI's form.
        finish_reason: why the model stopped.
    """
    faults: list[str] = []
    calls, finish_reason = calls_of(message), ENDINGS.get(finish_reason.lower(), finish_reason)
    if refusal_of(message).strip() or finish_reason == "content_filter":
        faults.append("the model or its filter refused to answer")  # F110
    elif not calls and not spoken_text(message).strip() and not isinstance(message.get("audio"), Mapping):
        faults.append("the reply holds neither text nor a tool call")  # F109
    if finish_reason == "length":
        whose = "" if request.max_tokens is not None else ", which cascade set: max_tokens under models raises it"
        faults.append(f"the reply was cut at its token limit{whose}")  # F107
    elif finish_reason != "unknown" and finish_reason.lower() not in ENDINGS:
        faults.append(f"the reply ended with {finish_reason[:_SHOWN_CHARS]!r}")  # F27
    faults += _choice_faults(request, calls)
    raw_calls = message.get("tool_calls")
    if isinstance(raw_calls, list) and len(calls) < len(raw_calls):
        faults.append("a tool call is not a JSON object")  # F103
    _work.left, offered = MOST_STEPS, _offered(request) if calls else {}
    for call in calls:
        faults += _call_faults(offered, call)
    if not calls and not faults and request.wants_json:
        faults += _json_faults(request, spoken_text(message))
    return tuple(dict.fromkeys(faults))


def _choice_faults(request: ChatRequest, calls: tuple[Mapping[str, Any], ...]) -> Iterator[str]:
    """Yield the faults in the number or names of the calls."""
    choice = _limits(request).get("mode", request.options.get("tool_choice"))
    if len(calls) > 1 and request.options.get("parallel_tool_calls") is False:
        yield f"{len(calls)} tools were called where one call is allowed"  # F105
    if calls and choice == "none":
        yield "a tool was called where none may be"  # F105
    if not calls and choice == "required" and request.tools:
        yield "no tool was called where one must be"  # F106
    for _, name in _named([fields_in(choice)]).keys() - _named(calls).keys():
        yield f"the tool {name!r} was not called, and the request requires it"  # F106


def _limits(request: ChatRequest) -> Mapping[str, Any]:
    """Return the request's `allowed_tools`, which say which of its tools may or must be called; {} without any."""
    return fields_in(fields_in(request.options.get("tool_choice")).get("allowed_tools"))


def _call_faults(offered: Mapping[tuple[str, str], Mapping[str, Any]], call: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of one tool call."""
    kind = call.get("type") or "function"
    called = fields_in(call.get(kind) if isinstance(kind, str) else None)
    name, raw_arguments = called.get("name"), called.get("arguments")
    tool = offered.get((str(kind), name)) if isinstance(name, str) else None
    if tool is None:
        yield f"the tool {str(name)[:_SHOWN_CHARS]!r} was not offered"  # F102
        return
    if kind != "function":
        return  # the input of other kinds of tools is free text
    if isinstance(raw_arguments, str) and len(raw_arguments) > MOST_ARGUMENT_CHARS:
        yield f"the arguments of {name} have more than {MOST_ARGUMENT_CHARS:,} characters"  # F115
        return
    try:
        arguments = raw_arguments if isinstance(raw_arguments, Mapping) else parsed(raw_arguments or "{}")
    except (ValueError, TypeError):
        yield f"the arguments of {name} are not JSON"  # F101
        return
    if not isinstance(arguments, Mapping):
        yield f"the arguments of {name} are not a JSON object"  # F103
        return
    wrong = schema_problem(tool.get("parameters"), arguments, afresh=False)
    if wrong is not None:
        yield f"the arguments of {name} break its schema: {wrong}"  # F104


def _offered(request: ChatRequest) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return the tools that may be called, by kind and name; of several with the same name, the last."""
    old, allowed = request.options.get("functions"), _limits(request).get("tools")
    offered = _named([*request.tools, *({"function": function} for function in (old if isinstance(old, list) else ()))])
    return offered if allowed is None else {key: offered[key] for key in offered.keys() & _named(objects_in(allowed))}


def _named(tools: Iterable[Mapping[str, Any]]) -> Mapping[tuple[str, str], Mapping[str, Any]]:
    """Return tools, or calls of tools, by kind and name."""
    named = [(kind, fields) for tool in tools for kind, fields in tool.items() if isinstance(fields, Mapping)]
    return {(kind, fields["name"]): fields for kind, fields in named if isinstance(fields.get("name"), str)}


def _json_faults(request: ChatRequest, text: str) -> Iterator[str]:
    try:
        value = parsed(text)
    except ValueError:
        yield "the reply is not JSON, and the request asks for JSON"  # F108
        return
    wrong = schema_problem(request.json_schema, value)
    if wrong is not None:
        yield f"the reply breaks the request's JSON schema: {wrong}"  # F108


def schema_problem(schema: object, value: object, *, afresh: bool = True) -> str | None:
    """Return where a value breaks a JSON schema; None if it does not, or if that is unknown.

    It is unknown if the schema is not valid, is longer than `MOST_SCHEMA_CHARS`, or needs more work than a server can
    do between two requests: `MOST_STEPS`, or, if not `afresh`, what earlier checks have left of them. References to
    other documents are not followed, so no request leaves the machine.

    >>> schema_problem({"type": "object", "properties": {"n": {"type": "integer"}}}, {"n": "2"})
    "$.n: '2' is not of type 'integer'"
    >>> schema_problem({"pattern": "^(a+)+$"}, "a" * 99 + "!") is None
    True
    """
    _work.left = MOST_STEPS if afresh else _work.left
    if not isinstance(schema, Mapping) or not schema or _work.left < 0:
        return None
    written = json.dumps(schema, sort_keys=True)
    left = _work.left - len(written) // 10  # the same whether it is cached or not
    check = None if len(written) > MOST_SCHEMA_CHARS else _checker(written)
    _work.left = left
    return None if check is None else check(value)


class _TooMuchWorkError(Exception):
    """A check that would take too long."""


_work = threading.local()
"""`left`: the steps that the checks of a message may still take; `weights`, `whole`: see `_weighed`."""


@lru_cache(maxsize=256)
def _checker(schema: str) -> Callable[[object], str | None] | None:
    """Return the cached check of a schema; None if the schema is not valid."""
    try:
        from referencing import Registry

        bounded = _bounded_validator()
    except ModuleNotFoundError:
        raise MissingExtraError("jsonschema", "requests with tools or a JSON schema") from None
    if '"patternProperties"' in schema:
        return None  # other keywords match these patterns as well
    document = json.loads(schema)
    validator = bounded(document, registry=Registry())
    _work.left, _work.weights = 10 * MOST_STEPS, (weights := _weighed(document))
    try:
        if not bounded(bounded.META_SCHEMA, format_checker=bounded.FORMAT_CHECKER).is_valid(document):
            return None
    except (_TooMuchWorkError, RecursionError):
        return None

    def check(value: object) -> str | None:
        _work.whole, _work.weights = weights[id(document)], weights | _weighed(value)
        try:
            _work.left -= _work.weights[id(value)]
            error = next(validator.iter_errors(value), None)
        except Exception:  # noqa: BLE001 - too much work; a reference that leads nowhere, which is the schema's fault
            return None
        finally:
            _work.weights = {}
        return None if error is None else f"{error.json_path}: {error.message}"[:_SHOWN_CHARS]

    return check


def _weighed(value: object) -> dict[int, float]:
    """Return the steps needed to compare or show a value and each value inside, by `id`; 50 values take one step."""
    nodes, insides, weights = [value], [], dict[int, float]()
    for node in nodes:  # the list grows meanwhile
        insides.append([*node, *node.values()] if isinstance(node, dict) else node if isinstance(node, list) else [])
        nodes += insides[-1]
    for node, inside in zip(reversed(nodes), reversed(insides), strict=True):
        own = (50 + len(node)) / 2_500 if isinstance(node, str) else 0.02
        weights[id(node)] = sum([weights[id(each)] for each in inside], own)
    return weights


@lru_cache(maxsize=1)
def _bounded_validator() -> Any:
    """Return jsonschema's validator, extended to count the work of each keyword."""
    from attrs import evolve
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    def counted(keyword: str, act: Callable[..., Any]) -> Callable[..., Any]:
        def count(validator: Any, rule: Any, value: Any, schema: Any) -> Any:
            _work.left -= _steps(keyword, rule, value)
            if _work.left < 0:
                raise _TooMuchWorkError
            return act(validator, rule, value, schema)

        return count

    validators = Draft202012Validator.VALIDATORS
    bounded = extend(Draft202012Validator, {name: counted(name, act) for name, act in validators.items()})
    bounded.evolve = evolve  # jsonschema's own switches to a class that does not count where a schema has `$schema`
    return bounded


def _steps(keyword: str, rule: Any, value: Any) -> float:
    """Return the amount of work of a keyword for a value."""
    if keyword == "pattern" and isinstance(value, str):
        return _matching(rule, len(value))
    steps: float = max(1, len(rule)) if isinstance(rule, list | dict) else 1
    steps += _work.weights.get(id(rule), 0) + _work.weights.get(id(value), 0)  # an error shows both
    elements = len(value) if isinstance(value, list | dict) else 0
    if keyword == "uniqueItems" and isinstance(value, list) and not all(isinstance(each, str) for each in value):
        return elements * (elements + steps)  # each is compared with each
    whole: float = 10 * _work.whole if keyword.startswith("unevaluated") else 0  # all of the schema may be read again
    looks = keyword in {"items", "prefixItems", "contains", "propertyNames", "additionalProperties"}
    return steps + elements * (whole or looks)


_CHOICE = re.compile(r"[*+?|]|\{\d*,")
"""The constructs that let a pattern match a text in several ways."""
_MULTIPLIED = re.compile(r"\)[*+?{]|\\[1-9]|\(\?P=")
"""A repeated group, or a reference to a group, with which the number of ways may be 2^n."""


def _matching(pattern: object, length: int) -> int:
    """Return an upper bound on the work of searching a text of this length. Raises _TooMuchWorkError if none is known.

    A search starts at each character, and each choice multiplies the number of ways by the length at most.

    >>> _matching("^[A-Z]{3}-[0-9]+$", 99), _matching("^[^@]+@[a-z]+[.][a-z]+$", 99)
    (21, 200001)
    """
    if not isinstance(pattern, str) or _MULTIPLIED.search(pattern):
        raise _TooMuchWorkError
    return int(1 + (length + 1) ** (1 + len(_CHOICE.findall(pattern))) // _MATCHING)
