"""A policy on a batch of questions, at its thresholds."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.training.networks.goal import Values
from cascade.training.networks.mlp import DTYPE
from cascade.training.networks.problem import TrainingProblem
from cascade.training.networks.recursions import Hard, able, at_threshold, drawn_from, policy_of, soft_mask
from cascade.training.networks.walks import Walks

_ABOVE_ALL = 2.0
"""A threshold that no probability reaches: the argmax alone is taken."""


class Batch(NamedTuple):
    """What one step looks at: questions, (B,) levels, the inputs of their states, uniform draws for rollouts."""

    walks: Walks
    level: Tensor
    rows: Tensor
    draws: Tensor


def drawn(setting: TrainingProblem, number: int) -> Batch:
    """Return the batch of a step: it hangs on the seed and the step's number alone."""
    chance = np.random.default_rng([setting.seed, number])
    n, size, horizon = len(setting.walks.counts), setting.config.batch, setting.walks.cost.shape[1]
    chosen = np.arange(n) if size >= n else chance.choice(n, size, replace=False)
    walks = setting.walks.take(torch.from_numpy(np.sort(chosen)).to(setting.config.device))
    many = len(chosen)
    draws = torch.from_numpy(chance.random((many * setting.levels, horizon))).to(setting.config.device)
    level = torch.arange(setting.levels, device=setting.config.device).repeat_interleave(many)
    if setting.levels > 1:  # every question at every level
        walks = Walks(*[None if one is None else one.repeat(setting.levels, *[1] * (one.dim() - 1)) for one in walks])  # type: ignore[arg-type]
        told = torch.nn.functional.one_hot(level, setting.levels).to(DTYPE)[:, None, :].expand(-1, horizon, -1)
        walks = walks._replace(inputs=torch.cat([walks.inputs, told], dim=2))
    return Batch(walks, level, walks.inputs.reshape(-1, setting.inputs), draws)


class BatchEvaluation:
    """A policy on a batch at its thresholds."""

    def __init__(self, setting: TrainingProblem, batch: Batch, kappa: Tensor) -> None:
        self._setting, self._batch, self._kappa = setting, batch, kappa

    @property
    def there(self) -> Tensor | None:
        """Which of the batch's steps are on record, bool (B, T); None where all are."""
        return self._batch.walks.there

    def log_policy(self, logits: Tensor) -> Tensor:
        """Return log π as it is served, (N, k) -> (B, T, k): "next" is masked at step T alone.

        A question may end earlier, which a served network is not told.
        """
        before = torch.ones_like(self._batch.walks.onward)
        before[:, -1] = False
        return policy_of(logits.view(*before.shape, -1), before)

    def included(self, logs: Tensor) -> Tensor:
        """Return how far each action is in the set; π of the actions that are there, where one a step is taken."""
        config, walks = self._setting.config, self._batch.walks
        if not self._setting.joint:
            return able(logs, walks).softmax(dim=-1)
        soft = soft_mask(able(logs, walks), self._kappa[:, None, None], config.mask_width, config.mask_space)
        if walks.right is None:  # every answer is kept
            return torch.cat([torch.ones_like(soft[..., :-1]), soft[..., -1:]], dim=-1)
        return soft

    def hard(self, logs: Tensor) -> Hard:
        """Return what the sets at κ bring; of CPO without a threshold, the argmax."""
        likeliest = _ABOVE_ALL if self._batch.walks.right is not None else 0.5  # "stop" is no member of any set
        kappa = torch.full_like(self._kappa, likeliest) if self._setting.threshold == "none" else self._kappa
        return at_threshold(logs, self._batch.walks, kappa)

    def divergence(self, logs: Tensor, logits: Tensor) -> Tensor:
        """Return the mean KL divergence of the policy of logits from that of logs, over the steps on record."""
        new = self.log_policy(logits)
        if self._setting.config.trust_region_of == "soft_mask" and self._setting.joint:
            new, logs = (drawn_from(self.included(one)).clamp(min=1e-300).log() for one in (new, logs))
        gap = torch.where(new == -torch.inf, 0.0, new.exp() * (new - logs.clamp(min=-1e300)))
        each, there = gap.sum(-1), self.there
        return (each if there is None else each[there]).mean()

    def onward(self, logs: Tensor) -> float:
        """Return the mean π(next) where there is a next step."""
        there = self._batch.walks.onward
        return float(logs[..., -1].exp()[there].mean()) if bool(there.any()) else 0.0

    def slack(self, found: Values, measured: Hard) -> float:
        """Return coverage as the surrogate has it minus that of the sets."""
        goal = self._setting.goal
        loss = found.objective if goal.budget else found.constraint + goal.limits[self._batch.level]
        return float((measured.loss - loss).mean())
