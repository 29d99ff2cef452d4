"""A run as the paper prints it, or with some of its flags put right: one more step, and the whole run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from cascade.errors import UsageError
from cascade.training.networks.mlp import Mlp, Pass
from cascade.training.networks.problem import Batch, State, StepFigures, TrainingProblem, average_after, drawn
from cascade.training.networks.recursions import Values, able
from cascade.training.networks.trainer import Networks
from cascade.training.networks.training import (
    Moments,
    Trained,
    ascended,
    averaged,
    by_level,
    kappa_step,
    priced,
    smoothed_by,
    train,
)
from literal.config import LiteralConfig
from literal.derivatives import tape_of
from literal.rollouts import Functional, estimate, functionals, roll_out, seen, values_of
from literal.sets import LiteralEvaluation, drawn_from
from literal.updates import Fisher, Question, Taken, masked_root, policy_root, trust_region

Surrogate = Callable[[Tensor], Values]
"""From logits, (N, k), to what each question of the batch brings."""
_SEEDS = 2**63
"""Of torch's generators; seeds beyond are taken modulo this."""


@dataclass(frozen=True)
class LiteralFigures(StepFigures):
    """The figures of one step, and how the weights were updated: "dual", or the case of a trust-region step."""

    case: str


class Critics(NamedTuple):
    """The critics' weights and Adam's moments, (Pc,) each; one network with two heads, cost and loss."""

    weights: Tensor
    first: Tensor
    second: Tensor


