"""The exact loss, cost and size of a soft policy on logged questions: soft inclusions, and recursions over the steps.

m_t(a) in (0, 1) is the degree to which action a is in the set at step t; at 0 and 1 all results equal those of the hard
sets of `conformal.rollout` (except for the argmax, which is always in the set). Each result is linear in each single
m_t(a), so gradients are exact and nothing is sampled. From the last step back, with B_t(a) whether answer a is right:

    covered_t = 1 − Π_a (1 − m_t(a) B_t(a)) · (1 − m_t(n) covered_{t+1})
    cost_t    = c_t + m_t(n) cost_{t+1}
    size_t    = Σ_a m_t(a) + m_t(n) size_{t+1}

As in the paper, N_t = Σ_a m_t(a) B_t(a) + m_t(n) N_{t+1} counts right leaves with repetition. It may exceed 1 for a
set; for a policy of one action a step it is the probability that this action is right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.walks import Walks


def policy_of(logits: Tensor, onward: Tensor) -> Tensor:
    """Return log π, (B, T, k); "next", the last action, is masked if `onward`, bool (B, T), is false."""
    masked = logits[..., -1].masked_fill(~onward, -torch.inf)
    return torch.log_softmax(torch.cat([logits[..., :-1], masked[..., None]], dim=-1), dim=-1)


def able(log_policy: Tensor, walks: Walks) -> Tensor:
    """Return log π, with −∞ for impossible actions: "next" at the end of a question, and answers that a step lacks.

    If a step has no answer and no next step, one action is left; it changes no result.
    """
    answers = torch.zeros_like(log_policy[..., :-1], dtype=torch.bool) if walks.absent is None else walks.absent
    gone = torch.cat([answers, ~walks.onward[..., None]], dim=-1)
    gone[..., 0] &= ~gone.all(dim=-1)
    return log_policy.masked_fill(gone, -torch.inf)


def soft_mask(log_policy: Tensor, kappa: Tensor, width: float) -> Tensor:
    """Return m = σ((π − κ)/ε), (B, T, k). κ is (B, 1, 1) or one number, in (0, 1)."""
    return torch.where(log_policy == -torch.inf, 0.0, torch.sigmoid((log_policy.exp() - kappa) / width))


class Brought(NamedTuple):
    """Cost, size and loss of each question, (B,) each.

    The cost is in mean steps, the size in leaves kept; the loss may be below 0 if leaves are counted.
    """

    cost: Tensor
    size: Tensor
    loss: Tensor


def brought(included: Tensor, walks: Walks, *, counted: bool = False) -> Brought:
    """Return cost, size and loss under soft inclusions.

    `included` is m, (B, T, k), 0 for "next" without a further step; or π itself for a policy of one action a step. If
    `counted`, right leaves count with repetition, as in the paper's J̄_C.
    """
    cost, size = _summed(included, walks)
    if walks.right is None:
        return Brought(cost, size, _stopped(included[..., -1], walks))
    hit = _counted(included, walks.right) if counted else covered(included, walks.right)
    return Brought(cost, size, walks.counts * (1.0 - hit))


def covered(included: Tensor, right: Tensor) -> Tensor:
    """Return the degree to which a right answer is in the set, (B, T, k) and (B, T, m) -> (B,)."""
    ahead = torch.zeros_like(included[:, 0, 0])
    for t in range(included.shape[1] - 1, -1, -1):
        missed = (1.0 - included[:, t, :-1] * right[:, t]).prod(dim=-1)
        ahead = 1.0 - missed * (1.0 - included[:, t, -1] * ahead)
    return ahead


def _counted(included: Tensor, right: Tensor) -> Tensor:
    ahead = torch.zeros_like(included[:, 0, 0])
    for t in range(included.shape[1] - 1, -1, -1):
        ahead = (included[:, t, :-1] * right[:, t]).sum(dim=-1) + included[:, t, -1] * ahead
    return ahead


def _summed(walked: Tensor, walks: Walks) -> tuple[Tensor, Tensor]:
    """Return cost and leaves, (B,) each. If every answer is kept, a step's leaves are its answers."""
    cost = size = torch.zeros_like(walked[:, 0, 0])
    kept = walks.leaves if walks.right is None else walked[..., :-1].sum(dim=-1)
    for t in range(walked.shape[1] - 1, -1, -1):
        cost = walks.cost[:, t] + walked[:, t, -1] * cost
        size = kept[:, t] + walked[:, t, -1] * size
    return cost, size


def _stopped(onward: Tensor, walks: Walks) -> Tensor:
    """Return the expected loss of stopping, with every answer kept, (B, T) -> (B,)."""
    ahead = walks.stop_loss[:, -1]
    for t in range(onward.shape[1] - 2, -1, -1):
        ahead = (1.0 - onward[:, t]) * walks.stop_loss[:, t] + onward[:, t] * ahead
    return ahead


class Hard(NamedTuple):
    """Loss, cost and size of the sets at a threshold, (B,) each, as in `Brought`."""

    loss: Tensor
    cost: Tensor
    size: Tensor


def at_threshold(log_policy: Tensor, walks: Walks, kappa: Tensor) -> Hard:
    """Return loss, cost and size of the served sets: {a : π(a) ≥ κ} and the argmax.

    Impossible actions (`able`) are skipped. Above κ = 1 only the argmax is taken.
    """
    possible = able(log_policy, walks)
    policy = possible.exp()
    best = possible.argmax(dim=-1, keepdim=True)  # the first of several, as `policies.base.actions`
    kept = ((policy >= kappa[:, None, None]) & (possible > -torch.inf)).scatter(-1, best, value=True)
    onward = kept[..., -1] & walks.onward
    if walks.right is None:  # every answer is kept: stopping is never the last resort
        onward = (policy[..., -1] >= kappa[:, None]) & walks.onward
    included = torch.cat([kept[..., :-1], onward[..., None]], dim=-1).to(policy.dtype)
    found = brought(included, walks)
    return Hard(found.loss, found.cost, found.size)


# --- The objective and the constraint: cost under an allowed loss, or loss under a budget; each level has its limit

LEAST_LIMIT = 0.01
"""Violations are divided by the limit, and by no less than this: at α = 0 each miss would be an infinite violation."""


class Values(NamedTuple):
    """For each question, (B,): the objective, and its excess over its level's limit, whose mean must be 0 or less."""

    objective: Tensor
    constraint: Tensor


class Goal(NamedTuple):
    """The limits that a policy is trained to keep.

    `limits`, (L,), are for each level the mean loss that is allowed, or under a budget the mean cost in mean steps;
    then the cost is the constraint and the loss is minimised. `lambda_set` is in mean steps.
    """

    limits: Tensor
    lambda_set: float = 0.0
    budget: bool = False

    def values(self, found: Brought, level: Tensor) -> Values:
        """Return objective and constraint of questions at levels, int64 (B,)."""
        paid = found.cost + self.lambda_set * found.size
        if self.budget:
            return Values(found.loss, paid - self.limits[level])
        return Values(paid, found.loss - self.limits[level])

    @property
    def scale(self) -> Tensor:
        """The unit of violations, (L,)."""
        return self.limits.clamp(min=LEAST_LIMIT)
