"""Random logs, each from its seed alone: what was asked, bought, answered and paid, as arrays. Needs only numpy.

Only uniform draws and exact arithmetic make them, so that they are the same on every machine. `World.digest` tells
whether numpy's generator still draws the same numbers.

A world is a ladder of models (one answer a step) or rounds in which a base and a guide answer (two answers a step).
Where `doubt` is at least the threshold, the walk goes on to the next step. A score of NaN is missing: full doubt.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

WORLDS = 1000
DELTA = 0.1
ALPHAS = (0.05, 0.1, 0.02, 0.2)
ERROR_ALPHAS = (0.2, 0.3, 0.45)
REVIEW_RATE = 0.5
"""The share of the questions that is drawn for people to judge."""


@dataclass(frozen=True)
class World:
    """A log of n questions, at most T steps each, with m answers a step.

    Attributes:
        seed: the world's number.
        strategy: "ladder" (m = 1) or "rounds" (m = 2: the base's answer, the guide's).
        alpha: the rate that promises allow; `error_alpha` that of the promise on errors.
        answer: int64 (n, T, m), equal for equal answers of a question, numbered by first appearance; −1: none.
        correct: bool (n, T, m), by the labels.
        cost: int64 (n, T), nano-USD; −1: unknown. 0 after the last step.
        steps: int64 (n,), the number of steps on record.
        complete: bool (n,), whether no further step was possible.
        doubt: float64 (n, T), NaN: missing.
        include: float64 (n, T, m + 1), the scores of a policy that keeps a set of answers: one an answer, and going on.
        confidence: float64 (n, T, m), ranks the answers; NaN: unknown.
        reference_known, reference_right: bool (n,), of the reference alone: a ladder's last model, or the guide.
        reference_cost: int64 (n,), nano-USD.
        group: the conversation of each question.
        segment: the segment of each question; None: none.
        drawn, judged, harmless: bool (n,), (n, T, 1), (n, T, 1): whether people were to judge the question; which
            answers of a ladder they judged, of those that differ from the last model's; which of these lose nothing.
    """

    seed: int
    strategy: str
    alpha: float
    error_alpha: float
    answer: Ints
    correct: Bools
    cost: Ints
    steps: Ints
    complete: Bools
    doubt: Floats
    include: Floats
    confidence: Floats
    reference_known: Bools
    reference_right: Bools
    reference_cost: Ints
    group: tuple[str, ...]
    segment: tuple[str | None, ...]
    drawn: Bools
    judged: Bools
    harmless: Bools

    @property
    def n(self) -> int:
        return int(self.answer.shape[0])

    @property
    def horizon(self) -> int:
        return int(self.answer.shape[1])

    @property
    def names(self) -> tuple[str, ...]:
        """The questions' names, by which they are drawn."""
        return tuple([f"q{row}" for row in range(self.n)])

    @property
    def cost_known(self) -> bool:
        return not bool((self.cost < 0).any())

    @property
    def same(self) -> Bools:
        """Whether an answer of a ladder equals the last model's, bool (n, T, 1); False where that is unknown."""
        last = self.answer[:, -1:, :]
        return (self.answer == last) & (self.answer >= 0) & self.reference_known[:, None, None]

    @property
    def digest(self) -> str:
        """The start of a SHA-256 of all arrays."""
        sums = hashlib.sha256()
        for each in fields(self):
            value = getattr(self, each.name)
            if isinstance(value, np.ndarray):
                sums.update(repr((each.name, value.shape, value.dtype.str)).encode() + value.tobytes())
            else:
                sums.update(repr((each.name, value)).encode())
        return sums.hexdigest()[:16]


