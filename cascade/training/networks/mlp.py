"""A multilayer perceptron whose weights are one flat vector, with its derivatives written out.

Adam works on a flat vector, and Jᵀu of a stored pass takes a dozen operations, without repeating the pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

DTYPE = torch.float64
"""The type of all training: batches are small, and rounding would show in the comparison with convex solvers."""
_LAST = 0.1
"""The initial scale of the last layer: the first policy is nearly uniform, so it can learn to take any action."""


class Tape(NamedTuple):
    """Values of a pass that its derivatives need: weights, biases, each layer's inputs, the activations' slopes."""

    weights: list[Tensor]
    biases: list[Tensor]
    inputs: list[Tensor]
    slopes: list[Tensor]


class Pass(NamedTuple):
    """The outputs, (N, k), and the tape."""

    outputs: Tensor
    tape: Tape


@dataclass(frozen=True, slots=True)
class Mlp:
    """The shape of a network: inputs, units of each hidden layer, outputs.

    >>> net = Mlp((2, 3, 1), "relu")
    >>> net.size, net.forward(net.initial(seed=0), torch.ones(4, 2, dtype=DTYPE)).outputs.shape
    (13, torch.Size([4, 1]))
    """

    sizes: tuple[int, ...]
    activation: Literal["softsign", "relu"] = "softsign"

    @property
    def size(self) -> int:
        """How many weights there are."""
        return sum(fan * out + out for fan, out in zip(self.sizes, self.sizes[1:], strict=False))

    def initial(self, seed: int) -> Tensor:
        """Return initial weights, (P,): He's or Glorot's scale, a tenth of it in the last layer, and biases of 0."""
        chance, parts = torch.Generator().manual_seed(seed), list[Tensor]()
        for number, (fan, out) in enumerate(zip(self.sizes, self.sizes[1:], strict=False)):
            last = number == len(self.sizes) - 2
            scale = _LAST if last else math.sqrt(2.0)
            weights = torch.randn(out * fan, generator=chance, dtype=DTYPE) * (scale / math.sqrt(fan))
            parts += [weights, torch.zeros(out, dtype=DTYPE)]
        return torch.cat(parts)

    def parts(self, flat: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Return the weights (out, in) and biases (out,) of each layer, views of a flat vector."""
        weights, biases, start = list[Tensor](), list[Tensor](), 0
        for fan, out in zip(self.sizes, self.sizes[1:], strict=False):
            weights.append(flat[start : start + fan * out].view(out, fan))
            biases.append(flat[start + fan * out : start + fan * out + out])
            start += fan * out + out
        return weights, biases

    def forward(self, flat: Tensor, rows: Tensor) -> Pass:
        """Return the outputs of rows, (N, in) -> (N, k)."""
        weights, biases = self.parts(flat)
        inputs, slopes, held = [rows], list[Tensor](), rows
        for number, (weight, bias) in enumerate(zip(weights, biases, strict=True)):
            held = torch.addmm(bias, held, weight.T)
            if number < len(weights) - 1:
                held, slope = self._activated(held)
                inputs.append(held)
                slopes.append(slope)
        return Pass(held, Tape(weights, biases, inputs, slopes))

    def _activated(self, totals: Tensor) -> tuple[Tensor, Tensor]:
        if self.activation == "relu":
            return totals.clamp(min=0.0), (totals > 0).to(totals.dtype)
        part = totals.abs().add_(1.0).reciprocal_()
        return totals * part, part * part

    def vjp(self, tape: Tape, sensitivity: Tensor) -> Tensor:
        """Return Jᵀu: the gradient of Σ u·outputs, (N, k) -> (P,)."""
        parts = list[Tensor]()
        for number in range(len(tape.weights) - 1, -1, -1):
            parts += [sensitivity.sum(0), (sensitivity.T @ tape.inputs[number]).reshape(-1)]
            if number:
                sensitivity = (sensitivity @ tape.weights[number]) * tape.slopes[number - 1]
        return torch.cat(parts[::-1])


# --- The devices on which networks can be trained ---


def gpus() -> int:
    """Return the number of GPUs that torch finds."""
    return torch.cuda.device_count() if torch.cuda.is_available() else 0
