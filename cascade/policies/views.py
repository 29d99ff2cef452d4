"""What features are made of: logged steps as arrays, or the steps of one question that is being answered.

`LogView` and `LiveView` have the same methods. They put candidates into the same places, compare answers by the same
rule (`matching.same.answer_key`, which numbers the answers of a table too) and know one zero, so that columns made of
one are equal, bit by bit, to columns made of the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cascade.chat import ChatRequest
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.matching.same import answer_key
from cascade.policies.base import SHARED_PLACE, Observation
from cascade.policies.history import History
from cascade.policies.question_features import asked_numbers
from cascade.types import Candidate

NAN = math.nan
NOWHERE = -1


class LogView:
    """LogView steps 1..t of many questions, as features read them. What several features need is computed once."""

    def __init__(self, history: History, step: int, sources: tuple[str, ...]) -> None:
        self.history, self.step = history, step
        self.reached: Bools = history.steps >= step
        self._places = places(sources, history.sources)
        self._answers: Ints | None = None

    @property
    def n(self) -> int:
        """The number of questions."""
        return self.history.n

    def signal(self, name: str, t: int) -> Floats:
        """Return a signal of step t, from 0: float64 (n,)."""
        held = self.history.signals.get(name)
        return self.unknown() if held is None else held[:, t] + 0.0  # + 0.0: there is one zero

    def confidence(self, place: int, t: int) -> Floats:
        """Return the confidence of a place's candidate at step t: float64 (n,)."""
        at = self._places[place]
        return self.unknown() if at == NOWHERE else self.history.confidence[:, t, at] + 0.0

    def asked(self, name: str) -> Floats:
        """Return a number of the questions' texts: float64 (n,)."""
        held = self.history.asked.get(name)
        return self.unknown() if held is None else held

    def unknown(self) -> Floats:
        """Return NaN (n,)."""
        return np.full(self.n, np.nan)

    @property
    def answers(self) -> Ints:
        """int64 (n, t, m), −1 where there is none; the places are those of the feature set."""
        if self._answers is None:
            given = self.history.answer[:, : self.step]
            taken = [given[:, :, at] if at != NOWHERE else np.full_like(given[:, :, 0], -1) for at in self._places]
            self._answers = np.stack(taken, axis=2)
        return self._answers

    def where_texts_are_known(self, values: Floats) -> Floats:
        """Return the values of questions whose answers can be compared, NaN of the others."""
        return np.where(self.history.texts_known, values, np.nan)


class Looks(NamedTuple):
    """What some features look at beside signals, so that nothing else is made ready."""

    candidates: bool
    answers: bool
    question: bool


class LiveView:
    """The steps of one question that is being answered, as features read them. Made anew at each step.

    Attributes:
        steps, step: the steps so far, and how many.
        signals: their signals.
        placed: of each step the candidate in each place; empty where no feature looks at it, as are the next two.
        answers: of each step the answer in each place, as answers are compared.
        earlier, given: all answers of the steps before the latest, and of all steps.
        asked: the numbers of the question's text, and `more` of them that are known otherwise (`policies.embedding`).
    """

    __slots__ = ("answers", "asked", "earlier", "given", "placed", "signals", "step", "steps")

    def __init__(
        self, observation: Observation, sources: tuple[str, ...], looks: Looks, more: Mapping[str, float] | None = None
    ) -> None:
        steps, question = observation.steps, observation.question
        self.steps, self.step = steps, len(steps)
        self.signals = [step.signals for step in steps]
        self.placed = [in_places(step.candidates, sources) for step in steps] if looks.candidates else []
        self.answers = [answers_of(row, question.chat) for row in self.placed] if looks.answers else []
        self.earlier = [answer for row in self.answers[:-1] for answer in row if answer is not None]
        self.given = [*self.earlier, *[answer for row in self.answers[-1:] for answer in row if answer is not None]]
        self.asked = asked_numbers(question.text, question.context, question.chat) if looks.question else {}
        if more:
            self.asked = {**self.asked, **more}


def answers_of(row: Sequence[Candidate | None], chat: ChatRequest | None) -> list[str | None]:
    """Return the answers of placed candidates, as answers are compared."""
    return [None if one is None else answer_key(one.text, chat) for one in row]


def places(wanted: tuple[str, ...], held: tuple[str, ...]) -> tuple[int, ...]:
    """Return where each wanted place stands among those held, −1 for nowhere.

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
