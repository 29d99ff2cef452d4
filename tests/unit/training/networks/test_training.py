"""Training step by step: the same bytes again, Eq. 9 by hand, and what is learned."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import BatchEvaluation, State, TrainingProblem, drawn, served_weights, start  # noqa: E402  # noqa: E402
from cascade.training.networks.recursions import (  # noqa: E402
    Brought,
    Goal,
    at_threshold,
    brought,
    policy_of,
    soft_mask,
)
from cascade.training.networks.training import Moments, advance, train  # noqa: E402
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402

TWO_LEVELS = Goal(torch.tensor([0.1, 0.4], dtype=DTYPE))
RUNS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "exact": ({}, {}),
    "two levels": ({}, {"goal": TWO_LEVELS}),
    "CPO": ({}, {"threshold": "none"}),
    "CPO online": ({}, {"threshold": "online"}),
}
each_run = pytest.mark.parametrize(("changes", "more"), RUNS.values(), ids=RUNS.keys())


def setting(
    changes: dict[str, Any] | None = None, *, walks: Walks | None = None, seed: int = 0, **more: Any
) -> TrainingProblem:
    config = made.SMALL.model_copy(update=changes or {})
    return made.setting(made.random_walks(60, 3, 2, seed=1) if walks is None else walks, config, seed=seed, **more)


def bits(state: State) -> list[bytes]:
    return [one.numpy().tobytes() for one in state]


# --- the same run again


@each_run
def test_the_same_seed_gives_the_same_bytes(changes: dict[str, Any], more: dict[str, Any]) -> None:
    one, same, other = (train(setting(changes, seed=seed, **more)) for seed in (0, 0, 1))
    assert bits(one.state) == bits(same.state)
    assert repr(one.rows) == repr(same.rows)
    assert not torch.equal(one.state.weights, other.state.weights)
    assert int(one.state.step) == len(one.rows) == made.SMALL.steps
    assert not torch.equal(one.state.weights, start(setting(changes, **more)).weights)


def test_a_state_is_not_changed_by_a_step_from_it() -> None:
    whole = setting()
    first = start(whole)
    before = bits(first)
    second, _ = advance(whole, first)
    then = bits(second)
    advance(whole, second)
    assert (bits(first), bits(second)) == (before, then)


# --- κ


def hard(whole: TrainingProblem, number: int, weights: torch.Tensor, kappa: torch.Tensor) -> Brought:
    """Return what the sets bring on a step's batch, from the recursions alone."""
    batch = drawn(whole, number)
    outputs = whole.net.forward(weights, batch.rows).outputs.view(*batch.walks.onward.shape, -1)
    return at_threshold(policy_of(outputs, batch.walks.onward), batch.walks, kappa[batch.level])


@pytest.mark.parametrize("levels", [1, 2])
def test_kappa_follows_the_misses_by_eq_9(levels: int) -> None:
    """κ ← κ − η₁ t^(−½−ξ) (misses − α), each level by its own."""
    limits = torch.tensor([0.1, 0.4][:levels], dtype=DTYPE)
    changes = {"eta": 0.05, "xi": 0.2, "kappa_range": (0.0, 1.0), "learning_rate": 0.3}
    whole = setting(changes, walks=made.random_walks(60, 3, 2, seed=1, ragged=False), goal=Goal(limits))
    state = start(whole)
    for number in (1, 2, 3):
        now, _ = advance(whole, state)
        misses = hard(whole, number, state.weights, state.kappa).loss
        for level in range(levels):
            missed = float(misses[level * 16 : level * 16 + 16].mean())
            step = 0.05 * number**-0.7 * (missed - float(limits[level]))
            meant = float(state.kappa[level]) - step
            assert float(now.kappa[level]) == pytest.approx(meant, abs=1e-15)
            assert meant != float(state.kappa[level])
        state = now


def all_or_nothing(right: float) -> Walks:
    """Return questions whose answers are all right, or all wrong with a right one to come."""
    walks = made.random_walks(40, 3, 2, seed=2, ragged=False)
    assert walks.right is not None
    return walks._replace(right=torch.full_like(walks.right, right), counts=torch.ones_like(walks.counts))


@pytest.mark.parametrize(("right", "up"), [(0.0, False), (1.0, True)])
def test_kappa_falls_after_misses_and_rises_after_none(right: float, up: bool) -> None:
    whole = setting(walks=all_or_nothing(right))
    state = start(whole)
    now, _ = advance(whole, state)
    assert bool(now.kappa > state.kappa) is up
    assert bool(now.kappa < state.kappa) is not up


@pytest.mark.parametrize(("right", "end"), [(0.0, 0.12), (1.0, 0.25)])
def test_kappa_stays_where_it_is_kept(right: float, end: float) -> None:
    whole = setting({"eta": 50.0, "kappa_range": (0.12, 0.25), "kappa_start": 0.2}, walks=all_or_nothing(right))
    found = train(whole)
    assert [row.kappa for row in found.rows[1:]] == [end] * 9


def test_without_a_range_kappa_keeps_to_what_may_be_reached() -> None:
    for places in (1, 2, 3):
        actions = places + 1
        whole = setting({"eta": 50.0}, walks=made.random_walks(30, 2, places))
        assert whole.kappa_range == (0.3 / actions, 1 / actions)
        assert float(start(whole).kappa) == pytest.approx(0.6 / actions)


def test_cpo_leaves_its_threshold_alone() -> None:
    found = train(setting(threshold="none"))
    assert torch.equal(found.state.kappa, start(setting(threshold="none")).kappa)


# --- levels


