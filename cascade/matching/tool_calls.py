"""Decide whether two messages call the same tools with the same arguments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, function_of
from cascade.matching.base import KeyedComparator, accepted, any_of
from cascade.matching.json_value import NOT_JSON, JsonForm, JsonMatcher, read_json, spelled
from cascade.text import normalize_answer

_MOST_CALLS = 64
MAY_BE_LEFT_OUT = ""
"""Among the accepted values of an argument: the argument may be left out."""


class ToolCall(NamedTuple):
    """A tool call: the tool's name and its arguments."""

    name: str
    arguments: Mapping[str, Any]


class ToolCallsMatcher(KeyedComparator):
    """An answer is right if it calls the same tools with the same arguments, compared as JSON.

    A dot in a name counts as "_". An accepted answer is a JSON list of calls, `[{"name": …, "arguments": {…}}]` (an
    empty list: no tool should be called), or an object with the accepted values of each argument,
    `{"name": {"argument": [value, …]}}`, as in the Berkeley Function Calling Leaderboard; an empty text among the
    values means that the argument may be left out.

    For two outputs of a request, a missing argument has the default of the tool's schema, and answers without a call
    are the same in any wording, unless the request wants JSON.

    Args:
        order: "any" (the default), or "kept" if the order of the calls matters.
        words: "ignored" (the default), or "compared" if the words of an answer without a call matter.

    >>> matcher = ToolCallsMatcher()
    >>> matcher.matches('[{"name": "add", "arguments": {"a": 1.0}}]', ['[{"arguments": {"a": 1}, "name": "add"}]'])
    True
    >>> matcher.matches('[{"name": "add", "arguments": {"a": 1}}]', ['{"add": {"a": [1, "1"], "b": [0, ""]}}'])
    True
    """

    def __init__(self, order: str = "any", words: str = "ignored") -> None:
        self._any_order, self._words = order == "any", words == "compared"

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer makes one of the accepted sets of calls; unknown if none can be read."""
        golds = [value for text in accepted(gold) if isinstance(value := read_json(text), list | dict)]
        if not golds:
            return None
        calls = read_calls(answer)
        return any_of(self._compared(calls, value) for value in golds)

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the calls in one spelling: `[]` for an answer without a call, its words if it cannot be read."""
        return self._key(self._read(output, request), output, request)

    def _read(self, output: str, request: ChatRequest | None) -> list[ToolCall] | None:
        calls = read_calls(output)
        if not calls:
            return calls
        schemas = {} if request is None else _schemas(request)
        try:
            return [ToolCall(name, _FORM.of(arguments, schemas.get(name))) for name, arguments in calls]
        except RecursionError:
            return None

    def _key(self, calls: list[ToolCall] | None, output: str, request: ChatRequest | None) -> str:
        if calls:
            return f"[{','.join(self._spelled(calls))}]"
        if request is not None and request.wants_json:
            return _JSON.key(output, request)
        return "[]" if calls is not None and not self._words else f"text {normalize_answer(output)}"

    def _compared(self, calls: list[ToolCall] | None, gold: list[Any] | dict[str, Any]) -> bool | None:
        if isinstance(gold, dict):
            return calls is not None and self._accepted(calls, gold)
        wanted = _calls_in(gold)
        if wanted is None:
            return None
        mine, other = ([ToolCall(name, _FORM.of(given)) for name, given in one] for one in (calls or (), wanted))
        return self._spelled(mine) == self._spelled(other)

    def _spelled(self, calls: Sequence[ToolCall]) -> list[str]:
        spellings = [spelled(tuple(call)) for call in calls]
        return sorted(spellings) if self._any_order else spellings

    def _accepted(self, calls: Sequence[ToolCall], gold: Mapping[str, Any]) -> bool:
        """Whether the calls are the accepted ones."""
        left = [(name, values) for name, values in gold.items() if isinstance(values, Mapping)]
        if len(left) != len(calls) or len(calls) > _MOST_CALLS:
            return False
        return _assigned(calls, left, self._any_order)


_FORM, _JSON = JsonForm(), JsonMatcher()


@lru_cache(maxsize=512)
def _schemas(request: ChatRequest) -> Mapping[str, Any]:
    """Return the schema of each tool's arguments, by the tool's name."""
    functions = [function_of(tool) for tool in request.tools]
    return {_name(str(one.get("name"))): one.get("parameters") for one in functions}


def _assigned(calls: Sequence[ToolCall], left: Sequence[tuple[str, Mapping[str, Any]]], any_order: bool) -> bool:
    """Whether calls and accepted calls can be matched one to one; a message has few calls."""
    if not calls:
        return True
    for place, one in enumerate(left if any_order else left[:1]):
        if _fits(calls[0], *one) and _assigned(calls[1:], [*left[:place], *left[place + 1 :]], any_order):
            return True
    return False


def read_calls(text: str) -> list[ToolCall] | None:
    """Return the calls of an answer, empty for an answer in words; None if a call cannot be read."""
    value = read_json(text)
    if value is NOT_JSON or not isinstance(value, list | dict):
        return []
    return _calls_in(value if isinstance(value, list) else [value])


def _calls_in(value: list[Any]) -> list[ToolCall] | None:
    made = []
    for one in value:
        if not isinstance(one, Mapping) or not isinstance(one.get("name"), str):
            return None
        arguments = one.get("arguments", {})
        if not isinstance(arguments, Mapping):
            return None
        made.append(ToolCall(_name(one["name"]), arguments))
    return made


def _name(name: str) -> str:
    return name.replace(".", "_")


_NUMBERED = re.compile(r"[ _]\d+$")
"""The leaderboard's suffix of the name of a tool that should be called several times."""


def _fits(call: ToolCall, name: str, values: Mapping[str, Any]) -> bool:
    """Whether a call has this name, and only accepted arguments, and every one that may not be left out."""
    named = call.name in {_name(name), _NUMBERED.sub("", _name(name))}
    return named and _fit(call.arguments, values)


def _fit(given: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    """Whether arguments are among the accepted values, with no unknown and no missing argument."""
    if given.keys() - values.keys():
        return False
    for argument, accepted_values in values.items():
        choices = accepted_values if isinstance(accepted_values, list) else [accepted_values]
        if argument not in given:
            if MAY_BE_LEFT_OUT not in choices:
                return False
        elif not any(_same(given[argument], choice) for choice in choices):
            return False
    return True


def _same(mine: Any, other: Any) -> bool:
    """Whether two values are the same: texts by their letters and digits only, as in the leaderboard."""
    if isinstance(mine, str) and isinstance(other, str):
        return _letters(mine) == _letters(other)
    if isinstance(mine, list) and isinstance(other, list):
        return len(mine) == len(other) and all(map(_same, mine, other))
    if isinstance(mine, Mapping) and isinstance(other, Mapping):  # the accepted values of an object may be nested
        return _fit(mine, other) or _spelling(mine) == _spelling(other)
    return _spelling(mine) == _spelling(other)


def _letters(text: str) -> str:
    return "".join([char for char in text.casefold() if char not in _NO_MATTER])


_NO_MATTER = frozenset(" ,./-_*^")


def _spelling(value: Any) -> str:
    return spelled(_FORM.of(value))
