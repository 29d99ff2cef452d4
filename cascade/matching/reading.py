"""Clean foreign text for the matchers of numbers, letters and formulas."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import TypeVar

MAX_ANSWER_CHARS = 20_000
"""A longer text, some 3,000 words of English, is not a number, letter or formula."""

_INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
_SUPERSCRIPTS = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_RAISED = re.compile("[⁰¹²³⁴-⁹⁺⁻]+")
_VULGAR = re.compile("[¼-¾⅐-⅞]")
# What NFKC would leave apart, or fold to something else: minus signs and dashes, quotes, separators, degree signs.
_ALIKE = str.maketrans(
    dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2015\u2212\ufe63\uff0d", "-")
    | dict.fromkeys("\u2018\u2019\u02bc\u2032", "'")
    | dict.fromkeys("\u201c\u201d\u2033", '"')
    | {"\u00ba": "°", "\u2044": "/", "\u066b": ".", "\u066c": ",", "\u22c5": "*", "\u00b7": "*"}
)


def clean(text: str) -> str | None:
    r"""Return a text in plain form, or None if it is too long to be an answer.

    NFKC, with superscripts as ^2 and vulgar fractions as 1/2; without invisible marks and controls; all digits ASCII;
    one form each of minus, quote and degree sign; lines without blank ones and without extra space. Linear in time.

    >>> clean("  5½\u200b km²\n\n"), clean("−3\u00a0°C")
    ('5 1/2 km^2', '-3 °C')
    """
    if len(text) > MAX_ANSWER_CHARS:
        text = " ".join(text.split())  # a million newlines around a short answer are no long answer
        if len(text) > MAX_ANSWER_CHARS:
            return None
    if not text.isascii():
        text = _plain(text)
    lines = [" ".join(line.split()) for line in text.translate(_CONTROLS).splitlines()]
    return "\n".join([line for line in lines if line])


def _plain(text: str) -> str:
    text = _INVISIBLE.sub("", text).translate(_ALIKE)
    text = _RAISED.sub(lambda found: f"^{found[0].translate(_SUPERSCRIPTS)}", text)
    text = unicodedata.normalize("NFKC", _VULGAR.sub(r" \g<0>", text)).translate(_ALIKE)
    return "".join([char if char.isascii() else str(unicodedata.decimal(char, char)) for char in text])


_CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\r"}


def same_text(one: str, other: str, *, fold: bool = True) -> bool:
    r"""Whether two texts are identical, except for width, space, invisible marks and, with `fold`, case.

    >>> same_text("1914\u20131918 ", "1914-1918"), same_text("", "")
    (True, False)
    """
    left, right = clean(one), clean(other)
    if left is None or right is None:
        return one.strip() == other.strip()
    return bool(left) and (left == right or (fold and left.casefold() == right.casefold()))


_MARKER = re.compile(
    r"\banswer[*_]{0,3} ?(?:(?:is|was|equals|(?:should|would|must) be)\b[*_]{0,3} ?:?|[:=])[*_]{0,3}|####",
    re.IGNORECASE,
)


def stated(text: str) -> str:
    r"""Return the part of a cleaned text that states the answer: a boxed part, or the part after the last "answer is".

    Without such a mark that is the whole text.

    >>> stated("3 + 4 is 7.\nAnswer: 7"), stated(r"so \boxed{12}."), stated("seven")
    ('7', '12', 'seven')
    """
    boxed = _boxed(text)
    if boxed is not None:
        return boxed
    end = None
    for found in _MARKER.finditer(text):
        end = found.end()
    if end is None:
        return text
    lines = text[end:].strip(" *_\n").split("\n", 1)
    return lines[0].strip(" *_") or text


def _boxed(text: str) -> str | None:
    r"""Return what the last \boxed{…} holds, its braces balanced."""
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    start += len("\\boxed{")
    depth = 1
    for at in range(start, len(text)):
        depth += (text[at] == "{") - (text[at] == "}")
        if not depth:
            return text[start:at].strip() or None
    return None


_KEPT_CHARS = 200
_Made = TypeVar("_Made")


def remembering(read: Callable[[str], _Made]) -> Callable[[str], _Made]:
    """Return a function with a cache for short texts: a question's answers are compared with the same accepted ones."""
    kept = lru_cache(maxsize=4_096)(read)
    return lambda text: kept(text) if len(text) <= _KEPT_CHARS else read(text)
