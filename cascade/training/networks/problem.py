"""The inputs of a training run, its state after a step, and the figures of a step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.mlp import DTYPE, Mlp
from cascade.training.networks.recursions import (
    Brought,
    Goal,
    Values,
    able,
    at_threshold,
    brought,
    policy_of,
    soft_mask,
)
from cascade.training.networks.walks import Walks

_LOWEST, _MIDDLE = 0.3, 0.6
"""The least κ, and κ at the start, as shares of a uniform policy's 1/k. Below the least, the mask of a confident policy
has no gradient. At the start every action is in the set, and the first steps learn to leave some out."""
MULTIPLIERS = 1e-3, 200.0
"""The range of μ. A policy of one action a step may be unable to keep its promise at any price; beyond some hundred
steps for a miss nothing changes but the size of the gradient."""
_SEEDS = 2**63
"""The modulus of seeds, for torch's generators."""


@dataclass(frozen=True)
class TrainingProblem:
    """The questions, the goal and the settings of a training run.

    Attributes:
        walks: the training questions.
        goal: the limit of each level.
        config: the settings.
        threshold: "joint": the policy is trained through the sets at κ, together with κ (CCPO); "online": κ follows
            the misses of a policy of one action a step, which does not read κ (CPO online); "none" (CPO).
        seed: the seed of weights and batches.
    """

    walks: Walks
    goal: Goal
    config: CCPOConfig
    threshold: Literal["joint", "online", "none"] = "joint"
    seed: int = 0

    @property
    def joint(self) -> bool:
        """Whether the policy is trained through the sets at κ; else it takes one action a step."""
        return self.threshold == "joint"

    @property
    def levels(self) -> int:
        """How many levels the policy is conditioned on."""
        return len(self.goal.limits)

    @property
    def inputs(self) -> int:
        """The number of inputs of the network, including those of the levels."""
        return int(self.walks.inputs.shape[2]) + (self.levels if self.levels > 1 else 0)

    @property
    def net(self) -> Mlp:
        """The policy network."""
        return Mlp((self.inputs, *self.config.layers, self.walks.actions), self.config.activation)

    @property
    def kappa_range(self) -> tuple[float, float]:
        """The range of κ; 0..1 if the policy is not trained through κ."""
        actions = self.walks.actions
        return self.config.kappa_range or ((_LOWEST / actions, 1.0 / actions) if self.joint else (0.0, 1.0))


class State(NamedTuple):
    """The whole state of a run after a step; tensors of float64, which files hold without loss.

    Attributes:
        step: updates done, int64 ().
        weights, average: those of the policy, (P,); the average is over the updates from `config.average_from` on.
        first, second: Adam's moments, (P,).
        kappa, multiplier, violation: (L,); the violation is smoothed, in units of the limit, NaN before the first step.
    """

    step: Tensor
    weights: Tensor
    average: Tensor
    first: Tensor
    second: Tensor
    kappa: Tensor
    multiplier: Tensor
    violation: Tensor


@dataclass(frozen=True)
class StepFigures:
    """The figures of one step, on its batch; with several levels, means over them.

    Attributes:
        coverage: 1 − loss of the sets at κ, under the policy before its update.
        violation: by how much the surrogate exceeds its limit, in units of the limit.
        kappa: its value before the step.
    """

    coverage: float
    violation: float
    kappa: float


def start(setting: TrainingProblem) -> State:
    """Return the state before the first step."""
    config, levels, device = setting.config, setting.levels, setting.config.device
    weights = setting.net.initial(setting.seed % _SEEDS).to(device)
    low, high = setting.kappa_range
    middle = _MIDDLE / setting.walks.actions if config.kappa_start is None else config.kappa_start
    each = torch.ones(levels, dtype=DTYPE, device=device)
    worth = config.multiplier / setting.goal.scale
    nothing = torch.zeros_like(weights)
    return State(
        torch.zeros((), dtype=torch.int64), weights, nothing, nothing, nothing, each * min(max(middle, low), high),
        worth.clamp(*MULTIPLIERS), each * torch.nan,
    )  # fmt: skip


