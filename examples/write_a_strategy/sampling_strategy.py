"""A strategy: one model answers the question several times, and each step states how often its answer was given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from pydantic import Field

from cascade.plans.base import ModelUse
from cascade.plans.nodes import PlanNode
from cascade.plans.presets import StrategyConfig


class SamplingConfig(StrategyConfig):
    """The settings of the strategy: {kind: sampling, model: base, samples: 3}."""

    model: str = "base"
    samples: int = Field(default=3, ge=1, le=20)

    fitting_policy = {"kind": "fixed", "depth": 1}

    def listed(self, uses: Mapping[str, ModelUse]) -> Sequence[PlanNode]:
        """Return the samples. A model that is configured without chance is asked with some."""
        use = replace(uses[self.model], temperature=uses[self.model].temperature or 1.0)
        return [PlanNode(f"sample {number}", use, "sample") for number in range(1, self.samples + 1)]
