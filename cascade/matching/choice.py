"""Multiple choice: the letter of an option as such, or the option's text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from cascade.matching.base import accepted
from cascade.matching.reading import clean, stated
from cascade.text import normalize_answer

DEFAULT_LETTERS = "ABCDEFGHIJ"
"""The options of the public sets have two to ten letters (MMLU 4, MMLU-Pro 10)."""


@dataclass(frozen=True, slots=True)
class ChoiceMatcher:
    """The letter of an option at the start of the answer, alone or marked as one, or the option's text.

    Attributes:
        letters: the letters of the options.

    If an accepted answer has a letter, the letter decides; an answer without a letter is right if it is an option's
    text. An answer that marks several letters is wrong. If the accepted answers have no letter and the answer is only
    a letter, its truth is unknown.

    >>> ChoiceMatcher().matches("The answer is (b).", ["B", "Vienna"])
    True
    >>> ChoiceMatcher().matches("(A) or (B)", ["B"])
    False
    """

    letters: str = DEFAULT_LETTERS

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer names the accepted option."""
        options = [clean(text) or "" for text in accepted(gold)]
        wanted = {letter for option in options if (letter := named_letter(option, self.letters))}
        texts = {key for option in options for text in (option, self._text(option)) if (key := normalize_answer(text))}
        if not texts:
            return None
        plain = clean(answer) or ""
        if normalize_answer(plain) in texts:
            return True
        letter = named_letter(plain, self.letters)
        if letter and wanted:
            return letter in wanted
        text = normalize_answer(self._text(plain))
        if letter and not text:
            return None
        return text in texts

    def _text(self, plain: str) -> str:
        """Return the text behind the option's letter in what a cleaned text states, or all of it."""
        text = without_markup(stated(plain))
        opening = _patterns(self.letters).opening.match(text)
        return text[opening.end() :] if opening else text


def named_letter(plain: str, letters: str = DEFAULT_LETTERS) -> str | None:
    """Return the letter at the start of what a cleaned text states; None if there is none, or another is marked too.

    >>> named_letter("Answer: (b) Vienna"), named_letter("Vitamin C"), named_letter("A) Graz B) Wien")
    ('B', None, None)
    """
    lines, patterns = without_markup(stated(plain)).split("\n"), _patterns(letters)
    if patterns.opening.match(lines[0]) is None:
        return None
    marks = [mark for line in lines for mark in (patterns.opening.match(line), *patterns.mark.finditer(line)) if mark]
    named = {(mark[1] or mark[2]).upper() for mark in marks}
    return named.pop() if len(named) == 1 else None


_NO_MARKUP = str.maketrans(dict.fromkeys("*_`$", ""))
_COMMANDS = re.compile(r"\\(?:text|math)[a-z]{0,8}\{|[{}]")


def without_markup(text: str) -> str:
    r"""Return a text without the marks that set its letters in bold or in a formula.

    >>> without_markup(r"**B**"), without_markup(r"\text{(B)}")
    ('B', '(B)')
    """
    return _COMMANDS.sub("", text).translate(_NO_MARKUP).strip()


class _Patterns(NamedTuple):
    """How a letter is marked: at the start of a line, and anywhere."""

    opening: re.Pattern[str]
    mark: re.Pattern[str]


@lru_cache(maxsize=16)
def _patterns(letters: str) -> _Patterns:
    letter = f"[{letters}{letters.lower()}]"
    boxed = rf"[(\[] ?({letter}) ?[)\]][.:]?"
    return _Patterns(
        re.compile(rf"(?:{boxed}|({letter})(?:[).:](?=\s|$)|$))\s*", re.MULTILINE),
        re.compile(rf"{boxed}|(?<![\w'.(])({letter})[).:](?=\s|$)"),
    )
