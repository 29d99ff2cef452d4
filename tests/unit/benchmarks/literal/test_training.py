"""Runs with the flags of the text: the defaults train as networks do, the printed sign, trust regions, rollouts."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from literal.config import LiteralConfig  # noqa: E402
from literal.sets import LiteralEvaluation  # noqa: E402
from literal.training import Literal, train_literal  # noqa: E402
from literal.trust_region import KL_SLACK  # noqa: E402

from cascade.errors import UsageError  # noqa: E402
from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import State, TrainingProblem, drawn, start  # noqa: E402
from cascade.training.networks.recursions import Goal  # noqa: E402
from cascade.training.networks.training import train  # noqa: E402
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402

SMALL = {"layers": (6, 5), "batch": 16, "steps": 10}
PRINTED = LiteralConfig.literal().model_dump(exclude=set(SMALL))
RUNS: dict[str, dict[str, Any]] = {
    "sampled": {"estimator": "sampled"},
    "trust region": {"update": "trust_region"},
    "as printed": PRINTED,
}


def setting(changes: dict[str, Any] | None = None, *, walks: Walks | None = None, **more: Any) -> TrainingProblem:
    config = LiteralConfig(**SMALL | (changes or {}))
    return made.setting(made.random_walks(60, 3, 2, seed=1) if walks is None else walks, config, **more)


def bits(found: Any) -> list[bytes]:
    return [one.numpy().tobytes() for one in found.state]


@pytest.mark.parametrize("threshold", ["joint", "online", "none"])
def test_the_defaults_train_as_networks_do_to_the_bit(threshold: str) -> None:
    ours, theirs = train_literal(setting(threshold=threshold)), train(setting(threshold=threshold))
    assert bits(ours) == bits(theirs)
    assert repr(ours.rows) == repr(theirs.rows)


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS.keys())
def test_the_same_seed_gives_the_same_bytes(changes: dict[str, Any]) -> None:
    one, same, other = (train_literal(setting(changes, seed=seed)) for seed in (0, 0, 1))
    assert bits(one) == bits(same)
    assert repr(one.rows) == repr(same.rows)
    assert not torch.equal(one.state.weights, other.state.weights)


def test_as_printed_kappa_rises_after_a_miss() -> None:
    walks = made.random_walks(40, 3, 2, seed=2, ragged=False)
    assert walks.right is not None
    for right in (0.0, 1.0):
        some = walks._replace(right=torch.full_like(walks.right, right), counts=torch.ones_like(walks.counts))
        whole = setting({"kappa_sign": "printed"}, walks=some)
        now, _ = Literal(whole).advance(whole, start(whole))
        assert bool(now.kappa > start(whole).kappa) is (right == 0.0)


def test_misses_counted_after_an_update_are_not_those_before_it() -> None:
    runs = [
        train_literal(setting({"kappa_timing": timing, "learning_rate": 0.3, "kappa_range": (0.0, 1.0)})).state.kappa
        for timing in ("before", "after")
    ]
    assert float((runs[0] - runs[1]).abs()) > 1e-4


@pytest.mark.parametrize("of", ["policy", "soft_mask"])
@pytest.mark.parametrize("solver", ["exact", "cg"])
def test_a_trust_region_is_kept_to(of: str, solver: str) -> None:
    changes = {"update": "trust_region", "trust_region_of": of, "solver": solver, "anneal": False, "steps": 20}
    rows = train_literal(setting(changes)).rows
    assert all(row.kl <= KL_SLACK * 0.01 for row in rows)
    assert sum(row.kl > 0.001 for row in rows) > 5
    assert {row.case for row in rows} <= {"active", "inactive", "recover", "rejected"}
    assert all(math.isnan(row.multiplier) for row in rows)


@pytest.mark.parametrize("anneal", [True, False])
def test_an_annealed_trust_region_closes(anneal: bool) -> None:
    """Where nothing holds a step back it goes to the edge: with the curvature of all states, and little damping."""
    changes = {
        "update": "trust_region", "steps": 10, "delta": 1e-4, "damping": 1e-2, "fisher_states": 1000, "batch": 60,
        "average_from": 1.0, "anneal": anneal,
    }  # fmt: skip
    rows = train_literal(setting(changes, goal=Goal(torch.ones(1, dtype=DTYPE)))).rows
    assert [one.case for one in rows] == ["inactive"] * 10
    for one in rows:
        delta = 1e-4 * (1 - (one.step - 1) / 10 if anneal else 1)
        assert 0.9 * delta < one.kl < delta  # the damping takes the rest


def hesitant(whole: TrainingProblem) -> State:
    """Return a state that stops after the first step."""
    state = start(whole)
    weights = state.weights.clone()
    whole.net.parts(weights)[1][-1][-1] = -2.0
    return state._replace(weights=weights)


def test_a_step_of_a_trust_region_makes_way_for_the_constraint_first() -> None:
    """On the whole log and unsmoothed: while it is broken it falls, at whatever cost, and then it holds."""
    changes = {
        "update": "trust_region", "batch": 200, "smoothing": 0.0, "steps": 40, "anneal": False, "mask_width": 0.2,
        "kappa_range": (0.3, 0.300001), "average_from": 1.0,
    }  # fmt: skip
    whole = setting(changes, walks=made.hinted(200))
    rows = train_literal(whole, hesitant(whole)).rows
    pairs = list(itertools.pairwise(rows))
    broken = [(one, after) for one, after in pairs if one.violation > 1e-3]
    assert len(broken) > 2
    assert all(after.violation < one.violation + 1e-3 for one, after in broken)
    assert all(after.violation < 1e-3 for one, after in pairs if one.violation <= 0)
    assert rows[-1].violation < 1e-3


def test_a_trust_region_holds_one_constraint() -> None:
    goal = Goal(torch.tensor([0.1, 0.4], dtype=DTYPE))
    with pytest.raises(UsageError, match="each level has its own"):
        train_literal(setting({"update": "trust_region"}, goal=goal))


def test_slack_is_large_where_right_leaves_are_counted_with_repetition() -> None:
    walks = made.random_walks(40, 2, 2, seed=16, ragged=False)
    config = LiteralConfig(layers=(6, 5), batch=1000, constraint_form="paper")
    whole = made.setting(walks, config, goal=Goal(torch.tensor([0.3], dtype=DTYPE)))
    look = LiteralEvaluation(whole, config, drawn(whole, 1), torch.full((40,), 0.3, dtype=DTYPE))
    logits = made.logits_of(walks, seed=17).reshape(-1, 3)
    assert look.slack(look.values(logits), look.hard(look.log_policy(logits))) > 0.05


@pytest.mark.parametrize(
    "changes",
    [
        {"update": "trust_region", "damping": 1e-18, "layers": (6,)},
        {"estimator": "sampled", "critic_rate": 1e200},
        {"update": "trust_region", "solver": "cg", "delta": 1e308, "damping": 1e-300},
    ],
    ids=["singular", "critics", "region"],
)
def test_numbers_that_fail_end_a_run(changes: dict[str, Any]) -> None:
    found = train_literal(setting({"steps": 20, **changes}))
    assert "lower learning_rate" in str(found.diverged)
    assert bool(torch.isfinite(found.state.weights).all())


def test_rollouts_of_a_policy_of_one_action_hit_as_often_on_average() -> None:
    few, many = made.random_walks(12, 2, 2, seed=3), 1_500
    walks = few.take(torch.arange(12).repeat_interleave(many))
    logits = made.logits_of(few, seed=4)
    one = setting({"batch": 1000}, walks=few, threshold="none")
    at = LiteralEvaluation(one, LiteralConfig(), drawn(one, 1), torch.full((12,), 0.3, dtype=DTYPE))
    meant = at.values(logits.reshape(-1, 3))
    whole = setting({"estimator": "sampled", "batch": 12 * many}, walks=walks, threshold="none")
    run, batch = Literal(whole), drawn(whole, 1)
    look = LiteralEvaluation(whole, run.config, batch, torch.full((12 * many,), 0.3, dtype=DTYPE))
    every = logits.repeat_interleave(many, dim=0).reshape(-1, 3)
    found = run.sampled(batch, look, look.log_policy(every), 1)(every).constraint.view(12, many)
    assert bool(((found.mean(1) - meant.constraint).abs() <= 4.5 * found.std(1) / many**0.5 + 1e-12).all())
