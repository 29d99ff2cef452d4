"""Promises about means: a graded loss at most alpha, a cost at most a budget.

Coverage counts questions. This module bounds the quality of the best kept answer and the cost of a question. Both are
monotone in kappa, which is all that the proofs need (`design/risk.md`):

    risk      the highest kappa with  (Σ loss_i(kappa) + bound)/(n + 1) ≤ alpha      E[loss] ≤ alpha
    budget    the lowest kappa with   (Σ cost_i(kappa) + most)/(n + 1) ≤ budget      E[cost] ≤ budget

With delta, the promise holds for this calibration with probability 1 − delta: kappa moves away from the safe end as
long as the p-value of the mean is at most delta. The p-value is monotone in kappa too, so no correction for the many
thresholds is needed.

Reference: Angelopoulos, Bates, Fisch, Lei & Schuster, Conformal risk control (2024); Bates et al., Distribution-free,
risk-controlling prediction sets (2021).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from cascade.checks import refuse, share_problems
from cascade.conformal.arrays import (
    UNITS,
    Curve,
    Floats,
    Ints,
    Levels,
    StepArrays,
    StepFunctions,
    as_written,
    chunks,
    open_end,
)
from cascade.conformal.ltt import first_where, least_enough, needed_for_cost
from cascade.conformal.monitor import hoeffding_bentkus_p_value, mean_below_p_value
from cascade.errors import UsageError
from cascade.money import exact_dollars

_EXACT_NANO_USD = 1 << 53  # nine million USD a question: float64 is exact for whole nano-USD up to here


@dataclass(frozen=True, slots=True)
class RiskCalibration:
    """A threshold for a mean loss, and its promise (`calibrate_risk`).

    Attributes:
        kappa: the highest certified threshold; −∞ if there is none.
        certified: whether a threshold is certified. If not, nothing is promised; but a loss relative to the best logged
            answer is 0 if every answer of every step is kept.
        n: calibration questions.
        alpha: the promised bound on the mean loss.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        bound: the largest possible loss.
        loss: the mean loss of the calibration questions at kappa; None without questions.
        needed_n: how many questions would be enough if their mean loss at the safest threshold is the same as here;
            None if no number would be enough, if it is above ten million with delta, or if a threshold is already
            certified.
    """

    kappa: float
    certified: bool
    n: int
    alpha: float
    delta: float | None
    bound: float
    loss: float | None
    needed_n: int | None


@dataclass(frozen=True, slots=True)
class BudgetCalibration:
    """A threshold for a mean cost, and its promise (`calibrate_budget`).

    Attributes:
        kappa: the lowest certified threshold; +∞, the cheapest, if there is none.
        certified: whether a threshold is certified. If not, nothing is promised.
        n: calibration questions.
        budget_nano_usd: the promised bound on the mean cost of a question.
        most_nano_usd: the most that a question can cost.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        total_nano_usd: the total cost of the calibration questions at kappa.
        needed_n: how many questions would be enough if their cheapest costs are distributed as here; None if no number
            would be enough, if it is above a million with delta, or if a threshold is already certified.
    """

    kappa: float
    certified: bool
    n: int
    budget_nano_usd: int
    most_nano_usd: int
    delta: float | None
    total_nano_usd: int
    needed_n: int | None


def loss_levels(steps: StepArrays, levels: Levels, quality: Floats, *, relative: bool = False) -> StepFunctions:
    """Return each question's loss as a function of kappa: 1 − the highest quality among the kept answers.

    Args:
        steps: the log.
        levels: its levels under a policy.
        quality: float64 (n, T, m) in 0..1, how good an answer is (an F1); NaN = unknown. Ignored where there is none.
        relative: whether the loss is the best logged quality minus the best kept one, so that a question that no step
            answers well loses nothing. With qualities of 0 and 1 it is 1 for a miss, in the sense of `critical_kappa`.

    Guarantee: never below the true loss; above it by less than 2·2⁻³⁰ if everything is known, and exact for multiples
    of 2⁻³⁰, such as 0 and 1. An unknown quality counts as the worst: 0 for a kept answer, 1 for the best logged one.
    The missing steps of an incomplete question count in the same way; its answers count as kept only if they are kept
    for certain (`arrays.open_end`).

    Raises:
        UsageError: the shapes differ, or a quality lies outside 0..1.

    >>> one = StepArrays(
    ...     answer=np.array([[[0], [1]]]), correct=np.array([[[False], [True]]]),
    ...     cost=np.array([[10, 20]]), steps=np.array([2]), complete=np.array([True]))
    >>> found = Levels(np.array([[np.inf, 0.3]]), np.array([[[np.inf], [0.3]]]), np.array([[[True], [True]]]))
    >>> losses = loss_levels(one, found, np.array([[[0.25], [0.75]]]))
    >>> [float(losses.curve().sum_at(kappa)) for kappa in (0.4, 0.3)]
    [0.75, 0.25]
    """
    known = _checked_quality(steps, quality)
    highest = np.ones(steps.n)
    if relative:
        on_record = np.where(steps.present, np.where(np.isnan(quality), 1.0, known), 0.0)
        highest = np.where(steps.complete, on_record.max(axis=(1, 2), initial=0.0), 1.0)
    start = np.ceil(highest * UNITS).astype(np.int64)
    level = levels.leaf.reshape(steps.n, steps.answer[:1].size).copy()
    jump = np.empty(level.shape, dtype=np.int64)
    for some in chunks(steps.n):
        _fill(level[some], jump[some], known[some].reshape(level[some].shape), highest[some])
    return StepFunctions(start, level, jump, UNITS)


def _fill(level: Floats, jump: Ints, quality: Floats, highest: Floats) -> None:
    """Sort the levels of some questions in place, falling, and write by how much the loss falls at each."""
    order = np.argsort(-level, axis=1, kind="stable")
    level[:] = np.take_along_axis(level, order, axis=1)
    best = np.take_along_axis(quality, order, axis=1)
    before = start = np.ceil(highest * UNITS).astype(np.int64)
    for a in range(level.shape[1]):  # a handful: long strided columns are faster than many short rows
        if a:
            np.maximum(best[:, a], best[:, a - 1], out=best[:, a])
        missing = start - np.floor(best[:, a] * UNITS).astype(np.int64)
        missing[best[:, a] >= highest] = 0  # the best answer is kept: 0 however its quality is rounded
        jump[:, a], before = missing - before, missing


def cost_levels(
    steps: StepArrays, levels: Levels, most_nano_usd: int | None = None, *, cost_known: bool = True
) -> StepFunctions:
    """Return each question's cost in nano-USD as a function of kappa.

    Args:
        steps: the log.
        levels: its levels under a policy.
        most_nano_usd: the highest possible cost of a question. An incomplete question counts at this cost once it
            reaches the first open end of its record, since its later steps are unknown.
        cost_known: whether all costs of the log are known (`EpisodeTable.cost_known`).

    Guarantee: never below the true cost, if that is at most `most_nano_usd`; exact for complete questions.

    Raises:
        UsageError: a cost is unknown or negative, or a question is incomplete and no cap is given.
    """
    if not cost_known:
        raise UsageError("A cost in this log is unknown, so no budget can be promised. Give the models' prices.")
    if (steps.cost < 0).any():
        raise UsageError("A step of this log has a negative cost, so no budget can be promised.")
    cost = steps.cost
    if not steps.complete.all():
        if most_nano_usd is None:
            raise UsageError("Some questions are incomplete; give the most that a question can cost, as their bound.")
        cost = _capped(steps, levels, most_nano_usd)
    return StepFunctions(np.zeros(steps.n, dtype=np.int64), levels.reach, cost)


def _capped(steps: StepArrays, levels: Levels, most_nano_usd: int) -> Ints:
    """Return the cost of each step, int64 (n, T); the first open end costs the rest of the cap.

    Steps bought after that end, as kappa falls, are within the cap and add no cost.
    """
    ends = open_end(steps)
    first = np.where(ends, levels.reach, -np.inf).argmax(axis=1)[:, None]
    opened = np.take_along_axis(ends, first, axis=1)
    before = ~opened | (levels.reach >= np.take_along_axis(levels.reach, first, axis=1))
    cost = np.where(before, steps.cost, 0)
    rest = np.maximum(most_nano_usd - cost.sum(axis=1, keepdims=True), 0)
    return np.asarray(cost + np.where(opened & (np.arange(steps.horizon) == first), rest, 0), dtype=np.int64)


def calibrate_risk(
    losses: StepFunctions, alpha: float, *, bound: float = 1.0, delta: float | None = None
) -> RiskCalibration:
    """Return the highest threshold with the promise that the mean loss of fresh questions is at most alpha.

    Guarantee: let the calibration questions and a fresh one be exchangeable, used for nothing else before. Then

        without delta:  E[loss(fresh at kappa); certified] ≤ alpha
        with delta:     Pr[certified and E[loss | calibration] > alpha] ≤ delta     (independent questions)

    The first is an expectation over calibrations too, and "not certified" counts as a loss of 0: it is about everything
    served under such a certificate. If losses are 0 at the lowest threshold, `needed_n` questions or more always
    certify a threshold.

    Args:
        losses: from `loss_levels`, or any losses that do not rise as kappa falls.
        alpha: the bound on the mean loss, in the losses' own unit.
        bound: the largest possible loss, known beforehand.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.

    Raises:
        UsageError: an argument lies outside its range, a loss rises as kappa falls, or exceeds the bound.

    >>> losses = StepFunctions(np.ones(4, dtype=int), np.array([[0.3], [0.1], [0.2], [0.9]]), -np.ones((4, 1), int))
    >>> calibrate_risk(losses, 0.4).kappa  # one of four may be missed: (1 + 1)/(4 + 1) ≤ 0.4
    0.2
    """
    _check_risk(losses, alpha, bound, delta)
    curve = losses.curve()
    if delta is None:
        k = first_where(curve.total.size, lambda k: _fits(curve.total[k], curve, alpha, bound))
    else:
        k = first_where(curve.total.size, lambda k: _risk_p_value(curve.total[k], curve, alpha, bound) <= delta)
    certified = k < curve.total.size
    kappa = float(curve.kappa[k]) if certified else -math.inf
    needed = None if certified else _risk_needs(curve, alpha, bound, delta)
    return RiskCalibration(kappa, certified, losses.n, alpha, delta, bound, curve.mean_at(kappa), needed)


def calibrate_budget(
    costs: StepFunctions, budget_nano_usd: int, most_nano_usd: int, *, delta: float | None = None
) -> BudgetCalibration:
    """Return the lowest threshold, the one with the highest coverage, whose mean cost is promised to stay in a budget.

    Guarantee: let the calibration questions and a fresh one be exchangeable, used for nothing else before, and no
    question cost more than `most_nano_usd`. Then

        without delta:  E[cost(fresh at kappa); certified] ≤ budget
        with delta:     Pr[certified and E[cost | calibration] > budget] ≤ delta     (independent questions)

    The first is an expectation over calibrations too, and "not certified" counts as a cost of 0.

    Args:
        costs: from `cost_levels`.
        budget_nano_usd: the bound on the mean cost of a question.
        most_nano_usd: a cap on the cost of every possible question, such as the cascade's own budget for a question.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.

    Raises:
        UsageError: an argument lies outside its range, a cost falls as kappa falls, or exceeds the cap.

    >>> costs = StepFunctions(np.full(9, 10), np.arange(9.0)[:, None], np.full((9, 1), 10))
    >>> calibrate_budget(costs, budget_nano_usd=15, most_nano_usd=20).kappa  # 130 + 20 ≤ 15·10: four may go on
    4.000000000000001
    """
    _check_budget(costs, budget_nano_usd, most_nano_usd, delta)
    curve = costs.curve()

    def too_dear(k: int) -> bool:
        if delta is None:
            return int(curve.total[k]) + most_nano_usd > budget_nano_usd * (curve.n + 1)
        return mean_below_p_value(costs.at(float(curve.kappa[k])), budget_nano_usd, most_nano_usd) > delta

    beyond = first_where(curve.total.size, too_dear)
    certified = beyond > 0
    kappa = _just_above(curve, beyond) if certified else math.inf
    return BudgetCalibration(
        kappa=kappa,
        certified=certified,
        n=costs.n,
        budget_nano_usd=budget_nano_usd,
        most_nano_usd=most_nano_usd,
        delta=delta,
        total_nano_usd=int(curve.total[max(0, beyond - 1)]),
        needed_n=None if certified else _budget_needs(costs, budget_nano_usd, most_nano_usd, delta),
    )


def _just_above(curve: Curve, k: int) -> float:
    """Return the lowest threshold at which point k − 1 still holds; the next level costs more."""
    return -math.inf if k == curve.kappa.size else math.nextafter(float(curve.kappa[k]), math.inf)


def _fits(total: int, curve: Curve, alpha: float, bound: float) -> bool:
    """Return whether (total + bound)/(n + 1) ≤ alpha, computed in integers."""
    return Fraction(int(total), curve.units) + as_written(bound) <= as_written(alpha) * (curve.n + 1)


def _risk_p_value(total: int, curve: Curve, alpha: float, bound: float) -> float:
    """Return a p-value against "the mean loss is at least alpha"; no loss may exceed the bound."""
    if alpha >= bound:
        return 0.0
    if not curve.n or alpha == 0:
        return 1.0
    share = as_written(alpha) / as_written(bound)
    mean = Fraction(int(total), curve.units * curve.n) / as_written(bound)
    return hoeffding_bentkus_p_value(mean, curve.n, float(share))


def _risk_needs(curve: Curve, alpha: float, bound: float, delta: float | None) -> int | None:
    """Return how many questions with the lowest mean loss seen would be enough; see `RiskCalibration.needed_n`."""
    level, cap = as_written(alpha), as_written(bound)
    lowest = Fraction(int(curve.total[-1]), curve.units * curve.n) if curve.n else Fraction(0)
    if lowest >= level:
        return None
    if delta is None:
        return math.ceil((cap - level) / (level - lowest))
    return least_enough(lambda n: hoeffding_bentkus_p_value(lowest / cap, n, float(level / cap)) <= delta)


def _budget_needs(costs: StepFunctions, budget: int, most: int, delta: float | None) -> int | None:
    """Return how many questions with the cheapest costs seen would be enough; see `BudgetCalibration.needed_n`."""
    cheapest = costs.at(math.inf)
    total = int(cheapest.sum())
    if not costs.n or total >= budget * costs.n:
        return None
    if delta is not None:
        return needed_for_cost(cheapest, budget, most, delta)
    return math.ceil(Fraction((most - budget) * costs.n, budget * costs.n - total))


def _checked_quality(steps: StepArrays, quality: Floats) -> Floats:
    """Return the qualities, with 0 for unknown ones and for absent candidates."""
    if quality.shape != steps.answer.shape:
        raise UsageError(f"quality must have the shape {steps.answer.shape}, not {quality.shape}")
    known = np.where(steps.present & ~np.isnan(quality), quality, 0.0)
    if ((known < 0) | (known > 1)).any():
        raise UsageError("a quality must lie in 0..1, or be NaN if it is unknown")
    return known


def _check_risk(losses: StepFunctions, alpha: float, bound: float, delta: float | None) -> None:
    problems = share_problems(delta=delta)
    if not (math.isfinite(alpha) and alpha >= 0):
        problems.append(f"alpha must be a number of at least 0, not {alpha:g}")
    if not (math.isfinite(bound) and bound > 0):
        problems.append(f"bound must be a number above 0, not {bound:g}")
    elif losses.n and int(losses.start.max()) > as_written(bound) * losses.units:
        problems.append(f"a loss exceeds the bound of {bound:g}")
    if (losses.jump > 0).any():
        problems.append("a loss rises as kappa falls; only a loss that never does can be promised this way")
    refuse(problems)


def _check_budget(costs: StepFunctions, budget: int, most: int, delta: float | None) -> None:
    problems = share_problems(delta=delta)
    if budget < 0:
        problems.append(f"the budget must not be negative: {exact_dollars(budget)}")
    if not 0 < most <= _EXACT_NANO_USD:
        ends = f"{exact_dollars(1)} to {exact_dollars(_EXACT_NANO_USD)}"
        problems.append(f"the most that a question can cost must be {ends}, not {exact_dollars(most)}")
    if costs.units != 1 or (costs.start < 0).any() or (costs.jump < 0).any():
        problems.append("costs must be nano-USD that do not fall as kappa falls; see cost_levels")
    elif costs.n and (over := np.count_nonzero(costs.at(-math.inf) > most)):
        problems.append(
            f"{over} of {costs.n} questions can cost more than the cap of {exact_dollars(most)},"
            f" one {exact_dollars(int(costs.at(-math.inf).max()))}; give a cap that holds for every question"
        )
    refuse(problems)
