"""Compare short answers by their words, or by a label or letter; and clean texts before they are read."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

from pydantic import validate_call

from cascade.chat import ChatRequest
from cascade.identity import folded
from cascade.matching.registry import KeyedMatcher, accepted
from cascade.text import encode_sorted

# --- the normal form of an answer ---

_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# All punctuation but the decimal point and the sign of a number: 3.5 is not 35, and -5 is not 5.
_PUNCTUATION = re.compile(r"(?!(?<=\d)\.(?=\d)|(?<![\w.])[-−](?=\d))[^\w\s]|_")
_REMEMBERED_CHARS = 2_000
"""Results for longer answers are not cached, to limit the memory."""


def normalize_answer(text: str) -> str:
    """Return an answer in normal form: NFKC, casefolded, without punctuation, articles and extra space.

    The rule is SQuAD's (Rajpurkar et al. 2016), including Unicode punctuation and width variants, except that the
    decimal point and the sign of a number stay; an answer that is nothing but punctuation stays as it is. An answer
    that is a JSON object or list, such as tool calls, is compared by its value: white space and the order of keys do
    not matter, and 5.0 is 5.

    >>> normalize_answer("The  Danube."), normalize_answer("1,851"), normalize_answer("?!")
    ('danube', '1851', '?!')
    >>> normalize_answer('{"b": 5.0, "a": "x"}')
    '{"a":"x","b":5}'
    """
    return _remembered(text) if len(text) <= _REMEMBERED_CHARS else _normalized(text)


def _normalized(text: str) -> str:
    if text.lstrip()[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):  # else it is not JSON but a text like any other
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


# --- labels and letters ---

LETTERS = tuple("ABCDEFGHIJ")
"""The letters of options: the public sets have two to ten (MMLU 4, MMLU-Pro 10)."""
_AROUND = " \t\n\r.,;:!?\"'`*_()[]<>{}$"
_MAX_LABELLED_CHARS = 1_000
"""A longer text is neither a label nor a sentence that names one."""
_TEXT_MARK = re.compile(r"\\text[a-z]*\{([^{}]*)\}")


class LabelMatcher(KeyedMatcher):
    """The same label: alone, at the start ("B: Vienna"), after "answer is", or the only one that a text names.

    A letter in a sentence is not read, and an answer that marks several is wrong. Without `labels`, an accepted letter
    is one of A to J, and no label is searched for within a text, since the other labels that it may name are unknown.

    Args:
        labels: the labels, joined by "|"; by default those that the request's schema lists (`enum`).

    >>> LabelMatcher("spam|ham").same("Spam.", "I think it is spam")
    True
    >>> [LabelMatcher().matches(text, ["B", "Vienna"]) for text in ("The answer is (b).", "Vienna", "(A) or (B)")]
    [True, True, False]
    """

    @validate_call
    def __init__(self, labels: str = "") -> None:
        self._labels = tuple(filter(None, map(str.strip, labels.split("|"))))

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer names an accepted label; None if there is none."""
        golds = tuple(filter(str.strip, accepted(gold)))
        texts = tuple([text for text in golds if text.strip(_AROUND).upper() not in LETTERS])
        labels = self._labels or (texts if len(texts) == len(golds) else LETTERS + texts)
        names = {_label(text, labels) for text in golds}
        return _label(answer, labels, within=bool(self._labels)) in names if golds else None

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return the label that an output names; without a label, its words are the key."""
        return _label(output, self._labels or (() if request is None else request.labels))


@lru_cache(maxsize=4_096)
def _label(output: str, labels: tuple[str, ...], *, within: bool = True) -> str:
    text = output
    if output.lstrip()[:1] in {'"', "{", "`"}:
        value: Any = read_json(output)
        if isinstance(value, dict) and len(value) == 1:
            (value,) = value.values()
        text = str(value) if isinstance(value, str | int) else output
    plain = clean(text)
    if not 0 < len(plain) <= _MAX_LABELLED_CHARS:
        return f"text {text.strip()}"
    text = _TEXT_MARK.sub(r"\1", stated(plain))
    bare = text.strip(_AROUND).casefold()
    exact = [label for label in labels if label.strip(_AROUND).casefold() == bare]
    if exact:
        return f"label {exact[0]}"
    longest_first = sorted(labels, key=len, reverse=True)
    named = [label for label in longest_first if _begins(label).match(text)][:1]
    if named:
        named += [label for label in labels if len(label) == 1 and label != named[0] and _marks(label).search(text)]
    for label in longest_first if within and not named else ():  # a label inside a longer one is not named
        text, count = re.subn(rf"(?<!\w){re.escape(label)}(?!\w)", "\x00", text, flags=re.IGNORECASE)
        named += [label] if count and len(label) > 1 else []
    return f"label {named[0]}" if len(named) == 1 else f"text {bare}"


@lru_cache(maxsize=512)
def _begins(label: str) -> re.Pattern[str]:
    return re.compile(rf"[\W_]*{re.escape(label)}(?:\W*$|\s*[])](?!\w)|[:.](?=\s)|:(?!\w)|\s-\s|\n)", re.IGNORECASE)


@lru_cache(maxsize=512)
def _marks(label: str) -> re.Pattern[str]:
    letter = f"[{label}{label.swapcase()}]"
    return re.compile(rf"[(\[] ?{letter} ?[)\]]|(?<![\w'.(]){letter}[).:](?=\s|$)")


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
"""A longer text, some 3,000 words of English, is not a number, label or formula."""
_CONTROLS = {code: " " for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\r"}


def clean(text: str) -> str:
    r"""Return a text in plain form; empty if it is too long to be an answer.

    As `identity.folded`, without control characters, blank lines and extra space. Takes linear time.

    >>> clean("  5½\u200b km²\n\n"), clean("−3\u00a0°C")
    ('5 1/2 km^2', '-3 °C')
    """
    if len(text) > MAX_ANSWER_CHARS:
        text = " ".join(text.split())  # a million newlines around a short answer do not make it long
        if len(text) > MAX_ANSWER_CHARS:
            return ""
    lines = [" ".join(line.split()) for line in folded(text).translate(_CONTROLS).splitlines()]
    return "\n".join([line for line in lines if line])


def same_text(text: str, other: str) -> bool:
    r"""Return whether two texts are identical, except for width, space and invisible marks.

    >>> same_text("1914\u20131918 ", "1914-1918"), same_text("", "")
    (True, False)
    """
    plain = clean(text)
    return bool(plain) and plain == clean(other)


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
