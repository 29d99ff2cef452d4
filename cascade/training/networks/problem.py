"""What a run of training is: what is trained on, its state after a step, and what a step showed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.goal import Goal
from cascade.training.networks.mlp import DTYPE, Mlp
from cascade.training.networks.walks import Walks

_LOWEST, _MIDDLE = 0.3, 0.6
"""Where κ is kept above, and starts, in shares of a uniform policy's 1/k. Below, the mask of a confident policy has no
gradient; in the middle everything is in the set, and the first steps learn what to leave out."""
MULTIPLIERS = 1e-3, 200.0
"""What μ is kept in. A policy of one action a step may be unable to keep its promise at any price; beyond some hundred
steps for a miss nothing changes but the size of the gradient."""
_MISSES_FOR_A_STEP = 0.1
"""Under a budget μ starts here: a mean step above it counts as a tenth of a missed question."""
_SEEDS = 2**63
"""Of torch's generators; seeds beyond are taken modulo this."""


@dataclass(frozen=True)
class TrainingProblem:
    """What is trained on, and how.

    Attributes:
        walks: the training questions.
        goal: what is asked, for each level.
        config: how.
        threshold: "joint": the policy is trained through the sets at κ, and κ along (CCPO); "online": κ follows the
            misses of a policy of one action a step, which does not look at it (CPO online); "none" (CPO).
        seed: draws weights, batches, rollouts.
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
        """The inputs of the network, those of the levels included."""
        return int(self.walks.inputs.shape[2]) + (self.levels if self.levels > 1 else 0)

    @property
    def net(self) -> Mlp:
        """The policy network."""
        return Mlp((self.inputs, *self.config.layers, self.walks.actions), self.config.activation)

    @property
    def critic(self) -> Mlp:
        """The critics: one network with two heads, cost and loss."""
        return Mlp((self.inputs, *self.config.layers, 2), self.config.activation)

    @property
    def kappa_range(self) -> tuple[float, float]:
        """What κ is kept in; anywhere, where the policy is not trained through it."""
        actions = self.walks.actions
        return self.config.kappa_range or ((_LOWEST / actions, 1.0 / actions) if self.joint else (0.0, 1.0))


class State(NamedTuple):
    """All that a run is after a step; tensors of float64, so that it can be written and read without loss.

    Attributes:
        step: updates done, int64 ().
        weights, average: of the policy, (P,); the average is over the updates from `config.average_from` on.
        first, second: Adam's moments, (P,).
        kappa, multiplier, violation: (L,); the violation is smoothed, in limits, NaN before the first step.
        critic, critic_first, critic_second: of the critics, (Pc,); empty where nothing is sampled.
    """

    step: Tensor
    weights: Tensor
    average: Tensor
    first: Tensor
    second: Tensor
    kappa: Tensor
    multiplier: Tensor
    violation: Tensor
    critic: Tensor
    critic_first: Tensor
    critic_second: Tensor


class Row(NamedTuple):
    """What one step showed, of its batch; at several levels means over them.

    Attributes:
        step: its number, from 1.
        cost: of the sets at κ, in mean steps.
        coverage: 1 − loss of the sets at κ, under the policy before its update.
        violation: of the surrogate, in limits: above 0 it does not keep what it should.
        kappa, multiplier: before the step; μ is NaN in a trust region.
        kl: mean KL divergence of the new policy from the old one, nats.
        onward: mean π(next) where there is a next step.
        slack: coverage as the surrogate has it minus that of the sets at κ; large where repeated answers are counted.
        case: "dual", or what became of the trust-region step.
    """

    step: int
    cost: float
    coverage: float
    violation: float
    kappa: float
    multiplier: float
    kl: float
    onward: float
    slack: float
    case: str


def start(setting: TrainingProblem) -> State:
    """Return the state before the first step."""
    config, levels, device = setting.config, setting.levels, setting.config.device
    weights = setting.net.initial(setting.seed % _SEEDS).to(device)
    low, high = setting.kappa_range
    middle = _MIDDLE / setting.walks.actions if config.kappa_start is None else config.kappa_start
    each = torch.ones(levels, dtype=DTYPE, device=device)
    worth = _MISSES_FOR_A_STEP * each if setting.goal.budget else config.multiplier / setting.goal.scale
    sampled = config.estimator == "sampled"
    critic = setting.critic.initial((setting.seed + 1) % _SEEDS).to(device) if sampled else torch.zeros(0, dtype=DTYPE)
    nothing = torch.zeros_like(weights)
    return State(
        torch.zeros((), dtype=torch.int64), weights, nothing, nothing, nothing, each * min(max(middle, low), high),
        worth.clamp(*MULTIPLIERS), each * torch.nan, critic, torch.zeros_like(critic), torch.zeros_like(critic),
    )  # fmt: skip


def served_weights(setting: TrainingProblem, state: State) -> Tensor:
    """Return the weights to serve: the average, where one has begun."""
    return state.average if int(state.step) > average_after(setting.config) else state.weights


def average_after(config: CCPOConfig) -> int:
    """Return how many updates are made before weights are averaged."""
    return min(int(config.average_from * config.steps), config.steps)
