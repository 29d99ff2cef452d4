"""Paths drawn from soft sets, masks of logits, and what the text prints as its constraint."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from literal.sets import drawn_from, logit_mask, on_a_path  # noqa: E402

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.recursions import brought, covered, policy_of, soft_mask  # noqa: E402
from unit.training.networks import made  # noqa: E402
from unit.training.networks.test_recursions import hard_sets  # noqa: E402


@pytest.mark.parametrize("places", [1, 2])
def test_a_path_brings_what_drawn_actions_do(places: int) -> None:
    walks = made.random_walks(5, 3, places, seed=9)
    soft = made.random_sets(walks, seed=10)
    chance = drawn_from(soft)
    torch.testing.assert_close(chance.sum(-1), torch.ones_like(chance[..., 0]))
    torch.testing.assert_close(chance[..., 0] * soft[..., 1], chance[..., 1] * soft[..., 0])
    found = on_a_path(soft, walks)
    for row in range(5):
        every = list(made.paths(chance[row].tolist()))
        assert sum(one.chance for one in every) == pytest.approx(1.0)
        cost = sum(one.chance * float(walks.cost[row, : len(one.actions)].sum()) for one in every)
        assert float(found.cost[row]) == pytest.approx(cost)
        assert float(found.size[row]) == pytest.approx(1.0)  # a path keeps one answer
    torch.testing.assert_close(found.loss, brought(soft, walks).loss)
    assert bool((found.cost <= brought(soft, walks).cost + 1e-12).all())


@pytest.mark.parametrize(("horizon", "places"), [(1, 1), (2, 3), (4, 2)])
def test_the_draws_from_sets_weighted_by_their_sizes_count_right_leaves(horizon: int, places: int) -> None:
    """E_S[Π|C| 1{the answer drawn is right}] = N, with S uniform over C at each step (method 1.4)."""
    walks = made.random_walks(20, horizon, places, seed=11)
    included = hard_sets(walks, seed=12)
    chance = drawn_from(included)
    counted = walks.counts - brought(included, walks, counted=True).loss
    assert walks.right is not None
    for row in range(20):
        total = 0.0
        for one in made.paths(chance[row].tolist()):
            ways = float(np.prod([float(included[row, t].sum()) for t in range(len(one.actions))]))
            total += one.chance * ways * float(walks.right[row, len(one.actions) - 1, one.actions[-1]])
        assert total == pytest.approx(float(counted[row]), abs=1e-12)


@pytest.mark.parametrize("places", [1, 2])
def test_the_constraint_as_it_is_printed_has_no_policy_gradient(places: int) -> None:
    """c_t = 1{t = t_f} 1{covered} is the same for every path: E[Σ∇log S · c] = 0, where coverage has a gradient."""
    walks = made.random_walks(6, 3, places, seed=26, ragged=False)
    logits = made.logits_of(walks, seed=27).requires_grad_()
    soft = soft_mask(policy_of(logits, walks.onward), torch.tensor(0.3, dtype=DTYPE), 0.1)
    chance = drawn_from(soft)
    assert walks.right is not None
    hit = covered((soft >= 0.5).to(DTYPE), walks.right).detach()
    assert 0 < float(hit.sum()) < 6
    total = torch.zeros((), dtype=DTYPE)
    for row in range(6):
        for one in made.paths(chance[row].tolist()):
            log = sum(chance[row, t, a].log() for t, a in enumerate(one.actions))
            total = total + one.chance * log * hit[row]
    (gradient,) = torch.autograd.grad(total, logits, retain_graph=True)
    assert gradient.abs().max() < 1e-12
    (true,) = torch.autograd.grad(covered(soft, walks.right).sum(), logits)
    assert true.abs().max() > 1e-2


def test_the_mask_of_logits() -> None:
    logs = torch.tensor([[[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]]], dtype=DTYPE).log()
    logit = logit_mask(logs, torch.tensor(0.3, dtype=DTYPE), 2.0)[0]
    odds = [(0.6 / 0.4) / (0.3 / 0.7), 1.0, (0.1 / 0.9) / (0.3 / 0.7)]
    assert logit[0].tolist() == pytest.approx([np.sqrt(one) / (1 + np.sqrt(one)) for one in odds])
    assert logit[1, -1] == 0.0


@pytest.mark.parametrize("kappa", [0.0, 1e-9, 0.3, 1.0])
def test_no_logit_makes_the_mask_or_its_gradient_anything_but_a_number(kappa: float) -> None:
    sizes = [0.0, 1.0, 30.0, -40.0, 800.0, -800.0, 1e6, -1e12, 1e150, -1e300]
    logits = torch.tensor(list(itertools.product(sizes, repeat=3)), dtype=DTYPE)[:, None, :].requires_grad_()
    onward = torch.ones(logits.shape[:2], dtype=torch.bool)
    soft = logit_mask(policy_of(logits, onward), torch.tensor(kappa, dtype=DTYPE), 0.2)
    assert bool(((soft >= 0) & (soft <= 1)).all())
    (gradient,) = torch.autograd.grad((soft + drawn_from(soft)).sum(), logits)
    assert bool(torch.isfinite(gradient).all())
