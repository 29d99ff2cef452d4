"""One person's review of a log as a state machine, which a terminal and a page share.

It decides which pair comes next, what a key means and what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from cascade.conformal.monitor import is_drawn, uniform
from cascade.review.pairs import Output, Pair, PairId
from cascade.review.reviews import Better, Judgement, Side, Terms
from cascade.text import now_utc

_RIGHT = {"r": "right", "w": "wrong"}
_BETTER = {"1": "first better", "2": "second better", "=": "equal", "0": "both bad"}
MOVES: Mapping[str, str] = {"s": "skip", "b": "back", "q": "quit"}
_VERDICTS: Mapping[str, Better] = {"=": "equal", "0": "both_bad"}


class Stage(NamedTuple):
    """A question to the reviewer, and the meaning of each key that answers it."""

    question: str
    keys: Mapping[str, str]


BETTER = Stage("Which output is better?", _BETTER)
FIRST = Stage("Is the first output right?", _RIGHT)
SECOND = Stage("Is the second output right?", _RIGHT)
BOTH = Stage("Are both right, or both wrong?", _RIGHT)


class Sides(NamedTuple):
    """A pair in the order shown, from which a reviewer cannot tell which model wrote which output.

    The token is a name for the pair that does not reveal it either.
    """

    pair: Pair
    first: Side
    token: str

    @property
    def outputs(self) -> tuple[Output, Output]:
        """The two outputs, in the order in which they are shown."""
        both = self.pair.output, self.pair.reference
        return both if self.first == "output" else both[::-1]


class Pressed(NamedTuple):
    """The effect of a key.

    Attributes:
        meant: whether the key has a meaning at this stage.
        written: the judgement to write to the disk now.
        ended: whether the reviewer ended the review.
    """

    meant: bool = True
    written: Judgement | None = None
    ended: bool = False


class Session:
    """One person's review of the drawn pairs, in a random order that is fixed for each person.

    Args:
        pairs: every pair of the log.
        terms: the terms of the file of reviews.
        reviewer: the person's name.
        judged: the reviewer's earlier judgements, in their order; the review continues after them.

    Attributes:
        drawn: the pairs that were drawn.
        current: the pair that is shown; None if all were judged.
        judged: the judgements so far, by pair.
    """

    def __init__(self, pairs: Sequence[Pair], terms: Terms, reviewer: str, judged: Mapping[PairId, Judgement]) -> None:
        self._terms, self._reviewer = terms, reviewer
        drawn = (pair for pair in pairs if is_drawn(terms.key, terms.rate, pair.question))
        self.drawn = sorted(drawn, key=lambda pair: uniform(terms.key, "order", reviewer, pair.id.name))
        self.judged: dict[PairId, Judgement] = dict(judged)
        by_id = {pair.id: pair for pair in self.drawn}
        self._earlier = [by_id[name] for name in judged if name in by_id]
        self._keys = ""  # the answers about the current pair so far
        self.current: Sides | None = None
        self._show_next()

    @property
    def stage(self) -> Stage:
        """The question that the reviewer has to answer."""
        if not self._keys:
            return BETTER
        return BOTH if self._keys[0] == "=" else (FIRST, SECOND)[len(self._keys) - 1]

    @property
    def number(self) -> int:
        """The number of the current pair among those that the reviewer has seen."""
        return 1 + sum(self.current is None or pair != self.current.pair.id for pair in self.judged)

    def press(self, key: str) -> Pressed:
        """Process a key; the caller must write `Pressed.written` before showing anything else."""
        sides = self.current
        if key == "q" or sides is None:
            return Pressed(meant=key == "q", ended=key == "q")
        if key == "b":
            return Pressed(meant=self._back())
        if key == "s":
            return self._judge(sides, "skipped", None, None)
        if key not in self.stage.keys:
            return Pressed(meant=False)
        self._keys += key
        return self._answered(sides, self._keys[0], self._keys[1:])

    def _answered(self, sides: Sides, better: str, rights: str) -> Pressed:
        """Judge the pair once all its questions are answered."""
        other: Side = "reference" if sides.first == "output" else "output"
        verdict = _VERDICTS.get(better) or (sides.first if better == "1" else other)
        if self._terms.ask == "preference":
            return self._judge(sides, verdict, None, None)
        if better == "0":  # both bad: neither is right
            rights = "ww"
        elif better == "=":
            rights *= 2
        if len(rights) < len("rr"):
            return Pressed()
        return self._judge(sides, verdict, *[right == "r" for right in rights])

    def _judge(self, sides: Sides, verdict: Better, *rights: bool | None) -> Pressed:
        """Record a judgement, with whether the first and the second output are right, and show the next pair."""
        output, reference = rights if sides.first == "output" else rights[::-1]
        judgement = Judgement(*sides.pair.id, sides.first, verdict, output, reference, self._reviewer, now_utc())
        self.judged[sides.pair.id] = judgement
        self._earlier.append(sides.pair)
        self._show_next()
        return Pressed(written=judgement)

    def _back(self) -> bool:
        """Go back to the first question of this pair, or to the previous pair; return whether there was one."""
        if not self._keys and not self._earlier:
            return False
        self._show(self.current.pair if self._keys and self.current else self._earlier.pop())
        return True

    def _show_next(self) -> None:
        self._show(next((pair for pair in self.drawn if pair.id not in self.judged), None))

    def _show(self, pair: Pair | None) -> None:
        self._keys, self.current = "", None
        if pair is not None:
            key, reviewer, name = self._terms.key, self._reviewer, pair.id.name
            first: Side = "output" if is_drawn(key, 0.5, "side", reviewer, name) else "reference"
            self.current = Sides(pair, first, f"{uniform(key, 'token', reviewer, name):.17f}"[2:])
