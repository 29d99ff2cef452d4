"""Large finite populations of questions, of which every risk is known: a guarantee is measured, not estimated, on them.

Calibration sets are drawn from a population independently and with replacement. So the risk of a threshold for a fresh
question is a count over the population, divided by its size: no test set, and no error of its own.

A question has a difficulty; models of rising strength and price try it, two a step. Scores follow the difficulty, with
noise, so that a policy's threshold is worth something but is often wrong; so do the confidences. A population with ties
has every score rounded to a multiple of 1/128: most of its questions then share their critical value with many others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, ScoreArrays, StepArrays, StepFunctions, levels
from cascade.conformal.split import critical_kappa

SIZE = 100_000
HORIZON, CANDIDATES = 3, 2
GRID = 128
"""Scores with ties are whole multiples of 1/128."""
HOPELESS = 0.01
"""The share of questions that no model can answer."""
CUT_SHORT = 0.02
GROUPS = 12
WRONG = 4
"""Different wrong answers to a question."""
TYPICAL_NANO_USD = (1_000_000, 4_000_000, 8_000_000)
"""What a step costs; three times as much at most."""
DEAREST_NANO_USD = 3 * sum(TYPICAL_NANO_USD)
"""No question can cost more."""


@dataclass(frozen=True, slots=True)
class Population:
    """Questions with all that is known of them.

    Attributes:
        name: what the table calls it.
        ties: whether scores are coarse.
        steps, scores, levels: as in `cascade.conformal`.
        critical: float64 (N,), the critical values.
        confidence: float64 (N, T, m).
        quality: float64 (N, T, m) in 0..1, what an answer is worth, 1 where it is right.
        groups: which group a question is of, int64 (N,).
    """

    name: str
    ties: bool
    steps: StepArrays
    scores: ScoreArrays
    levels: Levels
    critical: Floats
    confidence: Floats
    quality: Floats
    groups: Ints

    @property
    def size(self) -> int:
        """N."""
        return self.steps.n


def missed(critical: Floats, kappa: Floats) -> Floats:
    """Return the share of a population that each threshold misses, exactly: those with kappa* < kappa, or kappa* = −∞.

    >>> missed(np.array([0.1, 0.2, 0.2, np.inf]), np.array([0.2, 0.3, -np.inf])).tolist()
    [0.25, 0.75, 0.0]
    """
    each = np.ones(critical.size, dtype=np.int64)
    misses = StepFunctions(each, critical[:, None], -each[:, None]).curve()
    return np.asarray(misses.total[misses.index(kappa)] / critical.size, dtype=np.float64)


def cut_short(whole: Population) -> Population:
    """Return the population with a share of its questions cut short after a first step without a right answer.

    Whether a right one would have come is unknown: they count as missed at every threshold.
    """
    cut = np.random.default_rng(12).random(whole.size) < CUT_SHORT
    correct = whole.steps.correct & ~cut[:, None, None]
    many = np.where(cut, 1, whole.steps.steps)
    steps = StepArrays(whole.steps.answer, correct, whole.steps.cost, many, whole.steps.complete & ~cut)
    found = levels(steps, whole.scores)
    name = f"{whole.name}, {CUT_SHORT:.0%} cut short"
    return replace(whole, name=name, steps=steps, levels=found, critical=critical_kappa(steps, found))


@cache
def population(*, ties: bool, size: int = SIZE) -> Population:
    """Return a population; the same each time."""
    chance = np.random.default_rng([11, size])
    shape = (size, HORIZON, CANDIDATES)
    difficulty = chance.random(size)
    correct = _right(chance, difficulty, shape)
    steps = StepArrays(
        answer=np.where(correct, 0, chance.integers(1, WRONG + 1, shape)),
        correct=correct,
        cost=_cost(chance, shape[:2]),
        steps=np.full(size, HORIZON),
        complete=np.ones(size, dtype=np.bool_),
    )
    scores = _scores(chance, difficulty, correct)
    confidence = np.clip(0.5 + 0.3 * (2 * correct - 1) + 0.25 * chance.standard_normal(shape), 0, 1)
    if ties:
        scores = ScoreArrays(np.floor(scores.candidates * GRID) / GRID, np.floor(scores.next * GRID) / GRID)
        confidence = np.floor(confidence * GRID) / GRID
    found = levels(steps, scores)
    partial = np.where(chance.random((size, WRONG + 1)) < 0.5, chance.random((size, WRONG + 1)), 0.0)
    partial[:, 0] = 1.0
    return Population(
        name="ties" if ties else "no ties",
        ties=ties,
        steps=steps,
        scores=scores,
        levels=found,
        critical=critical_kappa(steps, found),
        confidence=confidence,
        quality=np.take_along_axis(partial, steps.answer.reshape(size, -1), axis=1).reshape(shape),
        groups=_groups(chance, difficulty),
    )


def _right(chance: np.random.Generator, difficulty: Floats, shape: tuple[int, int, int]) -> Bools:
    """Mark the right answers: each model solves what is easier than its strength, give or take some luck."""
    strength = np.array([[0.2, 0.3], [0.6, 0.8], [1.1, 1.3]])
    luck = 0.15 * chance.standard_normal(shape)
    right = difficulty[:, None, None] < strength + luck
    return np.asarray(right & (difficulty < 1 - HOPELESS)[:, None, None], dtype=np.bool_)


def _cost(chance: np.random.Generator, shape: tuple[int, int]) -> Ints:
    """Return what steps cost in nano-USD: dearer step by step, long questions more, never above the cap."""
    typical = np.array(TYPICAL_NANO_USD)
    drawn = np.minimum(typical * np.exp(0.5 * chance.standard_normal(shape)), 3 * typical)
    return np.asarray(drawn, dtype=np.int64)


def _scores(chance: np.random.Generator, difficulty: Floats, correct: Bools) -> ScoreArrays:
    """Return scores: answers by their noisy chance to be right, going on by a noisy difficulty, mostly above them."""
    answers = 0.1 + 0.4 * chance.random(correct.shape) + 0.5 * chance.random(correct.shape) * correct
    onward = 0.1 + 0.5 * difficulty[:, None] * chance.random(correct.shape[:2])
    return ScoreArrays(answers, onward)


def _groups(chance: np.random.Generator, difficulty: Floats) -> Ints:
    """Return the groups, of sizes that fall as 1/rank²; half of the easy questions of an odd one are the next one's."""
    share = 1.0 / np.arange(1, GROUPS + 1) ** 2
    group = chance.choice(GROUPS, size=difficulty.size, p=share / share.sum())
    moves = (group % 2 == 1) & (difficulty < 0.5) & (chance.random(difficulty.size) < 0.5)
    return np.asarray(np.where(moves, (group + 1) % GROUPS, group), dtype=np.int64)
