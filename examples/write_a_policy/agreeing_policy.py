"""A policy: go on until an answer agrees with the earlier ones, and keep every answer on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import Field

from cascade.policies.base import Observation, Policy, Scores
from cascade.policies.config import PolicyConfig, StrategyFacts

SIGNAL = "agrees_with_earlier"


@dataclass(frozen=True)
class AgreeingPolicy(Policy):
    """Go on while the share of earlier answers that differ from the latest is at least `kappa`."""

    kappa: float = 0.5

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it looks at; a log must have one of them."""
        return (SIGNAL,)

    def scores(self, observation: Observation) -> Scores:
        """Keep every answer; the score of going on is the doubt. The first answer has nothing to agree with."""
        agrees = observation.step.signals.get(SIGNAL)
        doubt = math.inf if agrees is None else 1.0 - agrees
        return Scores((math.inf,) * len(observation.step.candidates), doubt)


class AgreeingConfig(PolicyConfig):
    """The settings of the policy: {kind: agreeing, doubt: 0.5}."""

    doubt: float = Field(default=0.5, ge=0, le=1)

    def build(self) -> AgreeingPolicy:
        """Return the policy."""
        return AgreeingPolicy(self.doubt)

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield what keeps the policy from working with the strategy that is configured."""
        if SIGNAL not in strategy.signals:
            yield f"policy: agreeing reads the signal {SIGNAL}, which the {strategy.kind} strategy never gives"
