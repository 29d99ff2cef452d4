"""Short answers: the same words, the same label or the same letter; and how a text is cleaned to be read."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints, validate_call

from cascade.chat import ChatRequest
from cascade.matching.base import KeyedComparator, accepted
from cascade.matching.requests import normalize_answer
from cascade.matching.structured import NOT_JSON, read_json

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
_CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\r"}


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
        text = _INVISIBLE.sub("", text).translate(_ALIKE)
        text = _RAISED.sub(lambda raised: f"^{raised[0].translate(_SUPERSCRIPTS)}", text)
        text = unicodedata.normalize("NFKC", _VULGAR.sub(r" \g<0>", text)).translate(_ALIKE)
        text = "".join([char if char.isascii() else str(unicodedata.decimal(char, char)) for char in text])
    lines = [" ".join(line.split()) for line in text.translate(_CONTROLS).splitlines()]
    return "\n".join([line for line in lines if line])


def same_text(text: str, other: str) -> bool:
    r"""Whether two texts are identical, except for width, space and invisible marks.

    >>> same_text("1914\u20131918 ", "1914-1918"), same_text("", "")
    (True, False)
    """
    left, right = clean(text), clean(other)
    return text.strip() == other.strip() if left is None or right is None else bool(left) and left == right


_MARKER = re.compile(
    r"\banswer[*_]{0,3} ?(?:(?:is|was|equals|(?:should|would|must) be)\b[*_]{0,3} ?:?|[:=])[*_]{0,3}|####",
    re.IGNORECASE,
)


def stated(text: str) -> str:
    r"""Return the part of a cleaned text that states the answer: a boxed part, or the line after the last "answer is".

    Without such a mark that is the whole text.

    >>> stated("3 + 4 is 7.\nAnswer: 7"), stated(r"so \boxed{12}."), stated("seven")
    ('7', '12', 'seven')
    """
    _, box, inside = text.rpartition("\\boxed{")
    depth = 1
    for end, char in enumerate(inside if box else ""):
        depth += (char == "{") - (char == "}")
        if not depth:
            boxed = inside[:end].strip()
            if boxed:
                return boxed
            break
    marked = _MARKER.split(text)[-1]
    return marked.strip(" *_\n").split("\n", 1)[0].strip(" *_") or text if marked != text else text


# --- words ---

_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


def only_number(text: str) -> Decimal | None:
    """Return the number in a text with exactly one number after its last "=", if any; None otherwise."""
    numbers = _NUMBER.findall(text[:1_000].rpartition("=")[2])
    return Decimal(numbers[0].replace(",", "").replace("−", "-")) if len(numbers) == 1 else None


class ExactMatcher:
    """The same words (`requests.normalize_answer`). The default for short answers.

    If the accepted answer is a plain number, an answer with exactly one number is compared by value, with any unit; of
    an equation, the right-hand side counts.

    >>> matcher = ExactMatcher()
    >>> matcher.matches("The Danube.", ["Danube"]), matcher.matches("$9", ["9"]), matcher.matches("7 x 3", ["21"])
    (True, True, False)
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer equals an accepted one; None if there is no accepted one."""
        golds = accepted(gold)
        if not golds:
            return None
        key, value = normalize_answer(answer), only_number(answer)
        if any(normalize_answer(text) == key for text in golds):
            return True
        plain = [text for text in golds if _NUMBER.fullmatch(text.strip())]
        return value is not None and any(only_number(text) == value for text in plain)


class TextMatcher(KeyedComparator):
    """The same words after normalisation (`requests.normalize_answer`). Long free text hardly ever has the same words.

    >>> TextMatcher().same("The Danube.", "danube")
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer has the words of an accepted one."""
        keys = [normalize_answer(text) for text in accepted(gold)]
        return normalize_answer(answer) in keys if keys else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:  # noqa: ARG002 - the Protocol's
        """Return the words."""
        return normalize_answer(output)


# --- labels ---

_AROUND = " \t\n\r.,;:!?\"'`*_()[]<>"
_MAX_LABELLED_CHARS = 1_000
"""A longer text is neither a label nor a sentence that names one."""


class LabelMatcher(KeyedComparator):
    """The same label, read from the whole output, from its start ("B: Answer"), or from a text that names only one.

    Args:
        labels: the labels, joined by "|"; by default those that the request's schema lists (`enum`).

    >>> LabelMatcher("spam|ham").same("Spam.", "I think it is spam")
    True
    """

    @validate_call
    def __init__(self, labels: str = "") -> None:
        self._labels = tuple(filter(None, map(str.strip, labels.split("|"))))

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer names an accepted label; the labels are those given, or the accepted ones."""
        golds = accepted(gold)
        labels = self._labels or golds
        return _label(answer, labels) in {_label(text, labels) for text in golds} if golds else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the label that an output names; without a label, its words are the key."""
        return _label(output, self._labels or (() if request is None else request.labels))


@lru_cache(maxsize=4_096)
def _label(output: str, labels: tuple[str, ...]) -> str:
    text = _label_text(output)
    bare = text.strip(_AROUND).casefold()
    exact = [label for label in labels if label.strip(_AROUND).casefold() == bare]
    if exact or len(text) > _MAX_LABELLED_CHARS:
        return f"label {exact[0]}" if exact else f"text {bare}"
    named = []
    for label in sorted(labels, key=len, reverse=True):
        if re.match(rf"[\W_]*{re.escape(label)}(?:\W*$|\s*[:.)-])", text):
            return f"label {label}"
    for label in sorted(labels, key=len, reverse=True):  # a label inside a longer one is not named; a letter keeps case
        word = rf"(?<!\w){re.escape(label)}(?!\w)"
        text, count = re.subn(word, "\x00", text, flags=0 if len(label) == 1 else re.IGNORECASE)
        named += [label] if count else []
    return f"label {named[0]}" if len(named) == 1 else f"text {bare}"


def _label_text(output: str) -> str:
    """Return the words of an output: of a JSON text, or of the only value of a JSON object, its text."""
    value: Any = read_json(output) if output.lstrip()[:1] in {'"', "{", "`"} else NOT_JSON
    if isinstance(value, dict) and len(value) == 1:
        (value,) = value.values()
    return str(value) if isinstance(value, str | int) else output


# --- the letters of multiple choice ---


def _each_once(letters: str) -> str:
    if len(set(letters)) < len(letters):
        raise ValueError("must hold each letter once, such as ABCD")
    return letters


Letters = Annotated[str, StringConstraints(pattern="^[A-Za-z]+$", to_upper=True), AfterValidator(_each_once)]


class ChoiceMatcher:
    """The letter of an option at the start of the answer, alone or marked as one, or the option's text.

    If an accepted answer has a letter, the letter decides; an answer without a letter is right if it is an option's
    text. An answer that marks several letters is wrong. If the accepted answers have no letter and the answer is only
    a letter, its truth is unknown.

    Args:
        letters: the letters of the options. The public sets have two to ten (MMLU 4, MMLU-Pro 10).

    >>> ChoiceMatcher().matches("The answer is (b).", ["B", "Vienna"])
    True
    >>> ChoiceMatcher().matches("(A) or (B)", ["B"])
    False
    """

    @validate_call
    def __init__(self, letters: Letters = "ABCDEFGHIJ") -> None:
        letter = f"[{letters}{letters.lower()}]"
        boxed = rf"[(\[] ?({letter}) ?[)\]][.:]?"
        self._opening = re.compile(rf"(?:{boxed}|({letter})(?:[).:](?=\s|$)|$))\s*", re.MULTILINE)
        self._mark = re.compile(rf"{boxed}|(?<![\w'.(])({letter})[).:](?=\s|$)")

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer names the accepted option."""
        options = [clean(text) or "" for text in accepted(gold)]
        letters = {letter for option in options if (letter := self._letter(option))}
        texts = {key for option in options for text in (option, self._text(option)) if (key := normalize_answer(text))}
        if not texts:
            return None
        plain = clean(answer) or ""
        if normalize_answer(plain) in texts:
            return True
        letter = self._letter(plain)
        if letter and letters:
            return letter in letters
        text = normalize_answer(self._text(plain))
        return None if letter and not text else text in texts

    def _text(self, plain: str) -> str:
        """Return the text behind the option's letter in what a cleaned text states, or all of it."""
        text = _without_markup(stated(plain))
        opening = self._opening.match(text)
        return text[opening.end() :] if opening else text

    def _letter(self, plain: str) -> str | None:
        """Return the letter at the start of what a cleaned text states; None if none is, or another is marked too."""
        lines = _without_markup(stated(plain)).split("\n")
        if self._opening.match(lines[0]) is None:
            return None
        marks = [mark for line in lines for mark in (self._opening.match(line), *self._mark.finditer(line)) if mark]
        named = {(mark[1] or mark[2]).upper() for mark in marks}
        return named.pop() if len(named) == 1 else None


_NO_MARKUP = str.maketrans(dict.fromkeys("*_`$", ""))
_COMMANDS = re.compile(r"\\(?:text|math)[a-z]{0,8}\{|[{}]")


def _without_markup(text: str) -> str:
    """Return a text without the marks that set its letters in bold or in a formula."""
    return _COMMANDS.sub("", text).translate(_NO_MARKUP).strip()
