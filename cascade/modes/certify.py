"""Test, on whole conversations replayed as the server will serve them, that at most a share r of the requests is lost.

The served rule: a turn is kept where the policy stops before the guide; from then on the guide answers the
conversation. So a conversation of T turns has at most one lost turn, D = 0 or 1, and at most a share r of the requests
is lost if E[D − rT] ≤ 0. D may fall as a threshold becomes more lenient, since another turn is then kept first. So the
thresholds are fixed on other requests and tested from strict to lenient, each at the whole level, until the first one
that fails.

Reference: Waudby-Smith & Ramdas, Estimating means of bounded random variables by betting (2024).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.binomial import most_losses
from cascade.table import Bools, Floats, Ints

_THRESHOLDS = 50
_STAKES = np.linspace(0.02, 0.98, 49)
"""Shares of the largest stake at which no lost conversation can ruin the capital."""


def grid(levels: Floats) -> list[float]:
    """Return thresholds to test, strict to lenient: midpoints between levels of other requests, so none equals one.

    >>> grid(np.array([[np.inf, 0.2], [np.inf, 0.6], [np.inf, 0.2]]))
    [0.4, inf]
    """
    finite = np.unique(levels[np.isfinite(levels)])
    midways = (finite[:-1] + finite[1:]) / 2
    at = np.unique(np.linspace(0, midways.size - 1, min(_THRESHOLDS, midways.size)).round().astype(np.int64))
    return [*midways[at].tolist(), math.inf]


class Stops(NamedTuple):
    """What a policy does on each request of a table at a threshold.

    Attributes:
        lost: bool (n,), whether the answer served is lost.
        cost: int64 (n,), nano-USD.
        asks_last: bool (n,), whether the guide was asked, so that its answer is served.
    """

    lost: Bools
    cost: Ints
    asks_last: Bools


class ConversationTurns(NamedTuple):
    """The turns of whole conversations, one conversation after the other, each in the order of its turns.

    Attributes:
        row: int64 (m,), the row of each turn in a table; −1 if it has no record.
        of: int64 (m,), the number of its conversation.
    """

    row: Ints
    of: Ints

    @property
    def lengths(self) -> Ints:
        """The number of turns of each conversation."""
        return np.bincount(self.of)

    def served(self, at: Stops) -> ServedTurns:
        """Replay the conversations as they would be served at a threshold, given what the policy does on each row.

        A turn without a record is kept and lost: the server would have had to decide on it.
        """
        recorded = self.row >= 0
        lost = ~recorded | at.lost[self.row]
        stops = np.flatnonzero(lost | ~at.asks_last[self.row])
        conversations, first = np.unique(self.of[stops], return_index=True)
        stop = np.full(self.lengths.size, self.row.size)
        stop[conversations] = stops[first]
        return ServedTurns(np.append(lost, False)[stop], np.arange(self.row.size) - stop[self.of])


class ServedTurns(NamedTuple):
    """Conversations as they are served at a threshold.

    Attributes:
        lost: bool, whether each conversation's kept turn is lost; False if no turn is kept.
        since: int64 (m,), the number of each turn counted from the kept one: below 0 before it, above 0 after it.
    """

    lost: Bools
    since: Ints


class Proof(NamedTuple):
    """A test that at most a share r of the requests is lost, fixed before the conversations are seen.

    Guarantee: if more is lost, it passes with probability at most `level`, for independent conversations of any length.

    Attributes:
        risk, level: of the promise.
        stake: λ of the bet on each conversation, which multiplies the capital by 1 + λ(rT − D); None for the exact
            test of D only, as if each conversation had one turn, which promises no less.
    """

    risk: float
    level: float
    stake: float | None = None

    @classmethod
    def best(cls, risk: float, level: float, count: int, lengths: Sequence[int] | Ints) -> Proof:
        """Return the test that allows the most losses in `count` conversations, if others' lengths are typical."""
        turns = np.asarray(lengths, dtype=np.float64)
        bets = [cls(risk, level, stake / (1 - risk)) for stake in _STAKES] if turns.size and turns.max() > 1 else []
        return max([cls(risk, level), *bets], key=lambda proof: proof.allowed(turns, count))

    def allowed(self, lengths: Sequence[int] | Ints | Floats, count: int | None = None) -> int:
        """Return how many conversations may be lost, exactly if all have one length, else about; −1: it cannot pass.

        The conversations have these `lengths`; with a `count`, there are that many, with lengths distributed alike.
        """
        turns = np.asarray(lengths, dtype=np.float64)
        count = turns.size if count is None else count
        if self.stake is None:
            most = most_losses(count, self.risk, self.level)
            return -1 if most is None else most
        won = np.log1p(self.stake * self.risk * turns)
        fall = won - np.log1p(self.stake * (self.risk * turns - 1))
        return max(-1, math.floor((count * float(won.mean()) + math.log(self.level)) / float(fall.mean())))

    def passes(self, lost: Bools, lengths: Ints) -> bool:
        """Return whether the test finds that the promise holds."""
        if self.stake is None:
            most = most_losses(lost.size, self.risk, self.level)
            return most is not None and int(np.count_nonzero(lost)) <= most
        return float(np.log1p(self.stake * (self.risk * lengths - lost)).sum()) >= -math.log(self.level)


class PassingThreshold(NamedTuple):
    """The most lenient threshold that passes, with the stops on each row and the replay of the conversations."""

    kappa: float
    stops: Stops
    replay: ServedTurns


def fixed_sequence_test(
    proof: Proof, turns: ConversationTurns, thresholds: Sequence[float], served: Callable[[float], Stops]
) -> PassingThreshold | None:
    """Test thresholds from strict to lenient until one fails; return the last that passes, None if the first fails.

    `served` returns what a policy does on each row at a threshold.
    """
    best = None
    for kappa in thresholds:
        stops = served(kappa)
        replay = turns.served(stops)
        if not proof.passes(replay.lost, turns.lengths):
            break
        best = PassingThreshold(kappa, stops, replay)
    return best
