"""Seconds as a second price: exactly the money and the price of the seconds, and refused where seconds are unknown."""

from __future__ import annotations

import numpy as np
import pytest

from cascade import fit
from cascade.episodes.seconds import seconds_of, with_seconds
from cascade.errors import UsageError
from cascade.evaluation.logs import open_log


def test_costs_count_money_and_seconds_and_what_is_seen_stays_money() -> None:
    log = open_log("demo-ladder")
    (table,) = log.tables
    taken = seconds_of(log.rows())
    priced = with_seconds(table, taken, 0.001)
    row = {(one["episode_id"], one["step"]): one for one in log.rows() if one["walk"] is None}[table.ids[3], 2]
    assert priced.arrays.cost[3, 1] - table.arrays.cost[3, 1] == pytest.approx(row["latency_ms"] * 1_000, abs=1)
    assert (priced.arrays.cost >= table.arrays.cost).all()
    assert np.array_equal(priced.paid, table.paid)
    last = priced.walks["last model only"]
    assert (last.cost == priced.arrays.cost[:, 1]).all()


def test_unknown_seconds_and_no_price_are_refused() -> None:
    log = open_log("demo-ladder")
    (table,) = log.tables
    with pytest.raises(UsageError, match="488 logged steps of demo-ladder have no duration"):
        with_seconds(table, {}, 0.001)
    with pytest.raises(UsageError, match="above 0 USD, not 0"):
        with_seconds(table, seconds_of(log.rows()), 0.0)


def test_a_fit_says_how_long_its_callers_wait() -> None:
    told: list[str] = []
    fit(
        "demo-ladder",
        guarantee="regret",
        alpha=0.2,
        delta=0.1,
        policy="purchases",
        seconds_price_usd=1e-4,
        tell=told.append,
    )
    (said,) = [one for one in told if one.startswith("A second counts as 0.0001 USD")]
    assert "s a question on the whole log; the reference alone takes" in said
    with pytest.raises(UsageError, match="--seconds-price counts seconds as costs"):
        fit("demo-ladder", guarantee="budget", budget_usd=0.001, seconds_price_usd=1e-4)
