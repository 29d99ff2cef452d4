"""Every way to answer on the same splits: what each costs, what it covers, and which differences are more than chance.

Costs are compared at matched coverage where a policy has a dial: the point of its frontier on the test questions where
exactly 1 − alpha are covered. Differences are paired over the splits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from cascade.conformal.frontier import clairvoyant, frontier
from cascade.conformal.rollout import levels
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.contestants import Contestant, contestants
from cascade.evaluation.intervals import Interval, corrected_interval
from cascade.evaluation.played import Means, means
from cascade.evaluation.splits import Split, splits

CLAIRVOYANT = "clairvoyant bound"
_CURVE = tuple(round(0.5 + 0.01 * k, 2) for k in range(51))
"""The coverages at which a policy's frontier is drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """One way to answer, over all splits. Means of the test questions' means, and their standard deviations.

    `matched_cost_usd` is the cost at a coverage of exactly 1 − alpha, None without a dial or out of reach. Differences
    are this row minus the reference's, over the splits; None for the reference itself. `curve` holds (coverage, USD)
    pairs of the frontier.
    """

    policy: str
    mean: Means
    sd: Means
    matched_cost_usd: float | None
    matched_cost_sd: float | None
    fit_seconds: float
    cost_difference: Interval | None = None
    coverage_difference: Interval | None = None
    matched_difference: Interval | None = None
    curve: tuple[tuple[float, float], ...] = ()
    questions: int | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison found on one data set."""

    dataset: str
    alpha: float
    n: int
    horizon: int
    splits: int
    seed: int
    sizes: tuple[int, int, int]
    unsolvable: float
    cost_known: bool
    reference: str
    rows: tuple[Row, ...]

    @property
    def coverage_sd(self) -> float:
        """The spread of coverage that so few calibration and test questions allow by themselves."""
        spread = self.alpha * (1 - self.alpha)
        return math.sqrt(spread / (self.sizes[1] + 2) + spread / self.sizes[2])

    def row(self, policy: str) -> Row:
        """Return a policy's row."""
        return next(row for row in self.rows if row.policy == policy)


@dataclass(slots=True)
class _Results:
    """One contestant's figures, one entry a split."""

    means: list[Means] = field(default_factory=list)
    matched: list[float | None] = field(default_factory=list)
    curves: list[list[float | None]] = field(default_factory=list)
    seconds: float = 0.0
    questions: int | None = None


