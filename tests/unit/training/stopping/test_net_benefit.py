"""Net benefit: against the enumerated optimum, with signals that know everything, and where there is little to learn."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from simulated import WORLDS, simulate

from cascade.calibration.scores import scored
from cascade.conformal.arrays import Floats, levels
from cascade.conformal.frontier import clairvoyant, frontier
from cascade.episodes.table import EpisodeTable
from cascade.policies.learned import LearnedPolicy
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit, induce
from unit.training.worlds import Coins, cost_at, log, lowest, without

sys.path.append(str(Path(__file__).parents[4] / "benchmarks"))

from fitted.opponents import depth_mixture

COINS = Coins(
    kinds=np.array([0.5, 0.3, 0.2]),
    shows=np.array([[0.1, 0.2, 0.3], [0.6, 0.7, 0.5], [0.9, 0.6, 0.8]]),
    right=np.array([[0.9, 0.7, 0.5], [0.4, 0.6, 0.7], [0.05, 0.1, 0.3]]),
    cost=np.array([10_000_000, 20_000_000, 40_000_000]),
)
WORLD = WORLDS["hotpotqa/llama-2-7b"]


def onward(policy: LearnedPolicy, table: EpisodeTable) -> Floats:
    """Return the scores of going on where there is a next step."""
    return scored(policy, table)[1].next[:, :-1]


def test_more_questions_bring_it_to_the_enumerated_optimum() -> None:
    test = COINS.draw(60_000, seed=9)
    for alpha in (0.1, 0.05):
        best = lowest(COINS, alpha)
        few, many = (
            np.mean(
                [cost_at(fit_net_benefit(build(COINS.draw(n, seed), _coverage(alpha))), test, alpha) for seed in seeds]
            )
            for n, seeds in ((100, range(6)), (10_000, range(1)))
        )
        # 60,000 test questions know the cost at a coverage to about 0.7 %.
        assert best * 0.99 < many < best * 1.015
        assert many < few


def test_a_signal_that_knows_what_comes_reaches_the_clairvoyant_bound() -> None:
    rng = np.random.default_rng(0)
    first = rng.choice(4, size=3_000, p=[0.6, 0.2, 0.15, 0.05])  # 3: never
    correct = (np.arange(3) == first[:, None])[:, :, None]
    left = np.where(first < 3, first, 0)[:, None] - np.arange(3)[None, :]
    signals = {"steps_to_go": np.maximum(left, 0).astype(float), "worth_it": (left > 0).astype(float)}
    table = log(correct, np.tile([10, 10, 10], (3_000, 1)), signals)
    train, test = table.take(np.arange(1_500)), table.take(np.arange(1_500, 3_000))
    for alpha in (0.1, 0.02):
        policy = fit_net_benefit(build(train, _coverage(alpha), confidences=False))
        assert cost_at(policy, test, alpha) <= clairvoyant(test.arrays, alpha).cost * 1.02


def test_kappa_0_loses_about_what_is_aimed_at_on_fresh_questions() -> None:
    train, test = COINS.draw(20_000, seed=3), COINS.draw(20_000, seed=4)
    policy = fit_net_benefit(build(train, _coverage(0.1), confidences=False))
    shown, scores = scored(policy, test)
    point = frontier(shown.arrays, levels(shown.arrays, scores)).at(policy.kappa)
    assert 0.9 <= point.coverage < 0.95


def test_scores_hardly_tie_on_the_simulated_world_whatever_is_asked_for() -> None:
    """One round covers 0.84: at 0.4 nothing has to go on, at 0.001 everything has."""
    train, test = simulate(WORLD, 400, seed=1), simulate(WORLD, 2_000, seed=2)
    for alpha in (0.4, 0.1, 0.001):
        scores = onward(fit_net_benefit(build(train, _coverage(alpha), confidences=False)), test)
        assert np.isfinite(scores).all()
        assert all(np.unique(column).size > 1_900 for column in scores.T)
        # And they order the questions: to cover 0.93 costs less than the best mixture of depths.
        policy = fit_net_benefit(build(train, _coverage(alpha), confidences=False))
        mixed = depth_mixture(test.arrays).cost_at(0.93)
        assert mixed is not None
        assert cost_at(policy, test, 0.07) < mixed


def test_one_step_that_all_questions_need_does_not_blind_it_to_the_next() -> None:
    """The second of four models brings the loss just below what is allowed: the third must still be chosen well."""
    rng = np.random.default_rng(5)
    n = 4_000
    hard = rng.random(n) < 0.08
    correct = np.zeros((n, 4), dtype=np.bool_)
    correct[:, 0] = ~hard & (rng.random(n) < 0.6)
    correct[:, 1] = ~hard & ~correct[:, 0]
    correct[:, 2] = hard & (rng.random(n) < 0.5)
    correct[:, 3] = ~correct.any(axis=1)
    doubt = np.where(hard, 1.0, 0.0)[:, None] + rng.normal(0, 0.5, (n, 4))
    table = log(correct[:, :, None], np.tile([10, 10, 30, 400], (n, 1)), {"doubt": doubt})
    train, test = table.take(np.arange(1_000)), table.take(np.arange(1_000, n))
    policy = fit_net_benefit(build(train, _coverage(0.085), confidences=False))
    mixed = depth_mixture(test.arrays).cost_at(0.96)
    assert mixed is not None
    assert cost_at(policy, test, 0.04) < 0.7 * mixed


def test_unknown_costs_count_steps() -> None:
    table = COINS.draw(500, seed=2)
    blind = without(table, cost_known=False)
    policy = fit_net_benefit(build(blind, _coverage(0.1), confidences=False))
    same = log(table.arrays.correct, np.ones((500, 3)), dict(table.signals))
    other = fit_net_benefit(build(same, _coverage(0.1), confidences=False))
    assert np.allclose(onward(policy, table), onward(other, table))


def test_the_unit_of_money_changes_nothing() -> None:
    table = COINS.draw(500, seed=2)
    dear = log(table.arrays.correct, table.arrays.cost * 7, dict(table.signals))
    policies = [fit_net_benefit(build(one, _coverage(0.1), confidences=False)) for one in (table, dear)]
    assert np.allclose(onward(policies[0], table), onward(policies[1], table), rtol=1e-9)


def test_a_stricter_alpha_never_has_a_lower_price() -> None:
    table = simulate(WORLD, 300, seed=3)
    prices = [
        induce(build(table, _coverage(alpha), confidences=False)).price for alpha in (0.3, 0.2, 0.1, 0.05, 0.01, 0)
    ]
    assert prices == sorted(prices)
    assert len(set(prices)) > 3


def test_an_alpha_that_no_step_reaches_is_fitted_as_well_as_can_be() -> None:
    table = without(COINS.draw(400, seed=6))
    arrays = table.arrays
    open_ended = without(
        table, arrays=type(arrays)(arrays.answer, arrays.correct, arrays.cost, arrays.steps, arrays.solvable)
    )
    lost = 1 - arrays.solvable.mean()
    assert lost > 0.05
    policy = fit_net_benefit(build(open_ended, _coverage(0.001), confidences=False))
    assert np.isfinite(onward(policy, table)).all()
    assert cost_at(policy, table, 0.1) < depth_mixture(arrays).cost_at(0.9)  # type: ignore[operator]  # it is reached


def test_nothing_to_look_at_gives_the_same_score_to_all() -> None:
    table = log(COINS.draw(200, seed=1).arrays.correct, np.tile([10, 20, 40], (200, 1)), {})
    scores = onward(fit_net_benefit(build(table, _coverage(0.1))), table)
    assert (scores == scores[:1]).all()
    assert np.isfinite(scores).all()


def test_one_step_has_nothing_to_decide() -> None:
    one = COINS.draw(50, seed=1)
    single = log(one.arrays.correct[:, :1], one.arrays.cost[:, :1], {"sign": one.signals["sign"][:, :1]})
    policy = fit_net_benefit(build(single, _coverage(0.1)))
    assert policy.horizon == 1
    assert policy.rules[0].next is None


def test_the_same_questions_and_seed_give_the_same_numbers() -> None:
    table = simulate(WORLD, 200, seed=8)
    one, other = (fit_net_benefit(build(table, _coverage(0.1), seed=3)) for _ in range(2))
    for mine, its in zip(one.rules, other.rules, strict=True):
        for first, second in zip(mine.scorers, its.scorers, strict=True):
            assert all(np.array_equal(part, second.arrays()[name]) for name, part in first.arrays().items())


def _coverage(alpha: float) -> FitTarget:
    return FitTarget("coverage", alpha)