class Literal:
    """One run of training with the flags of the text. It holds the critics, which learn beside the policy.

    Raises:
        UsageError: a trust region is to hold the constraints of several levels.
    """

    def __init__(self, setting: TrainingProblem) -> None:
        if not isinstance(setting.config, LiteralConfig):
            raise TypeError("a literal run has a LiteralConfig")
        self.setting, self.config = setting, setting.config
        if self.config.update == "trust_region" and setting.levels > 1:
            raise UsageError("A trust region holds one constraint, and each level has its own: use the update dual.")
        self.critic = Mlp((setting.inputs, *self.config.layers, 2), self.config.activation)
        weights = self.critic.initial((setting.seed + 1) % _SEEDS).to(self.config.device)
        self.critics = Critics(weights, torch.zeros_like(weights), torch.zeros_like(weights))

    def advance(self, setting: TrainingProblem, state: State) -> tuple[State, LiteralFigures]:
        """Return the state after one more step, and what it showed."""
        config, number = self.config, int(state.step) + 1
        batch = drawn(setting, number)
        now = setting.net.forward(state.weights, batch.rows)
        look = LiteralEvaluation(setting, config, batch, state.kappa[batch.level])
        logs = look.log_policy(now.outputs)
        measured = look.hard(logs)
        values = look.values if config.estimator == "exact" else self.sampled(batch, look, logs, number)
        asked = Question.of(
            setting.net, state.weights, batch.rows, now, values, lambda logits: look.divergence(logs, logits)
        )
        violation = by_level(asked.found.constraint.detach(), setting.levels) / setting.goal.scale
        smoothed = smoothed_by(state.violation, violation, config.smoothing)
        taken, moments = self._updated(
            state, asked, batch.level, smoothed, lambda: self.fisher(now, logs, look, number)
        )
        weights = state.weights + taken.change
        judged = measured
        if config.kappa_timing == "after":
            after = setting.net.forward(weights, batch.rows).outputs if taken.logits is None else taken.logits
            judged = look.hard(look.log_policy(after))
        kappa = state.kappa
        if setting.threshold != "none":
            sign = 1.0 if config.kappa_sign == "printed" else -1.0
            kappa = (kappa + sign * kappa_step(setting, judged, number)).clamp(*setting.kappa_range)
        new = State(
            state.step + 1, weights, averaged(state, weights, number - average_after(config)), *moments, kappa,
            ascended(state.multiplier, smoothed, config), smoothed,
        )  # fmt: skip
        coverage = 1.0 - float(measured.loss.mean())
        return new, LiteralFigures(coverage, float(violation.mean()), float(state.kappa.mean()), taken.case)

    def sampled(self, batch: Batch, look: LiteralEvaluation, logs: Tensor, number: int) -> Surrogate:
        """Return objective and constraint from rollouts; the critics learn from them."""
        setting, config, goal, walks = self.setting, self.config, self.setting.goal, batch.walks
        if config.constraint_form == "exact" and not setting.joint:  # as in `LiteralEvaluation.values`
            config = config.model_copy(update={"constraint_form": "paper"})
        draws = rollout_draws(setting, number)
        rollouts = roll_out(able(logs, walks).log_softmax(dim=-1), walks.onward, config.exploration, draws)
        judged = self.critic.forward(self.critics.weights, batch.rows)
        heads = judged.outputs.view(*walks.onward.shape, 2)
        missed = look.hard(logs).loss

        def parts(log_policy: Tensor) -> list[Functional]:
            return functionals(look.included(log_policy), walks, config, goal, missed)

        told = [seen(one, rollouts, heads[..., at], walks.onward, config) for at, one in enumerate(parts(logs))]

        def values(logits: Tensor) -> Values:
            paid, lost = parts(look.log_policy(logits))
            cost = estimate(paid, rollouts, told[0], config.gradient_clip)
            return values_of([cost, estimate(lost, rollouts, told[1])], goal, batch.level)

        wrong = (heads - torch.stack([one.targets for one in told], dim=-1)) * rollouts.alive[..., None]
        gradient = self.critic.vjp(judged.tape, (2.0 * wrong / wrong.numel()).reshape(-1, 2))
        weights, *moments = self.critics
        change, learned = Moments(*moments).step(gradient, config.critic_rate, number)
        self.critics = Critics(weights + change, *learned)
        return values

    def _updated(
        self, state: State, asked: Question, level: Tensor, smoothed: Tensor, fisher: Callable[[], Fisher]
    ) -> tuple[Taken, Moments]:
        """Return the update of the weights."""
        config, number, moments = self.config, int(state.step) + 1, Moments(state.first, state.second)
        left = 1.0 - (number - 1) / config.steps
        if config.update == "dual":
            price = priced(state.multiplier, smoothed, config)[level]
            (gradient,) = asked.gradients(lambda found: (found.objective + price * found.constraint).mean())
            change, moments = moments.step(gradient, config.learning_rate * left, number)
            return Taken(change, "dual"), moments
        held = float((smoothed * self.setting.goal.scale).mean()) if config.smoothing else None
        delta = config.delta * (left if config.anneal else 1.0)
        return trust_region(asked, fisher(), held, delta, config), moments

    def fisher(self, now: Pass, logs: Tensor, look: LiteralEvaluation, number: int) -> Fisher:
        """Return the Fisher matrix of some of the batch's states."""
        setting, config, policy = self.setting, self.config, logs.exp().reshape(-1, logs.shape[-1])
        chance, there = np.random.default_rng([setting.seed, number, 1]), look.there
        held = np.arange(len(policy)) if there is None else np.flatnonzero(there.cpu().numpy())
        rows = torch.from_numpy(held[chance.permutation(held.size)[: config.fisher_states]]).to(policy.device)
        root = policy_root(policy[rows])
        if config.trust_region_of == "soft_mask" and setting.joint:
            included = look.included(logs).reshape(policy.shape)
            slope = (1.0 - included) / config.mask_width
            if config.mask_space == "logit":
                slope = slope / (policy * (1.0 - policy)).clamp(min=1e-12)
            root = masked_root(policy[rows], drawn_from(included)[rows], slope[rows])
        return Fisher(setting.net, tape_of(now.tape, rows), root, config.damping)


def rollout_draws(setting: TrainingProblem, number: int) -> Tensor:
    """Return a step's uniform draws for rollouts, (B, T): what its generator gives after the batch was chosen."""
    chance = np.random.default_rng([setting.seed, number])
    n, size, horizon = len(setting.walks.counts), setting.config.batch, setting.walks.cost.shape[1]
    if size < n:
        chance.choice(n, size, replace=False)
    return torch.from_numpy(chance.random((min(n, size) * setting.levels, horizon))).to(setting.config.device)


def train_literal(setting: TrainingProblem) -> Trained:
    """Train with the flags of the text; as `training.train`."""
    return train(setting, Literal(setting).advance)


class LiteralNetworks(Networks):
    """Trains networks with the flags of the text."""

    def __init__(self, config: LiteralConfig) -> None:
        super().__init__(config)

    def _trained(self, setting: TrainingProblem) -> Trained:
        return train_literal(setting)
