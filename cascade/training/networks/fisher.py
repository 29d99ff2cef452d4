"""The Fisher matrix of a softmax policy, as products with it and with its inverse.

Of a state with action logits z, distribution p(z) and a metric M = G' (diag p − p p') G on the logits, G being the
identity for the policy itself, the Fisher matrix is F = mean over states of J' M J, J the network's Jacobian.

With M = B B' per state, F = A'A for A the rows B'J/√N, and for H = F + d·I

    H⁻¹ v = (v − A' (d·I + A A')⁻¹ A v) / d                          (Woodbury)

Of k actions B has k − 1 columns: probabilities sum to 1. A A' has a side of 200 for 100 states of three actions, where
H has one of 10,000 weights: the exact solution costs less than ten iterations of conjugate gradients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from cascade.training.networks.mlp import Mlp, Tape


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
