"""JSON values, compared leaf by leaf and independent of their spelling, and tool calls."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

from pydantic import validate_call

from cascade.chat import ChatRequest, fields_in, function_of
from cascade.matching.registry import KeyedMatcher, accepted
from cascade.matching.text import NOT_JSON, normalize_answer, read_json

spelled = repr
"""Spells a `canonical` value in one form, in which 1 is neither "1" nor true. Faster than JSON."""


def canonical(value: Any, schema: Any = None, *, ignored: frozenset[str] = frozenset()) -> Any:
    """Return a JSON value in one form: whole numbers as integers, defaults filled in, names and sets sorted.

    Args:
        value: the value.
        schema: its JSON schema, if it has one; parts under `anyOf`, `oneOf` or a `$ref` are not used.
        ignored: names of fields that do not count, at any depth.

    >>> canonical({"a": 1.0}, {"properties": {"unit": {"default": "C"}}})
    {'a': 1, 'unit': 'C'}
    """
    rules = schema if isinstance(schema, dict) else {}
    if isinstance(value, dict):
        inside = fields_in(rules.get("properties"))
        defaults = {
            name: rule["default"] for name, rule in inside.items() if isinstance(rule, dict) and "default" in rule
        }
        fields = defaults | value
        names = sorted(fields.keys() - ignored)
        return {name: canonical(fields[name], inside.get(name), ignored=ignored) for name in names}
    if isinstance(value, list):
        entries = [canonical(entry, rules.get("items"), ignored=ignored) for entry in value]
        return sorted(entries, key=spelled) if rules.get("uniqueItems") is True else entries
    return int(value) if isinstance(value, float) and value.is_integer() else value


class JsonMatcher(KeyedMatcher):
    """An answer is right if it is the same JSON value: 5.0 is 5; white space and the order of keys do not matter.

    Text is compared unchanged. If the request has a JSON schema, a missing property has its default, and the order of a
    list does not matter if its items are unique (`uniqueItems`).

    Args:
        ignore: names of fields that do not count, at any depth, joined by "+".

    >>> JsonMatcher().matches('{"b": 1.0, "a": "x"}', ['{"a": "x", "b": 1}'])
    True
    >>> JsonMatcher(ignore="note").matches('{"a": 1, "note": "sure"}', ['{"a": 1}'])
    True
    """

    @validate_call
    def __init__(self, ignore: str = "") -> None:
        self._ignored = frozenset(ignore.split("+")) - {""}

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer is one of the accepted values; unknown if no accepted one is JSON.

        The list of accepted texts may also be the value itself, as in a table: `["x", "y"]`. An answer that is right by
        one of the two readings and wrong by the other is unknown.
        """
        values = {text: self._spelled(text, None) for text in accepted(gold)}
        texts, parsed = [text for text, value in values.items() if value is None], read_json(answer)
        is_text = answer.strip() in texts or (isinstance(parsed, str) and parsed in texts)
        if is_text or not values or (len(values) == len(texts) == 1 and not isinstance(parsed, list)):
            return None
        return self._spelled(answer, None) in {*filter(None, values.values()), spelled(list(accepted(gold)))}

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the value in one spelling; an output that is not JSON equals only outputs with the same words."""
        schema = None if request is None else request.json_schema
        return self._spelled(output, schema) or f"text {normalize_answer(output)}"

    def _spelled(self, text: str, schema: Any) -> str | None:
        value = read_json(text)
        try:
            form = canonical(value, schema, ignored=self._ignored)
            return None if value is NOT_JSON else spelled(form)
        except RecursionError:
            return None


# --- tool calls ---

Calling = tuple[str, Mapping[str, Any]]
"""A tool call: the tool's name, a dot in it as "_", and its arguments."""
_MAX_CALLS = 64


