"""When two JSON values are the same: leaf by leaf, whatever the spelling."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from cascade.matching.base import UNKNOWN, Verdict, accepted, any_of

Leaf: TypeAlias = tuple[str, str]
"""Where a value stands and what it is, as JSON: ("$.city", '"Wien"')."""


class JsonMatcher:
    """Right is the same JSON value: 5.0 is 5, and blanks and the order of keys do not matter. Text stays as it is.

    Args:
        ignore: names of fields that do not count, wherever they stand, joined by "+".
        lists: "ordered" (the default), or "unordered" where the order of a list's items does not matter.

    The score is the F1 over the leaves of both values.

    >>> JsonMatcher().matches('{"b": 1.0, "a": "x"}', ['{"a": "x", "b": 1}']).correct
    True
    >>> JsonMatcher(ignore="note").matches('{"a": 1, "note": "sure"}', ['{"a": 1}']).correct
    True
    """

    def __init__(self, ignore: str = "", lists: str = "ordered") -> None:
        self._ignored = frozenset(filter(None, ignore.split("+")))
        self._ordered = lists == "ordered"

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer is one of the accepted values; unknown where no accepted one is JSON."""
        golds = [value for text in accepted(gold) if (value := read_json(text)) is not NOT_JSON]
        if not golds:
            return UNKNOWN
        given = read_json(answer)
        if given is NOT_JSON:
            return Verdict(correct=False, score=0.0)
        mine = self._leaves(given)
        return any_of(Verdict(mine == other, f1(mine, other)) for other in map(self._leaves, golds))

    def _leaves(self, value: Any) -> Counter[Leaf]:
        return Counter(leaves(value, self._ignored, ordered=self._ordered))


NOT_JSON = object()
"""What `read_json` returns for a text that is no JSON."""


def read_json(text: str) -> Any:
    """Return the value of a JSON text, in a code fence or not; `NOT_JSON` for any other."""
    bare = text.strip()
    if bare.startswith("```") and bare.endswith("```") and "\n" in bare:
        bare = bare[bare.index("\n") :].removesuffix("```").strip()
    try:
        return json.loads(bare)
    except (ValueError, RecursionError):
        return NOT_JSON


def leaves(value: Any, ignored: frozenset[str] = frozenset(), *, ordered: bool, path: str = "$") -> Iterator[Leaf]:
    """Yield each leaf of a JSON value; an empty object or list is a leaf. Whole numbers are spelled alike.

    >>> list(leaves({"a": [1.0, "x"]}, ordered=True))
    [('$.a[0]', '1'), ('$.a[1]', '"x"')]
    """
    if isinstance(value, dict) and value:
        for name, item in value.items():
            if name not in ignored:
                yield from leaves(item, ignored, ordered=ordered, path=f"{path}.{name}")
    elif isinstance(value, list) and value:
        for place, item in enumerate(value):
            if ordered or not isinstance(item, dict | list):
                yield from leaves(item, ignored, ordered=ordered, path=f"{path}[{place if ordered else ''}]")
            else:  # an item of an unordered list is compared whole: its leaves must not mix with another item's
                inside = sorted(leaves(item, ignored, ordered=False))
                yield f"{path}[]", json.dumps(inside)
    else:
        number = isinstance(value, float) and value.is_integer()
        yield path, json.dumps(int(value) if number else value, ensure_ascii=False)


def f1(mine: Counter[Leaf], other: Counter[Leaf]) -> float:
    """Return the F1 of two sets of leaves, 1 where both are the same."""
    common = sum((mine & other).values())
    size = sum(mine.values()) + sum(other.values())
    return 2 * common / size if size else 1.0
