"""The Fisher matrix against the explicit one, and its metrics against the curvature of the divergences they stand for."""

from __future__ import annotations

from typing import Literal

import pytest

torch = pytest.importorskip("torch")

from literal.config import LiteralConfig  # noqa: E402
from literal.sets import LiteralEvaluation, drawn_from, logit_mask  # noqa: E402
from literal.training import Literal as LiteralRun  # noqa: E402
from literal.updates import Fisher, masked_root, policy_root  # noqa: E402

from cascade.training.networks.mlp import DTYPE, Mlp  # noqa: E402
from cascade.training.networks.problem import drawn  # noqa: E402
from cascade.training.networks.recursions import soft_mask  # noqa: E402
from unit.training.networks.made import numbers, random_walks, setting  # noqa: E402

SPACES: list[Literal["probability", "logit"]] = ["probability", "logit"]
KAPPA = torch.tensor(0.3, dtype=DTYPE)


def metric(root: torch.Tensor) -> torch.Tensor:
    return root @ root.transpose(-1, -2)


def curvature(divergence: object, at: torch.Tensor) -> torch.Tensor:
    """Return the Hessian of a function of one state's logits."""
    found: torch.Tensor = torch.autograd.functional.hessian(divergence, at)  # type: ignore[arg-type,no-untyped-call]
    return found


def masked(
    logits: torch.Tensor, space: Literal["probability", "logit"]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return π, S and d log m / dπ of logits, (N, k)."""
    logs = logits.log_softmax(-1)
    policy, soft = logs.exp(), (soft_mask if space == "probability" else logit_mask)(logs, KAPPA, 0.1)
    slope = (1 - soft) / 0.1
    return policy, drawn_from(soft), slope if space == "probability" else slope / (policy * (1 - policy))


@pytest.mark.parametrize("activation", ["softsign", "relu"])
def test_product_and_solve_are_those_of_the_explicit_matrix(activation: Literal["softsign", "relu"]) -> None:
    net = Mlp((3, 5, 4, 3), activation)
    flat, rows = numbers(net.size, seed=1), numbers(9, 3, seed=2)
    jacobian = torch.autograd.functional.jacobian(lambda w: net.forward(w, rows).outputs, flat)  # type: ignore[no-untyped-call]
    policy = net.forward(flat, rows).outputs.softmax(-1)
    for root in (policy_root(policy), numbers(9, 3, 3, seed=3)):
        explicit = torch.einsum("nkp,nkl,nlq->pq", jacobian, metric(root), jacobian) / 9
        fisher = Fisher(net, net.forward(flat, rows).tape, root, 0.1)
        v = numbers(net.size, seed=4)
        torch.testing.assert_close(fisher.product(v), explicit @ v, rtol=1e-11, atol=1e-12)
        damped = explicit + 0.1 * torch.eye(net.size, dtype=DTYPE)
        torch.testing.assert_close(fisher.solve(v), torch.linalg.solve(damped, v), rtol=1e-10, atol=1e-11)


def test_solve_and_product_undo_each_other_where_the_policy_is_sure() -> None:
    """On confident states the matrix is all but 0, and the damping alone is left."""
    net = Mlp((2, 4, 3))
    tape, damping = net.forward(numbers(net.size), numbers(5, 2)).tape, 1e-3
    policy = torch.tensor([[1.0, 0.0, 0.0]], dtype=DTYPE).expand(5, -1)
    fisher = Fisher(net, tape, policy_root(policy), damping)
    v = numbers(net.size, seed=3)
    torch.testing.assert_close(fisher.product(fisher.solve(v)) + damping * fisher.solve(v), v, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(fisher.solve(v), v / damping, rtol=1e-10, atol=1e-10)


def test_the_policys_metric_is_the_curvature_of_its_divergence() -> None:
    logits = numbers(4, 3, scale=2.0)
    for row, root in zip(logits, policy_root(logits.softmax(-1)), strict=True):
        held = row.log_softmax(-1)
        for kl in (
            lambda z, held=held: (held.exp() * (held - z.log_softmax(-1))).sum(),
            lambda z, held=held: (z.log_softmax(-1).exp() * (z.log_softmax(-1) - held)).sum(),
        ):
            torch.testing.assert_close(metric(root), curvature(kl, row), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("space", SPACES)
def test_the_masks_metric_is_the_curvature_of_the_divergence_of_what_is_drawn(
    space: Literal["probability", "logit"],
) -> None:
    logits = numbers(6, 4, seed=5)
    roots = masked_root(*masked(logits, space))
    for row, root in zip(logits, roots, strict=True):
        held = masked(row, space)[1]

        def kl(z: torch.Tensor, held: torch.Tensor = held) -> torch.Tensor:
            new = masked(z, space)[1]
            return (new * (new.log() - held.log())).sum()

        torch.testing.assert_close(metric(root), curvature(kl, row), rtol=1e-7, atol=1e-9)
    assert metric(roots).abs().amax() > 0.1


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("of", ["policy", "soft_mask"])
@pytest.mark.parametrize("keeps", [False, True])
def test_a_steps_matrix_is_the_curvature_of_what_its_line_search_measures(
    of: Literal["policy", "soft_mask"], space: Literal["probability", "logit"], keeps: bool
) -> None:
    """Also where there is no next step, and where every answer is kept."""
    walks = random_walks(8, 3, 2, keeps=keeps)
    config = LiteralConfig(layers=(6, 5), steps=10, trust_region_of=of, mask_space=space, mask_width=0.2, batch=8)
    whole = setting(walks, config)
    weights = numbers(whole.net.size, seed=1, scale=0.5)
    batch = drawn(whole, 1)
    now = whole.net.forward(weights, batch.rows)
    look = LiteralEvaluation(whole, config, batch, torch.full((8,), 0.3, dtype=DTYPE))
    logs = look.log_policy(now.outputs)
    fisher = LiteralRun(whole).fisher(now, logs, look, 1)
    v = numbers(whole.net.size, seed=2)
    change = 0.02 * v / v.norm()
    there, back = (
        look.divergence(logs, whole.net.forward(weights + sign * change, batch.rows).outputs) for sign in (1, -1)
    )
    assert float(there + back) == pytest.approx(float(change @ fisher.product(change)), rel=0.01)
    assert float(there + back) > 1e-11
