"""The modes' promises over simulated loops, by `benchmarks/loops.py`: false promotions, false alarms, power."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import loops

LOOPS = 400


@pytest.mark.long
@pytest.mark.parametrize("world", loops.WORLDS, ids=lambda world: world.name)
def test_false_promotions_and_false_alarms_keep_their_levels(world):
    result = loops.shares(world, LOOPS)
    assert result.false <= loops.bound(loops.DELTA, LOOPS)
    if result.sound:
        assert result.false_alarms <= loops.bound(loops.LEVEL, result.sound)
    if world is loops.SAVES:
        assert result.promoted > 0.95
        assert result.alarms > 0.95
