"""A network's derivatives against automatic ones and against differences."""

from __future__ import annotations

import math
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from cascade.training.networks.mlp import DTYPE, Mlp  # noqa: E402  (torch is an optional package)
from unit.training.networks.made import numbers  # noqa: E402

SHAPES = [(3, 2), (3, 4, 2), (2, 5, 4, 3), (4, 3, 3, 3, 1)]
NETS = [Mlp(sizes, activation) for sizes, activation in product(SHAPES, ("softsign", "relu"))]
each = pytest.mark.parametrize("net", NETS, ids=lambda net: f"{net.activation}-{'-'.join(map(str, net.sizes))}")


def drawn(net: Mlp, rows: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights with biases other than 0, and rows."""
    return numbers(net.size, seed=1), numbers(rows, net.sizes[0], seed=2)


def spelled(net: Mlp, flat: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return the outputs, written with torch's own layers."""
    start = 0
    for number, (fan, out) in enumerate(zip(net.sizes, net.sizes[1:], strict=False)):
        weight = flat[start : start + fan * out].reshape(out, fan)
        bias = flat[start + fan * out : start + fan * out + out]
        start += fan * out + out
        rows = torch.nn.functional.linear(rows, weight, bias)
        if number < len(net.sizes) - 2:
            rows = torch.nn.functional.softsign(rows) if net.activation == "softsign" else rows.relu()
    return rows


def jacobian(net: Mlp, flat: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Return d outputs / d weights, (N, k, P), by torch."""
    found: torch.Tensor = torch.autograd.functional.jacobian(lambda w: spelled(net, w, rows), flat)  # type: ignore[no-untyped-call]
    return found


@each
def test_the_outputs_are_those_of_torchs_layers(net: Mlp) -> None:
    flat, rows = drawn(net)
    assert net.size == sum(a * b + b for a, b in zip(net.sizes, net.sizes[1:], strict=False))
    torch.testing.assert_close(net.forward(flat, rows).outputs, spelled(net, flat, rows), rtol=1e-13, atol=1e-13)


@each
def test_the_product_with_the_jacobian_is_torchs(net: Mlp) -> None:
    flat, rows = drawn(net)
    whole, tape = jacobian(net, flat, rows), net.forward(flat, rows).tape
    u = numbers(7, net.sizes[-1], seed=4)
    torch.testing.assert_close(net.vjp(tape, u), torch.einsum("nk,nkp->p", u, whole), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("net", [Mlp((40, 64, 64, 3)), Mlp((40, 64, 64, 3), "relu")], ids=lambda net: net.activation)
def test_it_starts_near_uniform_alive_and_by_its_seed(net: Mlp) -> None:
    one, same, other = net.initial(0), net.initial(0), net.initial(1)
    assert one.dtype == DTYPE
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    passed = net.forward(one, numbers(200, 40))
    shares = passed.outputs.softmax(-1)
    assert (shares - 1 / 3).abs().max() < 0.15
    assert shares.std(0).min() > 1e-3  # and yet it tells rows apart
    weights, biases = net.parts(one)
    assert all(not bool(bias.any()) for bias in biases)
    assert float(weights[0].std()) == pytest.approx(math.sqrt(2 / 40), rel=0.1)
    assert float(weights[-1].std()) == pytest.approx(0.1 / math.sqrt(64), rel=0.2)
