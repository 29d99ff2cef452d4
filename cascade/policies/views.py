"""The inputs of features: numbers of the question's text, and views of logged steps or of the steps of a live question.

`LogView` and `LiveView` give the same values, of n questions or of one. Both put candidates into the same places,
compare answers by the same rule (`matching.same.answer_key`, which also numbers the answers of a table) and turn −0
into 0. So both give the same features, bit by bit.

`asked_numbers` computes the numbers of a question's text, which are known before any model answers, for live questions
and for tables. They are counts and ratios, so that their last bit depends on no library. `design/features.md` lists
them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats
from cascade.policies.base import SHARED_PLACE, History, Observation
from cascade.types import Candidate

if TYPE_CHECKING:
    from cascade.chat import ChatRequest


HEAD_CHARS = 2_000
"""All counts except the length use only this many characters from the start, to bound the time."""
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
    """The description of a number of a question's text: its unit, its minimum and maximum (None: no bound)."""

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
    "choices": AskedNumber("choices", 0.0, None, "marks like A) or 2. before a space"),
    "negated": AskedNumber("0 or 1", 0.0, 1.0, "it contains not, except, never, … as a word"),
    "amount": AskedNumber("0 or 1", 0.0, 1.0, "it asks how many, how much, how long, …"),
    "who": AskedNumber("0 or 1", 0.0, 1.0, "it contains who, whom or whose"),
    "when_where": AskedNumber("0 or 1", 0.0, 1.0, "it contains when or where"),
    "which": AskedNumber("0 or 1", 0.0, 1.0, "it contains which or what"),
    "why_how": AskedNumber("0 or 1", 0.0, 1.0, "it contains why or how, and asks for no amount"),
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

    Of a chat request, `context` is the request as JSON.

    >>> found = asked_numbers("How many legs have 2 spiders?", None)
    >>> found["words"], found["numbers"], found["amount"], found["who"], found["has_context"]
    (6.0, 1.0, 1.0, 0.0, 0.0)
    """
    there = float(bool(context))
    found = {**_of_text(text), "has_context": there, "context_characters": float(len(context or ""))}
    return found if chat is None else {**found, **_of_request(chat)}


@lru_cache(maxsize=256)
def _of_request(request: ChatRequest) -> dict[str, float]:
    from cascade.chat import function_of, text_of  # of a chat request alone

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


@lru_cache(maxsize=256)  # every step of a walk needs the numbers of the same question
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


NAN = math.nan
NOWHERE = -1
Values: TypeAlias = Any
"""float64 (n,) for logged questions; one float for the live one. NaN is unknown."""
Whole: TypeAlias = Any
"""int64 or bool, with the questions on the first axis; the live question has no such axis."""


class View(ABC):
    """Steps 1..`step` of questions, as features read them. Here steps are counted from 0."""

    step: int

    @abstractmethod
    def signal(self, name: str, t: int) -> Values:
        """Return a signal of step t."""

    @abstractmethod
    def confidence(self, place: int, t: int) -> Values:
        """Return the confidence of a place's candidate at step t."""

    @abstractmethod
    def tokens(self, t: int) -> Values:
        """Return the input and output tokens of step t."""

    @abstractmethod
    def cost(self, t: int) -> Values:
        """Return the cost of step t, in nano-USD."""

    @abstractmethod
    def asked(self, name: str) -> Values:
        """Return a number of the question's text."""

    @abstractmethod
    def unknown(self) -> Values:
        """Return NaN."""

    @property
    @abstractmethod
    def answers(self) -> Whole:
        """The number of each candidate's distinct answer, int64 (…, t, m), −1 without a candidate; m places."""

    @cached_property
    def alike(self) -> Whole:
        """Whether two of the answers so far exist and are the same, bool (…, t·m, t·m)."""
        flat = self.answers.reshape(*self.answers.shape[:-2], -1)
        return (flat[..., :, None] == flat[..., None, :]) & (flat >= 0)[..., None]

    def where_texts_are_known(self, values: Values) -> Values:
        """Return the values of questions whose answers can be compared, and NaN for the others."""
        return values


