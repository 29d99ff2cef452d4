"""Whether two short answers are the same: the same words after normalisation, the same number, or the same label."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any

from cascade.chat import ChatRequest
from cascade.matching.base import KeyedComparator, accepted
from cascade.matching.json_value import NOT_JSON, read_json
from cascade.text import normalize_answer

_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")
_PLAIN_NUMBER = re.compile(r"^\s*[-−]?\d[\d,]*(?:\.\d+)?\s*$")


def exact_match(answer: str, gold: Iterable[str]) -> bool:
    """Whether an answer equals one of the accepted ones.

    Words are compared as in SQuAD (`text.normalize_answer`). If the accepted answer is a plain number, an answer with
    exactly one number is compared by value, with any unit; of an equation, the right-hand side counts.

    >>> exact_match("The Danube.", ["Danube"]), exact_match("$9", ["9"]), exact_match("7 x 3", ["21"])
    (True, True, False)
    """
    accepted = tuple(gold)
    key = normalize_answer(answer)
    if any(normalize_answer(one) == key for one in accepted):
        return True
    value = only_number(answer)
    return value is not None and any(_PLAIN_NUMBER.match(one) and only_number(one) == value for one in accepted)


def only_number(text: str) -> Decimal | None:
    """Return the number in a text with exactly one number after its last "=", if any; None otherwise."""
    found = _NUMBER.findall(text[:1_000].rpartition("=")[2])
    if len(found) != 1:
        return None
    try:
        return Decimal(found[0].replace(",", "").replace("−", "-"))
    except InvalidOperation:
        return None


@dataclass(frozen=True, slots=True)
class ExactMatcher:
    """`exact_match` as a matcher: the default for short answers.

    >>> ExactMatcher().matches("The Danube.", ["Danube"])
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer equals an accepted one; None if there is no accepted one."""
        golds = accepted(gold)
        return exact_match(answer, golds) if golds else None


class TextMatcher(KeyedComparator):
    """The same words after normalisation (`text.normalize_answer`). Long free text hardly ever has the same words.

    >>> TextMatcher().same("The Danube.", "danube")
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer has the words of an accepted one."""
        keys = [normalize_answer(one) for one in accepted(gold)]
        return normalize_answer(answer) in keys if keys else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:  # noqa: ARG002 - the Protocol's
        """Return the words."""
        return normalize_answer(output)


# --- Labels ---

_AROUND = " \t\n\r.,;:!?\"'`*_()[]<>"
_WORD_MOST = 1_000
"""A longer text is neither a label nor a sentence that names one."""


class LabelMatcher(KeyedComparator):
    """The same label, read from the whole output, from its start ("B: Answer"), or from a text that names only one.

    Args:
        labels: the labels, joined by "|"; by default those that the request's schema lists (`enum`).

    >>> LabelMatcher("spam|ham").same("Spam.", "I think it is spam")
    True
    """

    def __init__(self, labels: str = "") -> None:
        self._labels = tuple(filter(None, map(str.strip, labels.split("|"))))

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer names an accepted label; the labels are those given, or the accepted ones."""
        golds = accepted(gold)
        labels = self._labels or golds
        return _label(answer, labels) in {_label(one, labels) for one in golds} if golds else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the label that an output names; without a label, its words are the key."""
        return _label(output, self._labels or (() if request is None else request.labels))


@lru_cache(maxsize=4_096)
def _label(output: str, labels: tuple[str, ...]) -> str:
    said = _said(output)
    bare = said.strip(_AROUND).casefold()
    exact = [label for label in labels if label.strip(_AROUND).casefold() == bare]
    if exact or len(said) > _WORD_MOST:
        return f"label {exact[0]}" if exact else f"text {bare}"
    longest = sorted(labels, key=len, reverse=True)
    start = next((label for label in longest if re.match(rf"[\W_]*{re.escape(label)}(?:\W*$|\s*[:.)-])", said)), None)
    named = [start] if start is not None else _named(said, longest)
    return f"label {named[0]}" if len(named) == 1 else f"text {bare}"


def _named(said: str, longest: Sequence[str]) -> list[str]:
    """Return the labels that a text names as words; one inside a longer one is not named, a letter keeps its case."""
    found = []
    for label in longest:
        folded = 0 if len(label) == 1 else re.IGNORECASE
        said, many = re.subn(rf"(?<!\w){re.escape(label)}(?!\w)", "\x00", said, flags=folded)
        found += [label] if many else []
    return found


def _said(output: str) -> str:
    """Return the words of an output: of a JSON text, or of the only value of a JSON object, its text."""
    value: Any = read_json(output) if output.lstrip()[:1] in {'"', "{", "`"} else NOT_JSON
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    return str(value) if isinstance(value, str | int) else output
