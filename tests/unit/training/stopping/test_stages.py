"""The training questions step by step, earlier policies in their columns, and the walk back from the last step."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from cascade.calibration.scores import history_of
from cascade.conformal.arrays import Bools
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.policies.estimators import Linear
from cascade.training.stages import MOST_MULTIPLIED, PRODUCTS_TIMES, FitTarget, prior_of, rule_before, staged
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


def test_products_are_penalised_more_and_left_out_where_there_are_too_many() -> None:
    bare = staged(simulate(WORLD, 300, seed=1))
    first, second, *_ = (stage.multiplied() for stage in bare)
    assert len(first.design.pairs) > 10
    plain = first.design.width + first.design.indicators.size
    assert first.penalty(2.0)[:plain].tolist() == [2.0 * plain] * plain
    assert set(first.penalty(2.0)[plain:]) == {2.0 * plain * PRODUCTS_TIMES}
    assert np.array_equal(bare[0].columns, first.columns[:, :plain])
    assert not len(bare[0].design.pairs)
    assert second.raw.shape[1] + second.design.indicators.size <= MOST_MULTIPLIED or not len(second.design.pairs)


def test_an_earlier_line_over_the_same_features_is_found_as_it_was() -> None:
    """Other questions, so other centres, scales and clips: the line in between is the same."""
    old = fit_net_benefit(build(simulate(WORLD, 2_000, seed=1), FitTarget("coverage", 0.1), confidences=False))
    table = simulate(WORLD, 2_000, seed=2)
    for stage, rule in zip(staged(table)[:-1], old.rules, strict=False):
        prior = prior_of(rule.next, rule, stage, table)
        assert prior is not None
        assert isinstance(rule.next, Linear)
        said = rule.next.values(rule.features.table(history_of(table), stage.step)[stage.rows])
        assert np.corrcoef(prior.of(stage.columns), said)[0, 1] > 0.999


def test_what_says_nothing_of_these_questions_is_no_prior() -> None:
    old = fit_net_benefit(build(simulate(WORLD, 200, seed=1), FitTarget("coverage", 0.1), confidences=False))
    table = COINS.draw(100, seed=1)
    assert rule_before(old, 1, table.sources) is None
    assert rule_before(old, 9, old.sources) is None
    stage = staged(table)[0]
    assert prior_of(None, old.rules[0], stage, table) is None
    mine = fit_net_benefit(build(table, FitTarget("coverage", 0.1), confidences=False))
    renamed = without(table, signals={"other": table.signals["sign"]})
    assert prior_of(mine.rules[0].next, mine.rules[0], staged(renamed)[0], renamed) is None


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
