"""What a step looks at: its batch, and the objective and constraint of the policy at its thresholds."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from cases import each

torch = pytest.importorskip("torch")

from cascade.training.networks.mlp import DTYPE  # noqa: E402
from cascade.training.networks.problem import BatchEvaluation, TrainingProblem, drawn  # noqa: E402
from cascade.training.networks.recursions import (  # noqa: E402
    LEAST_LIMIT,
    Brought,
    Goal,
    Values,
)
from cascade.training.networks.walks import Walks  # noqa: E402
from unit.training.networks import made  # noqa: E402

NOTHING = Goal(torch.zeros(1, dtype=DTYPE))
"""Nothing may be lost: the constraint is the loss itself."""


def whole(walks: Walks, **changes: Any) -> TrainingProblem:
    """Return a setting whose batch is every question."""
    told = {"goal": NOTHING} | {name: changes.pop(name) for name in ("goal", "threshold") if name in changes}
    return made.setting(walks, made.SMALL.model_copy(update={"batch": 1000} | changes), **told)


def values(setting: TrainingProblem, logits: torch.Tensor, kappa: float = 0.3) -> Values:
    batch = drawn(setting, 1)
    look = BatchEvaluation(setting, batch, torch.full((len(batch.level),), kappa, dtype=DTYPE))
    return look.values(logits)


# --- CPO: one action a step


@each("horizon, places", list(itertools.product((1, 2, 3), (1, 2, 3))))
@each("holes", [0.0, 0.3])
def test_a_policy_of_one_action_costs_and_hits_what_its_paths_do(horizon: int, places: int, holes: float) -> None:
    """Cost = Σ_t c_t Π π_s(n), accuracy = Σ_t Π π_s(n) Σ_a π_t(a) B_t(a): also where several answers are right."""
    walks = made.walks(made.arrays(12, horizon, places, seed=1, holes=holes))
    setting = whole(walks, threshold="none")
    logits = made.logits_of(walks, seed=2).reshape(-1, walks.actions)
    found = values(setting, logits)
    assert walks.right is not None
    for row in range(12):
        policy = logits.view(12, horizon, -1)[row].clone()
        policy[~walks.onward[row], -1] = -torch.inf
        assert walks.absent is not None
        for t in range(horizon):
            for place in range(places):
                if walks.absent[row, t, place] and bool((policy[t] > -torch.inf).sum() > 1):  # one is left
                    policy[t, place] = -torch.inf
        cost = hit = 0.0
        for one in made.paths(policy.softmax(-1).tolist()):
            cost += one.chance * float(walks.cost[row, : len(one.actions)].sum())
            hit += one.chance * float(walks.right[row, len(one.actions) - 1, one.actions[-1]])
        assert float(found.objective[row]) == pytest.approx(cost, abs=1e-12)
        assert float(found.constraint[row]) == pytest.approx(float(walks.counts[row]) * (1 - hit), abs=1e-12)


def test_at_the_argmax_a_policy_of_one_action_takes_the_likeliest() -> None:
    for keeps in (False, True):
        walks = made.random_walks(30, 3, 2, seed=5, keeps=keeps)
        setting = whole(walks, threshold="none")
        logits = made.logits_of(walks, seed=6)
        look = BatchEvaluation(setting, drawn(setting, 1), torch.full((30,), 0.01, dtype=DTYPE))
        found = look.hard(look.log_policy(logits.reshape(-1, walks.actions)))
        for row in range(30):
            step = 0
            while walks.onward[row, step] and int(logits[row, step].argmax()) == walks.actions - 1:
                step += 1
            assert float(found.cost[row]) == pytest.approx(float(walks.cost[row, : step + 1].sum()))
            if walks.right is None:
                assert float(found.loss[row]) == float(walks.stop_loss[row, step])
            else:
                right = float(walks.right[row, step, int(logits[row, step, :-1].argmax())])
                assert float(found.loss[row]) == float(walks.counts[row]) * (1 - right)


# --- CCPO: sets


@pytest.mark.parametrize("keeps", [False, True])
def test_where_the_mask_is_narrow_the_surrogate_is_what_the_sets_bring(keeps: bool) -> None:
    """At a threshold where the argmax is in the set for its score."""
    walks = made.random_walks(60, 3, 2, seed=7, keeps=keeps, ragged=False)
    logits = made.logits_of(walks, seed=8).reshape(-1, walks.actions)
    gaps = []
    for width in (1e-1, 1e-2, 1e-7):
        setting = whole(walks, mask_width=width)
        look = BatchEvaluation(setting, drawn(setting, 1), torch.full((60,), 0.3, dtype=DTYPE))
        hard, soft = look.hard(look.log_policy(logits)), values(setting, logits)
        gaps.append(
            max(float((hard.loss - soft.constraint).abs().max()), float((hard.cost - soft.objective).abs().max()))
        )
    assert gaps[0] > 1e-2
    assert gaps[2] < 1e-9


def test_next_is_in_no_set_where_a_question_ends_early_and_no_answer_that_a_step_lacks() -> None:
    walks = made.walks(made.arrays(60, 4, 2, seed=9, holes=0.3))
    assert walks.absent is not None
    some = ~walks.absent.all(-1) | walks.onward
    for joint in (True, False):
        setting = whole(walks, threshold="joint" if joint else "none")
        look = BatchEvaluation(setting, drawn(setting, 1), torch.full((60,), 0.3, dtype=DTYPE))
        included = look.included(look.log_policy(made.logits_of(walks, seed=10).reshape(-1, 3)))
        assert not bool(included[..., -1][~walks.onward].any())
        assert bool((included[..., -1][walks.onward] > 0).all())
        assert not bool(included[..., :-1][walks.absent & some[..., None]].any())
        assert bool((included[..., :-1][~walks.absent] > 0).all())
        assert bool(torch.isfinite(included).all())
        if not joint:
            torch.testing.assert_close(included.sum(-1), torch.ones_like(included[..., 0]))


# --- batches


def test_a_batch_hangs_on_the_seed_and_the_steps_number_alone() -> None:
    walks = made.random_walks(100, 3, 2, seed=14)
    setting = made.setting(walks)
    first, again, next_one = drawn(setting, 1), drawn(setting, 1), drawn(setting, 2)
    other = drawn(made.setting(walks, seed=1), 1)
    assert torch.equal(first.rows, again.rows)
    assert not torch.equal(first.rows, next_one.rows)
    assert not torch.equal(first.rows, other.rows)
    assert len(first.level) == made.SMALL.batch
    assert len({tuple(row) for row in first.walks.inputs[:, 0].tolist()}) == made.SMALL.batch  # none twice


def test_every_question_of_a_batch_is_asked_at_every_level() -> None:
    walks = made.random_walks(9, 3, 2, seed=15)
    batch = drawn(whole(walks, goal=Goal(torch.tensor([0.1, 0.2, 0.3], dtype=DTYPE))), 1)
    assert batch.level.tolist() == [0] * 9 + [1] * 9 + [2] * 9
    assert walks.right is not None
    assert batch.walks.right is not None
    told = batch.rows.view(27, 3, -1)
    for level in range(3):
        some = slice(9 * level, 9 * level + 9)
        assert torch.equal(told[some, :, :3], walks.inputs)
        assert torch.equal(batch.walks.right[some], walks.right)
        assert torch.equal(batch.walks.cost[some], walks.cost)
        assert told[some, :, 3:].unique(dim=0).tolist() == [[[float(one == level) for one in range(3)]] * 3]


# --- the goal


def test_limits_are_those_of_each_questions_level() -> None:
    found = Brought(*(torch.tensor(one, dtype=DTYPE) for one in ([1.0, 2.0], [3.0, 4.0], [0.5, 0.25])))
    limits, level = torch.tensor([0.1, 0.0], dtype=DTYPE), torch.tensor([1, 0])
    held = Goal(limits, lambda_set=2.0).values(found, level)
    assert held.objective.tolist() == [7.0, 10.0]
    assert held.constraint.tolist() == pytest.approx([0.5, 0.15])
    assert Goal(limits).scale.tolist() == [0.1, LEAST_LIMIT]
