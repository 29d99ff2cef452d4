"""Compare all methods on the same splits: cost, coverage, and which differences are larger than chance.

If a policy has a threshold, costs are compared at matched coverage: the point of its frontier at which exactly 1 −
alpha of the test questions are covered. Differences are paired over the splits.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

import numpy as np

from cascade.calibration.samples import once, tied
from cascade.calibration.scores import Played, unpriced_said
from cascade.conformal.arrays import Bools, Ints, hopeless, levels
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import ALL_STEPS, CLAIRVOYANT, Depth, reference_of
from cascade.evaluation.by_hand import methods_by_hand
from cascade.evaluation.methods import Means, Method, left_out, means, methods
from cascade.evaluation.segments import Segments
from cascade.evaluation.splits import Interval, OverSplits, splits

_CURVE = tuple(round(0.5 + 0.01 * k, 2) for k in range(51))
"""The coverages at which a policy's frontier is drawn."""


@dataclass(frozen=True, slots=True)
class Row:
    """The results of one method over all splits.

    Attributes:
        policy: the name of the method.
        mean: means over the splits of the test questions' means.
        sd: their standard deviations over the splits; None for a single split.
        matched_cost_usd, matched_cost_sd: the cost at a coverage of exactly 1 − alpha, and its standard deviation; None
            if the method has no threshold or cannot reach this coverage.
        fit_seconds: the mean time to prepare the method on a split.
        cost_difference, coverage_difference, matched_difference: this row minus the reference's, on the questions for
            which the log has both, over the splits; None for the reference itself.
        curve: (coverage, USD) pairs of the frontier.
        questions: the mean number of a split's test questions for which the log has the method; None if it has all.
        worst: the segment with the lowest coverage, and that coverage, of the segments with 20 questions or more; None
            if there are fewer than two.

    """

    policy: str
    mean: Means
    sd: Means | None
    matched_cost_usd: float | None
    matched_cost_sd: float | None
    fit_seconds: float
    cost_difference: Interval | None = None
    coverage_difference: Interval | None = None
    matched_difference: Interval | None = None
    curve: tuple[tuple[float, float], ...] = ()
    questions: int | None = None
    worst: tuple[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of a comparison on one data set.

    `n` counts questions: if the log has several episodes of a question, one is used, and `repeated` counts the others.
    Questions with an unknown cost are left out if they are fewer than half. `sizes` has the number of questions in each
    part of the last split, and `groups` the number of groups, which are the independent units. `left_out` names the
    missing rows and the reasons.
    """

    dataset: str
    alpha: float
    n: int
    repeated: int
    horizon: int
    splits: int
    seed: int
    sizes: tuple[int, int, int]
    groups: tuple[int, int, int]
    unsolvable: float
    cost_known: bool
    reference: str
    rows: tuple[Row, ...]
    left_out: tuple[str, ...] = ()

    @property
    def coverage_sd(self) -> float:
        """The standard deviation of coverage that follows from the numbers of calibration and test questions alone.

        A group counts as one question. That is exact if either all questions of a group are covered or none; if they
        are independent, it is too large.
        """
        spread = self.alpha * (1 - self.alpha)
        return math.sqrt(spread / (self.groups[1] + 2) + spread / self.groups[2])

    def row(self, policy: str) -> Row:
        """Return a policy's row."""
        return next(row for row in self.rows if row.policy == policy)


class _SplitResult(NamedTuple):
    """The results of one method on a split's test questions, and the questions for which they are known."""

    played: Played
    known: Bools
    matched_usd: float | None = None
    curve: tuple[float | None, ...] | None = None
    fit_seconds: float = 0.0


@dataclass(slots=True)
class _Results:
    """The figures of one method, over the splits and on each segment."""

    segments: Segments
    over: OverSplits = field(default_factory=OverSplits)
    curves: list[tuple[float | None, ...]] = field(default_factory=list)
    judged: int = 0
    drawn: int = 0


def compare(
    table: EpisodeTable,
    *,
    alpha: float = 0.1,
    count: int = 20,
    seed: int = 0,
    others: Sequence[Method] = (),
    reference: str | None = None,
) -> Comparison:
    """Compare every method for which a log has the numbers.

    Args:
        table: one data set's episodes.
        alpha: the share of questions that may be missed.
        count: how many splits.
        seed: the same seed gives the same figures.
        others: further methods to compare.
        reference: the row that the others are compared with. By default it is the reference of `prove`: the guide
            alone, or a ladder's last model alone, if the log has it for most questions, else every step.

    Raises:
        UsageError: alpha lies outside (0, 1), the log is too small to be split, or there is no such reference.
    """
    if not 0 < alpha < 1:
        raise UsageError(f"alpha is a share of questions between 0 and 1, such as 0.1, not {alpha:g}.")
    if count < 1:
        raise UsageError("There must be at least 1 split.")
    asked, whole = table.n, _questions(table.as_listed())
    table = whole.costed()
    playing = [*methods(table), *methods_by_hand(table), *others]
    against = _reference(table, [one.name for one in playing], reference)
    results = {name: _Results(Segments(table.segments)) for name in (*(one.name for one in playing), CLAIRVOYANT)}
    sizes = groups = (0, 0, 0)
    for split in splits(table.groups, count, seed):
        train, calibration, test = (table.take(rows) for rows in (split.train, split.calibration, split.test))
        sizes = train.n, calibration.n, test.n
        groups = len(set(train.groups)), len(set(calibration.groups)), len(set(test.groups))
        on_split = {one.name: _on_split(one, train, calibration, test, alpha, seed) for one in playing}
        on_split[CLAIRVOYANT] = _clairvoyant(test, alpha)
        for name, result in on_split.items():
            _write_down(results[name], result, on_split[against], test, split.test)
    if not results[against].judged:
        raise UsageError(f"{against} was logged for none of the drawn questions; compare with another row.")
    rows = [_row(name, found, groups, is_reference=name == against) for name, found in results.items() if found.judged]
    return Comparison(
        dataset=table.dataset,
        alpha=alpha,
        n=table.n,
        repeated=asked - whole.n,
        horizon=table.arrays.horizon,
        splits=count,
        seed=seed,
        sizes=sizes,
        groups=groups,
        unsolvable=float(hopeless(table.arrays).mean()),
        cost_known=table.cost_known,
        reference=against,
        rows=tuple(rows),
        left_out=(*unpriced_said(whole), *left_out(table)),
    )


def _questions(table: EpisodeTable) -> EpisodeTable:
    """Return one episode of each question, in groups that share no question, as in `fit` and `prove`."""
    whole = tied(table)
    return whole.take(once(whole))


def _reference(table: EpisodeTable, names: Sequence[str], wanted: str | None) -> str:
    """Return the row to compare with; by default the reference of `prove`."""
    twice = [name for name, times in Counter([*names, CLAIRVOYANT]).items() if times > 1]
    if twice:
        raise UsageError(f"Two rows would be called {', '.join(twice)}; give the log's walk another name.")
    if wanted is None:
        name = reference_of(table).name
        return Depth(table.arrays.horizon).name if name == ALL_STEPS else name
    if wanted not in names:
        raise UsageError(f"There is no row {wanted!r} to compare with; there are: {'; '.join(names)}.")
    return wanted


def _on_split(
    one: Method,
    train: EpisodeTable,
    calibration: EpisodeTable,
    test: EpisodeTable,
    alpha: float,
    seed: int,
) -> _SplitResult:
    """Prepare a method and play it on the test questions."""
    started = time.perf_counter()
    ready = one.prepare(train, calibration, alpha, seed)
    seconds = time.perf_counter() - started
    played, walk = ready.play(test), test.walks.get(one.name)
    known = np.ones(test.n, dtype=np.bool_) if walk is None else walk.known
    if ready.scores is None or not test.cost_known:
        return _SplitResult(played, known, fit_seconds=seconds)
    curve = frontier(test.arrays, levels(test.arrays, ready.scores(test)))
    points = [curve.matched(share) for share in (1 - alpha, *_CURVE)]
    costs = [None if point is None else point.cost / 1e9 for point in points]
    drawn = tuple([c if share >= curve.coverage[0] else None for c, share in zip(costs[1:], _CURVE, strict=True)])
    return _SplitResult(played, known, costs[0], drawn, seconds)


def _clairvoyant(test: EpisodeTable, alpha: float) -> _SplitResult:
    """Return the result of a policy that knows every answer beforehand; by length if costs are unknown.

    It gives up whole questions. For a coverage of exactly 1 − alpha it also gives up one more with some probability, as
    `Frontier.matched` does.
    """
    steps = test.arrays if test.cost_known else replace(test.arrays, cost=np.ones_like(test.arrays.cost))
    rows, spent = np.arange(steps.n), np.cumsum(steps.cost, axis=1)
    stop = steps.correct.any(axis=2).argmax(axis=1)  # the first right step, or the first step if none is right
    beyond = spent[rows, stop] - steps.cost[:, 0]
    dearest = np.lexsort((stop, beyond))[::-1]
    many = clairvoyant(steps, alpha).given_up
    part = max(0.0, alpha * steps.n - many)
    given_up, next_one = dearest[:many], dearest[many : many + 1]
    saved = float(part * beyond[next_one].sum()) if part < 1 else 0.0
    stop[given_up] = 0
    found = steps.solvable
    found[given_up] = False
    right, one, cost = found.astype(np.float64), np.ones(steps.n), spent[rows, stop].astype(np.float64)
    covered = (found | hopeless(steps)).astype(np.float64)
    played = Played(covered, right, right, cost, stop + 1.0, one, one, abstained=np.zeros(steps.n))
    matched = (float(cost.sum()) - saved) / steps.n / 1e9 if test.cost_known else None
    return _SplitResult(played, np.ones(steps.n, dtype=np.bool_), matched)


def _write_down(into: _Results, result: _SplitResult, reference: _SplitResult, test: EpisodeTable, rows: Ints) -> None:
    """Add one split's figures; `rows` says which of the log's questions are its test."""
    known, played = result.known, result.played
    into.drawn += test.n
    into.judged += int(known.sum())
    missed = np.where(known, 1 - played.covered, np.nan)
    into.segments.add(rows, missed, played.cost, reference.played.cost)
    into.over.add({**_gaps(result, reference, cost_known=test.cost_known), "fit_seconds": result.fit_seconds})
    if result.curve is not None:
        into.curves.append(result.curve)
    if known.any():
        judged = (test, played) if known.all() else (test.take(known), played.take(known))
        into.over.add({**asdict(means(*judged)), "matched": result.matched_usd})


def _gaps(result: _SplitResult, reference: _SplitResult, *, cost_known: bool) -> dict[str, float | None]:
    """Return the differences to the reference on the questions for which both are known; None if unknown."""
    gaps: dict[str, float | None] = dict.fromkeys(("cost_gap", "coverage_gap", "matched_gap"))
    both = result.known & reference.known
    if both.any():
        gaps["coverage_gap"] = float((result.played.covered - reference.played.covered)[both].mean())
    if both.any() and cost_known:
        gaps["cost_gap"] = float((result.played.cost - reference.played.cost)[both].mean()) / 1e9
        if result.matched_usd is not None and reference.known.all():
            gaps["matched_gap"] = result.matched_usd - float(reference.played.cost.mean()) / 1e9
    return gaps


def _row(name: str, found: _Results, groups: tuple[int, int, int], *, is_reference: bool) -> Row:
    over, worst = found.over, found.segments.found(cost_known=False)[:1]
    several = over.of("coverage").size
    gaps = [
        None if is_reference else over.interval(gap, n_train=groups[0] + groups[1], n_test=groups[2])
        for gap in ("cost_gap", "coverage_gap", "matched_gap")
    ]
    return Row(
        policy=name,
        mean=_summary(over.mean),
        sd=_summary(over.sd) if several > 1 else None,
        matched_cost_usd=over.mean("matched"),
        matched_cost_sd=over.sd("matched"),
        fit_seconds=float(over.of("fit_seconds").mean()),
        cost_difference=gaps[0],
        coverage_difference=gaps[1],
        matched_difference=gaps[2],
        curve=_mean_curve(found.curves),
        questions=None if found.judged == found.drawn else round(found.judged / several),
        worst=next(((one.name, 1 - one.broken) for one in worst), None),
    )


def _summary(of: Callable[[str], float | None]) -> Means:
    """Return one summary of each figure over the splits; None if it is unknown in any split."""
    found: dict[str, Any] = {one.name: of(one.name) for one in fields(Means)}
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
