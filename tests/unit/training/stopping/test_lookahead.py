"""The index: against shares counted by hand, and beside net benefit on the world whose optimum is enumerated."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.calibration.scores import scored
from cascade.conformal.arrays import levels
from cascade.conformal.frontier import frontier
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.policies.estimators import Gain
from cascade.training.lookahead import fit_lookahead
from cascade.training.stages import FitTarget
from cascade.training.stopping import build
from unit.training.stopping.test_net_benefit import COINS
from unit.training.worlds import cost_at, log, lowest, without


def test_without_signals_it_is_what_is_found_on_average_for_its_price() -> None:
    rng = np.random.default_rng(1)
    first = rng.choice(4, size=4_000, p=[0.5, 0.2, 0.25, 0.05])
    correct = (np.arange(3) == first[:, None])[:, :, None]
    table = log(correct, np.tile([10, 10, 40], (4_000, 1)), {})
    policy = fit_lookahead(build(table, FitTarget("coverage", 0.1), confidences=False))
    scores = scored(policy, table)[1].next[0]
    share, unit = np.bincount(first, minlength=4) / 4_000, 20.0
    # After step 1: step 2 alone, or 2 and 3 together. After step 2: step 3.
    after_one = max(share[1] / 10, (share[1] + share[2]) / 50) * unit
    after_two = share[2] / 40 * unit
    assert scores[:2] == pytest.approx([after_one, after_two], rel=0.02)


def test_it_comes_near_the_enumerated_optimum() -> None:
    test = COINS.draw(60_000, seed=9)
    policy = fit_lookahead(build(COINS.draw(10_000, seed=1), FitTarget("coverage", 0.1), confidences=False))
    assert lowest(COINS, 0.1) * 0.98 < cost_at(policy, test, 0.1) < lowest(COINS, 0.1) * 1.05


def test_its_own_threshold_loses_about_what_is_asked_for() -> None:
    train, test = (simulate(WORLDS["hotpotqa/llama-2-7b"], 2_000, seed=seed) for seed in (1, 2))
    policy = fit_lookahead(build(train, FitTarget("coverage", 0.1), confidences=False))
    shown, scores = scored(policy, test)
    assert 0.88 < frontier(shown.arrays, levels(shown.arrays, scores)).at(policy.kappa).coverage < 0.96


def test_where_going_on_can_break_what_was_right_that_is_taken_off() -> None:
    """The second model is right where the signal is low alone; with sets of answers there is nothing to lose."""
    rng = np.random.default_rng(3)
    sign = rng.random(3_000)
    correct = np.stack([rng.random(3_000) < 0.6, rng.random(3_000) < 1 - sign], axis=1)
    table = log(correct[:, :, None], np.tile([10, 20], (3_000, 1)), {"sign": np.repeat(sign[:, None], 2, axis=1)})
    error = fit_lookahead(build(table, FitTarget("error", 0.3), confidences=False))
    cover = fit_lookahead(build(table, FitTarget("coverage", 0.1), confidences=False))
    rules = [policy.rules[0].next for policy in (error, cover)]
    assert all(isinstance(rule, Gain) for rule in rules)
    assert [rule.lost == (None,) for rule in rules if isinstance(rule, Gain)] == [False, True]


def test_where_the_next_step_is_dear_going_on_is_worth_less() -> None:
    """What a second model mends does not depend on the question's length, and its price does."""
    rng = np.random.default_rng(4)
    length = rng.random(4_000)
    correct = np.stack([rng.random(4_000) < 0.7, rng.random(4_000) < 0.9], axis=1)[:, :, None]
    cost = np.stack([np.full(4_000, 10), 20 + np.round(180 * length)], axis=1).astype(np.int64)
    table = log(correct, cost, {"length": np.repeat(length[:, None], 2, axis=1)})
    policy = fit_lookahead(build(table, FitTarget("coverage", 0.1), confidences=False))
    scores, expected = scored(policy, table)[1].next[:, 0], 1.0 / (20 + 180 * length)
    middle = (length > 0.1) & (length < 0.9)
    assert np.corrcoef(1.0 / scores[middle], 1.0 / expected[middle])[0, 1] > 0.95
    blind = scored(
        fit_lookahead(build(without(table, signals={}), FitTarget("coverage", 0.1), confidences=False)), table
    )[1].next
    covered = 0.9 * np.mean(correct[:, 0, 0] | correct[:, 1, 0])
    costs = []
    for values in (scores, blind[:, 0]):
        order = np.argsort(-values, kind="stable")
        found = np.cumsum((correct[:, 1, 0] & ~correct[:, 0, 0])[order]) + correct[:, 0, 0].sum()
        costs.append(cost[:, 1][order][: int(np.searchsorted(found, covered * 4_000)) + 1].sum())
    assert costs[0] < 0.8 * costs[1]


def test_an_earlier_index_is_started_from() -> None:
    world = WORLDS["hotpotqa/llama-2-7b"]
    test, asked = simulate(world, 10_000, seed=9), FitTarget("coverage", 0.08)
    old = fit_lookahead(build(simulate(world, 3_000, seed=100), asked, confidences=False))
    few = [simulate(world, 80, seed=seed) for seed in range(4)]
    best = cost_at(old, test, 0.08)
    alone, warm = (
        np.mean([cost_at(fit_lookahead(build(some, asked, confidences=False, init=init)), test, 0.08) for some in few])
        for init in (None, old)
    )
    assert warm - best < 0.5 * (alone - best)


def test_few_conditional_cases_give_their_share_to_all() -> None:
    """Of 30 questions 2 are wrong at first: what mends them is a share, and no number of theirs is looked at."""
    correct = np.ones((30, 2), dtype=np.bool_)
    correct[:2, 0] = False
    sign = np.random.default_rng(0).random((30, 2))
    table = log(correct[:, :, None], np.tile([10, 20], (30, 1)), {"sign": sign})
    rule = fit_lookahead(build(table, FitTarget("coverage", 0.05), confidences=False)).rules[0].next
    assert isinstance(rule, Gain)
    assert not rule.gained[0].linear.weights.any()
    blind = without(table, signals={"sign": np.zeros((30, 2))})
    assert np.isfinite(scored(fit_lookahead(build(blind, FitTarget("coverage", 0.05))), blind)[1].next[:, 0]).all()
