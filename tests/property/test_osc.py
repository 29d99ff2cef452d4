"""Optimal stopping on any log: ragged, with unknown signals and costs, of any kind of guarantee."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated import WORLDS, simulate
from unit.evaluation.plain import draw, table_of

from cascade.calibration.scores import scored
from cascade.conformal.arrays import levels
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit, induce
from property.examples import times

KINDS = ("coverage", "error", "regret")
WORLD = WORLDS["hotpotqa/llama-3.2-3b"]


def ragged(seed: int, n: int, horizon: int, width: int) -> EpisodeTable:
    """Return a log with all that can be odd in one."""
    rng = np.random.default_rng(seed)
    table = table_of([draw(rng, horizon, width) for _ in range(n)], horizon, width, cost_known=bool(rng.random() < 0.7))
    zero = np.zeros(n, dtype=np.int64)
    guide = rng.random(n) < 0.7
    return replace(
        table,
        walks={GUIDE_ONLY: Walk(rng.random(n) < 0.9, guide, guide, zero, zero, zero, zero)},
        texts_known=np.full(n, rng.random() < 0.5),
    )


def asked(kind: str, table: EpisodeTable, share: float) -> FitTarget:
    return FitTarget(kind, share)


@times(0.5)
@given(
    seed=st.integers(0, 10**6),
    n=st.sampled_from([1, 3, 25, 90]),
    horizon=st.integers(1, 3),
    width=st.integers(1, 2),
    kind=st.sampled_from(KINDS),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
)
def test_any_log_can_be_fitted_on_and_scored(
    seed: int, n: int, horizon: int, width: int, kind: str, share: float
) -> None:
    table = ragged(seed, n, horizon, width)
    if kind == "regret" and not table.walks[GUIDE_ONLY].known.any():
        return
    policy = fit_net_benefit(build(table, asked(kind, table, share)))
    shown, scores = scored(policy, table)
    assert not np.isnan(scores.next).any()
    levels(shown.arrays, scores)
    assert (scores.candidates[table.arrays.present] > -np.inf).all()


@times(0.3)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["coverage", "error"]))
def test_the_order_of_the_rows_changes_nothing(seed: int, kind: str) -> None:
    table = simulate(WORLD, 120, seed % 50)
    order = np.random.default_rng(seed).permutation(table.n)
    goal = asked(kind, table, 0.15)
    one, other = (fit_net_benefit(build(some, goal, confidences=False)) for some in (table, table.take(order)))
    mine, its = (scored(policy, table)[1].next[:, :-1] for policy in (one, other))
    assert np.allclose(mine, its, rtol=1e-7, atol=1e-9)


@times(0.4)
@given(
    seed=st.integers(0, 10**6),
    alphas=st.lists(st.floats(0.0, 1.0), min_size=2, max_size=4),
    kind=st.sampled_from(["coverage", "error"]),
)
def test_a_stricter_alpha_never_has_a_lower_price(seed: int, alphas: list[float], kind: str) -> None:
    table = ragged(seed, 60, 3, 2)
    prices = [
        induce(build(table, FitTarget(kind, alpha), confidences=False)).price for alpha in sorted(alphas, reverse=True)
    ]
    assert prices == sorted(prices)


def test_price_is_found_for_what_the_kinds_promise() -> None:
    """A sanity check of the properties above: the prices do differ."""
    table = simulate(WORLD, 300, 1)
    prices = [induce(build(table, FitTarget("coverage", alpha), confidences=False)).price for alpha in (0.3, 0.05)]
    assert prices[1] > 1.5 * prices[0]
    with pytest.raises(Exception, match="no question"):
        fit_net_benefit(build(table.take(np.array([], dtype=np.int64)), FitTarget("coverage", 0.1)))
