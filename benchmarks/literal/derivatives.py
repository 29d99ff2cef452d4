"""What trust regions need of a network beside Jᵀu: J v, inner products of gradients, and the tape of some rows.

Written out, each takes a dozen operations, and nothing of the first pass is done again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from cascade.training.networks.mlp import Mlp, Tape


def tape_of(tape: Tape, chosen: Tensor) -> Tape:
    """Return the tape of some rows, int64 (r,)."""
    return tape._replace(inputs=[one[chosen] for one in tape.inputs], slopes=[one[chosen] for one in tape.slopes])


def jvp(net: Mlp, tape: Tape, direction: Tensor) -> Tensor:
    """Return J v: how the outputs change along a direction of the weights, (P,) -> (N, k)."""
    weights, biases = net.parts(direction)
    found = torch.addmm(biases[0], tape.inputs[0], weights[0].T)
    for number in range(1, len(weights)):
        moved = tape.slopes[number - 1] * found
        found = torch.addmm(biases[number], tape.inputs[number], weights[number].T)
        found = torch.addmm(found, moved, tape.weights[number].T)
    return found


def gram(tape: Tape, sensitivity: Tensor) -> Tensor:
    """Return (Jᵀu_i)·(Jᵀu_j) for c vectors u of each row, (N, c, k) -> (N c, N c), without making any of them.

    A layer's gradient is an outer product of what comes back and what went in, so that inner products of gradients
    are products of inner products.
    """
    n, c, k = sensitivity.shape
    back, found = sensitivity.reshape(n * c, k), sensitivity.new_zeros(n, c, n, c)
    for number in range(len(tape.weights) - 1, -1, -1):
        inputs = torch.addmm(sensitivity.new_ones(1), tape.inputs[number], tape.inputs[number].T)  # 1 of the bias
        found.addcmul_((back @ back.T).view(n, c, n, c), inputs[:, None, :, None])
        if number:
            back = ((back @ tape.weights[number]).view(n, c, -1) * tape.slopes[number - 1][:, None]).view(n * c, -1)
    return found.view(n * c, n * c)
