"""Short answers: the same words, the same label or the same letter; and how a text is cleaned to be read."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Any

from pydantic import AfterValidator, StringConstraints, validate_call

from cascade.chat import ChatRequest
from cascade.matching.registry import KeyedMatcher, Matcher, accepted
from cascade.text import encode_sorted

# --- the normal form of an answer ---

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# All punctuation but the decimal point and the sign of a number: 3.5 is not 35, and -5 is not 5.
_PUNCTUATION = re.compile(r"(?!(?<=\d)\.(?=\d)|(?<![\w.])[-−](?=\d))[^\w\s]|_")
_REMEMBERED_CHARS = 2_000
"""Results for longer answers are not cached, to limit the memory."""


def normalize_answer(text: str) -> str:
    """Return an answer in normal form: NFKC, casefolded, without punctuation, articles and extra space.

    The rule is SQuAD's (Rajpurkar et al. 2016), with Unicode punctuation and width variants included, but for the
    decimal point and the sign of a number, which stay; an answer that is nothing but punctuation stays as it is. An
    answer that is a JSON object or list, such as tool calls, is compared by its value: blanks and the order of keys do
    not matter, and 5.0 is 5.

    >>> normalize_answer("The  Danube."), normalize_answer("1,851"), normalize_answer("?!")
    ('danube', '1851', '?!')
    >>> normalize_answer('{"b": 5.0, "a": "x"}')
    '{"a":"x","b":5}'
    """
    return _remembered(text) if len(text) <= _REMEMBERED_CHARS else _normalized(text)


def _normalized(text: str) -> str:
    if text.lstrip()[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):  # else it is no JSON, and a text like any other
            return encode_sorted(json.loads(text, parse_float=_number_of))
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    bare = " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", folded)).split())
    return bare or text.strip()


def _number_of(digits: str) -> float | int:
    number = float(digits)
    return int(number) if number.is_integer() else number


_remembered = lru_cache(maxsize=1_024)(_normalized)  # a walk compares the same few answers over and over


class TextMatcher(KeyedMatcher):
    """The same words after normalisation (`normalize_answer`). Long free text hardly ever has the same words.

    >>> TextMatcher().same("The Danube.", "danube")
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer has the words of an accepted one; None if there is no accepted one."""
        keys = [normalize_answer(text) for text in accepted(gold)]
        return normalize_answer(answer) in keys if keys else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:  # noqa: ARG002 - the base class's
        """Return the words."""
        return normalize_answer(output)


_NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?")


def only_number(text: str) -> Decimal | None:
    """Return the number in a text with exactly one number after its last "=", if any; None otherwise."""
    numbers = _NUMBER.findall(text[:1_000].rpartition("=")[2])
    return Decimal(numbers[0].replace(",", "").replace("−", "-")) if len(numbers) == 1 else None


class ExactMatcher(Matcher):
    """The same words (`normalize_answer`), or the same number. The default for short answers.

    If the accepted answer is a plain number, an answer with exactly one number is compared by value, with any unit; of
    an equation, the right-hand side counts.

    >>> matcher = ExactMatcher()
    >>> matcher.matches("The Danube.", ["Danube"]), matcher.matches("$9", ["9"]), matcher.matches("7 x 3", ["21"])
    (True, True, False)
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer equals an accepted one; None if there is no accepted one."""
        golds, number = accepted(gold), only_number(answer)
        plain = [] if number is None else [text for text in golds if _NUMBER.fullmatch(text.strip())]
        return (
            TextMatcher().matches(answer, golds) or any(only_number(text) == number for text in plain)
            if golds
            else None
        )


# --- labels ---

_AROUND = " \t\n\r.,;:!?\"'`*_()[]<>"
_MAX_LABELLED_CHARS = 1_000
"""A longer text is neither a label nor a sentence that names one."""


class LabelMatcher(KeyedMatcher):
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
    text = output
    if output.lstrip()[:1] in {'"', "{", "`"}:
        value: Any = read_json(output)
        if isinstance(value, dict) and len(value) == 1:
            (value,) = value.values()
        text = str(value) if isinstance(value, str | int) else output
    bare = text.strip(_AROUND).casefold()
    exact = [label for label in labels if label.strip(_AROUND).casefold() == bare]
    if exact or len(text) > _MAX_LABELLED_CHARS:
        return f"label {exact[0]}" if exact else f"text {bare}"
    longest_first = sorted(labels, key=len, reverse=True)
    named = [label for label in longest_first if re.match(rf"[\W_]*{re.escape(label)}(?:\W*$|\s*[:.)-])", text)][:1]
    for label in longest_first if not named else ():  # a label inside a longer one is not named; a letter keeps case
        word = rf"(?<!\w){re.escape(label)}(?!\w)"
        text, count = re.subn(word, "\x00", text, flags=0 if len(label) == 1 else re.IGNORECASE)
        named += [label] if count else []
    return f"label {named[0]}" if len(named) == 1 else f"text {bare}"


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


# --- a text to be read: cleaned, and the part of it that states the answer ---

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
            if boxed := inside[:end].strip():
                return boxed
            break
    marked = _MARKER.split(text)[-1]
    return marked.strip(" *_\n").split("\n", 1)[0].strip(" *_") or text if marked != text else text


# --- the letters of multiple choice ---


def _each_once(letters: str) -> str:
    if len(set(letters)) < len(letters):
        raise ValueError("must hold each letter once, such as ABCD")
    return letters


Letters = Annotated[str, StringConstraints(pattern="^[A-Za-z]+$", to_upper=True), AfterValidator(_each_once)]
_MARKUP = re.compile(r"\\(?:text|math)[a-z]{0,8}\{|[{}*_`$]")


class ChoiceMatcher(Matcher):
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
        options = [(text, *self._read(text)) for text in (clean(text) or "" for text in accepted(gold))]
        texts = {key for text, _, rest in options for key in map(normalize_answer, (text, rest)) if key}
        if not texts:
            return None
        plain = clean(answer) or ""
        if normalize_answer(plain) in texts:
            return True
        letter, rest = self._read(plain)
        letters = {name for _, name, _ in options if name}
        if letter and letters:
            return letter in letters
        text = normalize_answer(rest)
        return None if letter and not text else text in texts

    def _read(self, plain: str) -> tuple[str | None, str]:
        """Return the letter at the start of what a cleaned text states, and the text behind it.

        The letter is None if none is there, or if another one is marked too.
        """
        text = _MARKUP.sub("", stated(plain)).strip()
        opening = self._opening.match(text)
        if opening is None:
            return None, text
        marks = [
            mark
            for line in text.split("\n")
            for mark in (self._opening.match(line), *self._mark.finditer(line))
            if mark
        ]
        named = {(mark[1] or mark[2]).upper() for mark in marks}
        return named.pop() if len(named) == 1 else None, text[opening.end() :]
