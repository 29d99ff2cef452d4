"""V-trace: what a policy is worth, learned from what another one did.

Reference: Espeholt et al., IMPALA: Scalable Distributed Deep-RL with Importance Weighted Actor-Learner Architectures,
ICML 2018, section 4.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from cascade.errors import UsageError


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
