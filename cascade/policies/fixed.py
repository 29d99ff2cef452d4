"""Policies that do not look: a fixed depth, and chance. They are the baselines that any other has to beat."""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass
from typing import Literal

from cascade.policies.base import Observation, Scores

ALWAYS = float("inf")
NEVER = float("-inf")


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Run exactly `depth` steps and keep the base's answer, the guide's, or both.

    In the base-guide strategy every step pays both models, whatever is kept. A model alone, at its own cost, is the
    ladder strategy with that one model.
    """

    keep: Literal["base", "guide", "both"] = "both"
    depth: int = 1
    kappa: float = 0.0

    def scores(self, observation: Observation) -> Scores:
        """Give +inf to what is kept and −inf to the rest."""
        onward = ALWAYS if observation.step.number < self.depth else NEVER
        last = onward == NEVER or observation.last
        kept = tuple(
            ALWAYS if self.keep == "both" or (last and candidate.source == self.keep) else NEVER
            for candidate in observation.step.candidates
        )
        return Scores(kept, onward)


@dataclass(frozen=True, slots=True)
class RandomPolicy:
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
