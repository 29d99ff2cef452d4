"""Products with a network's Jacobian, against automatic derivatives and against differences."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from literal.derivatives import gram, jvp, tape_of  # noqa: E402

from cascade.training.networks.mlp import Mlp  # noqa: E402
from unit.training.networks.made import numbers  # noqa: E402
from unit.training.networks.test_mlp import drawn, each, jacobian  # noqa: E402


@each
def test_the_product_with_the_jacobian_is_torchs(net: Mlp) -> None:
    flat, rows = drawn(net)
    v = numbers(net.size, seed=3)
    found = jvp(net, net.forward(flat, rows).tape, v)
    torch.testing.assert_close(found, jacobian(net, flat, rows) @ v, rtol=1e-12, atol=1e-12)


@each
def test_jvp_is_what_a_small_step_brings(net: Mlp) -> None:
    flat, rows = drawn(net)
    v, step = numbers(net.size, seed=5), 1e-6
    ahead, behind = (net.forward(flat + sign * step * v, rows).outputs for sign in (1, -1))
    found = jvp(net, net.forward(flat, rows).tape, v)
    torch.testing.assert_close(found, (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-7)


@each
def test_gram_holds_the_inner_products_of_the_gradients(net: Mlp) -> None:
    flat, rows = drawn(net, rows=5)
    u = numbers(5, 3, net.sizes[-1], seed=6)
    gradients = torch.einsum("nck,nkp->ncp", u, jacobian(net, flat, rows)).reshape(15, -1)
    found = gram(net.forward(flat, rows).tape, u)
    torch.testing.assert_close(found, gradients @ gradients.T, rtol=1e-11, atol=1e-11)


@each
def test_some_rows_of_a_tape_are_the_tape_of_some_rows(net: Mlp) -> None:
    flat, rows = drawn(net)
    some = torch.tensor([4, 0, 4])
    v = numbers(net.size, seed=7)
    held, again = tape_of(net.forward(flat, rows).tape, some), net.forward(flat, rows[some]).tape
    torch.testing.assert_close(jvp(net, held, v), jvp(net, again, v), rtol=1e-13, atol=1e-13)
    u = numbers(3, net.sizes[-1], seed=8)
    torch.testing.assert_close(net.vjp(held, u), net.vjp(again, u), rtol=1e-13, atol=1e-13)
