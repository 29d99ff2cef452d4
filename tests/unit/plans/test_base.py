"""Both strategies keep the Protocol, and a model is asked plainly where nothing is said."""

from __future__ import annotations

import pytest

from cascade.plans.base import ModelUse, Strategy
from cascade.plans.presets import ladder as ladder_of
from cascade.types import Request
from unit.made import RIVER, base_guide


def test_a_model_is_asked_without_chance_by_default() -> None:
    assert (ModelUse("a").temperature, ModelUse("a").seed) == (0.0, None)


@pytest.mark.parametrize(
    "strategy", [base_guide(ModelUse("a"), ModelUse("b")), ladder_of((ModelUse("a"), ModelUse("b")))]
)
def test_a_plan_starts_with_a_request_and_can_be_dropped(strategy: Strategy) -> None:
    plan = strategy.plan(RIVER)
    first = next(plan)
    assert isinstance(first, Request)
    assert first.model == strategy.models[0]
    assert strategy.horizon >= 1
    plan.close()
    assert next(plan, None) is None
