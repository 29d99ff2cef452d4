"""The oracle: one question in plain Python, and its whole rollout tree expanded node by node.

Nothing here is shared with the array code but `actions.actions` and `engine.rank`, which are what serves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats, ScoreArrays, StepArrays
from cascade.engine import rank
from cascade.policies.base import Actions, actions
from cascade.types import Candidate, Decision, Step

SPECIAL = (math.inf, -math.inf, math.nan, 0.0, 0.25, 0.5, 0.75, 1.0)


class Place(NamedTuple):
    """One candidate of one step."""

    index: int  # its column in the arrays
    answer: int
    right: bool
    score: float
    confidence: float


class Case(NamedTuple):
    """One question: its steps on record, each with the candidates that there are."""

    steps: tuple[tuple[Place, ...], ...]
    costs: tuple[int, ...]
    onward: tuple[float, ...]
    complete: bool


class Leaf(NamedTuple):
    step: int
    place: Place
    ways: int  # the product of |C| along the path to it
    chance: Fraction  # of a draw that is uniform over C at every node


class Tree(NamedTuple):
    visited: tuple[int, ...]
    leaves: tuple[Leaf, ...]


class Outcome(NamedTuple):
    length: int
    cost: int
    leaves: int
    distinct: int
    correct_leaves: int
    in_set: bool
    covered: bool


def expand(case: Case, kappa: float, step: int = 0, ways: int = 1, chance: Fraction = Fraction(1)) -> Tree:
    """Follow every action of the set at this step, and of the steps below it."""
    places = case.steps[step]
    last = step == len(case.steps) - 1
    chosen = actions([place.score for place in places], case.onward[step], kappa, last=last)
    if last and not case.complete:  # what "next" would have scored is not to be relied on: only what is certain is kept
        chosen = Actions(tuple(k for k, one in enumerate(places) if -math.inf < one.score >= kappa), proceed=False)
    size = len(chosen.keep) + chosen.proceed
    here = [Leaf(step, places[k], ways * size, chance / size) for k in chosen.keep]
    if not chosen.proceed:
        return Tree((step,), tuple(here))
    below = expand(case, kappa, step + 1, ways * size, chance / size)
    return Tree((step, *below.visited), (*here, *below.leaves))


def outcome(case: Case, kappa: float) -> Outcome:
    tree = expand(case, kappa)
    right = [leaf for leaf in tree.leaves if leaf.place.right]
    known_hopeless = case.complete and not any(place.right for places in case.steps for place in places)
    return Outcome(
        length=len(tree.visited),
        cost=sum(case.costs[step] for step in tree.visited),
        leaves=len(tree.leaves),
        distinct=len({leaf.place.answer for leaf in tree.leaves}),
        correct_leaves=len(right),
        in_set=bool(right),
        covered=bool(right) or known_hopeless,
    )


def weighted_hits(case: Case, kappa: float) -> Fraction:
    """Return E[Π|C|·1{the answer drawn is right}] over uniform draws from the sets, exactly."""
    return sum((leaf.chance * leaf.ways * leaf.place.right for leaf in expand(case, kappa).leaves), Fraction(0))


def served(case: Case, kappa: float, *, at_any_cost: bool = False) -> tuple[int, bool]:
    """Return the single answer that the engine would serve, −1 for none, and whether it is right.

    With `at_any_cost` the best of all answers is served where none is kept.
    """
    tree = expand(case, kappa)
    steps = []
    for step in tree.visited:
        places = case.steps[step]
        candidates = tuple(
            Candidate(_text(step, p), "base", "small", None if math.isnan(p.confidence) else p.confidence)
            for p in places
        )
        kept = {leaf.place.index for leaf in tree.leaves if leaf.step == step}
        keep = tuple(k for k, place in enumerate(places) if place.index in kept)
        steps.append(Step(step + 1, candidates, {}, decision=Decision(keep, False, (), 0.0, kappa)))
    ranked = rank(steps, at_any_cost=at_any_cost)
    if not ranked:
        return -1, False
    places = ((step, place) for step in tree.visited for place in case.steps[step])
    best = next(place for step, place in places if _text(step, place) == ranked[0])
    return best.answer, best.right


def _text(step: int, place: Place) -> str:
    """Return a text of its own for every candidate; those of one answer differ in marks that no comparison sees."""
    return f"answer{place.answer}{'!' * (1 + 10 * step + place.index)}"


def random_case(rng: np.random.Generator, horizon: int, width: int) -> Case:
    """Draw a question: ragged, with holes, ties, infinities and what is not a number."""
    many = int(rng.integers(1, horizon + 1))
    pool = int(rng.integers(1, min(5, horizon * width) + 1))
    truth = int(rng.integers(0, pool + 2))
    rounded = rng.random() < 0.5

    def score() -> float:
        if rng.random() < 0.25:
            return SPECIAL[int(rng.integers(len(SPECIAL)))]
        drawn = float(rng.normal(0.4, 0.5))
        return round(drawn, 1) if rounded else drawn

    def place(index: int) -> Place:
        answer = int(rng.integers(pool))
        right = answer == truth if rng.random() < 0.9 else bool(rng.random() < 0.5)
        confidence = math.nan if rng.random() < 0.3 else round(float(rng.random()), 1)
        return Place(index, answer, right, score(), confidence)

    return Case(
        steps=tuple(tuple(place(a) for a in range(width) if rng.random() < 0.85) for _ in range(many)),
        costs=tuple(int(cost) for cost in rng.integers(0, 10**9, many)),
        onward=tuple(score() for _ in range(many)),
        complete=bool(rng.random() < 0.7),
    )


def pack(cases: Sequence[Case], horizon: int, width: int) -> tuple[StepArrays, ScoreArrays, Floats]:
    """Return the same questions as arrays. Where nothing is on record, scores hold what must not matter."""
    n = len(cases)
    rng = np.random.default_rng(n)
    rubbish = np.array(SPECIAL)
    steps = StepArrays(
        answer=np.full((n, horizon, width), -1, dtype=np.int64),
        correct=np.zeros((n, horizon, width), dtype=np.bool_),
        cost=np.zeros((n, horizon), dtype=np.int64),
        steps=np.array([len(case.steps) for case in cases], dtype=np.int64),
        complete=np.array([case.complete for case in cases], dtype=np.bool_),
    )
    scores = ScoreArrays(rng.choice(rubbish, (n, horizon, width)), rng.choice(rubbish, (n, horizon)))
    confidence = rng.choice(rubbish, (n, horizon, width))
    for q, case in enumerate(cases):
        for t, places in enumerate(case.steps):
            steps.cost[q, t], scores.next[q, t] = case.costs[t], case.onward[t]
            for place in places:
                at = (q, t, place.index)
                steps.answer[at], steps.correct[at] = place.answer, place.right
                scores.candidates[at], confidence[at] = place.score, place.confidence
    return steps, scores, confidence


def telling_kappas(case: Case, rng: np.random.Generator, count: int) -> list[float]:
    """Return thresholds where something may change: the case's own scores, their neighbours, the ends, some between."""
    own = [place.score for places in case.steps for place in places] + list(case.onward)
    finite = [score for score in own if math.isfinite(score)] or [0.0]
    found = [math.inf, -math.inf, *rng.choice(finite, count - 5).tolist()]
    return [
        *found,
        math.nextafter(found[2], math.inf),
        math.nextafter(found[2], -math.inf),
        float(rng.normal(0.4, 0.5)),
    ]


def batches(seed: int, per_shape: int) -> list[tuple[list[Case], int, int]]:
    """Return random cases for each shape T = 1..5, m = 1..3."""
    rng = np.random.default_rng(seed)
    return [
        ([random_case(rng, horizon, width) for _ in range(per_shape)], horizon, width)
        for horizon in range(1, 6)
        for width in range(1, 4)
    ]
