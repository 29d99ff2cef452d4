"""What the code certifies on a world (`worlds`): thresholds, costs and decisions as numbers that can be compared.

`outcomes` gives a line for each promise. Decisions are told by counts and by the start of a hash, so that a thousand
worlds fit into a small file.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.samples import one_a_group, selected
from cascade.calibration.scores import Sample
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, passed, rollout
from cascade.conformal.served import serves, single
from cascade.episodes.table import EpisodeTable, Walk
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import Found, Labels, Truth
from cascade.guarantees.served_answer import every_threshold
from cascade.types import GUIDE_ONLY, LAST_ONLY
from record.worlds import DELTA, REVIEW_RATE, Bools, World

_SELECTION = 0.3
"""The share of the questions that order a path, where one is needed."""


class Case(NamedTuple):
    """A promise on a world: of what, on which table and scores, and by which path (None: the promise's own)."""

    name: str
    guarantee: Guarantee
    table: EpisodeTable
    scores: ScoreArrays
    path: str | None = None


def outcomes(world: World) -> dict[str, Any]:
    """Return the outcome of each promise on a world."""
    return {case.name: outcome_of(case, world.seed) for case in _cases(world)}


def _cases(world: World) -> Iterator[Case]:
    table, everything = _table(world), np.full(world.answer.shape, np.inf)
    depth = ScoreArrays(everything, world.doubt)
    sets = ScoreArrays(world.include[:, :, :-1], world.include[:, :, -1])
    alpha, high = world.alpha, world.error_alpha
    for name, scores in (("coverage", depth), ("sets", sets)):
        yield Case(name, Guarantee("coverage", alpha), table, scores)
        yield Case(f"{name} delta", Guarantee("coverage", alpha, DELTA), table, scores)
        if any(world.segment):
            yield Case(f"{name} segments", Guarantee("coverage", alpha, by_segment=True), table, scores)
            yield Case(f"{name} segments delta", Guarantee("coverage", alpha, DELTA, by_segment=True), table, scores)
    yield Case("error", Guarantee("error", high, DELTA), table, depth, "ordered")
    yield Case("error strict", Guarantee("error", high, DELTA), table, depth, "strict")
    yield Case("error abstain", Guarantee("error", alpha, DELTA, abstain=True), table, depth, "ordered")
    if world.strategy == "rounds":
        yield Case("regret", Guarantee("regret", high, DELTA), table, depth, "ordered")
        yield Case("regret strict", Guarantee("regret", high, DELTA), table, depth, "strict")
        return
    yield Case("regret", Guarantee("regret", alpha, DELTA), table, depth)
    yield Case("agreement", Guarantee("agreement", high, DELTA), _compared(world, table), depth)
    yield Case("preference", Guarantee("preference", high, DELTA), _reviewed(world, table), depth)


def _table(world: World) -> EpisodeTable:
    known, cost = world.reference_known, world.reference_cost
    one = known.astype(np.int64)
    walk = Walk(known, world.reference_right, world.reference_right, cost, one, one, one)
    return EpisodeTable(
        dataset="world",
        ids=world.names,
        groups=world.group,
        sources=("answer",) if world.strategy == "ladder" else ("base", "guide"),
        arrays=StepArrays(world.answer, world.correct, np.maximum(world.cost, 0), world.steps, world.complete),
        confidence=world.confidence,
        signals={},
        walks={LAST_ONLY if world.strategy == "ladder" else GUIDE_ONLY: walk},
        cost_known=world.cost_known,
        texts_known=np.ones(world.n, dtype=np.bool_),
        segments=world.segment,
    )


def _right(table: EpisodeTable, correct: Bools, truth: Truth, labels: Labels | None) -> EpisodeTable:
    (name, walk), *_ = table.walks.items()
    walk = replace(walk, right=walk.known, covered=walk.known)
    arrays = replace(table.arrays, correct=correct)
    return replace(table, arrays=arrays, truth=truth, labels=labels, walks={name: walk})


def _compared(world: World, table: EpisodeTable) -> EpisodeTable:
    """Return the table in which "right" is "equal to the last model's"."""
    return _right(table, world.same, Truth("large", "exact"), None)


def _reviewed(world: World, table: EpisodeTable) -> EpisodeTable:
    """Return the table in which "right" is "no worse than the last model's, as people judged"."""
    other = (world.answer >= 0) & ~world.same & world.drawn[:, None, None]
    unjudged = other & ~world.judged
    labels = Labels(world.drawn, unjudged.any(axis=(1, 2)), other & world.judged, unjudged)
    truth = Truth("large", "exact", "preference", REVIEW_RATE)
    return _right(table, world.same | (world.harmless & (world.answer >= 0)), truth, labels)


def outcome_of(case: Case, seed: int) -> dict[str, Any]:
    asked, table = case.guarantee, case.table
    rows, path, about = np.arange(table.n), None, {}
    if case.path == "ordered":
        chosen = selected(table, _SELECTION, seed)
        ordering = rows[chosen]
        path = asked.rules.order(_sample(table.take(ordering), case.scores.take(ordering)), asked)
        rows = rows[~chosen]
        about["path"] = [len(path), _digest([(point.kappa.hex(), point.abstain_below.hex()) for point in path])]
    drawn = one_a_group(table.take(rows), separate=asked.by_segment, seed=seed)
    rows = rows[np.isin(np.array(table.ids)[rows], drawn.ids)]
    if rows.size < table.n:
        about["rows"] = _digest(rows.tolist())
    sample = _sample(drawn, case.scores.take(rows))
    if case.path == "strict":
        path = every_threshold(sample.levels)
    every = asked.rules.calibrate(sample, asked, path)
    alone = [one for one in every if not asked.by_segment or not (one.segment is None or one.keeps_everything)]
    about["found"] = [_figures(sample, one, asked) for one in alone]
    return about


def _sample(table: EpisodeTable, scores: ScoreArrays) -> Sample:
    return Sample(table, scores, levels(table.arrays, scores))


def _figures(sample: Sample, found: Found, asked: Guarantee) -> list[Any]:
    """Return a threshold with what it leads to on the questions that it serves.

    The segment; the number of questions; then "refused", or the threshold, its rank, the losses, then "everything", or
    the cost, how many questions stop after each step, a digest of that, and of the one answer the bar below which
    nothing is served and a digest of what is served, of a set its sizes and how often each answer and going on is kept.
    """
    head: list[Any] = [found.segment, found.n] if asked.by_segment else [found.n]
    if found.refused is not None:
        return [*head, "refused"]
    head += [found.kappa.hex(), found.k, found.misses]
    if found.keeps_everything:
        return [*head, "everything"]
    rows, kappa = np.flatnonzero(found.rows), found.kappa
    table, heights = sample.table.take(rows), sample.levels.take(rows)
    walk = rollout(table.arrays, heights, kappa)
    head += [
        int(walk.cost.sum()) if table.cost_known else None,
        np.bincount(walk.length, minlength=table.arrays.horizon + 1)[1:].tolist(),
        _digest(walk.length.tolist()),
    ]
    if not asked.single:
        kept = [*passed(heights.leaf, kappa).sum(axis=(0, 1)).tolist(), int(passed(heights.reach, kappa)[:, 1:].sum())]
        return [*head, np.bincount(walk.distinct).tolist(), kept]
    below = -math.inf if found.abstain_below is None else found.abstain_below
    best = single(table.arrays, heights, table.confidence, kappa, sure=table.sure)
    answered = np.where(serves(best.sure, below), best.answer, -2)
    return [*head, below.hex(), _digest(answered.tolist())]


def _digest(values: object) -> str:
    return hashlib.sha256(repr(values).encode()).hexdigest()[:6]
