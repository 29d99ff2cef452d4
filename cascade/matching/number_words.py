"""Numbers in words: "seven", "twenty-one", "two hundred and five", "three quarters"."""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple


def _counted(words: str, start: int) -> dict[str, int]:
    return {word: value for value, word in enumerate(words.split(), start)}


_SMALL = _counted(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
    0,
)
_TENS = {
    word: 10 * value for word, value in _counted("twenty thirty forty fifty sixty seventy eighty ninety", 2).items()
}
SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_PARTS = _counted("half third quarter fifth sixth seventh eighth ninth tenth", 2) | {"fourth": 4}

_WORD = "|".join([*sorted([*_SMALL, *_TENS], key=len, reverse=True)])
_SCALE = "|".join(SCALES)
_FIRST = rf"(?:{_WORD})\b|an? (?=(?:{_SCALE})\b)|(?=half\b)"
_NUMBER = re.compile(rf"\b(minus |negative )?(?:{_FIRST})(?:(?: and |[ -])?(?:{_WORD}|{_SCALE})\b)*", re.IGNORECASE)
_PART = re.compile(rf"[ -]?({'|'.join(_PARTS)}|halve)(s?)\b", re.IGNORECASE)


class Words(NamedTuple):
    """A number in words: where it stands, what it is, None if the words make none together, and the words."""

    start: int
    end: int
    value: Fraction | None
    written: str


def find_words(text: str) -> Iterator[Words]:
    """Yield the numbers that stand in words in a text.

    >>> [(one.written, one.value) for one in find_words("two hundred and five of two-thirds")]
    [('two hundred and five', Fraction(205, 1)), ('two', Fraction(2, 3))]
    """
    for found in _NUMBER.finditer(text):
        sign = -1 if found[1] else 1
        tokens = [one for one in re.split(r"[ -]+", found[0][len(found[1] or "") :].lower()) if one]
        value, end = _whole(tokens), found.end()
        part = _PART.match(text, end)
        made = None if value is None else Fraction(value)
        if part is not None:
            made, end = _part_of(value, part, tokens), part.end()
        if end > found.start():
            yield Words(found.start(), end, made and sign * made, found[0].lower().strip())


def _whole(tokens: list[str]) -> int | None:
    """Return the number that the words make, or None: "two hundred and five", not "two three"."""
    made: _Made | None = _Made()
    for before, word in zip(["", *tokens], tokens, strict=False):
        made = made and made.then(word, before)
    return None if made is None else made.total + made.group


class _Made(NamedTuple):
    """What the words so far make: the groups before, the group at hand, the largest scale and small number to come."""

    total: int = 0
    group: int = 0
    room: int = SCALES["trillion"]
    below: int = 1_000

    def then(self, word: str, before: str) -> _Made | None:
        """Return what the next word makes of it, or None if it cannot follow."""
        if word in {"a", "an"}:
            return _Made(0, 1, self.room, 1)
        if word == "and":
            return self if before in SCALES else None
        return self.scaled(SCALES[word]) if word in SCALES else self.and_small(_SMALL.get(word, _TENS.get(word, 0)))

    def scaled(self, scale: int) -> _Made | None:
        """Return what a scale word makes of it: "two" and "hundred", "twelve" and "thousand"."""
        small = scale in {12, 100}
        if not self.group or (self.group >= 100 if small else scale > self.room):
            return None
        if small:
            return self._replace(group=self.group * scale, below=scale if scale == 100 else 1)
        return _Made(self.total + self.group * scale, 0, scale // 1_000)

    def and_small(self, value: int) -> _Made | None:
        """Return what a small number or a ten makes of it: "hundred" and "five", "twenty" and "one"."""
        if value >= self.below:
            return None
        return self._replace(group=self.group + value, below=10 if value >= 20 else 1)


def _part_of(value: int | None, part: re.Match[str], tokens: list[str]) -> Fraction | None:
    """Return "three quarters" as a fraction. "Twenty-third" is none: one part is singular, several are plural."""
    word = part[1].lower()
    size = 2 if word == "halve" else _PARTS[word]
    several = bool(part[2])
    if not tokens:
        return Fraction(1, 2) if word == "half" and not several else None
    return None if value is None or several == (value == 1) else Fraction(value, size)
