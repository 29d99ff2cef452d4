"""What is minimised, and what is held: cost under an allowed loss, or loss under a budget; each level has its limit."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from cascade.training.networks.recursions import Brought

LEAST_LIMIT = 0.01
"""Violations are measured in limits, and no limit is taken for less: at α = 0 every miss would be infinitely many."""


class Values(NamedTuple):
    """Of each question, (B,): the objective, and how far it is above its level's limit; held at a mean of 0 or less."""

    objective: Tensor
    constraint: Tensor


class Goal(NamedTuple):
    """What is asked of a policy.

    Attributes:
        limits: (L,), for each level the mean loss that is allowed, or the mean cost in mean steps.
        lambda_set: what each answer kept is charged with, in mean steps.
        budget: whether the cost is held and the loss is minimised.
    """

    limits: Tensor
    lambda_set: float = 0.0
    budget: bool = False

    def values(self, found: Brought, level: Tensor) -> Values:
        """Return what questions at levels, int64 (B,), bring."""
        paid = found.cost + self.lambda_set * found.size
        if self.budget:
            return Values(found.loss, paid - self.limits[level])
        return Values(paid, found.loss - self.limits[level])

    @property
    def scale(self) -> Tensor:
        """What violations are measured in, (L,)."""
        return self.limits.clamp(min=LEAST_LIMIT)
