"""Runs that are not worth going on with are ended, and said to be."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import StepFigures, TrainingProblem, start  # noqa: E402
from cascade.training.networks.training import lost, train  # noqa: E402
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402


def setting(changes: dict[str, Any] | None = None, *, walks: Walks | None = None, **more: Any) -> TrainingProblem:
    config = made.SMALL.model_copy(update=changes or {})
    return made.setting(made.random_walks(60, 3, 2, seed=1) if walks is None else walks, config, **more)


def row(coverage: float) -> StepFigures:
    return StepFigures(coverage, 0.0, 0.9)


def test_a_run_that_misses_far_too_much_for_long_is_said_to_be_lost() -> None:
    whole = setting()
    missing, poor = [row(0.25)] * 400, [row(0.35)] * 400
    assert "25 % were covered, but the target is 80 %" in str(lost(whole, missing[:200]))
    assert lost(whole, missing[:199]) is None
    assert lost(whole, poor) is None
    assert "step 400" in str(lost(whole, poor[:200] + missing[200:]))
    assert lost(whole, missing[:200] + poor[200:]) is None


def test_a_run_ends_where_it_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """No answer is ever right but those that "next" leads to, and nothing is learned: all are missed."""
    walks = made.random_walks(40, 2, 1, seed=3, ragged=False)
    right = torch.tensor([[0.0], [1.0]], dtype=DTYPE).expand(40, -1, -1)
    walks = walks._replace(right=right, counts=torch.ones(40, dtype=DTYPE))
    whole = setting({"eta": 1e-9, "steps": 250, "learning_rate": 1e-9, "kappa_range": (0.9, 1.0)}, walks=walks)
    state = start(whole)
    weights = state.weights.clone()
    whole.net.parts(weights)[1][-1][:] = torch.tensor([1.0, 0.0], dtype=DTYPE)  # the first answer is likelier
    monkeypatch.setattr("cascade.training.networks.training.start", lambda _: state._replace(weights=weights))
    found = train(whole)
    assert len(found.rows) == 200
    assert found.diverged is not None
    assert "step 200" in found.diverged


def test_weights_that_are_no_numbers_end_a_run_before_them() -> None:
    whole = setting({"learning_rate": 1e308, "steps": 20})
    found = train(whole)
    assert "not finite" in str(found.diverged)
    assert bool(torch.isfinite(found.state.weights).all())
    assert len(found.rows) == int(found.state.step) < 20
