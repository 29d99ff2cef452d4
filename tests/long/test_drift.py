"""Drift: a monitor alarms no more often without it than its level allows, finds it soon, and its fallback covers."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import drift  # noqa: E402
from drift import LEVEL, STEADY, Course, Steady  # noqa: E402

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

STREAMS = 2000


@pytest.mark.parametrize("world", STEADY, ids=lambda world: world.name)
def test_without_drift_it_alarms_no_more_often_than_its_level_allows(world: Steady) -> None:
    assert drift.false_alarms(world, STREAMS) <= (LEVEL + (world.delta or drift.UNLUCKY)) * STREAMS


def test_at_the_promised_rate_exactly_it_uses_up_some_of_its_level_and_no_more() -> None:
    alarms = drift.false_alarms_at_alpha(STREAMS)
    assert LEVEL * STREAMS / 10 < alarms <= LEVEL * STREAMS


@pytest.mark.parametrize(
    ("null", "n", "median", "late"),
    [("delta", 200, 110, 220), ("average", 200, 350, 900), ("average", 1000, 200, 450)],
)
@pytest.mark.parametrize("quiet", [0, 100, 500])
def test_a_jump_from_10_to_25_percent_is_found_within_so_many_audits(null, n, median, late, quiet) -> None:
    found = drift.delay(drift.watched(null, n), quiet, 200)
    assert found.early <= LEVEL * found.streams + 10  # 3 sd of 200 streams
    assert found.median is not None
    assert found.late is not None
    assert found.median <= median
    assert found.late <= late


@cache
def course() -> Course:
    """Serve the streams once for all tests."""
    return drift.course(100)


@pytest.mark.xdist_group("course")
@pytest.mark.parametrize("name", drift.POLICIES)
def test_before_the_jump_all_ways_of_serving_keep_the_promise(name) -> None:
    before = course().coverage[name][: drift.QUIET // drift.WINDOW].mean()
    assert abs(before - 0.9) < 0.01  # 1 − k/(n + 1) = 0.9005; 3 sd of 100 calibrations are 0.006


@pytest.mark.xdist_group("course")
def test_the_threshold_as_calibrated_falls_to_what_the_drift_leaves() -> None:
    assert abs(course().coverage["as calibrated"][-10:].mean() - 0.75) < 0.015


@pytest.mark.xdist_group("course")
def test_after_the_alarm_the_fallback_keeps_the_promise() -> None:
    after = course().coverage
    assert after["monitor, then everything"][-10:].mean() > 0.995  # 1 wherever it has alarmed
    assert sum(one is None for one in course().alarms) == 0
