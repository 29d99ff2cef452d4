"""Objective and constraint of a batch as functions of the policy's logits: exact, or from rollouts with critics."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.batch import Batch, BatchEvaluation
from cascade.training.networks.goal import Values
from cascade.training.networks.problem import State, TrainingProblem
from cascade.training.networks.recursions import able, brought
from cascade.training.networks.sampled import Functional, estimate, functionals, roll_out, seen, values_of
from cascade.training.networks.updates import Moments

Surrogate = Callable[[Tensor], Values]
"""From logits, (N, k), to what each question of the batch brings."""


class Critics(NamedTuple):
    """The critics' weights and Adam's moments, (Pc,) each."""

    weights: Tensor
    first: Tensor
    second: Tensor


def surrogate(
    setting: TrainingProblem, batch: Batch, look: BatchEvaluation, logs: Tensor, state: State
) -> tuple[Surrogate, Critics]:
    """Return objective and constraint, and the critics after they have learned.

    Args:
        setting: which estimator, which forms.
        batch: the questions.
        look: the policy at its thresholds.
        logs: log π of the weights as they are, (B, T, k).
        state: the weights, the critics.
    """
    critics = Critics(state.critic, state.critic_first, state.critic_second)
    if setting.config.estimator == "exact":
        return _exact(setting, batch, look), critics
    return _sampled(setting, batch, look, logs, critics, int(state.step) + 1)


def _exact(setting: TrainingProblem, batch: Batch, look: BatchEvaluation) -> Surrogate:
    config = setting.config
    # One action a step keeps one answer: nothing is counted twice, and two right ones add up.
    counted, path = config.constraint_form == "paper" or not setting.joint, config.cost_form == "path"

    def values(logits: Tensor) -> Values:
        included = look.included(look.log_policy(logits))
        return setting.goal.values(brought(included, batch.walks, counted=counted, path=path), batch.level)

    return values


def _sampled(
    setting: TrainingProblem, batch: Batch, look: BatchEvaluation, logs: Tensor, critics: Critics, number: int
) -> tuple[Surrogate, Critics]:
    config, goal, walks = setting.config, setting.goal, batch.walks
    if config.constraint_form == "exact" and not setting.joint:  # as in `_exact`
        config = config.model_copy(update={"constraint_form": "paper"})
    rollouts = roll_out(able(logs, walks).log_softmax(dim=-1), walks.onward, config.exploration, batch.draws)
    judged = setting.critic.forward(critics.weights, batch.rows)
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
    gradient = setting.critic.vjp(judged.tape, (2.0 * wrong / wrong.numel()).reshape(-1, 2))
    change, moments = Moments(critics.first, critics.second).step(gradient, config.critic_rate, number)
    return values, Critics(critics.weights + change, *moments)