class ToolCallsMatcher(KeyedMatcher):
    """An answer is right if it calls the same tools with the same arguments, compared as JSON.

    An accepted answer is a JSON list of calls, `[{"name": …, "arguments": {…}}]` (an empty list: no tool should be
    called), or an object with the accepted values of each argument, `{"name": {"argument": [value, …]}}`, as in the
    Berkeley Function Calling Leaderboard; an empty text among the values means that the argument may be left out.

    For two outputs of a request, a missing argument has the default of the tool's schema, and answers without a call
    are the same in any wording, unless the request wants JSON.

    Args:
        words: "compared" if the words of an answer without a call matter.

    >>> matcher = ToolCallsMatcher()
    >>> matcher.matches('[{"name": "add", "arguments": {"a": 1.0}}]', ['[{"arguments": {"a": 1}, "name": "add"}]'])
    True
    >>> matcher.matches('[{"name": "add", "arguments": {"a": 1}}]', ['{"add": {"a": [1, "1"], "b": [0, ""]}}'])
    True
    """

    @validate_call
    def __init__(self, words: Literal["ignored", "compared"] = "ignored") -> None:
        self._words = words == "compared"

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer makes one of the accepted sets of calls; unknown if none can be read."""
        calls = read_calls(answer)
        verdicts = {self._agrees(calls, read_json(text)) for text in accepted(gold)} - {None}
        return True in verdicts if verdicts else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the calls in one spelling: `[]` for an answer without a call, its words if it cannot be read."""
        calls = read_calls(output)
        try:
            spelling = None if calls is None else self._spelled(calls, {} if request is None else _schemas(request))
        except RecursionError:
            spelling = None
        if spelling:
            return f"[{','.join(spelling)}]"
        if request is not None and request.wants_json:
            return JsonMatcher().key(output, request)
        return "[]" if spelling is not None and not self._words else f"text {normalize_answer(output)}"

    def _agrees(self, calls: list[Calling] | None, gold: Any) -> bool | None:
        if isinstance(gold, dict):
            wanted = [(_name(name), choices) for name, choices in gold.items() if isinstance(choices, dict)]
            return calls is not None and len(calls) == len(wanted) <= _MAX_CALLS and self._assigned(calls, wanted)
        listed = _calls(gold) if isinstance(gold, list) else None
        return None if listed is None else self._spelled(calls or [], {}) == self._spelled(listed, {})

    def _spelled(self, calls: Sequence[Calling], schemas: Mapping[str, Any]) -> list[str]:
        return sorted(spelled((name, canonical(arguments, schemas.get(name)))) for name, arguments in calls)

    def _assigned(self, calls: Sequence[Calling], wanted: Sequence[Calling]) -> bool:
        """Return whether calls and accepted calls can be matched one to one; a message has few calls."""
        if not calls:
            return True
        (name, arguments), *others = calls
        return any(
            name in {choice, _NUMBERED.sub("", choice)}
            and _fit(arguments, values)
            and self._assigned(others, [*wanted[:index], *wanted[index + 1 :]])
            for index, (choice, values) in enumerate(wanted)
        )


@lru_cache(maxsize=512)
def _schemas(request: ChatRequest) -> Mapping[str, Any]:
    """Return the schema of each tool's arguments, by the tool's name."""
    functions = [function_of(tool) for tool in request.tools]
    return {_name(str(function.get("name"))): function.get("parameters") for function in functions}


def read_calls(text: str) -> list[Calling] | None:
    """Return the calls of an answer, empty for an answer in words; None if a call cannot be read."""
    value = read_json(text)
    return _calls(value if isinstance(value, list) else [value]) if isinstance(value, list | dict) else []


def _calls(values: list[Any]) -> list[Calling] | None:
    calls: list[Calling] = []
    for value in values:
        name, arguments = (value.get("name"), value.get("arguments", {})) if isinstance(value, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(arguments, dict):
            return None
        calls.append((_name(name), arguments))
    return calls


def _name(name: str) -> str:
    return name.replace(".", "_")


_NUMBERED = re.compile(r"[ _]\d+$")
"""The leaderboard's suffix of the name of a tool that should be called several times."""
_NO_LETTERS = str.maketrans(dict.fromkeys(" ,./-_*^", ""))


def _fit(arguments: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Return whether arguments are among the accepted values, with no unknown and no missing argument."""
    listed = {name: choices if isinstance(choices, list) else [choices] for name, choices in values.items()}
    return arguments.keys() <= listed.keys() and all(
        any(_alike(arguments[name], choice) for choice in choices) if name in arguments else "" in choices
        for name, choices in listed.items()
    )


def _alike(value: Any, choice: Any) -> bool:
    """Return whether two values are the same; blanks and `,./-_*^` in texts do not count, as in the leaderboard."""
    if isinstance(value, str) and isinstance(choice, str):
        return value.casefold().translate(_NO_LETTERS) == choice.casefold().translate(_NO_LETTERS)
    if isinstance(value, list) and isinstance(choice, list):
        return len(value) == len(choice) and all(map(_alike, value, choice))
    nested = isinstance(value, dict) and isinstance(choice, dict) and _fit(value, choice)
    return nested or spelled(canonical(value)) == spelled(canonical(choice))
