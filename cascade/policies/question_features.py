"""Numbers of a question's text: what is known of a question before anybody has answered it.

One function serves live and fills the tables, so that a policy sees the same numbers in both. All but the last are
counts and ratios: there is no table of words to keep, and no function whose last bit depends on a library.
`design/features.md` lists them.

The last are of what a question is about: its sentence embedding, seen from the directions that were fitted. A sentence
model (`strategies.embedding`) gives a question 384 numbers. A policy that was fitted with them keeps the few directions
in which its training questions differ most, and looks at where a question lies along each: the features
`asked.embedding_0`, `asked.embedding_1`, … Here too one function gives them live and on a log.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Protocol

import numpy as np

from cascade.chat import ChatRequest, function_of, text_of
from cascade.conformal.arrays import Floats
from cascade.errors import UsageError

HEAD_CHARS = 2_000
"""What is counted beside the length is counted in so many characters at the start: a bound on the time it takes."""
_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
_CAPITAL = re.compile(r"[A-Z]")
_DIGIT = re.compile(r"\d")
_MARK = re.compile(r"[][{}()<>=+*/\\|_^$;#&%~@]")
_CHOICE = re.compile(r"(?:(?<=\s)|^)\(?[A-Ja-j1-9][).:]\s")
_LONG_LETTERS = 13
_AMOUNT = re.compile(r"\bhow (?:many|much|long|old|far|often|tall|large|big)\b")
_WHO = frozenset({"who", "whom", "whose"})
_WHEN_WHERE = frozenset({"when", "where"})
_WHICH = frozenset({"which", "what"})
_WHY_HOW = frozenset({"why", "how"})
_NEGATED = frozenset({"not", "except", "never", "neither", "nor", "without", "cannot", "least"})
_YES_NO = frozenset(
    {"is", "are", "was", "were", "do", "does", "did", "can", "could", "has", "have", "had", "will", "would", "should"}
)


class AskedNumber(NamedTuple):
    """What a number of a question's text says: its unit, its least and greatest value (None: no bound)."""

    unit: str
    low: float | None
    high: float | None
    what: str


ASKED = {
    "characters": AskedNumber("characters", 0.0, None, "length of the question"),
    "words": AskedNumber("words", 0.0, None, "words between blanks"),
    "mean_word": AskedNumber("characters a word", 0.0, None, "mean length of its words of letters"),
    "long_words": AskedNumber("share of words", 0.0, 1.0, "words of 13 letters or more"),
    "capitals": AskedNumber("share of characters", 0.0, 1.0, "A to Z"),
    "digits": AskedNumber("share of characters", 0.0, 1.0, "digits"),
    "marks": AskedNumber("share of characters", 0.0, 1.0, "marks of code and mathematics"),
    "numbers": AskedNumber("numbers", 0.0, None, "numbers in it"),
    "lines": AskedNumber("lines", 0.0, None, "lines"),
    "choices": AskedNumber("choices", 0.0, None, "marks like A) or 2. before a blank"),
    "negated": AskedNumber("0 or 1", 0.0, 1.0, "it holds not, except, never, … as a word"),
    "amount": AskedNumber("0 or 1", 0.0, 1.0, "it asks how many, how much, how long, …"),
    "who": AskedNumber("0 or 1", 0.0, 1.0, "it holds who, whom or whose"),
    "when_where": AskedNumber("0 or 1", 0.0, 1.0, "it holds when or where"),
    "which": AskedNumber("0 or 1", 0.0, 1.0, "it holds which or what"),
    "why_how": AskedNumber("0 or 1", 0.0, 1.0, "it holds why or how and asks for no amount"),
    "yes_no": AskedNumber("0 or 1", 0.0, 1.0, "it begins with is, are, does, can, …"),
    "has_context": AskedNumber("0 or 1", 0.0, 1.0, "there is a text to read from"),
    "context_characters": AskedNumber("characters", 0.0, None, "length of that text; 0 without one"),
}
"""The numbers of every question's text."""
OF_REQUEST = {
    "messages": AskedNumber("messages", 1.0, None, "messages of the conversation so far"),
    "turns": AskedNumber("messages", 0.0, None, "messages of the user so far"),
    "system_characters": AskedNumber("characters", 0.0, None, "length of the system's and developer's messages"),
    "tools_offered": AskedNumber("tools", 0.0, None, "tools that the request offers"),
    "tool_parameters": AskedNumber("parameters", 0.0, None, "parameters of all tools offered"),
    "tool_required": AskedNumber("parameters", 0.0, None, "parameters that the tools require"),
    "wants_json": AskedNumber("0 or 1", 0.0, 1.0, "the reply has to be JSON"),
}
"""The numbers of a chat request besides; they are known before any model is asked."""
ALL = {**ASKED, **OF_REQUEST}


def asked_numbers(text: str, context: str | None, chat: ChatRequest | None = None) -> dict[str, float]:
    """Return the numbers of a question's text, by the names of `ASKED`, and of a chat request (`OF_REQUEST`).

    Args:
        text: the question.
        context: the text that it is to be answered from; None and "" are the same.
        chat: the chat request, where it is one; `context` is then the request as JSON.

    >>> found = asked_numbers("How many legs have 2 spiders?", None)
    >>> found["words"], found["numbers"], found["amount"], found["who"], found["has_context"]
    (6.0, 1.0, 1.0, 0.0, 0.0)
    """
    there = float(bool(context))
    found = {**_of_text(text), "has_context": there, "context_characters": float(len(context or ""))}
    return found if chat is None else {**found, **_of_request(chat)}


