"""The review of one log (`Room`), and one person's part of it as a state machine (`Session`). No terminal.

A terminal and a page share them: they decide which pair comes next, what a key means and what is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from cascade.conformal.labels import is_drawn
from cascade.review.pairs import Output, Pair, PairId
from cascade.review.path import Along
from cascade.review.reviews import Ask, Better, Judgement, Side, Terms, now

Judged = Mapping[PairId, Judgement]
Choose = Callable[[Judged], Pair | None]
"""A function that returns the next pair to judge; None if no more are needed."""
Stage = Literal["better", "first right", "second right", "both right"]

KEYS: Mapping[Stage, Mapping[str, str]] = {
    "better": {"1": "first better", "2": "second better", "=": "equal", "0": "both bad"},
    "first right": {"r": "right", "w": "wrong"},
    "second right": {"r": "right", "w": "wrong"},
    "both right": {"r": "right", "w": "wrong"},
}
ASKED: Mapping[Stage, str] = {
    "better": "Which output is better?",
    "first right": "Is the first output right?",
    "second right": "Is the second output right?",
    "both right": "Are both right, or both wrong?",
}
"""The question of each stage."""
MOVES: Mapping[str, str] = {"s": "skip", "b": "back", "q": "quit"}
_BETTER: Mapping[str, Better] = {"=": "equal", "0": "both_bad"}


class Sides(NamedTuple):
    """A pair in the order shown, from which a reviewer cannot tell which model wrote which output."""

    pair: Pair
    first: Side

    @property
    def outputs(self) -> tuple[Output, Output]:
        """The two outputs, in the order in which they are shown."""
        both = self.pair.output, self.pair.reference
        return both if self.first == "output" else both[::-1]


class Pressed(NamedTuple):
    """The effect of a key.

    Attributes:
        known: whether the key has a meaning at this stage.
        written: the judgement to write to the disk now.
        ended: whether the reviewer ended the review.
    """

    known: bool = True
    written: Judgement | None = None
    ended: bool = False


@dataclass(slots=True)
class _Draft:
    """A judgement in the making: the answers to the stages so far."""

    better: str = ""
    first_right: bool | None = None


class Session:
    """A review by one person.

    Args:
        ask: "preference" (which output is better), or "regret" (also whether each is right).
        reviewer: who.
        key: the key of the hash that orders the sides.
        choose: returns the next pair.
        judged: the reviewer's earlier judgements.
        earlier: their pairs, in the order of judging, for going back.

    Attributes:
        current: the pair that is shown; None if no more are needed.
        judged: the judgements so far, by pair.
    """

    def __init__(
        self, ask: Ask, reviewer: str, key: str, choose: Choose, judged: Judged, earlier: Iterable[Pair] = ()
    ) -> None:
        self._ask, self._reviewer, self._key, self._choose = ask, reviewer, key, choose
        self.judged: dict[PairId, Judgement] = dict(judged)
        self._shown: list[Pair] = list(earlier)
        self._stage: Stage = "better"
        self._draft = _Draft()
        self.current: Sides | None = None
        self._next()

    @property
    def stage(self) -> Stage:
        """The question that the reviewer has to answer."""
        return self._stage

    def press(self, key: str) -> Pressed:
        """Process a key; the caller must write `Pressed.written` before showing anything else."""
        if key == "q":
            return Pressed(ended=True)
        if self.current is None:
            return Pressed(known=False)
        if key == "b":
            return Pressed(known=self._back())
        if key == "s":
            return self._done("skipped", None, None)
        return self._answered(key) if key in KEYS[self._stage] else Pressed(known=False)

    def _answered(self, key: str) -> Pressed:
        draft = self._draft
        if self._stage == "better":
            draft.better = key
            if self._ask == "preference" or key == "0":  # both bad: neither is right
                right = None if self._ask == "preference" else False
                return self._done(self._verdict(key), right, right)
            self._stage = "both right" if key == "=" else "first right"
            return Pressed()
        if self._stage == "first right":
            draft.first_right, self._stage = key == "r", "second right"
            return Pressed()
        second = key == "r"
        first = second if self._stage == "both right" or draft.first_right is None else draft.first_right
        return self._done(self._verdict(draft.better), first, second)

    def _verdict(self, key: str) -> Better:
        assert self.current is not None  # noqa: S101 - a key is asked for where a pair is shown
        if key in _BETTER:
            return _BETTER[key]
        other: Side = "reference" if self.current.first == "output" else "output"
        return self.current.first if key == "1" else other

    def _done(self, verdict: Better, first_right: bool | None, second_right: bool | None) -> Pressed:
        """Record a judgement and go on to the next pair."""
        assert self.current is not None  # noqa: S101 - as above
        pair, first = self.current
        rights = (first_right, second_right) if first == "output" else (second_right, first_right)
        one = Judgement(*pair.id, first, verdict, *rights, self._reviewer, now())
        self.judged[pair.id] = one
        self._shown.append(pair)
        self._next()
        return Pressed(written=one)

    def _back(self) -> bool:
        """Go back to the first question of this pair, or to the pair before; return whether there was one."""
        if self._stage == "better":
            if not self._shown:
                return False
            self._show(self._shown.pop())
        self._stage, self._draft = "better", _Draft()
        return True

    def _next(self) -> None:
        self._stage, self._draft = "better", _Draft()
        pair = self._choose(self.judged)
        if pair is None:
            self.current = None
        else:
            self._show(pair)

    def _show(self, pair: Pair) -> None:
        self.current = Sides(pair, first_side(self._key, self._reviewer, pair.id))


@dataclass(frozen=True)
class Room:
    """The review of a log by any number of people.

    Args:
        pairs: every pair of the log.
        terms: the terms of the file of reviews.
        requests: the number of questions of the log that can certify, one of each group.
        along: the path of thresholds along which pairs are shown; None to show all pairs.
    """

    pairs: Sequence[Pair]
    terms: Terms
    requests: int
    along: Along | None = None

    @cached_property
    def drawn(self) -> tuple[Pair, ...]:
        """The pairs whose question was drawn for review."""
        return tuple([pair for pair in self.pairs if is_drawn(self.terms.key, pair.question, self.terms.rate)])

    def order(self, reviewer: str) -> list[Pair]:
        """Return the drawn pairs in one reviewer's order."""
        return shuffled(self.drawn, self.terms.key, reviewer)

    def session(self, reviewer: str, judged: Mapping[PairId, Judgement]) -> Session:
        """Return the session of a reviewer, continued after the earlier judgements.

        Args:
            reviewer: who.
            judged: the reviewer's judgements, in their order.
        """
        order, terms = self.order(reviewer), self.terms
        by_id = {pair.id: pair for pair in order}
        choose = one_by_one(order) if self.along is None else _settling(self.along, order, terms.ask)
        earlier = [by_id[pair] for pair in judged if pair in by_id]
        return Session(terms.ask, reviewer, terms.key, choose, judged, earlier)