class LogView(View):
    """Steps of n logged questions."""

    def __init__(self, history: History, step: int, sources: tuple[str, ...]) -> None:
        self.history, self.step = history, step
        self.reached: Bools = history.steps >= step
        self._places = places(sources, history.sources)

    def signal(self, name: str, t: int) -> Floats:
        """Return a signal of step t: float64 (n,)."""
        held = self.history.signals.get(name)
        return self.unknown() if held is None else held[:, t] + 0.0  # −0 becomes 0

    def confidence(self, place: int, t: int) -> Floats:
        """Return the confidence of a place's candidate at step t: float64 (n,)."""
        at = self._places[place]
        return self.unknown() if at == NOWHERE else self.history.confidence[:, t, at] + 0.0

    def tokens(self, t: int) -> Floats:
        """Return the input and output tokens of step t: float64 (n,)."""
        return self.history.tokens[:, t]

    def cost(self, t: int) -> Floats:
        """Return the cost of step t, in nano-USD: float64 (n,)."""
        return self.history.cost[:, t]

    def asked(self, name: str) -> Floats:
        """Return a number of the questions' texts: float64 (n,)."""
        held = self.history.asked.get(name)
        return self.unknown() if held is None else held

    def unknown(self) -> Floats:
        """Return NaN (n,)."""
        return np.full(self.history.n, np.nan)

    @cached_property
    def answers(self) -> Whole:
        """int64 (n, t, m), −1 where there is none."""
        given = self.history.answer[:, : self.step]
        taken = [given[:, :, at] if at != NOWHERE else np.full_like(given[:, :, 0], -1) for at in self._places]
        return np.stack(taken, axis=2)

    def where_texts_are_known(self, values: Floats) -> Floats:
        """Return the values of questions whose answers can be compared, and NaN for the others."""
        return np.where(self.history.texts_known, values, np.nan)


class LiveView(View):
    """The steps of one question that is being answered. Values are computed only when they are read."""

    def __init__(self, observation: Observation, sources: tuple[str, ...]) -> None:
        self._steps, self._question = observation.steps, observation.question
        self.step, self._sources = len(self._steps), sources

    def signal(self, name: str, t: int) -> float:
        """Return a signal of step t."""
        value = self._steps[t].signals.get(name)
        return NAN if value is None else value + 0.0

    def confidence(self, place: int, t: int) -> float:
        """Return the confidence of a place's candidate at step t."""
        candidate = self._placed[t][place]
        return NAN if candidate is None or candidate.confidence is None else candidate.confidence + 0.0

    def tokens(self, t: int) -> float:
        """Return the input and output tokens of step t."""
        read = [call.completion.usage[:2] for call in self._steps[t].calls if call.completion is not None]
        return _total([count for both in read for count in both])

    def cost(self, t: int) -> float:
        """Return the cost of step t, in nano-USD."""
        return _total([call.cost_nano_usd for call in self._steps[t].calls if call.completion is not None])

    def asked(self, name: str) -> float:
        """Return a number of the question's text."""
        return self._numbers.get(name, NAN)

    def unknown(self) -> float:
        """Return NaN."""
        return NAN

    @cached_property
    def answers(self) -> Whole:
        """int64 (t, m), −1 where there is none; numbered in the order of their first appearance."""
        from cascade.matching.same import answer_key  # a log has its answers numbered

        numbers: dict[str, int] = {}
        chat = self._question.chat
        rows = [
            [-1 if one is None else numbers.setdefault(answer_key(one.text, chat), len(numbers)) for one in row]
            for row in self._placed
        ]
        return np.array(rows, dtype=np.int64)

    @cached_property
    def _placed(self) -> list[Sequence[Candidate | None]]:
        """For each step the candidate in each place."""
        return [in_places(step.candidates, self._sources) for step in self._steps]

    @cached_property
    def _numbers(self) -> Mapping[str, float]:
        question = self._question
        return asked_numbers(question.text, question.context, question.chat)


def _total(counts: Sequence[int | None]) -> float:
    """Return the sum of a count over a step's calls, as in a log; NaN if one is unknown, or there is no call."""
    known = [count for count in counts if count is not None]
    return float(sum(known)) if known and len(known) == len(counts) else NAN


def places(wanted: tuple[str, ...], held: tuple[str, ...]) -> tuple[int, ...]:
    """Return the index of each wanted place among those held, −1 if it is missing.

    >>> places(("base", "guide"), ("guide", "base")), places(("answer",), ("gpt-4",)), places(("base",), ("guide",))
    ((1, 0), (0,), (-1,))
    """
    if wanted == held:
        return tuple(range(len(held)))
    found = {name: at for at, name in reversed(list(enumerate(held)))}
    return tuple(
        [found.get(name, at if name == SHARED_PLACE and at < len(held) else NOWHERE) for at, name in enumerate(wanted)]
    )


def in_places(candidates: Sequence[Candidate], sources: tuple[str, ...]) -> Sequence[Candidate | None]:
    """Return a step's candidates by place, as `tabulate` puts them: by source, and by order in a shared place."""
    if tuple([candidate.source for candidate in candidates]) == sources:  # as in most steps
        return candidates
    row: list[Candidate | None] = [None] * len(sources)
    for index, candidate in enumerate(candidates):
        source = candidate.source
        if index < len(sources) and sources[index] in {source, SHARED_PLACE}:
            at = index
        elif source in sources:
            at = sources.index(source)
        else:
            continue
        if row[at] is None:
            row[at] = candidate
    return row
