"""How a policy's weights are updated: Adam on the Lagrangian with dual ascent, or CPO's trust-region step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import NamedTuple

import torch
from torch import Tensor

from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.mlp import Mlp, Pass, Tape
from cascade.training.networks.recursions import Values
from cascade.training.networks.trust_region import Measured, backtrack, conjugate_gradient, trust_region_step

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
        moved = self.net.jvp(self.tape, v)[:, :, None]
        back = self.root @ (self.root.transpose(1, 2) @ moved)
        return self.net.vjp(self.tape, back[:, :, 0] / len(self.root))

    def solve(self, v: Tensor) -> Tensor:
        """Return (F + d·I)⁻¹ v exactly, (P,) -> (P,)."""
        n, _, c = self.root.shape
        seen = (self.root.transpose(1, 2) @ self.net.jvp(self.tape, v)[:, :, None]).reshape(n * c, 1) / math.sqrt(n)
        inner = torch.cholesky_solve(seen, self._factor).view(n, c, 1)
        return (v - self.net.vjp(self.tape, (self.root @ inner)[:, :, 0] / math.sqrt(n))) / self.damping

    @cached_property
    def _factor(self) -> Tensor:
        gram = self.net.gram(self.tape, self.root.transpose(1, 2)) / len(self.root)
        gram.diagonal().add_(self.damping)
        factor: Tensor = torch.linalg.cholesky(gram)
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

_DECAYS = 0.9, 0.999
_EPSILON = 1e-8


class Moments(NamedTuple):
    """Adam's running means of gradients and of their squares, (P,) each (Kingma & Ba 2015)."""

    first: Tensor
    second: Tensor

    @classmethod
    def zeros(cls, like: Tensor) -> Moments:
        """Return the moments of no gradient yet."""
        return cls(torch.zeros_like(like), torch.zeros_like(like))

    def step(self, gradient: Tensor, rate: float, number: int) -> tuple[Tensor, Moments]:
        """Return what to add to the weights, and the new moments; `number` counts the updates from 1."""
        first = (_DECAYS[0] * self.first).add_(gradient, alpha=1 - _DECAYS[0])
        second = (_DECAYS[1] * self.second).addcmul_(gradient, gradient, value=1 - _DECAYS[1])
        spread = (second / (1 - _DECAYS[1] ** number)).sqrt_().add_(_EPSILON)
        return (first / spread).mul_(-rate / (1 - _DECAYS[0] ** number)), Moments(first, second)


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


def trust_region(asked: Question, fisher: Fisher, constraint: float | None, delta: float, config: CCPOConfig) -> Taken:
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


def _solver(fisher: Fisher, config: CCPOConfig) -> Callable[[Tensor], Tensor]:
    if config.solver == "exact":
        return fisher.solve

    def damped(v: Tensor) -> Tensor:
        return fisher.product(v) + config.damping * v

    return partial(conjugate_gradient, damped, iterations=config.cg_iterations)