def compare(
    table: EpisodeTable,
    *,
    alpha: float = 0.1,
    count: int = 20,
    seed: int = 0,
    others: Sequence[Contestant] = (),
    reference: str | None = None,
    tell: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - names are the interface
) -> Comparison:
    """Compare every way to answer that a log has the numbers for.

    Args:
        table: one data set's episodes.
        alpha: the share of questions that may be missed.
        count: how many splits.
        seed: the same seed gives the same figures.
        others: contestants beside the standing ones.
        reference: the row that the others are compared with; the guide alone where it was logged, by default.
        tell: called with (splits done, splits in all).

    Raises:
        UsageError: alpha lies outside (0, 1), the log is too small to be split, or there is no such reference.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"--alpha is a share of questions between 0 and 1, such as 0.1, not {alpha:g}.")
    if count < 1:
        raise UsageError("--splits must be at least 1.")
    playing = [*contestants(table), *others]
    results = {one.name: _Results() for one in playing}
    bound = _Results()
    sizes = (0, 0, 0)
    for number, split in enumerate(splits(table.groups, count, seed), 1):
        parts = tuple(table.take(rows) for rows in (split.train, split.calibration, split.test))
        for one in playing:
            _play(one, parts, alpha, seed, results[one.name])
        bound.means.append(_bound(parts[2], alpha))
        sizes = _sizes(split)
        tell(number, count)
    names = [one.name for one in playing]
    against = _reference(names, reference)
    rows = [_row(name, results[name], results[against], sizes) for name in names]
    rows.append(_row(CLAIRVOYANT, bound, results[against], sizes))
    return Comparison(
        dataset=table.dataset,
        alpha=alpha,
        n=table.n,
        horizon=table.arrays.horizon,
        splits=count,
        seed=seed,
        sizes=sizes,
        unsolvable=float(1 - table.arrays.solvable.mean()),
        cost_known=table.cost_known,
        reference=against,
        rows=tuple(rows),
    )


def _sizes(split: Split) -> tuple[int, int, int]:
    return len(split.train), len(split.calibration), len(split.test)


def _reference(names: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        return "guide only" if "guide only" in names else names[1]
    if wanted not in names:
        raise UsageError(f"There is no row {wanted!r} to compare with; there are: {', '.join(names)}.")
    return wanted


def _play(one: Contestant, parts: tuple[EpisodeTable, ...], alpha: float, seed: int, into: _Results) -> None:
    """Prepare a contestant and play it on the test questions."""
    train, calibration, test = parts
    started = time.perf_counter()
    ready = one.prepare(train, calibration, alpha, seed)
    into.seconds += time.perf_counter() - started
    played = ready.play(test)
    walk = test.walks.get(one.name)
    if walk is not None and not walk.known.all():  # judged on the questions that it was logged for
        into.questions = (into.questions or 0) + int(walk.known.sum())
        if not walk.known.any():
            return
        test, played = test.take(walk.known), played.take(walk.known)
    into.means.append(means(test, played))
    if ready.scores is None or not test.cost_known:
        into.matched.append(None)
        return
    curve = frontier(test.arrays, levels(test.arrays, ready.scores(test)))
    points = [curve.matched(share) for share in (1 - alpha, *_CURVE)]
    costs = [None if point is None else point.cost / 1e9 for point in points]
    into.matched.append(costs[0])
    into.curves.append([c if share >= curve.coverage[0] else None for c, share in zip(costs[1:], _CURVE, strict=True)])


def _bound(test: EpisodeTable, alpha: float) -> Means:
    """Return what knowing every answer beforehand would bring."""
    best = clairvoyant(test.arrays, alpha)
    solvable = float(test.arrays.solvable.mean())
    right = solvable - best.given_up / test.n
    first = test.arrays.correct.any(axis=2).argmax(axis=1)
    given = None if not solvable else right / solvable
    cost = best.cost / 1e9 if test.cost_known else None
    return Means(best.coverage, given, 1 - solvable, right, right, cost, float((first + 1).mean()), 1.0, 1.0)


def _row(name: str, found: _Results, against: _Results, sizes: tuple[int, int, int]) -> Row:
    if not found.means:
        raise UsageError(f"{name} was logged for none of the questions that were drawn; log it for more.")
    matched = [cost for cost in found.matched if cost is not None]
    complete = len(matched) == len(found.means) and bool(matched)

    def paired(mine: Sequence[float | None], other: Sequence[float | None]) -> Interval | None:
        if found is against or len(mine) != len(other) or any(x is None for x in (*mine, *other)):
            return None
        gaps = [float(x or 0) - float(y or 0) for x, y in zip(mine, other, strict=True)]
        return corrected_interval(gaps, n_train=sizes[0] + sizes[1], n_test=sizes[2])

    costs, covers = ([getattr(m, name) for m in found.means] for name in ("cost_usd", "coverage"))
    other_costs, other_covers = ([getattr(m, name) for m in against.means] for name in ("cost_usd", "coverage"))
    return Row(
        policy=name,
        mean=_over(found.means, lambda values: float(np.mean(values))),
        sd=_over(found.means, lambda values: float(np.std(values, ddof=1)) if len(values) > 1 else 0.0),
        matched_cost_usd=float(np.mean(matched)) if complete else None,
        matched_cost_sd=float(np.std(matched, ddof=1)) if complete and len(matched) > 1 else None,
        fit_seconds=found.seconds / len(found.means),
        cost_difference=paired(costs, other_costs),
        coverage_difference=paired(covers, other_covers),
        matched_difference=paired(found.matched, other_costs) if complete else None,
        curve=_mean_curve(found.curves),
        questions=None if found.questions is None else round(found.questions / len(found.means)),
    )


def _over(values: Sequence[Means], summarise: Callable[[list[float]], float]) -> Means:
    """Return one summary of each figure over the splits; None where it is unknown in any."""
    found: dict[str, Any] = {}
    for name in (f.name for f in fields(Means)):
        column = [getattr(one, name) for one in values]
        found[name] = None if any(x is None for x in column) else summarise(column)
    return Means(**found)


def _mean_curve(curves: Sequence[Sequence[float | None]]) -> tuple[tuple[float, float], ...]:
    """Return the mean cost at each coverage that every split reaches."""
    if not curves:
        return ()
    columns = zip(_CURVE, zip(*curves, strict=True), strict=True)
    return tuple(
        (share, float(np.mean([x for x in column if x is not None])))
        for share, column in columns
        if all(x is not None for x in column)
    )
