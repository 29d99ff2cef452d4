"""The training questions step by step, and the walk back from the last step."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from simulated import WORLDS

from cascade.conformal.arrays import Bools
from cascade.training.stages import FitTarget, staged
from cascade.training.stopping import Walked, backward, build, fit_net_benefit
from unit.evaluation.plain import draw, table_of
from unit.training.stopping.test_net_benefit import COINS
from unit.training.worlds import without

WORLD = WORLDS["hotpotqa/llama-2-7b"]


def test_a_step_holds_the_questions_that_reached_it() -> None:
    rng = np.random.default_rng(1)
    table = table_of([draw(rng, 3, 2) for _ in range(80)], 3, 2)
    for stage in staged(table):
        assert stage.rows.tolist() == np.flatnonzero(table.arrays.steps >= stage.step).tolist()
        ended = (table.arrays.steps == stage.step) & table.arrays.complete
        assert stage.deciding.tolist() == (~ended[stage.rows] & (stage.step < 3)).tolist()
        assert stage.columns.shape == (stage.rows.size, stage.design.columns)
        assert np.array_equal(stage.columns, stage.design.rows(stage.raw))


def test_a_step_that_nobody_reached_is_empty_and_gone_past() -> None:
    table = COINS.draw(60, seed=1)
    arrays = table.arrays
    short = type(arrays)(
        np.where(np.arange(3)[None, :, None] < 2, arrays.answer, -1),
        arrays.correct & (np.arange(3) < 2)[None, :, None],
        np.where(np.arange(3) < 2, arrays.cost, 0),
        np.full(60, 2),
        np.zeros(60, dtype=np.bool_),
    )
    cut = without(table, arrays=short)
    assert [stage.rows.size for stage in staged(cut)] == [60, 60, 0]
    policy = fit_net_benefit(build(cut, FitTarget("coverage", 0.1)))
    assert policy.horizon == 3


@pytest.mark.parametrize("seed", range(5))
def test_walking_back_is_what_following_the_decisions_brings(seed: int) -> None:
    rng = np.random.default_rng(seed)
    loss, cost, onward = rng.random((20, 4)), rng.random((20, 4)), rng.random((20, 4)) < 0.6
    seen = {}

    def decide(t: int, ahead: Walked) -> Bools:
        seen[t] = ahead
        return onward[:, t]

    outcome = backward(loss, cost, decide)
    stop = [next((t for t in range(3) if not onward[row, t]), 3) for row in range(20)]
    assert outcome.loss == pytest.approx(np.mean([loss[row, t] for row, t in enumerate(stop)]))
    assert outcome.cost == pytest.approx(np.mean([cost[row, : t + 1].sum() for row, t in enumerate(stop)]))
    for t, row in product(range(3), range(20)):
        later = next((s for s in range(t + 1, 3) if not onward[row, s]), 3)
        assert seen[t].loss[row] == loss[row, later]
        assert seen[t].cost[row] == pytest.approx(cost[row, t + 1 : later + 1].sum())