def world(seed: int) -> World:
    """Return the world of a seed."""
    rng = np.random.default_rng([20261126, seed])
    n, ladder = int(rng.integers(40, 401)), seed % 5 < 3
    horizon, places = (int(rng.integers(2, 6)), 1) if ladder else (int(rng.integers(1, 5)), 2)
    shape = (n, horizon, places)
    hard = rng.random(n)
    correct = _correct(rng, hard, shape)
    answer = np.where(correct, 0, 1 + rng.integers(0, 4, size=shape))
    if seed % 11 == 0:  # some calls give no answer
        answer[rng.random(shape) < 0.03] = -1
    steps, complete = _lengths(rng, seed, n, horizon, ladder=ladder)
    beyond = np.arange(horizon) >= steps[:, None]
    answer[beyond] = -1
    correct &= answer >= 0
    doubt = _scores(rng, 0.6 * rng.random((n, horizon)) + 0.4 * ~correct[:, :, 0] * rng.random((n, horizon)), seed)
    missing = rng.random((n, horizon)) < (0.0, 0.05, 0.0, 0.3)[seed // 2 % 4]
    doubt[missing | beyond] = np.nan
    include = _scores(rng, rng.random((*shape[:2], places + 1)), seed)
    include[beyond] = np.nan
    confidence = _confidence(rng, correct, ladder=ladder)
    confidence[answer < 0] = np.nan
    prices = np.array([4**step for step in range(horizon)]) if ladder else np.full(horizon, 9)
    cost = prices * rng.integers(2_000, 9_000, size=(n, horizon))
    if seed % 7 == 0:
        cost[rng.random(cost.shape) < 0.1] = -1
    cost[beyond] = 0
    if ladder:
        known = (steps == horizon) & (answer[:, -1, 0] >= 0)
        right, spent = correct[:, -1, 0] & known, np.maximum(cost[:, -1], 0)
    else:
        known = rng.random(n) >= 0.05
        right, spent = known & (0.6 * hard + 0.4 * rng.random(n) < 0.7), rng.integers(20_000, 60_000, size=n)
    drawn = rng.random(n) < REVIEW_RATE
    judged = drawn[:, None, None] & (rng.random((n, horizon, 1)) < 0.9)
    return World(
        seed=seed,
        strategy="ladder" if ladder else "rounds",
        alpha=ALPHAS[seed // 4 % len(ALPHAS)],
        error_alpha=ERROR_ALPHAS[seed // 3 % len(ERROR_ALPHAS)],
        answer=_numbered(answer),
        correct=correct,
        cost=cost.astype(np.int64),
        steps=steps,
        complete=complete,
        doubt=doubt,
        include=include,
        confidence=confidence,
        reference_known=known,
        reference_right=right,
        reference_cost=spent.astype(np.int64),
        group=_groups(rng, seed, n),
        segment=_segments(rng, seed, n),
        drawn=drawn,
        judged=judged,
        harmless=judged & (rng.random((n, horizon, 1)) < 0.6),
    )


def _correct(rng: np.random.Generator, hard: Floats, shape: tuple[int, ...]) -> Bools:
    """Return which answers are right: later models and later rounds are better, and the guide is better."""
    low, high = 0.3 + 0.3 * rng.random(), 0.75 + 0.25 * rng.random()
    able = np.linspace(low, high, shape[1])[:, None] + np.arange(shape[2]) * 0.15
    return np.asarray(able > 0.6 * hard[:, None, None] + 0.4 * rng.random(shape), dtype=np.bool_)


def _lengths(rng: np.random.Generator, seed: int, n: int, horizon: int, *, ladder: bool) -> tuple[Ints, Bools]:
    """Return how many steps are on record, and whether more were possible: of some worlds some records end early."""
    short = rng.random(n) < ((0.02, 0.0, 0.06)[seed // 2 % 3] if horizon > 1 else 0.0)
    steps = np.where(short, rng.integers(1, max(2, horizon), size=n), horizon)
    ends = (rng.random(n) < 0.5) & (not ladder)  # a round may be the last one, before the most that there may be
    return steps.astype(np.int64), np.asarray(~short | ends, dtype=np.bool_)


def _scores(rng: np.random.Generator, values: Floats, seed: int) -> Floats:
    """Return scores as fine or as coarse as the world's: with many ties, or with atoms at both ends."""
    style = seed % 4
    if style == 3:
        drawn = rng.random(values.shape)
        return np.where(drawn < 0.3, 0.0, np.where(drawn > 0.9, 1.0, values))
    return values if style == 0 else np.round(values, 3 - style)


def _confidence(rng: np.random.Generator, correct: Bools, *, ladder: bool) -> Floats:
    """Return a ladder's confidences, which rise with the model, or estimates, some of them missing."""
    n, horizon, places = correct.shape
    if ladder:
        return np.broadcast_to((np.arange(1, horizon + 1) / horizon)[None, :, None], correct.shape).copy()
    confidence = np.round(0.5 * rng.random(correct.shape) + 0.5 * correct * rng.random(correct.shape), 2)
    confidence[rng.random((n, horizon, places)) < 0.1] = np.nan
    return confidence


def _groups(rng: np.random.Generator, seed: int, n: int) -> tuple[str, ...]:
    """Return the conversations: of every fourth world several questions belong to one."""
    chosen = rng.integers(0, max(1, n // 2), size=n)
    return tuple([f"c{chosen[row]}" if seed // 10 % 4 == 1 else f"q{row}" for row in range(n)])


def _segments(rng: np.random.Generator, seed: int, n: int) -> tuple[str | None, ...]:
    """Return the segments, of unequal size, where the world has any; some questions belong to none."""
    drawn = rng.random(n)
    names = [("law", "art", "tax", None)[int(np.searchsorted([0.5, 0.85, 0.95], at))] for at in drawn.tolist()]
    return tuple(names) if seed % 3 == 1 else (None,) * n


def _numbered(answer: Ints) -> Ints:
    """Number the answers of each question in the order of their first appearance."""
    flat = answer.reshape(answer.shape[0], -1)
    numbered = np.full(flat.shape, -1, dtype=np.int64)
    for row in range(flat.shape[0]):
        numbers: dict[int, int] = {}
        for place, value in enumerate(flat[row].tolist()):
            if value >= 0:
                numbered[row, place] = numbers.setdefault(value, len(numbers))
    return numbered.reshape(answer.shape)
