"""Decide whether two outputs name the same label among those that the request allows."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cascade.chat import ChatRequest
from cascade.matching.base import UNKNOWN, Verdict, accepted, by_keys
from cascade.matching.json_value import NOT_JSON, read_json

_AROUND = " \t\n\r.,;:!?\"'`*_()[]<>"
_WORD_MOST = 1_000
"""A longer text is neither a label nor a sentence that names one."""


class LabelMatcher:
    """The same label, read from the whole output, from its start ("B: Answer"), or from a text that names only one.

    Args:
        labels: the labels, joined by "|"; by default those that the request's schema lists (`enum`).

    >>> LabelMatcher("spam|ham").same("Spam.", "I think it is spam").correct
    True
    """

    def __init__(self, labels: str = "") -> None:
        self._labels = tuple(filter(None, map(str.strip, labels.split("|"))))

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer names an accepted label; the labels are those given, or the accepted ones."""
        golds = accepted(gold)
        labels = self._labels or golds
        return Verdict(_label(answer, labels) in {_label(one, labels) for one in golds}) if golds else UNKNOWN

    def same(self, one: str, other: str, request: ChatRequest | None = None) -> Verdict:
        """Return whether two outputs name the same label."""
        return by_keys(self.key(one, request), self.key(other, request))

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
