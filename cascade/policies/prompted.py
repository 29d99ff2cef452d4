"""A model decides: LLM-as-policy, which chooses an action each round, and LLM-exit, which says when to stop.

The strategy asks the model and writes what it said into the step's signals; this policy follows it. Baselines: what a
learned policy has to beat, and what it costs to let a model decide.

References: the "LLM policy" and "LLM-EXIT" baselines of the CCPO paper (2025), with prompts of our own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from cascade.policies.base import ALWAYS, NEVER, Observation, Policy, Scores
from cascade.policies.config import PolicyConfig, StrategyFacts

KEEP_BASE, KEEP_GUIDE, GO_ON = 1.0, 2.0, 3.0


@dataclass(frozen=True, slots=True)
class PromptedPolicy(Policy):
    """Follow the model's decision.

    Signal `decided_action` (of the base-guide strategy with a decider): 1 keeps the base's answer, 2 the guide's, 3
    goes on. Signal `says_exit` (of the exit strategy): 1 stops, 0 goes on; every answer on the way is kept, as in the
    paper. If the signal is missing or names an answer that the step lacks, the policy goes on; at the last step it
    keeps the guide's answer, or else the newest.
    """

    kappa: float = 0.0

    @property
    def reads(self) -> tuple[str, ...]:
        """The signals that it reads; a step has one of them."""
        return ("decided_action", "says_exit")

    def scores(self, observation: Observation) -> Scores:
        """Score the chosen action +inf and the others −inf."""
        step = observation.step
        sources = [candidate.source for candidate in step.candidates]
        if "says_exit" in step.signals:
            onward = NEVER if step.signals["says_exit"] == 1.0 else ALWAYS
            return Scores((ALWAYS,) * len(sources), onward)
        action = step.signals.get("decided_action")
        chosen = {KEEP_BASE: "base", KEEP_GUIDE: "guide"}.get(action or GO_ON)
        if chosen not in sources:
            chosen = sources[-1] if observation.last and sources else None
        scores = tuple([ALWAYS if source == chosen else NEVER for source in sources])
        return Scores(scores, ALWAYS if chosen is None else NEVER)


class PromptedConfig(PolicyConfig):
    """A model decides: the strategy's `decider`, or the model of the exit strategy."""

    kind: Literal["prompted"]

    def build(self) -> PromptedPolicy:
        """Return the policy."""
        return PromptedPolicy()

    def problems(self, strategy: StrategyFacts) -> Iterator[str]:
        """Yield a problem if no model of the strategy decides."""
        if not strategy.decides:
            yield "policy: prompted needs a model that decides: strategy.decider: guide, or strategy: {kind: exit}"