def served_weights(setting: TrainingProblem, state: State) -> Tensor:
    """Return the weights to serve: the average, if averaging has begun."""
    return state.average if int(state.step) > average_after(setting.config) else state.weights


def average_after(config: CCPOConfig) -> int:
    """Return the number of updates before weights are averaged."""
    return min(int(config.average_from * config.steps), config.steps)


# --- A policy on a batch of questions, at its thresholds ---

_ABOVE_ALL = 2.0
"""A threshold that no probability reaches: only the argmax is taken."""


class Batch(NamedTuple):
    """The batch of one step: questions, their levels (B,), and the network's inputs."""

    walks: Walks
    level: Tensor
    rows: Tensor


def drawn(setting: TrainingProblem, number: int) -> Batch:
    """Return the batch of a step, which depends only on the seed and the step's number."""
    chance = np.random.default_rng([setting.seed, number])
    n, size, horizon = len(setting.walks.counts), setting.config.batch, setting.walks.cost.shape[1]
    chosen = np.arange(n) if size >= n else chance.choice(n, size, replace=False)
    walks = setting.walks.take(torch.from_numpy(np.sort(chosen)).to(setting.config.device))
    many = len(chosen)
    level = torch.arange(setting.levels, device=setting.config.device).repeat_interleave(many)
    if setting.levels > 1:  # every question at every level
        walks = Walks(*[None if one is None else one.repeat(setting.levels, *[1] * (one.dim() - 1)) for one in walks])  # type: ignore[arg-type]
        told = torch.nn.functional.one_hot(level, setting.levels).to(DTYPE)[:, None, :].expand(-1, horizon, -1)
        walks = walks._replace(inputs=torch.cat([walks.inputs, told], dim=2))
    return Batch(walks, level, walks.inputs.reshape(-1, setting.inputs))


class BatchEvaluation:
    """A policy on a batch at its thresholds."""

    def __init__(self, setting: TrainingProblem, batch: Batch, kappa: Tensor) -> None:
        self._setting, self._batch, self._kappa = setting, batch, kappa

    def log_policy(self, logits: Tensor) -> Tensor:
        """Return log π as it is served, (N, k) -> (B, T, k).

        "next" is masked only at step T: a served network does not know that a question ends earlier.
        """
        before = torch.ones_like(self._batch.walks.onward)
        before[:, -1] = False
        return policy_of(logits.view(*before.shape, -1), before)

    def included(self, logs: Tensor) -> Tensor:
        """Return the degree to which each action is in the set; for one action a step, π of the available actions."""
        walks = self._batch.walks
        if not self._setting.joint:
            return able(logs, walks).softmax(dim=-1)
        soft = self.mask(able(logs, walks), self._kappa[:, None, None])
        if walks.right is None:  # every answer is kept
            return torch.cat([torch.ones_like(soft[..., :-1]), soft[..., -1:]], dim=-1)
        return soft

    def mask(self, logs: Tensor, kappa: Tensor) -> Tensor:
        """Return the degree to which each action is in the set at a threshold."""
        return soft_mask(logs, kappa, self._setting.config.mask_width)

    def values(self, logits: Tensor) -> Values:
        """Return objective and constraint of each question, exactly, (N, k) -> (B,)."""
        included = self.included(self.log_policy(logits))
        # One action a step keeps one answer: none is counted twice, and the probabilities of two right ones add up.
        found = brought(included, self._batch.walks, counted=not self._setting.joint)
        return self._setting.goal.values(found, self._batch.level)

    def hard(self, logs: Tensor) -> Brought:
        """Return the loss, cost and size of the sets at κ; for CPO without a threshold, those of the argmax."""
        likeliest = _ABOVE_ALL if self._batch.walks.right is not None else 0.5  # "stop" is never a member of a set
        kappa = torch.full_like(self._kappa, likeliest) if self._setting.threshold == "none" else self._kappa
        return at_threshold(logs, self._batch.walks, kappa)
