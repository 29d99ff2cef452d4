"""Drift: a monitor alarms no more often without it than its level allows, and finds it soon."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import drift  # noqa: E402
from drift import LEVEL, STEADY  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

STREAMS = 2000


@pytest.mark.parametrize("world", STEADY, ids=lambda world: world.name)
def test_without_drift_it_alarms_no_more_often_than_its_level_allows(world):
    assert drift.false_alarms(world, STREAMS) <= (LEVEL + (world.delta or drift.UNLUCKY)) * STREAMS


def test_at_the_promised_rate_exactly_it_uses_up_some_of_its_level_and_no_more():
    alarms = drift.false_alarms_at_alpha(STREAMS)
    assert LEVEL * STREAMS / 10 < alarms <= LEVEL * STREAMS


@pytest.mark.parametrize(
    ("null", "n", "median", "late"),
    [("delta", 200, 110, 220), ("average", 200, 350, 900), ("average", 1000, 200, 450)],
)
@pytest.mark.parametrize("quiet", [0, 100, 500])
def test_a_jump_from_10_to_25_percent_is_found_within_so_many_audits(null, n, median, late, quiet):
    delay = drift.delay(drift.watched(null, n), quiet, 200)
    assert delay.early <= LEVEL * delay.streams + 10  # 3 sd of 200 streams
    assert delay.median <= median
    assert delay.late <= late
