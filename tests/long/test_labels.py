"""Regret and preference with few labels, in 20,000 simulated calibrations with conversations as groups."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import labels  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
CALIBRATIONS = 20_000
ALLOWED = labels.DELTA + 3 * math.sqrt(labels.DELTA * (1 - labels.DELTA) / CALIBRATIONS)


@pytest.mark.parametrize("rate", labels.RATES)
@pytest.mark.parametrize("n", [300, 1_000])
@pytest.mark.parametrize("hardest", [False, True])
def test_a_promise_is_broken_at_most_as_often_as_promised(n: int, rate: float, hardest: bool) -> None:
    broken, certified = labels.simulated(n, rate, 0.05, CALIBRATIONS, hardest=hardest)
    assert broken / CALIBRATIONS <= ALLOWED
    if not hardest:
        assert certified > 0


def test_below_the_least_number_of_requests_nothing_is_certified() -> None:
    assert labels.simulated(200, 0.2, 0.05, 200, hardest=False) == (0, 0)
