"""Small worlds whose best policy is known, and logs of them.

A question has a kind that decides how likely each step is to answer it; a step shows a number that tells of the kind.
All probabilities are finite tables, so that the best policy is found by enumeration, without the code under test.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from cascade.calibration.scores import scored
from cascade.conformal.arrays import Floats, StepArrays, levels
from cascade.conformal.frontier import frontier
from cascade.episodes.table import EpisodeTable
from cascade.policies.base import Policy


@dataclass(frozen=True)
class Coins:
    """T steps of one answer. Step t shows 0 or 1, then is right or not, by the question's kind.

    Attributes:
        kinds: probability of each kind.
        shows: (kinds, T), probability that step t shows 1.
        right: (kinds, T), probability that step t, and no earlier one, is the first right, given none before was.
        cost: (T,), nano-USD.
    """

    kinds: Floats
    shows: Floats
    right: Floats
    cost: Floats

    @property
    def horizon(self) -> int:
        return len(self.cost)

    def draw(self, n: int, seed: int) -> EpisodeTable:
        """Return n questions, every step on record."""
        rng = np.random.default_rng(seed)
        kind = rng.choice(len(self.kinds), size=n, p=self.kinds)
        shown = (rng.random((n, self.horizon)) < self.shows[kind]).astype(np.float64)
        first = rng.random((n, self.horizon)) < self.right[kind]
        correct = np.logical_or.accumulate(first, axis=1) & (first.cumsum(axis=1) == 1)
        return log(correct[:, :, None], np.tile(self.cost, (n, 1)), {"sign": shown}, name=f"c{seed}")

    def best(self, price: float) -> tuple[float, float]:
        """Return the loss and the cost of the best policy at a price of a miss, by enumeration of all it can see.

        Over histories of what was shown: value(h) = max(stop, go on), weights P(h, kind, first right step).
        """
        kinds, horizon = len(self.kinds), self.horizon

        def chance(shown: tuple[int, ...]) -> Floats:
            """P(kind, these were shown): (kinds,)."""
            found = self.kinds.copy()
            for t, value in enumerate(shown):
                found = found * np.where(value, self.shows[:, t], 1 - self.shows[:, t])
            return found

        missing = np.concatenate([np.ones((kinds, 1)), np.cumprod(1 - self.right, axis=1)], axis=1)

        def value(shown: tuple[int, ...]) -> tuple[float, float, float]:
            """Return (price · loss + cost from here, loss, cost), each times P(shown), after step len(shown)."""
            t, weight = len(shown), chance(shown)
            late = weight @ (missing[:, t] - missing[:, horizon])  # a right answer is still to come
            stop = (price * late, float(late), 0.0)
            if t == horizon:
                return stop
            parts = [value((*shown, one)) for one in (0, 1)]
            on = tuple(sum(part[k] for part in parts) for k in range(3))
            spent = float(weight.sum() * self.cost[t])
            going = (on[0] + spent, on[1], on[2] + spent)
            return going if t == 0 or going[0] < stop[0] else stop

        _, loss, cost = value(())
        return loss, cost


def log(
    correct: np.ndarray,
    cost: np.ndarray,
    signals: dict[str, Floats],
    *,
    name: str = "q",
    confidence: Floats | None = None,
) -> EpisodeTable:
    """Return a complete log of answers that all differ but the right ones: correct bool (n, T, m), cost (n, T)."""
    n, horizon, places = correct.shape
    answer = np.broadcast_to(np.arange(1, horizon * places + 1).reshape(horizon, places), correct.shape)
    answer = np.where(correct, 0, answer)
    arrays = StepArrays(
        _numbered(answer), correct, cost.astype(np.int64), np.full(n, horizon), np.ones(n, dtype=np.bool_)
    )
    sources = {1: ("answer",), 2: ("base", "guide")}[places]
    ids = tuple(f"{name}{row}" for row in range(n))
    sure = np.full(correct.shape, np.nan) if confidence is None else confidence
    return EpisodeTable("made", ids, ids, sources, arrays, sure, signals, {})


def _numbered(answer: np.ndarray) -> np.ndarray:
    """Number each question's answers in the order of appearance."""
    flat = answer.reshape(len(answer), -1)
    first = (flat[:, :, None] == flat[:, None, :]).argmax(axis=2)
    new = first == np.arange(flat.shape[1])
    return np.take_along_axis(new.cumsum(axis=1) - 1, first, axis=1).reshape(answer.shape)


def cost_at(policy: Policy, table: EpisodeTable, alpha: float) -> float:
    """Return what a policy costs a question where it covers exactly 1 − alpha."""
    shown, scores = scored(policy, table)
    point = frontier(shown.arrays, levels(shown.arrays, scores)).matched(1 - alpha)
    assert point is not None
    return point.cost


def lowest(coins: Coins, loss: float) -> float:
    """Return the least cost of any policy, coins between two allowed, that loses no more than this."""
    found = sorted({coins.best(price) for price in np.geomspace(1e6, 1e12, 400)})
    losses, costs = np.array(found).T
    return float(np.interp(loss, losses, costs))


def without(table: EpisodeTable, **changes: object) -> EpisodeTable:
    """Return a table with some parts replaced."""
    return replace(table, **changes)  # type: ignore[arg-type]  # names of its own fields