def _settling(along: Along, order: Sequence[Pair], ask: str) -> Choose:
    """Return a function that chooses among the pairs that decide the next point of the path, in a reviewer's order."""
    place = {pair.id: number for number, pair in enumerate(order)}

    def choose(judged: Judged) -> Pair | None:
        losses = {pair: lost for pair, one in judged.items() if (lost := one.loses(ask)) is not None}
        wanted = along.wanted(losses, frozenset(judged.keys() - losses.keys()))
        return min(wanted, key=lambda pair: place[pair.id], default=None)

    return choose


def first_side(key: str, reviewer: str, pair: PairId) -> Side:
    """Return which output a reviewer sees first: random, but the same each time the pair is shown."""
    return "output" if _hash("side", key, reviewer, *pair) & 1 else "reference"


def token(key: str, reviewer: str, pair: PairId) -> str:
    """Return a name for a pair that does not reveal which model wrote which output."""
    return f"{_hash('token', key, reviewer, *pair):064x}"[:32]


def shuffled(pairs: Iterable[Pair], key: str, reviewer: str) -> list[Pair]:
    """Return pairs in a random order that is always the same for a reviewer."""
    return sorted(pairs, key=lambda pair: _hash("order", key, reviewer, *pair.id))


def one_by_one(pairs: Iterable[Pair]) -> Choose:
    """Return a function that chooses the first pair without a judgement."""
    held = list(pairs)
    return lambda judged: next((pair for pair in held if pair.id not in judged), None)


def _hash(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\x1f".join(parts).encode("utf-8", "replace")).digest())
