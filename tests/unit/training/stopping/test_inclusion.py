"""Answers that are not worth their place in the set are left out, the likelier the more they cost."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.calibration.scores import scored
from cascade.conformal.arrays import StepArrays, levels
from cascade.conformal.frontier import Point, frontier
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.policies.learned import LearnedPolicy
from cascade.training.lookahead import fit_lookahead
from cascade.training.stages import FitTarget, finds, fit_inclusion, staged, with_inclusion
from cascade.training.stopping import build, fit_net_benefit
from cascade.training.trees import fit_boosted
from unit.training.worlds import log, without

WORLD = WORLDS["hotpotqa/llama-2-7b"]


def at_coverage(policy: LearnedPolicy, table: EpisodeTable, target: float) -> Point:
    shown, scores = scored(policy, table)
    found = frontier(shown.arrays, levels(shown.arrays, scores)).matched(target)
    assert found is not None
    return found


@pytest.mark.parametrize("fit", [fit_net_benefit, fit_lookahead, fit_boosted])
def test_fewer_answers_are_kept_the_more_they_are_charged_with(fit: object) -> None:
    train, test = simulate(WORLD, 1_000, seed=1), simulate(WORLD, 5_000, seed=2)
    points = [
        at_coverage(fit(build(train, FitTarget("coverage", 0.1, lambda_set=charge), confidences=False)), test, 0.9)  # type: ignore[operator]
        for charge in (0.0, 0.1, 0.4)
    ]
    sizes, costs = ([getattr(point, name) for point in points] for name in ("distinct", "cost"))
    assert sizes[0] > sizes[1] * 1.1
    assert sizes[1] > sizes[2] * 1.1
    # At a tenth of a step the set shrinks for next to nothing: few of the answers left out would have been finds.
    assert costs[1] < costs[0] * 1.03


def test_finds_are_right_answers_that_no_other_right_one_precedes() -> None:
    """The same answer once more is a find again, since leaving the first out may leave it to the second."""
    answer = np.array([[[0, 1], [1, 2]], [[0, 0], [1, 0]]])
    correct = np.array([[[False, True], [True, True]], [[True, True], [False, True]]])
    arrays = StepArrays(answer, correct, np.ones((2, 2), dtype=np.int64), np.array([2, 2]), np.array([True, True]))
    table = EpisodeTable(
        "made", ("a", "b"), ("a", "b"), ("base", "guide"), arrays, np.full(answer.shape, np.nan), {}, {}
    )
    assert finds(table).tolist() == [[[False, True], [True, False]], [[True, True], [False, True]]]


def test_what_stopping_brings_with_answers_left_out() -> None:
    """An unlikely find is left out, but the likeliest of the last step is kept; repeated answers are charged once."""
    table = simulate(WORLD, 400, seed=3)
    found = fit_inclusion(table, staged(table), FitTarget("coverage", 0.1, lambda_set=0.05))
    cost = np.ones(table.arrays.cost.shape)
    dear_loss, dear_cost = with_inclusion(table, found, cost, 0.06)
    cheap_loss, cheap_cost = with_inclusion(table, found, cost, 1e6)
    everything = np.logical_or.accumulate(table.arrays.correct.any(axis=2), axis=1)
    assert np.array_equal(cheap_loss, np.where(everything | ~table.arrays.solvable[:, None], 0.0, 1.0))
    assert (dear_loss >= cheap_loss).all()
    assert dear_loss.sum() > cheap_loss.sum()
    distinct = [len(set(row.ravel())) for row in table.arrays.answer]
    assert cheap_cost.sum(axis=1) == pytest.approx(4 + 0.05 * np.array(distinct))
    kept = found.kept(0.06)
    assert dear_cost.sum(axis=1).max() < cheap_cost.sum(axis=1).max()
    assert not kept.all()


def test_where_all_questions_hang_together_every_answer_is_kept() -> None:
    table = without(simulate(WORLD, 50, seed=1), groups=("all",) * 50)
    policy = fit_net_benefit(build(table, FitTarget("coverage", 0.1, lambda_set=0.2)))
    assert all(one is None for rule in policy.rules for one in rule.include)


def test_answers_too_few_to_fit_on_are_kept() -> None:
    correct = np.zeros((20, 2, 1), dtype=np.bool_)
    policy = fit_net_benefit(build(log(correct, np.ones((20, 2)), {}), FitTarget("coverage", 0.1, lambda_set=0.2)))
    assert policy.rules[0].include == (None,)