def test_what_a_level_asks_for_does_not_move_what_tells_another_level() -> None:
    goal = Goal(torch.tensor([0.1, 0.2, 0.3], dtype=DTYPE))
    whole = setting(goal=goal)
    state = start(whole)
    batch = drawn(whole, 1)
    now = whole.net.forward(state.weights, batch.rows)
    look = BatchEvaluation(whole, batch, state.kappa[batch.level])
    logits = now.outputs.detach().requires_grad_()
    found = look.values(logits)
    for level in range(3):
        own = batch.level == level
        pulled = [torch.autograd.grad(one[own].sum(), logits, retain_graph=True)[0] for one in found]
        gradients = [whole.net.vjp(now.tape, one) for one in pulled]
        for gradient in gradients:
            told = whole.net.parts(gradient)[0][0][:, -3:].abs().amax(0)
            assert [bool(one > 0) for one in told] == [one == level for one in range(3)]


def test_each_level_is_held_against_its_own_limit() -> None:
    """All is lost: 19 limits too much where 0.05 are allowed, a quarter of one where 0.8 are."""
    goal = Goal(torch.tensor([0.05, 0.8], dtype=DTYPE))
    found = train(setting(walks=all_or_nothing(0.0), goal=goal))
    assert found.state.violation.tolist() == pytest.approx([19.0, 0.25])
    assert found.state.multiplier.tolist() == pytest.approx([10 * math.exp(0.5), 0.625 * math.exp(0.125)])
    assert found.rows[0].violation == pytest.approx(9.625)


# --- updates


def test_moments_are_adams() -> None:
    weights = made.numbers(7)
    theirs = weights.clone().requires_grad_()
    adam = torch.optim.Adam([theirs], lr=0.03)
    moments, ours = Moments(torch.zeros_like(weights), torch.zeros_like(weights)), weights
    for number in range(1, 6):
        gradient = made.numbers(7, seed=number, scale=10.0**-number)
        theirs.grad = gradient.clone()
        adam.step()
        change, moments = moments.step(gradient, 0.03, number)
        ours = ours + change
        torch.testing.assert_close(ours, theirs.detach(), rtol=1e-10, atol=1e-12)


def test_a_step_of_the_dual_is_adams_on_the_lagrangian_by_automatic_differentiation() -> None:
    """From the weights on, through the network, the mask and the recursions."""
    whole = setting({"batch": 60, "learning_rate": 0.01, "multiplier_gain": 0.0})
    state = start(whole)
    now, _ = advance(whole, state)
    weights = state.weights.clone().requires_grad_()
    walks = whole.walks
    logits = whole.net.forward(weights, walks.inputs.reshape(180, -1)).outputs.view(60, 3, 3)
    before = torch.tensor([[True, True, False]] * 60)  # what is served is not told that a question ends early
    soft = soft_mask(policy_of(logits, before), state.kappa[:, None, None], 0.05)
    soft = torch.cat([soft[..., :2], soft[..., 2:] * walks.onward[..., None]], dim=-1)
    found = brought(soft, walks)
    (found.cost + 2.5 * (found.loss - 0.2)).mean().backward()  # type: ignore[no-untyped-call]  # μ = 0.5 / 0.2
    torch.testing.assert_close(now.first, 0.1 * weights.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(now.weights - state.weights, -0.01 * weights.grad.sign(), rtol=1e-3, atol=1e-4)


def test_the_multiplier_rises_with_what_is_missed_and_falls_with_what_is_spared() -> None:
    for right, up in ((0.0, True), (1.0, False)):
        found = train(setting(walks=all_or_nothing(right)))
        first, last = 2.5, float(found.state.multiplier)
        assert bool(last > first) is up
        violations = [row.violation for row in found.rows]
        assert all((one > 0) is up for one in violations)
        held, mean = math.log(first), violations[0]
        for one in violations:
            mean = 0.9 * mean + 0.1 * one
            held += 0.05 * max(-1.0, min(1.0, mean))
        assert math.log(last) == pytest.approx(held)


def test_the_rate_of_adam_falls_to_nothing() -> None:
    whole, state = setting({"learning_rate": 0.05}), start(setting())
    for number in range(1, 11):
        now, _ = advance(whole, state)
        mean, square = now.first / (1 - 0.9**number), now.second / (1 - 0.999**number)
        meant = -0.05 * (1 - (number - 1) / 10) * mean / (square.sqrt() + 1e-8)
        torch.testing.assert_close(now.weights - state.weights, meant, rtol=1e-9, atol=1e-12)
        state = now


def test_weights_are_averaged_over_the_last_part_of_a_run() -> None:
    whole = setting({"average_from": 0.4})
    seen = [start(whole)]
    for _ in range(10):
        seen.append(advance(whole, seen[-1])[0])
    torch.testing.assert_close(seen[-1].average, torch.stack([one.weights for one in seen[5:]]).mean(0))
    assert served_weights(whole, seen[-1]) is seen[-1].average
    assert served_weights(whole, seen[4]) is seen[4].weights
    last = setting({"average_from": 1.0})
    end = train(last).state
    assert served_weights(last, end) is end.weights


def test_a_row_shows_the_policy_before_its_update() -> None:
    whole = setting({"batch": 60}, walks=made.random_walks(60, 3, 2, seed=1, ragged=False))
    state, _ = advance(whole, start(whole))
    now, row = advance(whole, state)
    found = hard(whole, 2, state.weights, state.kappa)
    assert row.coverage == pytest.approx(1 - float(found.loss.mean()))
    assert row.kappa == float(state.kappa)
    assert float(now.violation) == pytest.approx(0.9 * float(state.violation) + 0.1 * row.violation)
