"""The sampled estimator, with every path in the place of rollouts: it is the exact gradient, whatever the critics say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from cases import each

torch = pytest.importorskip("torch")

from literal.config import LiteralConfig  # noqa: E402
from literal.rollouts import Rollouts, estimate, functionals, roll_out, seen, values_of  # noqa: E402
from literal.sets import drawn_from, on_a_path  # noqa: E402

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.recursions import Goal, brought, policy_of, soft_mask  # noqa: E402
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402

LAMBDA = 0.35
FREE = Goal(torch.zeros(1, dtype=DTYPE), LAMBDA)
"""Nothing is allowed: the constraint is the loss itself."""


class Every(NamedTuple):
    """All paths of some questions as rollouts; the question of each, and how likely it is."""

    rollouts: Rollouts
    question: torch.Tensor
    chance: torch.Tensor


class Estimated(NamedTuple):
    """Means over all paths: (B,) values, and the gradient of their sums with respect to the logits, (B, T, k) each."""

    cost: torch.Tensor
    loss: torch.Tensor
    cost_gradient: torch.Tensor
    loss_gradient: torch.Tensor


def behaviour(logs: torch.Tensor, exploration: float) -> torch.Tensor:
    there = (logs > -torch.inf).to(DTYPE)
    return (1 - exploration) * logs.exp() + exploration * there / there.sum(-1, keepdim=True)


def every(mu: torch.Tensor) -> Every:
    """Return all paths of μ, (B, T, k)."""
    horizon, rows = mu.shape[1], []
    for question in range(len(mu)):
        for one in made.paths(mu[question].tolist()):
            filled = (*one.actions, *(0,) * (horizon - len(one.actions)))
            alive = [t < len(one.actions) for t in range(horizon)]
            rows.append((question, one.chance, filled, alive))
    question, chance, actions, alive = (list(column) for column in zip(*rows, strict=True))
    at, taken = torch.tensor(question), torch.tensor(actions)
    each = mu[at].gather(-1, taken[..., None])[..., 0]
    rollouts = Rollouts(taken, torch.tensor(alive), torch.where(each > 0, each, 1.0))
    return Every(rollouts, at, torch.tensor(chance, dtype=DTYPE))


def sets(walks: Walks, logs: torch.Tensor) -> torch.Tensor:
    """Return the soft sets, as `looking.BatchEvaluation.included` has them."""
    soft = soft_mask(logs, torch.tensor(0.25, dtype=DTYPE), 0.2)
    return soft if walks.right is not None else torch.cat([torch.ones_like(soft[..., :1]), soft[..., 1:]], dim=-1)


def estimated(
    walks: Walks,
    logits: torch.Tensor,
    config: LiteralConfig,
    critics: torch.Tensor,
    included: Callable[[Walks, torch.Tensor], torch.Tensor] = sets,
) -> Estimated:
    """Return the estimates' means over all paths of the behaviour policy; critics are (B, T, 2)."""
    paths = every(behaviour(policy_of(logits, walks.onward), config.exploration))
    at = logits.detach().requires_grad_()
    repeated = walks.take(paths.question)
    logs = policy_of(at, walks.onward)[paths.question]
    missed = torch.zeros(len(paths.question), dtype=DTYPE)
    parts = functionals(included(repeated, logs), repeated, config, FREE, missed)
    clips = [config.gradient_clip, None]
    means, gradients = [], []
    for head, (one, clip) in enumerate(zip(parts, clips, strict=True)):
        told = seen(one, paths.rollouts, critics[paths.question][..., head], repeated.onward, config)
        found = estimate(one, paths.rollouts, told, clip)
        torch.testing.assert_close(found, told.level)
        weighted = paths.chance * found
        means.append(torch.zeros(len(walks.counts), dtype=DTYPE).index_add(0, paths.question, weighted.detach()))
        gradients.append(torch.autograd.grad(weighted.sum(), at, retain_graph=True)[0])
    return Estimated(*means, *gradients)


def exact(
    walks: Walks,
    logits: torch.Tensor,
    config: LiteralConfig,
    included: Callable[[Walks, torch.Tensor], torch.Tensor] = sets,
) -> Estimated:
    """Return the same by the recursions."""
    at = logits.detach().requires_grad_()
    soft = included(walks, policy_of(at, walks.onward))
    bring = on_a_path if config.cost_form == "path" else brought
    found = bring(soft, walks, counted=config.constraint_form == "paper")
    values = FREE.values(found, torch.zeros(len(walks.counts), dtype=torch.int64))
    gradients = [torch.autograd.grad(one.sum(), at, retain_graph=True)[0] for one in values]
    return Estimated(values.objective.detach(), values.constraint.detach(), *gradients)


