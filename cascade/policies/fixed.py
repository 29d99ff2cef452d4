"""Policies that read no signal: a fixed depth, and random choice. They are baselines for all other policies."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field

from cascade.policies.base import ALWAYS, NEVER, Observation, Policy, Scores
from cascade.policies.config import PolicyConfig, StrategyFacts


@dataclass(frozen=True, slots=True)
class FixedPolicy(Policy):
    """Run exactly `depth` steps and keep the base's answer, the guide's, or both.

    In the base-guide strategy every step pays both models, whatever is kept. A model alone, at its own cost, is the
    ladder strategy with that one model.
    """

    keep: Literal["base", "guide", "both"] = "both"
    depth: int = 1
    kappa: float = 0.0

    def scores(self, observation: Observation) -> Scores:
        """Give +inf to the kept actions and −inf to the others."""
        onward = ALWAYS if observation.step.number < self.depth else NEVER
        last = onward == NEVER or observation.last
        kept = tuple(
            ALWAYS if self.keep == "both" or (last and candidate.source == self.keep) else NEVER
            for candidate in observation.step.candidates
        )
        return Scores(kept, onward)


class FixedConfig(PolicyConfig):
    """The settings of `FixedPolicy`."""

    kind: Literal["fixed"]
    keep: Literal["base", "guide", "both"] = "both"
    depth: int = Field(default=1, ge=1)

    def build(self) -> FixedPolicy:
        """Return the policy."""
        return FixedPolicy(self.keep, self.depth)

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield the problems: the strategy has fewer steps, or no such candidate."""
        if self.depth > strategy.horizon:
            yield f"policy.depth: {self.depth} is more than the {strategy.horizon} steps that the strategy has"
        if self.keep != "both" and len(strategy.sources) == 1:
            yield f"policy.keep: a step of the {strategy.kind} strategy has one candidate; leave keep out"
        elif self.keep != "both" and not any(self.keep in names for names in strategy.sources):
            yield f"policy.keep: a step of the {strategy.kind} strategy has no candidate {self.keep}"


@dataclass(frozen=True, slots=True)
class RandomPolicy(Policy):
    """Choose uniformly among the candidates and going on, the same way for the same seed, question and step."""

    seed: int = 0
    kappa: float = 0.0

    def scores(self, observation: Observation) -> Scores:
        """Give +inf to one action drawn at random and −inf to the others."""
        step = observation.step
        said = f"{self.seed}|{step.number}|{observation.question.text}|{observation.question.context or ''}"
        chance = random.Random(hashlib.sha256(said.encode("utf-8", "replace")).digest())
        options = len(step.candidates) + (0 if observation.last else 1)
        drawn = chance.randrange(options) if options else 0
        scores = tuple(ALWAYS if index == drawn else NEVER for index in range(len(step.candidates)))
        return Scores(scores, ALWAYS if drawn == len(step.candidates) else NEVER)


class RandomConfig(PolicyConfig):
    """The settings of `RandomPolicy`."""

    kind: Literal["random"]
    seed: int = 0

    def build(self) -> RandomPolicy:
        """Return the policy."""
        return RandomPolicy(self.seed)
