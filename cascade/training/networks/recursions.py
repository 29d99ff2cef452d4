"""The exact loss, cost and set size of a soft policy on logged questions, computed from the last step to the first.

m_t(a), between 0 and 1, says how far action a is in the set at step t. If every m is 0 or 1, the results are those of
the hard sets of `conformal.arrays.rollout`, except that a hard set always contains the argmax. Each result is linear in
each m_t(a), so gradients are exact and nothing is sampled. B_t(a) is 1 if answer a is right, else 0:

    covered_t = 1 − Π_a (1 − m_t(a) B_t(a)) · (1 − m_t(n) covered_{t+1})
    cost_t    = c_t + m_t(n) cost_{t+1}
    size_t    = Σ_a m_t(a) + m_t(n) size_{t+1}

N_t = Σ_a m_t(a) B_t(a) + m_t(n) N_{t+1} counts every right leaf, as in the paper. It may exceed 1 for a set. If the
policy takes one action at each step, it is the probability that this action is right.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.walks import Walks


def policy_of(logits: Tensor, onward: Tensor) -> Tensor:
    """Return log π, (B, T, k). "next", the last action, is impossible where `onward`, bool (B, T), is false."""
    masked = logits[..., -1].masked_fill(~onward, -torch.inf)
    return torch.log_softmax(torch.cat([logits[..., :-1], masked[..., None]], dim=-1), dim=-1)


def able(log_policy: Tensor, walks: Walks) -> Tensor:
    """Return log π, with −∞ for impossible actions: "next" at the end of a question, and answers that a step lacks.

    A step without an answer and without a next step keeps one action, which changes no result.
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

    The unit of the cost is a mean step, and the size is the number of leaves kept. The loss may be below 0 if `brought`
    counts every right leaf.
    """

    cost: Tensor
    size: Tensor
    loss: Tensor


def brought(included: Tensor, walks: Walks, *, counted: bool = False) -> Brought:
    """Return cost, size and loss under soft inclusions.

    `included` is m, (B, T, k), with 0 for "next" at the last step; for a policy that takes one action at each step it
    is π. With `counted`, every right leaf counts, as in the paper's J̄_C.
    """
    cost, size = _summed(included, walks)
    if walks.right is None:
        return Brought(cost, size, _stopped(included[..., -1], walks))
    hit = _counted(included, walks.right) if counted else covered(included, walks.right)
    return Brought(cost, size, walks.counts * (1.0 - hit))


def covered(included: Tensor, right: Tensor) -> Tensor:
    """Return how far a right answer is in the set, (B, T, k) and (B, T, m) -> (B,)."""
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
    """Return cost and leaves, (B,) each. Without `walks.right` every answer is kept, and each is a leaf."""
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


def at_threshold(log_policy: Tensor, walks: Walks, kappa: Tensor) -> Brought:
    """Return cost, size and loss of the served sets: {a : π(a) ≥ κ} and the argmax.

    Impossible actions (`able`) are skipped. Above κ = 1 only the argmax is taken.
    """
    possible = able(log_policy, walks)
    policy = possible.exp()
    best = possible.argmax(dim=-1, keepdim=True)  # the first of several, as `policies.base.actions`
    kept = ((policy >= kappa[:, None, None]) & (possible > -torch.inf)).scatter(-1, best, value=True)
    onward = kept[..., -1] & walks.onward
    if walks.right is None:  # every answer is kept, so "next" needs no argmax
        onward = (policy[..., -1] >= kappa[:, None]) & walks.onward
    included = torch.cat([kept[..., :-1], onward[..., None]], dim=-1).to(policy.dtype)
    return brought(included, walks)


# --- The objective and the constraint: cost under an allowed loss; each level has its limit

LEAST_LIMIT = 0.01
"""Violations are divided by the limit, and by no less than this: at α = 0 each miss would be an infinite violation."""


class Values(NamedTuple):
    """The objective of each question, and its constraint: the excess over the limit of its level, (B,) each.

    The mean of the constraint must be at most 0.
    """

    objective: Tensor
    constraint: Tensor


class Goal(NamedTuple):
    """The limits that a policy is trained to keep.

    Attributes:
        limits: (L,), for each level the mean loss allowed.
        lambda_set: the charge for each answer kept, in mean steps.
    """

    limits: Tensor
    lambda_set: float = 0.0

    def values(self, found: Brought, level: Tensor) -> Values:
        """Return objective and constraint of questions at levels, int64 (B,)."""
        paid = found.cost + self.lambda_set * found.size
        return Values(paid, found.loss - self.limits[level])

    @property
    def scale(self) -> Tensor:
        """The unit of violations, (L,)."""
        return self.limits.clamp(min=LEAST_LIMIT)
