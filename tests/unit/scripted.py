"""Policies that a test of the engine states itself: a depth, and a threshold on the guide's verdict."""

from __future__ import annotations

import hashlib
import math
import random
from dataclasses import dataclass
from typing import Literal

from cascade.policies.base import ALWAYS, NEVER, Observation, StepScores


@dataclass(frozen=True, slots=True)
class FixedPolicy:
    """Run `depth` steps and keep every answer, or those of one model at the last step."""

    keep: Literal["base", "guide", "both"] = "both"
    depth: int = 1
    kappa: float = 0.0
    reads: tuple[str, ...] = ()

    def scores(self, observation: Observation) -> StepScores:
        onward = ALWAYS if observation.steps[-1].number < self.depth else NEVER
        last = onward == NEVER or observation.last
        sources = [candidate.source for candidate in observation.steps[-1].candidates]
        keeps = [self.keep == "both" or (last and source == self.keep) for source in sources]
        return StepScores(tuple([ALWAYS if each else NEVER for each in keeps]), onward)


@dataclass(frozen=True, slots=True)
class RandomPolicy:
    """Take one action at random, the same for the same seed, question and step."""

    seed: int = 0
    kappa: float = 0.0
    reads: tuple[str, ...] = ()

    def scores(self, observation: Observation) -> StepScores:
        step = observation.steps[-1]
        text = f"{self.seed}|{step.number}|{observation.question.text}|{observation.question.context or ''}"
        chance, many = random.Random(hashlib.sha256(text.encode("utf-8", "replace")).digest()), len(step.candidates)
        options = many + (0 if observation.last else 1)
        drawn = chance.randrange(options) if options else 0
        return StepScores(
            tuple([ALWAYS if at == drawn else NEVER for at in range(many)]), ALWAYS if drawn == many else NEVER
        )


@dataclass(frozen=True, slots=True)
class ThresholdPolicy:
    """Go on while the guide's verdict is unsure, or not a sure yes; then keep the answer that it judges right."""

    kappa: float = 0.3
    keep: Literal["judged", "both"] = "judged"
    when: Literal["uncertain", "p_yes"] = "uncertain"
    reads: tuple[str, ...] = ("p_yes",)

    def scores(self, observation: Observation) -> StepScores:
        step, p = observation.steps[-1], observation.steps[-1].signals.get("p_yes")
        doubt = ALWAYS
        if p is not None:
            doubt = 1.0 - p if self.when == "p_yes" else -math.log(max(p, 1.0 - p))
        if self.keep == "both" or (doubt >= self.kappa and not observation.last):
            return StepScores((ALWAYS if self.keep == "both" else NEVER,) * len(step.candidates), doubt)
        judged = "guide" if p is not None and p < 0.5 else "base"
        sources = [candidate.source for candidate in step.candidates]
        chosen = judged if judged in sources else (sources[-1] if sources else judged)
        return StepScores(tuple([ALWAYS if source == chosen else NEVER for source in sources]), doubt)
