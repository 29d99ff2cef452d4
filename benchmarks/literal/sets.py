"""Soft sets as the paper has them: a mask of probabilities or of logits, paths drawn from it, and their divergence."""

from __future__ import annotations

import torch
from torch import Tensor

from cascade.training.networks.problem import Batch, BatchEvaluation, TrainingProblem
from cascade.training.networks.recursions import Brought, Values, brought, soft_mask
from cascade.training.networks.walks import Walks
from literal.config import LiteralConfig

_TINY = 1e-300
"""Under a division by Σm: all inclusions of a step may round to 0."""


def logit_mask(log_policy: Tensor, kappa: Tensor, width: float) -> Tensor:
    """Return m = σ((logit π − logit κ)/ε), (B, T, k)."""
    # log π − log(1 − π), 1 − π from below: at π = 1 the logit is large and finite.
    logit = log_policy.clamp(min=-1e6) - torch.log1p(-log_policy.exp().clamp(max=1 - 1e-12))
    soft = torch.sigmoid((logit - torch.logit(kappa, eps=1e-12)) / width)
    return torch.where(log_policy == -torch.inf, 0.0, soft)


def drawn_from(included: Tensor) -> Tensor:
    """Return S = m/Σm, the distribution over actions that a soft set is drawn with, (B, T, k)."""
    return included / included.sum(dim=-1, keepdim=True).clamp(min=_TINY)


def on_a_path(included: Tensor, walks: Walks, *, counted: bool = False) -> Brought:
    """Return what soft inclusions bring, cost and size being those of one path drawn from the set."""
    return brought(drawn_from(included), walks)._replace(loss=brought(included, walks, counted=counted).loss)


class LiteralEvaluation(BatchEvaluation):
    """A policy on a batch at its thresholds, with the flags of the text."""

    def __init__(self, setting: TrainingProblem, config: LiteralConfig, batch: Batch, kappa: Tensor) -> None:
        super().__init__(setting, batch, kappa)
        self._config = config

    @property
    def there(self) -> Tensor | None:
        """Which of the batch's steps the log has, bool (B, T); None if it has all."""
        return self._batch.walks.there

    def mask(self, logs: Tensor, kappa: Tensor) -> Tensor:
        """Return how far each action is in the set, by the width of probabilities or of logits."""
        mask = logit_mask if self._config.mask_space == "logit" else soft_mask
        return mask(logs, kappa, self._config.mask_width)

    def values(self, logits: Tensor) -> Values:
        """Return objective and constraint, exactly, in the forms that are asked for."""
        bring = on_a_path if self._config.cost_form == "path" else brought
        counted = self._config.constraint_form == "paper" or not self._setting.joint
        found = bring(self.included(self.log_policy(logits)), self._batch.walks, counted=counted)
        return self._setting.goal.values(found, self._batch.level)

    def divergence(self, logs: Tensor, logits: Tensor) -> Tensor:
        """Return the mean KL divergence of what the trust region is of: the policy, or what the mask draws."""
        new = self.log_policy(logits)
        if self._config.trust_region_of == "soft_mask" and self._setting.joint:
            new, logs = (drawn_from(self.included(one)).clamp(min=1e-300).log() for one in (new, logs))
        gap = torch.where(new == -torch.inf, 0.0, new.exp() * (new - logs.clamp(min=-1e300)))
        each, there = gap.sum(-1), self.there
        return (each if there is None else each[there]).mean()
