"""Baselines that an engineer could set up by hand: a vote of cheap models, and a router that reads only the request.

Both are rows of `cascade compare`, so that a cascade is not compared only with the model that the user pays today. A
router asks one model, the first or the reference: it saves the first model's call if the reference is needed, but it
knows only the request. The baseline with one threshold for each rung is `methods.RungThresholds`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from cascade.calibration.scores import Played, played_of
from cascade.conformal.arrays import Bools, Floats, ScoreArrays, hopeless
from cascade.conformal.split import allowed_misses
from cascade.episodes.schema import BASE_ONLY
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import Ready, Unprepared, played_at
from cascade.evaluation.methods import Method
from cascade.guarantees.questions import has_reference, reference_walk
from cascade.training.estimators import logistic, probabilities

NEIGHBOURS = 25
"""The number of neighbours: the router's estimate is the share of them that the first model answered rightly."""
_PENALTY = 10.0
"""The penalty of each of the about twenty standardised columns of a request: a prior of ten questions each."""
_MOST_NEIGHBOURS = 5_000
"""The most training questions among which neighbours are searched."""
_CHUNK = 512

Chance: TypeAlias = Callable[[Floats], Floats]
"""Maps the features of requests, float64 (n, D), to the probability that the first model answers each rightly."""


@dataclass(frozen=True, slots=True)
class Majority(Unprepared):
    """The models before the last are asked until a majority agrees; if none does, the last model answers."""

    name: str = "majority, else the last model"

    @staticmethod
    def fits(table: EpisodeTable) -> bool:
        """Whether a log is a ladder of three models or more whose answers can be compared.

        A log with judged steps (`p_yes`) is not: a step may offer an earlier answer again, which is not a second vote.
        """
        votes = table.arrays.answer.shape[2] == 1 and "p_yes" not in table.signals
        return table.arrays.horizon > 2 and votes and bool(table.texts_known.any())

    def play(self, table: EpisodeTable) -> Played:
        """Return the outcome of the vote. It ends as soon as more than half of the models agree on one answer."""
        answer, present = table.arrays.answer[:, :, 0], table.arrays.present[:, :, 0] & table.texts_known[:, None]
        cheap = table.arrays.horizon - 1
        stops = np.zeros(answer.shape, dtype=np.bool_)
        for t in range(cheap):
            same = present[:, : t + 1] & (answer[:, : t + 1] == answer[:, t, None])
            stops[:, t] = present[:, t] & (2 * same.sum(axis=1) > cheap)
        scores = ScoreArrays(np.where(stops, np.inf, -np.inf)[:, :, None], np.where(stops, -np.inf, np.inf))
        return played_at(table, scores, 0.0)


@dataclass(frozen=True, slots=True)
class Router:
    """Ask the first model or the reference, by an estimate from the request alone of whether the first will be right.

    The bar on this estimate, a probability, is tuned on the calibration questions: the cheapest bar that covers
    1 − alpha of them or, if none does, the bar that covers most.
    """

    name: str
    fit: Callable[[Floats, Bools], Chance]

    @staticmethod
    def fits(table: EpisodeTable) -> bool:
        """Whether a log has every request's features, and the outcome of the first model and of the reference alone."""
        if not table.asked or table.arrays.horizon < 2 or BASE_ONLY not in table.walks or not has_reference(table):
            return False
        return bool((table.walks[BASE_ONLY].known & table.walks[reference_walk(table)].known).all())

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:  # noqa: ARG002
        """Fit on the training questions and tune the bar on the calibration questions."""
        centre, spread = _scale(train.asked)
        chance = self.fit(_rows(train.asked, centre, spread), train.walks[BASE_ONLY].right)
        bar = _tuned(calibration, chance(_rows(calibration.asked, centre, spread)), alpha)
        return Ready(lambda table: _routed(table, chance(_rows(table.asked, centre, spread)) >= bar))


def by_logistic(rows: Floats, right: Bools) -> Chance:
    """Fit a logistic regression."""
    found = logistic(rows, right.astype(np.float64), _PENALTY)
    return lambda asked: probabilities(found.of(asked))


def by_neighbours(rows: Floats, right: Bools) -> Chance:
    """Store the questions; the probability is the share of right answers among the nearest ones."""
    rows, right = rows[:_MOST_NEIGHBOURS], right[:_MOST_NEIGHBOURS].astype(np.float64)
    many = min(NEIGHBOURS, rows.shape[0])
    lengths = (rows**2).sum(axis=1)

    def chance(asked: Floats) -> Floats:
        found = np.empty(asked.shape[0])
        for start in range(0, asked.shape[0], _CHUNK):
            distance = lengths - 2 * asked[start : start + _CHUNK] @ rows.T
            nearest = np.argpartition(distance, many - 1, axis=1)[:, :many]
            found[start : start + _CHUNK] = right[nearest].mean(axis=1)
        return found

    return chance


ROUTERS = (
    Router("router on the request, logistic", by_logistic),
    Router("router on the request, neighbours", by_neighbours),
)


def methods_by_hand(table: EpisodeTable) -> Iterator[Method]:
    """Yield the baselines for which a log has the numbers."""
    if Majority.fits(table):
        yield Majority()
    if Router.fits(table):
        yield from ROUTERS


def _scale(asked: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of each feature, 0 and 1 if it is unknown or does not vary."""
    columns = np.stack([asked[name] for name in sorted(asked)], axis=1)
    known = ~np.isnan(columns)
    many = np.maximum(known.sum(axis=0), 1)
    centre = np.where(known, columns, 0.0).sum(axis=0) / many
    spread = np.sqrt(np.where(known, (columns - centre) ** 2, 0.0).sum(axis=0) / many)
    return centre, np.where(spread > 0, spread, 1.0)


def _rows(asked: Mapping[str, Floats], centre: Floats, spread: Floats) -> Floats:
    """Return the features of requests as standardised rows; an unknown feature is set to the mean."""
    columns = np.stack([asked[name] for name in sorted(asked)], axis=1)
    return np.where(np.isnan(columns), 0.0, (columns - centre) / spread)


def _routed(table: EpisodeTable, to_first: Bools) -> Played:
    """Return the outcome of asking the first model alone or the reference alone."""
    first, reference = table.walks[BASE_ONLY], table.walks[reference_walk(table)]
    covered, *others = (
        np.where(to_first, getattr(first, name), getattr(reference, name))
        for name in ("covered", "right", "cost", "length", "leaves", "distinct")
    )
    return played_of(covered | hopeless(table.arrays), covered, *others, np.zeros(table.n, dtype=np.bool_))


def _tuned(table: EpisodeTable, chance: Floats, alpha: float) -> float:
    """Return the cheapest bar among those that miss at most a share alpha of the questions."""
    order = np.argsort(-chance, kind="stable")
    first, reference = (_routed(table, np.full(table.n, which)) for which in (True, False))
    ends = np.append(chance[order][1:] < chance[order][:-1], True)  # questions with equal estimates are routed alike
    bars = np.append(np.inf, chance[order][ends])
    covered, cost = (
        _running(one[order], other[order], ends)
        for one, other in ((first.covered, reference.covered), (first.cost, reference.cost))
    )
    enough = covered >= table.n - allowed_misses(table.n, alpha)
    if enough.any():
        return float(bars[np.where(enough, cost, np.inf).argmin()])
    return float(bars[np.lexsort((cost, -covered))[0]])


def _running(first: Floats, reference: Floats, ends: Bools) -> Floats:
    """Return the totals when none, and then more and more questions, go to the first model."""
    return np.append(reference.sum(), reference.sum() + np.cumsum(first - reference)[ends])
