"""What policies of logs are held against: a known policy has its known cost, exactly alpha breaks nothing."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from cascade.conformal.arrays import ScoreArrays, StepArrays
from cascade.episodes.table import EpisodeTable

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from fit_regret import DELTA, Outcome, Row
from fitted import figures
from fitted.opponents import clairvoyant_cost, going_on, matched, mixture_cost


def ladder() -> EpisodeTable:
    """10 questions of two steps at 1 and 10 µUSD: the first is right but for 5, which "doubt" marks, the second always."""
    bad = np.arange(10) < 5
    correct = np.stack([~bad, np.ones(10, dtype=np.bool_)], axis=1)[:, :, None]
    cost = np.tile(np.array([1_000, 10_000]), (10, 1))
    arrays = StepArrays(np.where(correct, 0, 1), correct, cost, np.full(10, 2), np.ones(10, dtype=np.bool_))
    signals = {"doubt": np.stack([bad.astype(np.float64), np.zeros(10)], axis=1)}
    names = tuple(f"q{number}" for number in range(10))
    return EpisodeTable("made/one>two", names, names, ("answer",), arrays, np.full((10, 2, 1), np.nan), signals, {})


def test_a_perfect_doubt_costs_what_the_clairvoyant_does() -> None:
    """5 of 10 go on for 10 µUSD each, beside 1 for everybody; a miss of 1 in 10 saves one of them."""
    table = ladder()
    costs = matched(table.arrays, going_on(table, table.signals["doubt"]), (0.0, 0.1))
    assert costs == pytest.approx([6.0e-6, 5.0e-6])
    assert [clairvoyant_cost(table.arrays, alpha) for alpha in (0.0, 0.1)] == pytest.approx(costs)
    assert clairvoyant_cost(table.arrays, 0.15) == pytest.approx(4.5e-6)


def test_the_mixture_is_a_coin_between_depths() -> None:
    table = ladder()  # depth 1 covers .5 at 1 µUSD, depth 2 all at 11
    assert mixture_cost(table.arrays, 0.1) == pytest.approx(1e-6 + 0.8 * 10e-6)
    assert mixture_cost(table.arrays, 0.6) == pytest.approx(1e-6)


def test_out_of_reach_is_not_a_number() -> None:
    never = ScoreArrays(np.full((10, 2, 1), np.inf), np.full((10, 2), -np.inf))
    assert math.isnan(matched(ladder().arrays, never, (0.1,))[0])


def test_a_ratio_is_that_of_the_means_and_each_source_has_one_vote() -> None:
    found = figures.ratio(np.array([1.0, 3.0]), np.array([4.0, 4.0]), n_train=100, n_test=100)
    assert found.mean == 0.5
    # d = ±.25, variance .125, times (1/2 + 1), t(1) = 12.706
    assert found.high == pytest.approx(0.5 + 12.7062 * math.sqrt(0.125 * 1.5), rel=1e-4)
    assert figures.geometric_mean({"a": [0.25] * 9, "b": [1.0], "c": [math.nan]}).mean == pytest.approx(0.5)


def test_a_breach_is_more_than_delta_and_three_standard_errors() -> None:
    def row(broken: int, regret: float) -> Row:
        regrets = [regret] * broken + [0.0] * (200 - broken)
        return Row(
            "log", "auto", 0.05, 70, 30, tuple(Outcome(True, "x", one, 1.0, 2.0, 0.1, 0.1) for one in regrets), 0.1
        )

    may = math.floor(200 * (DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / 200)))
    assert row(200, 0.05).broken == 0
    assert not row(may, 1.0).breach
    assert row(may + 1, 1.0).breach
