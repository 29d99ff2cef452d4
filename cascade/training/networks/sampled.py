"""Cost and loss of a soft policy from rollouts of another one: importance weights, and critics as control variates.

A rollout takes one action a step, a_t ~ μ(·|o_t), the behaviour policy. The functionals of `recursions` are sums over
paths of products of weights w_t(a) (m for the conformal cost, m times "no earlier right answer was kept" for coverage),
so that with ω_t = Π_{s≤t} w_s(a_s)/μ_s(a_s)

    J = E_μ[ Σ_t ω_t r_t(a_t) ],    ∇J = E_μ[ Σ_t ω_{t−1} ( (w_t(a_t)/μ_t(a_t)) ∇log w_t(a_t) (q_t − V_t) + ∇W_t V_t ) ]

with W_t = Σ_a w_t(a), V the critic and q_t = r_t + v_{t+1}. The second term is what the baseline takes away in
expectation: w need not sum to 1. For w = S = m/Σm, the paper's path, W = 1 and it vanishes: IMPALA's gradient with the
weight Π_{s≤t} ρ_s of the states, which the paper announces and does not print.

The critic learns V(o_t) = Σ_a w_t(a) (r_t(a) + V(o_{t+1})) by V-trace with the target S_w = w/W, rewards W_t r_t and
discounts W_t (`training.networks.vtrace`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.goal import Goal, Values
from cascade.training.networks.recursions import Brought, drawn_from
from cascade.training.networks.vtrace import vtrace
from cascade.training.networks.walks import Walks

_TINY = 1e-300


class Rollouts(NamedTuple):
    """One path a question, (B, T) each.

    Attributes:
        actions: int64, what was done; meaningless where the path has ended.
        alive: bool, whether the step was reached.
        chance: μ(a_t).
    """

    actions: Tensor
    alive: Tensor
    chance: Tensor


def roll_out(log_policy: Tensor, onward: Tensor, exploration: float, draws: Tensor) -> Rollouts:
    """Draw paths from π mixed with the uniform distribution over the actions that there are.

    Args:
        log_policy: log π, (B, T, k).
        onward: bool (B, T), whether "next" is there.
        exploration: the share of the uniform distribution.
        draws: (B, T), uniform in [0, 1).
    """
    with torch.no_grad():
        there = torch.isfinite(log_policy)
        behaviour = (1.0 - exploration) * log_policy.exp() + exploration * there / there.sum(-1, keepdim=True)
        behaviour = behaviour / behaviour.sum(-1, keepdim=True)
        edges = behaviour.cumsum(-1)
        last = behaviour.shape[-1] - 1
        actions = (draws[..., None] >= edges).sum(-1).clamp(max=last)
        # A draw beyond the last edge by rounding would take "next" where there is none.
        actions = torch.where((actions == last) & ~onward, last - 1, actions)
        goes_on = ((actions == last) & onward).to(torch.int64)
        alive = torch.cat([torch.ones_like(goes_on[:, :1]), goes_on.cumprod(dim=1)[:, :-1]], dim=1).bool()
        return Rollouts(actions, alive, behaviour.gather(-1, actions[..., None])[..., 0])


class Functional(NamedTuple):
    """A sum over paths.

    Attributes:
        weights: w, (B, T, k), with a gradient.
        rewards: r, (B, T, k), of each action; what comes later is not in it.
        base: (B,), what is there before the first action.
    """

    weights: Tensor
    rewards: Tensor
    base: Tensor


def functionals(included: Tensor, walks: Walks, config: CCPOConfig, goal: Goal, missed: Tensor) -> list[Functional]:
    """Return cost (with λ a leaf) and loss.

    Args:
        included: m, or π for a policy of one action a step.
        walks: the questions.
        config: which forms.
        goal: λ.
        missed: (B,), whether the hard sets miss the question: the loss of the form "indicator".
    """
    rewards, step = torch.zeros_like(included), walks.cost
    if walks.right is None:  # every answer is kept: a step's are charged with the step
        step = step + goal.lambda_set * walks.leaves
    else:
        rewards[..., :-1] = goal.lambda_set
    rewards[:, :-1, -1] = step[:, 1:]
    path = drawn_from(included)
    paid = Functional(path if config.cost_form == "path" else included, rewards, step[:, 0])
    return [paid, _loss(included, path, walks, config, missed)]


def _loss(included: Tensor, path: Tensor, walks: Walks, config: CCPOConfig, missed: Tensor) -> Functional:
    zero, rewards = torch.zeros_like(walks.counts), torch.zeros_like(included)
    if walks.right is None:
        rewards[..., 0] = walks.stop_loss
        return Functional(torch.stack([1.0 - included[..., -1], included[..., -1]], dim=-1), rewards, zero)
    if config.constraint_form == "indicator":
        rewards[..., :-1] = missed[:, None, None]
        return Functional(path, rewards, zero)
    rewards[..., :-1] = -walks.counts[:, None, None] * walks.right
    if config.constraint_form == "paper":
        return Functional(included, rewards, walks.counts)
    left_out = 1.0 - included[..., :-1] * walks.right
    before = torch.cat([torch.ones_like(left_out[..., :1]), left_out.cumprod(dim=-1)], dim=-1)
    return Functional(included * before, rewards, walks.counts)


class Seen(NamedTuple):
    """What the rollouts tell of a functional at the weights that they were drawn with: constants, (B, T), level (B,).

    Attributes:
        before: ω_{t−1}, 0 where the path has ended.
        advantage: q_t − V_t.
        values: V_t.
        targets: what the critic is to say.
        level: the estimate of the functional.
    """

    before: Tensor
    advantage: Tensor
    values: Tensor
    targets: Tensor
    level: Tensor


def seen(functional: Functional, rollouts: Rollouts, values: Tensor, onward: Tensor, config: CCPOConfig) -> Seen:
    """Return what rollouts tell of a functional; values are the critic's, (B, T)."""
    with torch.no_grad():
        alive = rollouts.alive.to(values.dtype)
        taken = functional.weights.gather(-1, rollouts.actions[..., None])[..., 0]
        reward = functional.rewards.gather(-1, rollouts.actions[..., None])[..., 0]
        whole = functional.weights.sum(-1)
        goes_on = (rollouts.actions == functional.weights.shape[-1] - 1) & onward
        log_rho = (taken / whole.clamp(min=_TINY) / rollouts.chance).clamp(min=_TINY).log()
        traced = vtrace(
            torch.where(rollouts.alive, log_rho, 0.0).T,
            (alive * whole * goes_on).T,
            (alive * whole * reward).T,
            (alive * values).T,
            torch.zeros_like(values[:, 0]),
            rho_clip=config.rho_clip,
            c_clip=config.c_clip,
        )
        targets = traced.targets.T
        after = torch.cat([targets[:, 1:], torch.zeros_like(targets[:, :1])], dim=1)
        weight = (alive * taken / rollouts.chance + (1.0 - alive)).cumprod(dim=1)
        before = torch.cat([torch.ones_like(weight[:, :1]), weight[:, :-1]], dim=1)
        level = functional.base + (alive * weight * reward).sum(dim=1)
        before = alive * (before if config.state_weights else torch.ones_like(before))
        return Seen(before, reward + goes_on * after - values, values, targets, level)


def estimate(functional: Functional, rollouts: Rollouts, told: Seen, clip: float | None = None) -> Tensor:
    """Return the estimate at weights near the rollouts' own, (B,): there its gradient is ∇J's, its value `level`."""
    taken = functional.weights.gather(-1, rollouts.actions[..., None])[..., 0]
    ratio = taken / rollouts.chance
    if clip is not None:  # min(ρ, clip) ∇log w: the ratio is cut, its logarithm's gradient is not
        held = ratio.detach()
        ratio = ratio * (held.clamp(max=clip) / held.clamp(min=_TINY))
    moved = told.before * (ratio * told.advantage + functional.weights.sum(-1) * told.values)
    total = moved.sum(dim=1)
    return told.level + total - total.detach()


def values_of(estimates: list[Tensor], goal: Goal, level: Tensor) -> Values:
    """Return objective and constraint of the estimates of cost (λ in it) and loss."""
    cost, loss = estimates
    return goal._replace(lambda_set=0.0).values(Brought(cost, torch.zeros_like(cost), loss), level)
