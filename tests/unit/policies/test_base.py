"""What a policy sees."""

from __future__ import annotations

from cascade.policies.base import Observation
from cascade.types import Step
from unit.made import RIVER, step


def test_the_latest_step_is_the_one_to_decide() -> None:
    observation = Observation(RIVER, (step(1), step(2)), 3)
    assert observation.step.number == 2
    assert not observation.last


def test_the_horizon_and_a_final_step_are_last() -> None:
    assert Observation(RIVER, (step(3),), 3).last
    assert Observation(RIVER, (Step(1, (), {}, final=True),), 3).last
