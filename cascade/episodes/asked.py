"""Facts about calls in a log: a question's numbers and its kind; the models of each step, and their roles."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.conformal.scope import PLAIN, UNSAID, Kind, kind_of
from cascade.episodes.schema import CHAT, chat_of, is_hashed, replay_of
from cascade.policies.views import asked_numbers
from cascade.types import ACT


def numbers_asked(row: Mapping[str, Any]) -> Mapping[str, float]:
    """Return the numbers of a row's question; empty if its text is not recorded."""
    text: str | None = row["question"]
    return {} if text is None or is_hashed(text) else asked_numbers(text, row["context"], chat_of(row))


def as_columns(numbers: Sequence[Mapping[str, float]]) -> dict[str, Floats]:
    """Return the numbers of n questions as float64 (n,) by name; NaN where a question lacks one."""
    names = dict.fromkeys(name for held in numbers for name in held)
    return {name: np.array([held.get(name, math.nan) for held in numbers]) for name in names}


def kind_asked(row: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the request that a row answers; None if the log has no texts, or the row answers none.

    A row that cascade did not log, as an importer makes one of a bare question, does not say what the model saw.
    """
    replay = replay_of(row)
    if replay.get("purpose") in _ABOUT:
        return None
    if replay.get(CHAT):
        chat = chat_of(row)
        return None if chat is None else kind_of(chat)
    return PLAIN if "finish_reason" in replay else UNSAID


_ABOUT = frozenset({ACT, "judge", "verify"})
"""The purposes of an agent's own calls, and of calls about an answer: their form is not the request's."""


class Asker(NamedTuple):
    """A model that was asked in a step, in a role ("base", "guide", a rung, an offer); what for, where it is known."""

    step: int
    role: str
    model: str
    purpose: str | None = None


def by_role(askers: Iterable[Asker]) -> dict[str, tuple[str, ...]]:
    """Return the names of the models that were asked in each role, sorted.

    >>> by_role([Asker(1, "base", "small"), Asker(2, "base", "tiny")])
    {'base': ('small', 'tiny')}
    """
    return grouped((one.role, one.model) for one in askers)


def grouped(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Return the second names by the first, both sorted, each once.

    >>> grouped([("b", "y"), ("a", "z"), ("b", "x"), ("b", "y")])
    {'a': ('z',), 'b': ('x', 'y')}
    """
    found: dict[str, set[str]] = defaultdict(set)
    for first, second in pairs:
        found[first].add(second)
    return {first: tuple(sorted(found[first])) for first in sorted(found)}


def is_ladder(askers: Collection[Asker]) -> bool:
    """Return whether each model is its own role, as in a ladder, whose models do not read each other's answers.

    >>> is_ladder([Asker(1, "small", "small")]), is_ladder([Asker(1, "base", "small")]), is_ladder([])
    (True, False, False)
    """
    return bool(askers) and all(one.role == one.model for one in askers)


def by_step(askers: Iterable[Asker], horizon: int) -> tuple[str | None, ...]:
    """Return the model that answered each of T steps of a ladder, None if several did; empty for other strategies.

    In a ladder each model is its own role. In other strategies the roles identify the models at every step.

    >>> by_step([Asker(1, "small", "small"), Asker(2, "large", "large"), Asker(2, "tiny", "tiny")], 3)
    ('small', None, None)
    """
    found: dict[int, set[str]] = defaultdict(set)
    for one in askers:
        if one.role != one.model:
            return ()
        found[one.step].add(one.model)
    return tuple([next(iter(found[step])) if len(found[step]) == 1 else None for step in range(1, horizon + 1)])


def alone(askers: Iterable[Asker], horizon: int) -> tuple[Asker | None, ...]:
    """Return who alone was asked in each of T steps, in one role, None where several were; an agent's own calls apart.

    >>> alone([Asker(1, "try", "small"), Asker(2, "try", "small"), Asker(2, "check", "large", "judge")], 2)
    (Asker(step=1, role='try', model='small', purpose=None), None)
    """
    found: dict[int, set[Asker]] = defaultdict(set)
    for one in askers:
        if one.purpose != ACT:
            found[one.step].add(one)
    return tuple([next(iter(found[step])) if len(found[step]) == 1 else None for step in range(1, horizon + 1)])
