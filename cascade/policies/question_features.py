"""What is known of a question before anybody has answered it: numbers of its text, and what kind of request it is.

One function serves live and fills the tables, so that a policy sees the same numbers in both. All but the last are
counts and ratios: there is no table of words to keep, and no function whose last bit depends on a library.
`design/features.md` lists them.

The last are of what a question is about: its sentence embedding, seen from the directions that were fitted. A sentence
model (`strategies.embedding`) gives a question 384 numbers. A policy that was fitted with them keeps the few directions
in which its training questions differ most, and looks at where a question lies along each: the features
`asked.embedding_0`, `asked.embedding_1`, … Here too one function gives them live and on a log.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeAlias

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


# --- kinds of requests: a certificate speaks of no others than its calibration held ---
# Only what changes a reply by its kind is looked at: tools, a form, what is in the messages, and how the reply is
# drawn. What is asked is not: fresh questions are as unlike each other as those of the calibration.

Kind: TypeAlias = Mapping[str, float | str]
"""What is special about a request, by a name: a number, or a text (JSON), "" where there is nothing more to say."""
Seen: TypeAlias = Mapping[str, Mapping[str, Any]]
"""By a name of `Kind`: `of` requests had it; `least` and `most` of its numbers, `texts`, which are None if too many."""

PLAIN: Kind = {}
"""A question in cascade's own words, or a single message of a user with no setting."""
MOST_TEXTS = 50
"""A setting with more texts than this is another with each request, such as stop words made from the question."""
_DRAWN = (
    "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "logit_bias", "stop", "reasoning_effort", "verbosity", "modalities", "tool_choice", "parallel_tool_calls",
    "web_search_options",
)  # fmt: skip
"""The settings that change how a reply is drawn. What is only kept or passed on (user, metadata, store) does not."""
_NEUTRAL = {"tool_choice": "auto", "parallel_tool_calls": True}
"""Settings at their default, which say nothing."""
_LIMIT = "a limit of the reply"


def kind_of(chat: ChatRequest | None) -> Kind:
    """Return what is special about a request.

    >>> dict(kind_of(ChatRequest([{"role": "user", "content": "Hi"}], {"temperature": 2, "max_tokens": 1})))
    {'temperature': 2.0, 'a limit of the reply': 1.0}
    """
    if chat is None:
        return PLAIN
    roles = [message.get("role") for message in chat.messages]
    held = {
        "tools": bool(chat.tools or chat.options.get("functions")),
        "a JSON schema": chat.json_schema is not None,
        "a JSON object": chat.wants_json and chat.json_schema is None,
        "a system message": any(role in ("system", "developer") for role in roles),
        "several turns": any(role not in ("system", "developer", "user") for role in roles),
        **dict.fromkeys(_parts(chat), True),
    }
    found: dict[str, float | str] = {name: "" for name, there in held.items() if there}
    for name in _DRAWN:
        value = chat.options.get(name)
        if value is not None and value != _NEUTRAL.get(name):
            found[name] = float(value) if type(value) in (int, float) else json.dumps(value, sort_keys=True)
    if chat.max_tokens is not None:
        found[_LIMIT] = float(chat.max_tokens)
    return found


def _parts(chat: ChatRequest) -> Iterator[str]:
    """Yield what the messages hold beside text: the types of their parts, as "image parts"."""
    for message in chat.messages:
        content = message.get("content")
        for part in content if isinstance(content, list | tuple) else ():
            kind = str(part.get("type", "text")) if isinstance(part, Mapping) else "text"
            if kind not in ("text", "refusal"):
                yield f"{kind.removeprefix('input_').removesuffix('_url')} parts"


def seen(kinds: Sequence[Kind | None]) -> dict[str, Any] | None:
    """Return what requests held, as plain JSON values; None where one is not on record.

    >>> seen([{"tools": ""}, {"tools": "", "temperature": 0.5}])["kinds"]["temperature"]
    {'of': 1, 'least': 0.5, 'most': 0.5}
    """
    known = [kind for kind in kinds if kind is not None]
    if not known or len(known) < len(kinds):
        return None
    names = sorted({name for kind in known for name in kind})
    return {"of": len(known), "kinds": {name: _held([kind[name] for kind in known if name in kind]) for name in names}}


def _held(values: Sequence[float | str]) -> dict[str, Any]:
    numbers = [value for value in values if isinstance(value, float)]
    texts = sorted({value for value in values if isinstance(value, str)})
    found: dict[str, Any] = {"of": len(values)}
    if numbers:
        found |= {"least": min(numbers), "most": max(numbers)}
    if texts:
        found["texts"] = texts if len(texts) <= MOST_TEXTS else None
    return found


def unlike(kind: Kind, held: Mapping[str, Any] | None) -> Iterator[str]:
    """Yield how a request differs from all that a calibration held, a sentence each; nothing where that is not known.

    Args:
        kind: of the request.
        held: what `seen` returned.

    >>> list(unlike({"temperature": 2.0}, seen([{"temperature": 0.2}, {"temperature": 1.0}])))
    ['the request has temperature 2, and the calibration requests had 0.2 to 1']
    """
    if held is None:
        return
    kinds: Seen = held["kinds"]
    for name, value in kind.items():
        there = kinds.get(name)
        if there is None:
            yield f"the request has {_said(name, value)}, which no calibration request had"
        elif isinstance(value, float) and "least" in there and not _within(name, value, there):
            yield f"the request has {_said(name, value)}, and the calibration requests had {_range(there)}"
        elif isinstance(value, str) and there.get("texts", ()) is not None and value not in there.get("texts", ()):
            yield f"the request has {_said(name, value)}, which no calibration request had"
    for name, there in kinds.items():
        if there["of"] == held["of"] and name not in kind and name != _LIMIT:
            yield f"the request has not {name}, and every calibration request had"


def _within(name: str, value: float, there: Mapping[str, Any]) -> bool:
    """Whether a number lies among those of the calibration. A larger limit cuts off no more than a smaller one."""
    return bool(there["least"] <= value and (value <= there["most"] or name == _LIMIT))


def _range(there: Mapping[str, Any]) -> str:
    least, most = there["least"], there["most"]
    return f"{least:g}" if least == most else f"{least:g} to {most:g}"


_LONGEST_SHOWN = 60


def _said(name: str, value: float | str) -> str:
    shown = f"{value:g}" if isinstance(value, float) else value[:_LONGEST_SHOWN]
    return f"{name} {shown}".strip()