@lru_cache(maxsize=256)
def _of_request(request: ChatRequest) -> dict[str, float]:
    instructed = [text_of(one.get("content")) for one in request.messages if one.get("role") in {"system", "developer"}]
    schemas = [function_of(tool).get("parameters") for tool in request.tools]
    known = [schema for schema in schemas if isinstance(schema, Mapping)]
    return {
        "messages": float(len(request.messages)),
        "turns": float(sum([one.get("role") == "user" for one in request.messages])),
        "system_characters": float(sum(map(len, instructed))),
        "tools_offered": float(len(request.tools)),
        "tool_parameters": float(sum([_size(schema.get("properties")) for schema in known])),
        "tool_required": float(sum([_size(schema.get("required")) for schema in known])),
        "wants_json": float(request.wants_json),
    }


def _size(given: object) -> int:
    return len(given) if isinstance(given, Mapping | list) else 0


@lru_cache(maxsize=256)  # a walk asks for the same question's at every step
def _of_text(text: str) -> dict[str, float]:
    head = text[:HEAD_CHARS].strip()
    lowered = head.lower()
    words = _WORD.findall(lowered)
    held, size, many = set(words), len(head) or 1, len(words) or 1
    amount = "how" in held and _AMOUNT.search(lowered) is not None
    return {
        "characters": float(len(text)),
        "words": float(len(text.split())),
        "mean_word": sum(map(len, words)) / many,
        "long_words": sum([len(word) >= _LONG_LETTERS for word in words]) / many,
        "capitals": len(_CAPITAL.findall(head)) / size,
        "digits": len(_DIGIT.findall(head)) / size,
        "marks": len(_MARK.findall(head)) / size,
        "numbers": float(len(_NUMBER.findall(head))),
        "lines": float(head.count("\n") + 1),
        "choices": float(len(_CHOICE.findall(head))),
        "negated": float(not held.isdisjoint(_NEGATED)),
        "amount": float(amount),
        "who": float(not held.isdisjoint(_WHO)),
        "when_where": float(not held.isdisjoint(_WHEN_WHERE)),
        "which": float(not held.isdisjoint(_WHICH)),
        "why_how": float(not amount and not held.isdisjoint(_WHY_HOW)),
        "yes_no": float(bool(words) and words[0] in _YES_NO),
    }


PREFIX = "embedding_"
NUMBER = AskedNumber("length, of 1", -2.0, 2.0, "where it lies along a direction of its sentence embedding")
_DECIMALS = 4
"""Processors add in their own order, and differ beyond the sixth decimal."""
_REMEMBERED = 256
"""Questions whose numbers are kept: a walk asks for the same question's at every step."""


@dataclass(frozen=True, slots=True, eq=False)
class Directions:
    """Where embeddings are looked at from.

    Attributes:
        model: the sentence model that they are of; another one's embeddings mean something else.
        centre: float64 (d,), the mean of the training questions' embeddings.
        axes: float64 (k, d), the directions, each of length 1.

    Raises:
        UsageError: their shapes do not fit, or a number is not finite.
    """

    model: str
    centre: Floats
    axes: Floats

    def __post_init__(self) -> None:
        fits = self.centre.ndim == 1 and self.axes.ndim == 2 and self.axes.shape[1:] == self.centre.shape
        if not fits or not self.axes.size or not (np.isfinite(self.centre).all() and np.isfinite(self.axes).all()):
            raise UsageError("The directions of an embedding are finite numbers: a centre (d,) and axes (k, d).")

    @property
    def names(self) -> tuple[str, ...]:
        """What the numbers are called among those of a question's text."""
        return tuple([f"{PREFIX}{index}" for index in range(len(self.axes))])

    def numbers(self, vector: Floats) -> dict[str, float]:
        """Return where an embedding, float64 (d,), lies along each direction, to four decimals."""
        if vector.shape != self.centre.shape:
            raise UsageError(f"An embedding has {self.centre.size} numbers, not {vector.size}.")
        along = [math.fsum(((vector - self.centre) * axis).tolist()) for axis in self.axes]
        return {name: round(value, _DECIMALS) + 0.0 for name, value in zip(self.names, along, strict=True)}


class Embedder(Protocol):
    """A sentence model."""

    @property
    def name(self) -> str:
        """Which one it is, to the bit of its weights."""
        ...

    def __call__(self, text: str) -> Floats:
        """Return a text's embedding, float64 (d,): the same text gives the same numbers."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Embedded:
    """A question's text as the numbers `embedding_0`, … : a sentence model and the directions. Safe to share.

    Raises:
        UsageError: the directions are of another sentence model.
    """

    directions: Directions
    embedder: Embedder = field(repr=False)
    _known: dict[str, Mapping[str, float]] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.directions.model != self.embedder.name:
            raise UsageError(
                f"The policy was fitted with the sentence model {self.directions.model}; this one is "
                f"{self.embedder.name}, whose embeddings mean something else. Fit it again."
            )

    def numbers(self, text: str) -> Mapping[str, float]:
        """Return a question's numbers. Raises what the sentence model raises; it never answers with zeros."""
        found = self._known.get(text)
        if found is None:
            found = self.directions.numbers(self.embedder(text))
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            self._known[text] = found
        return found
