"""The review of one log (`Room`), and one person's part of it as a state machine (`Session`). No terminal.

A terminal and a page share them: they decide which pair comes next, what a key means and what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from cascade.conformal.monitor import is_drawn, uniform
from cascade.review.pairs import Output, Pair, PairId
from cascade.review.reviews import Better, Judgement, Side, Terms, now

_RIGHT = {"r": "right", "w": "wrong"}
_BETTER = {"1": "first better", "2": "second better", "=": "equal", "0": "both bad"}
MOVES: Mapping[str, str] = {"s": "skip", "b": "back", "q": "quit"}
_VERDICTS: Mapping[str, Better] = {"=": "equal", "0": "both_bad"}


class Stage(NamedTuple):
    """What a reviewer is asked, and the meaning of each key that answers."""

    question: str
    keys: Mapping[str, str]


BETTER = Stage("Which output is better?", _BETTER)
FIRST = Stage("Is the first output right?", _RIGHT)
SECOND = Stage("Is the second output right?", _RIGHT)
BOTH = Stage("Are both right, or both wrong?", _RIGHT)


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


@dataclass(frozen=True)
class Room:
    """The review of a log by any number of people.

    Args:
        pairs: every pair of the log.
        terms: the terms of the file of reviews.
        requests: the number of requests of the log that can certify, one of each group.
    """

    pairs: Sequence[Pair]
    terms: Terms
    requests: int

    @cached_property
    def drawn(self) -> tuple[Pair, ...]:
        """The pairs whose request was drawn for review."""
        return tuple([pair for pair in self.pairs if is_drawn(self.terms.key, self.terms.rate, pair.question)])

    def order(self, reviewer: str) -> list[Pair]:
        """Return the drawn pairs in a reviewer's own random order, which stays the same."""
        return sorted(self.drawn, key=lambda pair: uniform(self.terms.key, "order", reviewer, pair.id.name))

    def token(self, reviewer: str, pair: PairId) -> str:
        """Return a name for a pair that does not reveal which model wrote which output."""
        return f"{uniform(self.terms.key, 'token', reviewer, pair.name):.17f}"[2:]

    def first_side(self, reviewer: str, pair: PairId) -> Side:
        """Return which output a reviewer sees first: random, but the same each time the pair is shown."""
        return "output" if is_drawn(self.terms.key, 0.5, "side", reviewer, pair.name) else "reference"


class Session:
    """A review by one person.

    Args:
        room: the review.
        reviewer: who.
        judged: the reviewer's earlier judgements, in their order.

    Attributes:
        current: the pair that is shown; None if no more are needed.
        judged: the judgements so far, by pair.
    """

    def __init__(self, room: Room, reviewer: str, judged: Mapping[PairId, Judgement]) -> None:
        self._room, self._reviewer, self._order = room, reviewer, room.order(reviewer)
        self.judged: dict[PairId, Judgement] = dict(judged)
        pairs = {pair.id: pair for pair in self._order}
        self._earlier = [pairs[identifier] for identifier in judged if identifier in pairs]
        self._keys = ""  # the answers about the current pair so far
        self.current: Sides | None = None
        self._show(self._following())

    @property
    def stage(self) -> Stage:
        """The question that the reviewer has to answer."""
        if not self._keys:
            return BETTER
        return BOTH if self._keys[0] == "=" else (FIRST, SECOND)[len(self._keys) - 1]

    def press(self, key: str) -> Pressed:
        """Process a key; the caller must write `Pressed.written` before showing anything else."""
        sides = self.current
        if key == "q" or sides is None:
            return Pressed(known=key == "q", ended=key == "q")
        if key == "b":
            return Pressed(known=self._back())
        if key == "s":
            return self._judge(sides, "skipped", None, None)
        if key not in self.stage.keys:
            return Pressed(known=False)
        self._keys += key
        return self._answered(sides, self._keys[0], self._keys[1:])

    def _answered(self, sides: Sides, better: str, rights: str) -> Pressed:
        """Judge the pair, if its answers say all that is asked."""
        other: Side = "reference" if sides.first == "output" else "output"
        verdict = _VERDICTS.get(better) or (sides.first if better == "1" else other)
        if self._room.terms.ask == "preference":
            return self._judge(sides, verdict, None, None)
        if better == "0":  # both bad: neither is right
            rights = "ww"
        elif better == "=":
            rights *= 2
        if len(rights) < len("rr"):
            return Pressed()
        return self._judge(sides, verdict, *[right == "r" for right in rights])

    def _judge(self, sides: Sides, verdict: Better, *rights: bool | None) -> Pressed:
        """Record a judgement, with whether the first and the second output are right, and go on to the next pair."""
        output, reference = rights if sides.first == "output" else rights[::-1]
        judgement = Judgement(*sides.pair.id, sides.first, verdict, output, reference, self._reviewer, now())
        self.judged[sides.pair.id] = judgement
        self._earlier.append(sides.pair)
        self._show(self._following())
        return Pressed(written=judgement)

    def _following(self) -> Pair | None:
        return next((pair for pair in self._order if pair.id not in self.judged), None)

    def _back(self) -> bool:
        """Go back to the first question of this pair, or to the pair before; return whether there was one."""
        if self._keys:
            self._keys = ""
            return True
        if self._earlier:
            self._show(self._earlier.pop())
            return True
        return False

    def _show(self, pair: Pair | None) -> None:
        self._keys = ""
        self.current = None if pair is None else Sides(pair, self._room.first_side(self._reviewer, pair.id))
