"""Cost and loss of a soft policy from rollouts with critics: V-trace, and estimates whose gradients are unbiased."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cascade.errors import UsageError
from cascade.training.networks.recursions import Brought, Goal, Values
from cascade.training.networks.walks import Walks
from literal.config import LiteralConfig
from literal.sets import drawn_from

# --- V-trace: what a policy is worth, learned from what another one did ---
# Reference: Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
# ICML 2018, section 4.


class VTrace(NamedTuple):
    """Targets for a critic and advantages for a policy, each [T, B] and without a gradient.

    Attributes:
        targets: v_t, what the critic is to say of step t.
        advantages: r_t + d_t v_{t+1} − V_t, without the importance ratio.
        weighted: the same times min(ρ_t, pg_clip): the factor of ∇ log π in IMPALA's policy gradient.
    """

    targets: Tensor
    advantages: Tensor
    weighted: Tensor


def vtrace(
    log_rho: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    bootstrap: Tensor,
    *,
    rho_clip: float | None = 1.0,
    c_clip: float | None = 1.0,
    pg_clip: float | None = 1.0,
) -> VTrace:
    """Return the V-trace targets of trajectories, and the advantages.

    With ρ_t = π(a_t)/μ(a_t), π the policy to be judged, μ the one that acted and d_t the discount, from the last step:

        v_t = V_t + min(ρ_t, ρ̄)(r_t + d_t V_{t+1} − V_t) + d_t min(ρ_t, c̄)(v_{t+1} − V_{t+1}),

    and V_T = v_T = the bootstrap after the last row. With ρ = 1 and no terminal step the targets are n-step returns.
    With a clip the critic converges to the value of another policy, in proportion to min(ρ̄ μ, π), and not to that of
    π; c̄ moves how fast, not where to.

    Shapes:
        T steps, B trajectories: all [T, B], but the bootstrap [B].

    Args:
        log_rho: log ρ_t; −∞ where π has no such action.
        discounts: d_t; 0 marks a step after which the trajectory has ended: nothing behind it counts.
        rewards: r_t.
        values: V_t, the critic on what was seen before step t.
        bootstrap: V on what was seen after the last step.
        rho_clip: ρ̄ > 0, or None for no clip.
        c_clip: c̄ > 0, or None.
        pg_clip: of the ratio in `weighted`, or None.

    Raises:
        UsageError: shapes differ, a clip is not above 0, or a number (or an unclipped ratio) is not finite.

    Example:
        >>> one = torch.ones(2, 1)
        >>> vtrace(0 * one, torch.tensor([[1.0], [0.0]]), one, 0 * one, torch.zeros(1)).targets.flatten().tolist()
        [2.0, 1.0]
    """
    steps = {"log_rho": log_rho, "discounts": discounts, "rewards": rewards, "values": values}
    _check(steps, bootstrap)
    with torch.no_grad():
        rho, c, pg = (_ratio(log_rho, clip, name) for clip, name in ((rho_clip, "rho"), (c_clip, "c"), (pg_clip, "pg")))
        after = torch.cat([values[1:], bootstrap[None]])  # V_{t+1}, [T, B]
        deltas = rho * (rewards + discounts * after - values)
        excess, excesses = torch.zeros_like(bootstrap), []  # v_t − V_t, [B]
        for delta, decay in zip(deltas.flip(0), (discounts * c).flip(0), strict=True):
            excess = delta + decay * excess
            excesses.append(excess)
        targets = values + torch.stack(excesses[::-1])
        advantages = rewards + discounts * torch.cat([targets[1:], bootstrap[None]]) - values
        return VTrace(targets, advantages, pg * advantages)


def _ratio(log_rho: Tensor, clip: float | None, name: str) -> Tensor:
    """Return min(ρ, clip)."""
    if clip is not None and not 0 < clip < math.inf:
        raise UsageError(f"{name}_clip is above 0 and finite, or None for no clip, not {clip}.")
    ratio = log_rho.exp().clamp(max=clip if clip is not None else math.inf)
    if not bool(torch.isfinite(ratio).all()):
        raise UsageError(f"log_rho is too large to go without a clip: give {name}_clip.")
    return ratio


def _check(steps: dict[str, Tensor], bootstrap: Tensor) -> None:
    shape = steps["values"].shape
    if len(shape) != 2 or not shape[0]:
        raise UsageError(f"values is [T, B] with at least one step, not of shape {tuple(shape)}.")
    for name, found in (*steps.items(), ("bootstrap", bootstrap)):
        wanted = shape[1:] if name == "bootstrap" else shape
        if found.shape != wanted:
            raise UsageError(f"{name} has shape {tuple(found.shape)}, not {tuple(wanted)}.")
        wrong = found.isnan() | (found == math.inf) if name == "log_rho" else ~found.isfinite()
        if bool(wrong.any()):
            raise UsageError(f"{name} is not finite: it has a NaN or an infinity.")


# --- Cost and loss of a soft policy from rollouts of another one: importance weights, and critics as control variates
# A rollout takes one action a step, a_t ~ μ(·|o_t), the behaviour policy. The functionals of `recursions` are sums over
# paths of products of weights w_t(a) (m for the conformal cost, m times "no earlier right answer was kept" for
# coverage), so that with ω_t = Π_{s≤t} w_s(a_s)/μ_s(a_s)
#
#   J = E_μ[ Σ_t ω_t r_t(a_t) ],    ∇J = E_μ[ Σ_t ω_{t−1} ( (w_t(a_t)/μ_t(a_t)) ∇log w_t(a_t) (q_t − V_t) + ∇W_t V_t ) ]
#
# with W_t = Σ_a w_t(a), V the critic and q_t = r_t + v_{t+1}. The second term is what the baseline takes away in
# expectation: w need not sum to 1. For w = S = m/Σm, the paper's path, W = 1 and it vanishes: IMPALA's gradient with
# the weight Π_{s≤t} ρ_s of the states, which the paper announces and does not print.
#
# The critic learns V(o_t) = Σ_a w_t(a) (r_t(a) + V(o_{t+1})) by V-trace with the target S_w = w/W, rewards W_t r_t and
# discounts W_t (`vtrace`).

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


def functionals(included: Tensor, walks: Walks, config: LiteralConfig, goal: Goal, missed: Tensor) -> list[Functional]:
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


def _loss(included: Tensor, path: Tensor, walks: Walks, config: LiteralConfig, missed: Tensor) -> Functional:
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


def seen(functional: Functional, rollouts: Rollouts, values: Tensor, onward: Tensor, config: LiteralConfig) -> Seen:
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
