"""What sets bring, against trees that are followed node by node and against every set that there may be."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from cases import each

torch = pytest.importorskip("torch")

from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, rollout  # noqa: E402  # noqa: E402
from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.recursions import (  # noqa: E402
    at_threshold,
    brought,
    policy_of,
    soft_mask,
)
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402

SHAPES = list(itertools.product(range(1, 5), range(1, 4)))
every_shape = pytest.mark.parametrize(("horizon", "places"), SHAPES)


def hard_sets(walks: Walks, seed: int) -> torch.Tensor:
    """Return random sets that are never empty, of 0 and 1; "next" is in none where there is nothing to go on to."""
    chance = np.random.default_rng(seed)
    found = chance.random((*walks.onward.shape, walks.actions)) < 0.6
    found[..., -1] &= walks.onward.numpy()
    empty = ~found.any(axis=-1)
    found[..., 0] |= empty
    return torch.from_numpy(found.astype(np.float64))


def tree(included: torch.Tensor) -> made.Tree:
    return made.expand([tuple(one == 1.0 for one in step) for step in included.tolist()])


def hits(found: made.Tree, right: list[list[float]]) -> list[made.Leaf]:
    return [leaf for leaf in found.leaves if right[leaf.step][leaf.place]]


# --- sets of 0 and 1


@every_shape
def test_sets_bring_what_their_trees_do(horizon: int, places: int) -> None:
    walks = made.random_walks(40, horizon, places, seed=1)
    included = hard_sets(walks, seed=2)
    exact, counted = brought(included, walks), brought(included, walks, counted=True)
    assert walks.right is not None
    for row in range(40):
        found, right = tree(included[row]), hits(tree(included[row]), walks.right[row].tolist())
        counts = float(walks.counts[row])
        assert float(exact.cost[row]) == pytest.approx(float(walks.cost[row, : found.visited].sum()))
        assert float(exact.size[row]) == len(found.leaves)
        assert float(exact.loss[row]) == counts * (not right)
        assert float(counted.loss[row]) == counts * (1 - len(right))
        assert (float(counted.cost[row]), float(counted.size[row])) == (float(exact.cost[row]), float(exact.size[row]))


@every_shape
def test_sets_bring_what_the_conformal_layer_says(horizon: int, places: int) -> None:
    steps = made.arrays(60, horizon, places, seed=3)
    walks = made.walks(steps)
    included = hard_sets(walks, seed=4)
    scores = ScoreArrays(included[..., :-1].numpy(), included[..., -1].numpy())
    meant, found = rollout(steps, levels(steps, scores), 0.5), brought(included, walks)
    assert np.allclose(found.cost, meant.cost / made.UNIT)
    assert np.array_equal(found.size, meant.leaves)
    assert np.array_equal(1 - found.loss, meant.covered)
    counted = brought(included, walks, counted=True).loss
    assert np.array_equal(walks.counts - counted, meant.correct_leaves)


# --- soft sets


@pytest.mark.parametrize(("horizon", "places"), [(1, 1), (1, 3), (2, 2), (3, 1), (4, 1), (3, 2)])
def test_soft_sets_bring_the_mean_over_all_sets(horizon: int, places: int) -> None:
    """Each action is in or out on its own: the multilinear extension is an expectation."""
    walks = made.random_walks(3, horizon, places, seed=5)
    soft = made.random_sets(walks, seed=6)
    exact, counted = brought(soft, walks), brought(soft, walks, counted=True)
    assert walks.right is not None
    for row in range(3):
        meant = np.zeros(4)
        for chance, sets in made.set_choices(soft[row].tolist()):
            found = made.expand(sets)
            right = hits(found, walks.right[row].tolist())
            cost = float(walks.cost[row, : found.visited].sum())
            meant += chance * np.array([cost, len(found.leaves), not right, 1 - len(right)])
        meant[2:] *= float(walks.counts[row])
        got = [exact.cost[row], exact.size[row], exact.loss[row], counted.loss[row]]
        assert np.allclose(got, meant, rtol=1e-11, atol=1e-12)


def test_what_soft_sets_bring_is_linear_in_each_inclusion() -> None:
    walks = made.random_walks(6, 3, 2, seed=7, ragged=False)
    soft, some = made.random_sets(walks, seed=8), (0.0, 0.3, 1.0)
    for counted, (t, a) in itertools.product((False, True), itertools.product(range(3), range(3))):
        if (t, a) == (2, 2):
            continue
        ends = []
        for one in some:
            moved = soft.clone()
            moved[:, t, a] = one
            ends.append(torch.stack(brought(moved, walks, counted=counted)))
        torch.testing.assert_close(ends[1], 0.7 * ends[0] + 0.3 * ends[2], rtol=1e-12, atol=1e-12)
        assert bool((ends[0] != ends[2]).any())


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("keeps", [False, True])
def test_the_gradients_are_those_of_differences(counted: bool, keeps: bool) -> None:
    walks = made.random_walks(4, 3, 2, seed=13, keeps=keeps)
    soft = made.random_sets(walks, seed=14).requires_grad_()
    assert torch.autograd.gradcheck(lambda m: brought(m, walks, counted=counted), (soft,))


def test_the_gradients_are_those_of_differences_from_the_logits_on() -> None:
    walks = made.random_walks(4, 3, 2, seed=15)
    logits = made.logits_of(walks, seed=16).requires_grad_()

    def brings(z: torch.Tensor) -> tuple[torch.Tensor, ...]:
        soft = soft_mask(policy_of(z, walks.onward), torch.tensor(0.25, dtype=DTYPE), 0.2)
        return tuple(brought(soft, walks))

    assert torch.autograd.gradcheck(brings, (logits,))


@pytest.mark.parametrize("places", [1, 2])
def test_where_every_answer_is_kept_the_walk_loses_what_it_does_where_it_stops(places: int) -> None:
    walks = made.random_walks(6, 3, places, seed=17, keeps=True)
    soft = made.random_sets(walks, seed=18)
    found = brought(soft, walks)
    for row in range(6):
        reach = 1.0
        loss = cost = size = 0.0
        for t in range(3):
            cost += reach * float(walks.cost[row, t])
            size += reach * float(walks.leaves[row, t])
            on = float(soft[row, t, -1])
            loss += reach * (1 - on) * float(walks.stop_loss[row, t])
            reach *= on
        assert reach == 0
        got = [float(one[row]) for one in found]
        assert got == pytest.approx([cost, size, loss])


# --- the mask


def test_the_mask() -> None:
    logs = torch.tensor([[[0.6, 0.3, 0.1], [0.5, 0.5, 0.0]]], dtype=DTYPE).log()
    kappa = torch.tensor(0.3, dtype=DTYPE)
    plain = soft_mask(logs, kappa, 0.05)[0]
    assert plain[0].tolist() == pytest.approx([1 / (1 + np.exp(-6)), 0.5, 1 / (1 + np.exp(4))])
    assert plain[1, -1] == 0.0


@each("width", [0.01, 0.2])
@each("kappa", [0.0, 1e-9, 0.3, 1.0])
def test_no_logit_makes_the_mask_or_its_gradient_anything_but_a_number(width: float, kappa: float) -> None:
    sizes = [0.0, 1.0, 30.0, -40.0, 800.0, -800.0, 1e6, -1e12, 1e150, -1e300]
    logits = torch.tensor(list(itertools.product(sizes, repeat=3)), dtype=DTYPE)[:, None, :].requires_grad_()
    for there in (True, False):
        onward = torch.full(logits.shape[:2], there)
        walks = Walks(logits, torch.ones(len(logits), 1, 2, dtype=DTYPE), *[torch.ones(len(logits), dtype=DTYPE)] * 2,
                      torch.ones(len(logits), 1, dtype=DTYPE), torch.ones(len(logits), 1, dtype=DTYPE), onward)  # fmt: skip
        soft = soft_mask(policy_of(logits, onward), torch.tensor(kappa, dtype=DTYPE), width)
        assert bool(((soft >= 0) & (soft <= 1)).all())
        total = sum(one.sum() for one in brought(soft, walks))
        assert isinstance(total, torch.Tensor)
        (gradient,) = torch.autograd.grad(total, logits, retain_graph=True)
        assert bool(torch.isfinite(gradient).all())
        assert bool(torch.isfinite(total))


def test_next_is_masked_where_there_is_nothing_to_go_on_to_and_the_others_take_its_place() -> None:
    onward = torch.tensor([[True, False]])
    logs = policy_of(torch.tensor([[[0.0, 1.0, 2.0]] * 2], dtype=DTYPE), onward)
    torch.testing.assert_close(logs[0, 0], torch.tensor([0.0, 1.0, 2.0], dtype=DTYPE).log_softmax(-1))
    torch.testing.assert_close(logs[0, 1, :2], torch.tensor([0.0, 1.0], dtype=DTYPE).log_softmax(-1))
    assert logs[0, 1, 2] == -torch.inf


# --- hard sets at a threshold


def scores_of(logs: torch.Tensor) -> ScoreArrays:
    return ScoreArrays(logs[..., :-1].numpy(), logs[..., -1].numpy())


@every_shape
@pytest.mark.parametrize("kappa", [0.0, 0.1, 0.3, 0.6, 2.0])
@pytest.mark.parametrize("holes", [0.0, 0.4])
def test_the_sets_at_a_threshold_bring_what_the_conformal_layer_says(
    horizon: int, places: int, kappa: float, holes: float
) -> None:
    """Also where questions end early, and where steps lack some answers, or all."""
    steps = made.arrays(60, horizon, places, seed=19, holes=holes)
    walks = made.walks(steps)
    logs = made.logits_of(walks, seed=20, scale=2.0).log_softmax(-1)
    found = at_threshold(logs, walks, torch.full((60,), kappa, dtype=DTYPE))
    bar = np.log(kappa) if kappa else -np.inf
    meant = rollout(steps, levels(steps, scores_of(logs)), bar)
    assert np.allclose(found.cost, meant.cost / made.UNIT)
    assert np.array_equal(1 - found.loss, meant.covered)


def test_a_tie_goes_to_the_first_candidate_as_it_is_served() -> None:
    steps = StepArrays(
        np.array([[[0, 1], [2, 2]]]), np.array([[[True, False], [True, True]]]), np.array([[100, 100]]),
        np.array([2]), np.array([True]),
    )  # fmt: skip
    walks = made.walks(steps)
    logs = policy_of(torch.zeros(1, 2, 3, dtype=DTYPE), walks.onward)
    found = at_threshold(logs, walks, torch.tensor([2.0], dtype=DTYPE))
    meant = rollout(steps, levels(steps, scores_of(logs)), np.log(2.0))
    assert (float(found.cost[0]), float(found.loss[0])) == (1.0, 0.0)
    assert (int(meant.length[0]), bool(meant.covered[0])) == (1, True)


def test_what_is_just_at_the_threshold_is_kept() -> None:
    steps = StepArrays(
        np.array([[[0, 1]]]), np.array([[[False, True]]]), np.array([[100]]), np.array([1]), np.array([True])
    )
    walks = made.walks(steps)
    logs = policy_of(torch.zeros(1, 1, 3, dtype=DTYPE), walks.onward)
    for kappa, missed in ((0.5, 0.0), (np.nextafter(0.5, 1), 1.0)):
        assert float(at_threshold(logs, walks, torch.tensor([kappa], dtype=DTYPE)).loss) == missed
    assert rollout(steps, levels(steps, scores_of(logs)), float(logs[0, 0, 1])).covered.all()


@pytest.mark.parametrize("kappa", [0.1, 0.5, 0.8, 2.0])
def test_where_every_answer_is_kept_a_threshold_stops_where_the_conformal_layer_does(kappa: float) -> None:
    steps = made.arrays(80, 4, 2, seed=21)
    walks = made.walks(steps, keeps=True)
    logs = made.random_policy(walks, seed=22, scale=2.0)
    kept = ScoreArrays(np.full(steps.answer.shape, np.inf), logs[..., -1].numpy())
    meant = rollout(steps, levels(steps, kept), np.log(kappa))
    found = at_threshold(logs, walks, torch.full((80,), kappa, dtype=DTYPE))
    assert np.allclose(found.cost, meant.cost / made.UNIT)
    assert np.array_equal(found.loss, walks.stop_loss.numpy()[np.arange(80), meant.length - 1])


def test_a_threshold_of_its_own_for_each_question() -> None:
    walks = made.random_walks(50, 3, 2, seed=23)
    logs = made.random_policy(walks, seed=24)
    kappa = torch.from_numpy(np.random.default_rng(25).random(50))
    whole = at_threshold(logs, walks, kappa)
    for row in range(50):
        one = at_threshold(logs[row : row + 1], walks.take(torch.tensor([row])), kappa[row : row + 1])
        assert (float(one.loss), float(one.cost)) == (float(whole.loss[row]), float(whole.cost[row]))


# --- what the paper prints


def test_the_printed_coverage_lets_easy_questions_pay() -> None:
    """Half the questions have two right leaves, half have one that is never kept: J̄_C = 1, and half are covered."""
    right = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [1.0, 0.0]]], dtype=DTYPE)
    ones = torch.ones(2, 2, dtype=DTYPE)
    onward = torch.tensor([[True, False]] * 2)
    walks = Walks(ones[..., None], right, ones, ones[:, 0], ones, 2 * ones, onward)
    included = torch.tensor([[[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]]] * 2, dtype=DTYPE)
    assert 1.0 - float(brought(included, walks, counted=True).loss.mean()) == 1.0
    assert 1.0 - float(brought(included, walks).loss.mean()) == 0.5
