"""Compare two JSON values leaf by leaf, independent of their spelling."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.matching.base import KeyedComparator, accepted
from cascade.text import normalize_answer


class JsonMatcher(KeyedComparator):
    """An answer is right if it is the same JSON value: 5.0 is 5; blanks and the order of keys do not matter.

    Text is compared unchanged. If the request has a JSON schema, a missing property has its default, and the order of a
    list does not matter if its items are unique (`uniqueItems`).

    Args:
        ignore: names of fields that do not count, at any depth, joined by "+".
        lists: "ordered" (the default), or "unordered" if the order of a list's items does not matter.

    >>> JsonMatcher().matches('{"b": 1.0, "a": "x"}', ['{"a": "x", "b": 1}'])
    True
    >>> JsonMatcher(ignore="note").matches('{"a": 1, "note": "sure"}', ['{"a": 1}'])
    True
    """

    def __init__(self, ignore: str = "", lists: str = "ordered") -> None:
        self._form = JsonForm(frozenset(filter(None, ignore.split("+"))), lists == "ordered")

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer is one of the accepted values; unknown if no accepted one is JSON."""
        golds = [value for text in accepted(gold) if (value := self._value(text, None)) is not NOT_JSON]
        if not golds:
            return None
        given = self._value(answer, None)
        if given is NOT_JSON:
            return False
        return spelled(given) in map(spelled, golds)

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the value in one spelling; an output that is not JSON is the same only as one with the same words."""
        return _key(self._value(output, request), output)

    def _value(self, text: str, request: ChatRequest | None) -> Any:
        value = read_json(text)
        if value is NOT_JSON:
            return value
        try:
            return self._form.of(value, None if request is None else request.json_schema)
        except RecursionError:
            return NOT_JSON


def _key(value: Any, output: str) -> str:
    return f"text {normalize_answer(output)}" if value is NOT_JSON else spelled(value)


class JsonForm(NamedTuple):
    """How JSON values are converted to one form.

    `ignored` are names of fields that do not count; `ordered`: the order of lists matters, unless a schema says that it
    does not.
    """

    ignored: frozenset[str] = frozenset()
    ordered: bool = True

    def of(self, value: Any, schema: Any = None) -> Any:
        """Return a value in this form: whole numbers as such, defaults of the schema filled in, sets sorted.

        >>> JsonForm().of({"a": 1.0}, {"properties": {"unit": {"default": "C"}}})
        {'a': 1, 'unit': 'C'}
        """
        kind = type(value)
        if kind is dict:
            inside = schema.get("properties") if isinstance(schema, dict) else None
            return self._object(value, inside if isinstance(inside, dict) else _NONE)
        if kind is list:
            items = schema.get("items") if isinstance(schema, dict) else None
            made = [self.of(item, items) for item in value]
            if self.ordered and not (isinstance(schema, dict) and schema.get("uniqueItems") is True):
                return made
            return sorted(made, key=spelled)
        return int(value) if kind is float and value.is_integer() else value

    def _object(self, value: Mapping[str, Any], inside: Mapping[str, Any]) -> dict[str, Any]:
        made = {name: self.of(item, inside.get(name)) for name, item in value.items() if name not in self.ignored}
        for name, schema in inside.items():
            if name not in made and name not in self.ignored and isinstance(schema, dict) and "default" in schema:
                made[name] = self.of(schema["default"], schema)
        return dict(sorted(made.items()))


_NONE: Mapping[str, Any] = {}
spelled = repr
"""Spells a value in one form: 1 is neither "1" nor true, and the names of an object are sorted. Quicker than JSON."""


NOT_JSON = object()
"""The result of `read_json` for a text that is not JSON."""


_decode = json.JSONDecoder().decode


def read_json(text: str) -> Any:
    """Return the value of a JSON text, in a code fence or not; `NOT_JSON` for any other."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        bare = bare[bare.index("\n") :].removesuffix("```").strip()
    try:
        return _decode(bare)
    except (ValueError, RecursionError):
        return NOT_JSON
