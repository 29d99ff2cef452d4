"""The sampled estimator, with every path in the place of rollouts: it is the exact gradient, whatever the critics say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from cases import each

torch = pytest.importorskip("torch")

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import drawn  # noqa: E402
from cascade.training.networks.recursions import Goal, brought, policy_of, soft_mask  # noqa: E402
from cascade.training.networks.walks import Walks  # noqa: E402
from literal.config import LiteralConfig  # noqa: E402
from literal.rollouts import Rollouts, estimate, functionals, seen  # noqa: E402
from literal.sets import LiteralEvaluation, on_a_path  # noqa: E402

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


def test_the_divergence_is_a_divergence() -> None:
    """Zero between equals, above 0 otherwise, and of π the one that torch has."""
    walks = made.random_walks(20, 3, 2, seed=11)
    setting = made.setting(walks, LiteralConfig(trust_region_of="policy", batch=1000))
    look = LiteralEvaluation(setting, setting.config, drawn(setting, 1), torch.full((20,), 0.3, dtype=DTYPE))
    old, new = (made.logits_of(walks, seed=seed).reshape(-1, 3) for seed in (12, 13))
    logs = look.log_policy(old)
    assert float(look.divergence(logs, old)) == 0.0
    found = float(look.divergence(logs, new))
    one, other = look.log_policy(new)[:, :-1], logs[:, :-1]
    inside = (one.exp() * (one - other)).sum(-1).sum()
    one, other = look.log_policy(new)[:, -1, :2], logs[:, -1, :2]
    assert found == pytest.approx(float(inside + (one.exp() * (one - other)).sum()) / 60)
