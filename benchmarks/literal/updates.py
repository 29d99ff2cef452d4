"""CPO's trust-region step: the Fisher matrix of a policy or of its soft mask, and the step through it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.mlp import Mlp, Pass, Tape
from cascade.training.networks.recursions import Values
from literal.config import LiteralConfig
from literal.derivatives import gram, jvp
from literal.trust_region import Measured, backtrack, conjugate_gradient, trust_region_step

# --- The Fisher matrix of a softmax policy, as products with it and with its inverse ---
# Of a state with action logits z, distribution p(z) and a metric M = G' (diag p − p p') G on the logits, G being the
# identity for the policy itself, the Fisher matrix is F = mean over states of J' M J, J the network's Jacobian.
#
# With M = B B' per state, F = A'A for A the rows B'J/√N, and for H = F + d·I
#
#     H⁻¹ v = (v − A' (d·I + A A')⁻¹ A v) / d                          (Woodbury)
#
# Of k actions B has k − 1 columns: probabilities sum to 1. A A' has a side of 200 for 100 states of three actions,
# where H has one of 10,000 weights: the exact solution costs less than ten iterations of conjugate gradients.


@dataclass(frozen=True)
class Fisher:
    """The Fisher matrix of some states, and its damped inverse.

    Attributes:
        net: the network.
        tape: of the states' pass, N rows.
        root: (N, k, c), B with B B' the metric of each state.
        damping: d > 0.
    """

    net: Mlp
    tape: Tape
    root: Tensor
    damping: float

    def product(self, v: Tensor) -> Tensor:
        """Return F v, without the damping, (P,) -> (P,)."""
        moved = jvp(self.net, self.tape, v)[:, :, None]
        back = self.root @ (self.root.transpose(1, 2) @ moved)
        return self.net.vjp(self.tape, back[:, :, 0] / len(self.root))

    def solve(self, v: Tensor) -> Tensor:
        """Return (F + d·I)⁻¹ v exactly, (P,) -> (P,)."""
        n, _, c = self.root.shape
        seen = (self.root.transpose(1, 2) @ jvp(self.net, self.tape, v)[:, :, None]).reshape(n * c, 1) / math.sqrt(n)
        inner = torch.cholesky_solve(seen, self._factor).view(n, c, 1)
        return (v - self.net.vjp(self.tape, (self.root @ inner)[:, :, 0] / math.sqrt(n))) / self.damping

    @cached_property
    def _factor(self) -> Tensor:
        inner = gram(self.tape, self.root.transpose(1, 2)) / len(self.root)
        inner.diagonal().add_(self.damping)
        factor: Tensor = torch.linalg.cholesky(inner)
        return factor


def policy_root(policy: Tensor) -> Tensor:
    """Return B of the policy's own metric diag p − p p', (N, k) -> (N, k, k − 1).

    With s = √p, of length 1, the metric is diag(s) (I − s s') diag(s), and I − s s' = Q Q' for any orthonormal basis Q
    of what is orthogonal to s: the columns but the first of the reflection that takes s to the first axis.
    """
    spread = policy.sqrt()
    first = torch.zeros_like(spread)
    first[:, 0] = 1.0
    axes = torch.eye(spread.shape[1], dtype=spread.dtype, device=spread.device)[:, 1:]
    share = spread[:, 1:] / (1.0 + spread[:, :1])
    return spread[:, :, None] * (axes - (spread + first)[:, :, None] * share[:, None, :])


def masked_root(policy: Tensor, drawn: Tensor, slope: Tensor) -> Tensor:
    """Return B of the metric of what is drawn from the soft mask, S = m/Σm, (N, k, k − 1).

    Args:
        policy: π, (N, k).
        drawn: S, (N, k).
        slope: d log m / dπ, (N, k).
    """
    through = slope[:, :, None] * (torch.diag_embed(policy) - policy[:, :, None] * policy[:, None, :])
    return through.transpose(1, 2) @ policy_root(drawn)


# --- updates ---


class Taken(NamedTuple):
    """An update.

    Attributes:
        change: to be added to the weights, (P,).
        case: "dual", or what became of the trust-region step.
        factor: its length over the one proposed.
        logits: of the batch after it, (N, k), where they were worked out on the way; None where not.
    """

    change: Tensor
    case: str
    factor: float = 1.0
    logits: Tensor | None = None


class Question(NamedTuple):
    """What an update starts from.

    Attributes:
        net: the network.
        weights: its weights, (P,).
        rows: the inputs of the batch's states, (N, inputs).
        now: the pass at these weights.
        logits: its outputs, (N, k), as the leaf of gradients.
        found: what each question of the batch brings at these weights, with a gradient.
        values: from logits to what each question brings.
        kl: from logits to the mean KL divergence from the policy at these weights.
    """

    net: Mlp
    weights: Tensor
    rows: Tensor
    now: Pass
    logits: Tensor
    found: Values
    values: Callable[[Tensor], Values]
    kl: Callable[[Tensor], Tensor]

    @classmethod
    def of(
        cls,
        net: Mlp,
        weights: Tensor,
        rows: Tensor,
        now: Pass,
        values: Callable[[Tensor], Values],
        kl: Callable[[Tensor], Tensor],
    ) -> Question:
        """Look once at the batch: its values and all gradients come from the same pass."""
        logits = now.outputs.detach().requires_grad_()
        return cls(net, weights, rows, now, logits, values(logits), values, kl)

    def gradients(self, *combine: Callable[[Values], Tensor]) -> list[Tensor]:
        """Return the gradient of each combination of what was found, (P,) each."""
        totals = [one(self.found) for one in combine]
        pulled = [torch.autograd.grad(one, self.logits, retain_graph=True)[0] for one in totals]
        return [self.net.vjp(self.now.tape, one) for one in pulled]


def trust_region(
    asked: Question, fisher: Fisher, constraint: float | None, delta: float, config: LiteralConfig
) -> Taken:
    """Return CPO's step: through the Fisher matrix, then shortened until the batch itself bears it out.

    Args:
        asked: the batch.
        fisher: of some of its states.
        constraint: the mean violation, smoothed over batches; None takes the batch's own.
        delta: δ.
        config: the solver, the line search.
    """
    g, b = asked.gradients(lambda one: one.objective.mean(), lambda one: one.constraint.mean())
    objective, own = (float(one.detach().mean()) for one in asked.found)
    held = own if constraint is None else constraint
    step = trust_region_step(g, b, held, fisher.product, delta, damping=config.damping, solve=_solver(fisher, config))

    logits = asked.now.outputs

    def measure(x: Tensor) -> Measured:
        nonlocal logits
        with torch.no_grad():
            logits = asked.net.forward(asked.weights + x, asked.rows).outputs
            there = asked.values(logits)
            # The batch says how far the step moves the constraint, the smoothed value where it moves from.
            moved = float(there.constraint.mean()) - own + held
            return Measured(float(there.objective.mean()), moved, float(asked.kl(logits)))

    taken = backtrack(
        step.x, measure, step.case, Measured(objective, held, 0.0), delta, shrink=config.shrink, tries=config.backtracks
    )
    return Taken(taken.x, taken.case, taken.factor, logits if taken.accepted else asked.now.outputs)


def _solver(fisher: Fisher, config: LiteralConfig) -> Callable[[Tensor], Tensor]:
    if config.solver == "exact":
        return fisher.solve

    def damped(v: Tensor) -> Tensor:
        return fisher.product(v) + config.damping * v

    return partial(conjugate_gradient, damped, iterations=config.cg_iterations)