def config(**changes: Any) -> LiteralConfig:
    return LiteralConfig(**{"estimator": "sampled", "rho_clip": None, "c_clip": None} | changes)


def world(*, keeps: bool = False, places: int = 2, ragged: bool = True) -> tuple[Walks, torch.Tensor, torch.Tensor]:
    """Return questions, logits, and critics that are wrong."""
    walks = made.random_walks(8, 3, places, seed=3, keeps=keeps, ragged=ragged)
    return walks, made.logits_of(walks, seed=4), made.numbers(8, 3, 2, seed=5, scale=3.0)


FORMS = [(cost, loss) for cost in ("conformal", "path") for loss in ("exact", "paper")]


@each("forms", FORMS)
@each("places", [1, 2, 3])
@each("exploration", [0.0, 0.3])
def test_over_all_paths_level_and_gradient_are_exact(forms: tuple[str, str], places: int, exploration: float) -> None:
    walks, logits, critics = world(places=places)
    told = config(cost_form=forms[0], constraint_form=forms[1], exploration=exploration)
    meant, found = exact(walks, logits, told), estimated(walks, logits, told, critics)
    for one, other in zip(found, meant, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert meant.cost_gradient.abs().max() > 1e-2
    assert meant.loss_gradient.abs().max() > 1e-2


@pytest.mark.parametrize("cost_form", ["conformal", "path"])
@pytest.mark.parametrize("places", [1, 2])
def test_over_all_paths_it_is_exact_where_every_answer_is_kept(cost_form: str, places: int) -> None:
    """λ charges each answer that is kept: all of a step, not one."""
    walks, logits, critics = world(keeps=True, places=places)
    told = config(cost_form=cost_form)
    meant, found = exact(walks, logits, told), estimated(walks, logits, told, critics)
    for one, other in zip(found, meant, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert meant.cost_gradient.abs().max() > 1e-2


@pytest.mark.parametrize("critic", ["none", "wrong", "right"])
def test_no_critic_biases_it_and_the_right_one_makes_it_quiet(critic: str) -> None:
    """At the critic's true values each path's gradient of the cost is nearer the mean one.

    Of a path's cost, that is: of sets, whose inclusions do not add up to 1, no critic may be quieter than the right one.
    """
    walks, logits, wrong = world(ragged=False)
    told = config(cost_form="path")
    soft = drawn_from(sets(walks, policy_of(logits, walks.onward)))
    later = torch.zeros(8, 4, dtype=DTYPE)
    for t in (2, 1, 0):  # what is to be paid from each step on, the step itself apart
        ahead = (walks.cost[:, t + 1] if t < 2 else 0.0) + later[:, t + 1]
        later[:, t] = LAMBDA * soft[:, t, :-1].sum(-1) + soft[:, t, -1] * ahead
    critics = {"none": 0 * wrong, "wrong": wrong, "right": later[:, :3, None].expand(-1, -1, 2).contiguous()}
    found = estimated(walks, logits, told, critics[critic])
    torch.testing.assert_close(found.cost_gradient, exact(walks, logits, told).cost_gradient, rtol=1e-10, atol=1e-10)
    noise = {name: spread(walks, logits, told, values) for name, values in critics.items()}
    assert noise["right"] < noise["none"] < noise["wrong"]


def spread(walks: Walks, logits: torch.Tensor, told: LiteralConfig, critics: torch.Tensor) -> float:
    """Return the variance of a path's gradient of the cost, summed over logits and questions."""
    paths = every(behaviour(policy_of(logits, walks.onward), told.exploration))
    repeated = walks.take(paths.question)
    at = logits[paths.question].requires_grad_()
    paid = functionals(sets(repeated, policy_of(at, repeated.onward)), repeated, told, FREE, repeated.counts)[0]
    told_of = seen(paid, paths.rollouts, critics[paths.question][..., 0], repeated.onward, told)
    (each,) = torch.autograd.grad(estimate(paid, paths.rollouts, told_of).sum(), at)
    square = (each * each).sum((1, 2)) @ paths.chance
    mean = exact(walks, logits, told).cost_gradient
    return float(square - (mean * mean).sum())


def test_the_targets_of_the_critic_are_right_on_average_whatever_it_says() -> None:
    walks, logits, critics = world(ragged=False)
    told = config()
    paths = every(behaviour(policy_of(logits, walks.onward), told.exploration))
    repeated = walks.take(paths.question)
    logs = policy_of(logits, walks.onward)
    paid = functionals(sets(walks, logs)[paths.question], repeated, told, FREE, repeated.counts)[0]
    first = seen(paid, paths.rollouts, critics[paths.question][..., 0], repeated.onward, told).targets[:, 0]
    mean = torch.zeros(8, dtype=DTYPE).index_add(0, paths.question, paths.chance * first)
    torch.testing.assert_close(mean + walks.cost[:, 0], exact(walks, logits, told).cost, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "printed",
    [{"state_weights": False}, {"rho_clip": 1.0}, {"gradient_clip": 1.0}, {"c_clip": 1.0}],
    ids=lambda one: next(iter(one)),
)
def test_what_is_clipped_or_left_out_biases_it(printed: dict[str, Any]) -> None:
    """As method 1.7 and 1.8 say of the paper's; c̄ is harmless for right critics alone."""
    walks, logits, critics = world(ragged=False)
    told = config(**printed, cost_form="path")
    gap = estimated(walks, logits, told, critics).cost_gradient - exact(walks, logits, told).cost_gradient
    assert gap.abs().max() > 1e-3


def converged(walks: Walks, logits: torch.Tensor, told: LiteralConfig) -> torch.Tensor:
    """Return what both critics say once their targets no longer move them, (B, T, 2)."""
    paths = every(behaviour(policy_of(logits, walks.onward), told.exploration))
    repeated = walks.take(paths.question)
    logs = policy_of(logits, walks.onward)[paths.question]
    parts = functionals(sets(repeated, logs), repeated, told, FREE, repeated.counts)
    weight = paths.rollouts.alive * paths.chance[:, None]
    nothing = torch.zeros(*walks.onward.shape, dtype=DTYPE)
    reached = nothing.index_add(0, paths.question, weight)
    found = [nothing, nothing]
    for _ in range(60):  # T sweeps do where nothing is clipped; V-trace with a clip contracts
        for head, one in enumerate(parts):
            targets = seen(one, paths.rollouts, found[head][paths.question], repeated.onward, told).targets
            found[head] = nothing.index_add(0, paths.question, weight * targets) / reached
    return torch.stack(found, dim=-1)


@pytest.mark.parametrize("clips", [{"c_clip": 1.0}, {"rho_clip": 1.0}, {"rho_clip": 1.0, "c_clip": 1.0}], ids=str)
def test_once_critics_are_right_the_clip_of_what_travels_back_does_no_harm_and_that_of_rho_a_little(
    clips: dict[str, float],
) -> None:
    """c̄ says how fast values travel back, ρ̄ whose they are (method 1.7)."""
    walks, logits, _ = world(ragged=False)
    told = config(**clips)
    meant = exact(walks, logits, told)
    found = estimated(walks, logits, told, converged(walks, logits, told))
    gaps = [
        float((one - other).norm() / other.norm())
        for one, other in ((found.cost_gradient, meant.cost_gradient), (found.loss_gradient, meant.loss_gradient))
    ]
    if "rho_clip" in clips:
        assert all(0.005 < gap < 0.2 for gap in gaps)
    else:
        assert all(gap < 1e-9 for gap in gaps)


def test_the_indicator_has_no_gradient_over_all_paths() -> None:
    walks, logits, critics = world()
    told = config(constraint_form="indicator")
    paths = every(behaviour(policy_of(logits, walks.onward), told.exploration))
    repeated = walks.take(paths.question)
    missed = made.numbers(8, seed=6).abs()[paths.question]
    at = logits.requires_grad_()
    parts = functionals(sets(repeated, policy_of(at, walks.onward)[paths.question]), repeated, told, FREE, missed)
    told_of = seen(parts[1], paths.rollouts, critics[paths.question][..., 1], repeated.onward, told)
    weighted = paths.chance * estimate(parts[1], paths.rollouts, told_of)
    assert float(weighted.sum().detach()) == pytest.approx(float(made.numbers(8, seed=6).abs().sum()))
    (gradient,) = torch.autograd.grad(weighted.sum(), at)
    assert gradient.abs().max() < 1e-12


# --- with rollouts


def drawn(walks: Walks, logits: torch.Tensor, many: int, exploration: float) -> tuple[torch.Tensor, Rollouts]:
    """Return which question is rolled out, each many times, and the rollouts."""
    question = torch.arange(len(walks.counts)).repeat_interleave(many)
    logs = policy_of(logits, walks.onward)[question]
    draws = torch.from_numpy(np.random.default_rng(7).random(logs.shape[:2]))
    return question, roll_out(logs, walks.onward[question], exploration, draws)


@pytest.mark.parametrize("form", ["exact", "paper", "indicator"])
def test_rollouts_bring_level_and_gradient_within_their_noise(form: str) -> None:
    walks, logits, critics = world()
    told, many = config(constraint_form=form), 1_500
    question, rollouts = drawn(walks, logits, many, told.exploration)
    repeated = walks.take(question)
    at = logits[question].requires_grad_()
    parts = functionals(sets(repeated, policy_of(at, repeated.onward)), repeated, told, FREE, repeated.counts)
    of = [seen(one, rollouts, critics[question][..., head], repeated.onward, told) for head, one in enumerate(parts)]
    estimates = [estimate(one, rollouts, told_of) for one, told_of in zip(parts, of, strict=True)]
    values = values_of(estimates, FREE, torch.zeros(len(question), dtype=torch.int64))
    if form == "indicator":
        meant = exact(walks, logits, config())
        meant = meant._replace(loss=walks.counts, loss_gradient=torch.zeros_like(logits))
    else:
        meant = exact(walks, logits, told)
    pairs = [(values.objective, meant.cost, meant.cost_gradient), (values.constraint, meant.loss, meant.loss_gradient)]
    for value, level, gradient in pairs:
        (each,) = torch.autograd.grad(value.sum(), at, retain_graph=True)
        for found, true in ((value.detach()[:, None], level[:, None]), (each.flatten(1), gradient.flatten(1))):
            by_question = found.view(8, many, -1)
            error = by_question.std(1) / many**0.5
            # 8 questions of 9 logits, two functionals: 4 standard errors are exceeded in 1 run of 110, 4.5 in 1,000.
            assert bool(((by_question.mean(1) - true).abs() <= 4.5 * error + 1e-9).all())


@pytest.mark.parametrize("exploration", [0.0, 0.3, 0.9])
def test_actions_are_drawn_as_often_as_they_should_be(exploration: float) -> None:
    walks = made.random_walks(6, 3, 2, seed=8)
    logits, many = made.logits_of(walks, seed=9), 20_000
    question, rollouts = drawn(walks, logits, many, exploration)
    mu = behaviour(policy_of(logits, walks.onward), exploration)
    torch.testing.assert_close(rollouts.chance, mu[question].gather(-1, rollouts.actions[..., None])[..., 0])
    counts = torch.nn.functional.one_hot(rollouts.actions, 3).to(DTYPE).view(6, many, 3, 3).mean(1)
    error = (mu * (1 - mu) / many).sqrt()
    assert bool(((counts - mu).abs() <= 4.5 * error + 1e-12).all())


def test_a_path_goes_on_where_next_is_taken_and_there_is_one() -> None:
    walks = made.random_walks(40, 4, 1, seed=10)
    question, rollouts = drawn(walks, made.logits_of(walks, seed=11), 50, 0.3)
    onward = walks.onward[question]
    is_next = rollouts.actions == 1
    assert not bool((is_next & ~onward).any())
    assert bool(rollouts.alive[:, 0].all())
    assert torch.equal(rollouts.alive[:, 1:], (rollouts.alive & is_next)[:, :-1])
    assert 0.02 < float(rollouts.alive[:, -1].to(DTYPE).mean()) < 0.5


@pytest.mark.parametrize("draw", [0.0, np.nextafter(1.0, 0.0)])
def test_draws_at_the_ends_take_what_there_is(draw: float) -> None:
    """Of a policy so sure that all other probabilities are 0."""
    logits = torch.tensor([[[0.0, -2000.0, -2000.0], [-2000.0, 0.0, 3000.0]]] * 2, dtype=DTYPE)
    onward = torch.tensor([[True, False]] * 2)
    rollouts = roll_out(policy_of(logits, onward), onward, 0.0, torch.full((2, 2), draw, dtype=DTYPE))
    assert rollouts.actions.tolist() == [[0, 1]] * 2
    assert rollouts.chance.tolist() == [[1.0, 1.0]] * 2
