"""Invariants of what soft sets bring: bounded, monotone in every inclusion, and at the limit what hard sets bring."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from unit.training.networks import made  # noqa: E402

from cascade.conformal.arrays import (  # noqa: E402
    ScoreArrays,
    levels,
    rollout,
)
from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.recursions import (  # noqa: E402
    at_threshold,
    brought,
    covered,
    policy_of,
    soft_mask,
)
from cascade.training.networks.walks import Walks  # noqa: E402
from property.examples import times  # noqa: E402

SEEDS = st.integers(0, 2**32 - 1)
SHARES = st.floats(0, 1) | st.sampled_from([0.0, 1.0])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Walks, torch.Tensor]:
    """Return some questions, and how far each action is in their sets: some of it wholly in or out."""
    horizon, places, seed = draw(st.integers(1, 4)), draw(st.integers(1, 3)), draw(SEEDS)
    walks = made.random_walks(5, horizon, places, seed, ragged=draw(st.booleans()))
    soft = made.random_sets(walks, seed)
    rounded = torch.from_numpy(np.random.default_rng(seed).random(soft.shape) < draw(SHARES))
    return walks, torch.where(rounded, soft.round(), soft)


@given(worlds())
def test_coverage_is_a_share_and_counting_never_says_less(world: tuple[Walks, torch.Tensor]) -> None:
    walks, soft = world
    assert walks.right is not None
    found = covered(soft, walks.right)
    assert bool(((found >= 0) & (found <= 1 + 1e-12)).all())
    exact, counted = brought(soft, walks), brought(soft, walks, counted=True)
    assert bool((counted.loss <= exact.loss + 1e-12).all())
    assert bool((exact.cost <= walks.cost.sum(-1) + 1e-9).all())
    assert bool((exact.cost >= walks.cost[:, 0]).all())


@given(worlds(), SHARES, st.data())
def test_everything_grows_with_each_inclusion_and_cost_with_going_on_alone(
    world: tuple[Walks, torch.Tensor], share: float, data: st.DataObject
) -> None:
    walks, soft = world
    t = data.draw(st.integers(0, soft.shape[1] - 1))
    a = data.draw(st.integers(0, soft.shape[2] - 1))
    more = soft.clone()
    more[:, t, a] = soft[:, t, a] + share * (1 - soft[:, t, a])
    more[..., -1] *= walks.onward
    before, after = brought(soft, walks), brought(more, walks)
    assert bool((after.loss <= before.loss + 1e-12).all())
    assert bool((after.size >= before.size - 1e-9).all())
    if a == soft.shape[2] - 1:
        assert bool((after.cost >= before.cost - 1e-9).all())
    else:
        assert torch.equal(after.cost, before.cost)


@times(2)
@given(SEEDS, st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_as_the_mask_narrows_the_surrogate_becomes_what_is_served(
    seed: int, horizon: int, places: int, keeps: bool
) -> None:
    """At a threshold that the argmax is above for its score: κ ≤ 1/k."""
    walks = made.random_walks(8, horizon, places, seed, keeps=keeps)
    kappa = float(np.random.default_rng(seed).uniform(0.05, 1 / walks.actions))
    logs = made.random_policy(walks, seed=seed % 1000, scale=2.0)
    there = logs[logs > -torch.inf].exp()
    assume(bool(((there - kappa).abs() > 1e-4).all()))
    soft = soft_mask(logs, torch.tensor(kappa, dtype=DTYPE), 1e-6)
    if keeps:
        soft = torch.cat([torch.ones_like(soft[..., :1]), soft[..., 1:]], dim=-1)
    found, meant = brought(soft, walks), at_threshold(logs, walks, torch.full((8,), kappa, dtype=DTYPE))
    torch.testing.assert_close(found.loss, meant.loss, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.cost, meant.cost, rtol=0, atol=1e-9)


@times(2)
@given(SEEDS, st.integers(1, 4), st.integers(1, 3), st.floats(0.001, 2.0))
def test_the_sets_at_any_threshold_are_those_of_the_conformal_layer(
    seed: int, horizon: int, places: int, kappa: float
) -> None:
    steps = made.arrays(8, horizon, places, seed)
    walks = made.walks(steps)
    logs = made.random_policy(walks, seed=seed % 1000, scale=2.0)
    assume(bool(((logs.exp() - kappa).abs() > 1e-12).all()))  # exp and log round
    found = at_threshold(logs, walks, torch.full((8,), kappa, dtype=DTYPE))
    meant = rollout(steps, levels(steps, ScoreArrays(logs[..., :-1].numpy(), logs[..., -1].numpy())), np.log(kappa))
    assert np.allclose(found.cost, meant.cost / made.UNIT)
    assert np.array_equal(1 - found.loss, meant.covered)


@times(0.5)
@given(SEEDS, st.floats(-1e308, 1e308), st.floats(-1e308, 1e308))
def test_no_logits_bring_anything_but_numbers(seed: int, one: float, other: float) -> None:
    walks = made.random_walks(4, 3, 2, seed)
    logits = made.logits_of(walks, seed=seed % 1000)
    logits[:, 0, 0], logits[:, 1, 2] = one, other
    logits.requires_grad_()
    logs = policy_of(logits, walks.onward)
    soft = soft_mask(logs, torch.tensor(0.3, dtype=DTYPE), 0.05)
    total = torch.stack(brought(soft, walks)).sum()
    (gradient,) = torch.autograd.grad(total, logits)
    assert bool(torch.isfinite(total))
    assert bool(torch.isfinite(gradient).all())
