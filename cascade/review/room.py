"""The review of one log: the pairs, their draw, and the next pair of each reviewer.

A terminal and a page share the same room: this module and `session` decide which pair comes next, what a key means and
what is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from cascade.conformal.labels import is_drawn
from cascade.review.pairs import Pair, PairId
from cascade.review.path import Along
from cascade.review.reviews import Judgement, Terms
from cascade.review.session import Choose, Judged, Session, one_by_one, shuffled


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
