"""A log as tensors: where columns lie, what counts, what is asked of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from cascade.conformal.arrays import StepArrays  # noqa: E402
from cascade.episodes.table import EpisodeTable  # noqa: E402
from cascade.training.networks.fitting import fit_network  # noqa: E402
from cascade.training.networks.problem import TrainingProblem, start  # noqa: E402
from cascade.training.networks.training import Trained  # noqa: E402
from cascade.training.networks.walks import Walks, encoding_of, walks_of  # noqa: E402
from cascade.training.stages import FitTarget  # noqa: E402
from cascade.training.stopping import Problem, build  # noqa: E402
from unit.training.networks import made  # noqa: E402

COVERAGE = FitTarget("coverage", 0.2)
TABLE = made.table(n=120, holes=0.2)


def posed(table: EpisodeTable = TABLE, asked: FitTarget = COVERAGE) -> Problem:
    return build(table, asked, confidences=False)


def walks(table: EpisodeTable = TABLE, asked: FitTarget = COVERAGE) -> Walks:
    problem = posed(table, asked)
    return walks_of(problem, encoding_of(problem.stages))


def asked_of(table: EpisodeTable, *asked: FitTarget, **changes: Any) -> TrainingProblem:
    """Return the setting that fitting makes of what is asked."""
    config = made.SMALL.model_copy(update=changes)
    levels = {str(number): one for number, one in enumerate(asked)}
    return fit_network(
        table, levels, config=config, confidences=False, run=lambda whole: Trained(start(whole), [], None)
    ).setting


# --- inputs


def test_a_feature_is_the_same_input_at_every_step_and_steps_and_levels_are_told() -> None:
    problem = posed()
    encoding = encoding_of(problem.stages, levels=3)
    assert len(set(encoding.names)) == len(encoding.names)
    for stage, places in zip(problem.stages, encoding.places, strict=True):
        named = [encoding.names[place] for place in places]
        assert named[: len(stage.features.names)] == list(stage.features.names)
        assert all(
            name.endswith("?") and name[:-1] in stage.features.names for name in named[len(stage.features.names) :]
        )
        assert len(named) == stage.design.columns
    shared = set(encoding.places[0].tolist()) & set(encoding.places[1].tolist())
    assert len(shared) > 2
    many = len(encoding.names)
    assert encoding.inputs == many + 3 + 3
    assert [encoding.always(step, 2) for step in range(3)] == [[many + step, many + 5] for step in range(3)]
    assert encoding_of(problem.stages, levels=1).inputs == many + 3
    assert encoding_of(problem.stages, levels=1).always(1) == [many + 1]


def test_inputs_are_each_steps_own_columns_and_nothing_elsewhere() -> None:
    problem = posed()
    encoding = encoding_of(problem.stages)
    found = walks().inputs.numpy()
    many = len(encoding.names)
    for t, (stage, places) in enumerate(zip(problem.stages, encoding.places, strict=True)):
        assert np.array_equal(found[stage.rows[:, None], t, places], stage.columns)
        others = np.setdiff1d(np.arange(many), places)
        assert not found[:, t][:, others].any()
        beyond = np.setdiff1d(np.arange(TABLE.n), stage.rows)
        assert not found[beyond, t, :many].any()
        assert np.array_equal(found[:, t, many:], np.tile(np.eye(3)[t], (TABLE.n, 1)))


# --- what counts


def test_what_answers_there_are_and_which_a_step_lacks() -> None:
    found, arrays = walks(), TABLE.arrays
    on = np.arange(3) < arrays.steps[:, None]
    assert found.actions == 3
    assert found.right is not None
    assert np.array_equal(found.right, arrays.correct)
    assert np.array_equal(found.leaves, arrays.present.sum(axis=2))
    assert found.absent is not None
    assert np.array_equal(found.absent, ~arrays.present & on[:, :, None])
    assert walks(made.table(n=120)).absent is None
    assert walks(asked=FitTarget("error", 0.2)).absent is None


def test_the_next_step_is_there_but_at_the_end_of_a_question() -> None:
    arrays, found = TABLE.arrays, walks().onward.numpy()
    for row in range(TABLE.n):
        for t in range(3):
            ended = t == 2 or (bool(arrays.complete[row]) and t + 1 >= int(arrays.steps[row]))
            assert bool(found[row, t]) is not ended


def test_costs_are_in_mean_steps_and_go_on_where_an_open_record_ends() -> None:
    found, arrays = walks().cost.numpy(), TABLE.arrays
    on = np.arange(3) < arrays.steps[:, None]
    assert found[on].mean() == pytest.approx(1.0)
    assert not found[arrays.complete[:, None] & ~on].any()
    assert bool((found[~arrays.complete[:, None] & ~on] > 0.1).all())


def test_some_questions_are_taken_with_all_that_is_theirs() -> None:
    whole, rows = walks(), torch.tensor([5, 2, 5])
    taken = whole.take(rows)
    for one, some in zip(whole, taken, strict=True):
        assert one is not None
        assert some is not None
        assert torch.equal(some, one[rows])


def test_promises_on_the_answer_served_keep_every_answer() -> None:
    problem = posed(TABLE, FitTarget("error", 0.2))
    found = walks_of(problem, encoding_of(problem.stages))
    assert (found.right, found.actions) == (None, 2)
    assert np.array_equal(found.stop_loss, problem.loss)
    assert found.stop_loss.std() > 0.1


# --- what is asked


def test_each_level_has_its_limit_in_mean_losses_of_all_questions() -> None:
    setting = asked_of(TABLE, FitTarget("coverage", 0.1), FitTarget("coverage", 0.3))
    assert setting.goal.limits.tolist() == pytest.approx([0.1, 0.3])
    assert (setting.levels, setting.inputs) == (2, setting.walks.inputs.shape[2] + 2)
    assert asked_of(TABLE, COVERAGE, aim=0.5).goal.limits.tolist() == pytest.approx([0.1])


def test_answers_are_charged_with_what_the_settings_say() -> None:
    assert asked_of(TABLE, FitTarget("coverage", 0.2)).goal.lambda_set == 0.0
    assert asked_of(TABLE, FitTarget("coverage", 0.2), lambda_set=0.1).goal.lambda_set == 0.1
    assert asked_of(TABLE, FitTarget("error", 0.2), lambda_set=0.1).goal.lambda_set == 0.0


def test_a_step_that_no_question_reached_has_no_columns() -> None:
    held = made.table(n=40, ragged=False).arrays
    short = StepArrays(
        np.concatenate([held.answer, np.full((40, 1, 2), -1)], axis=1),
        np.concatenate([held.correct, np.zeros((40, 1, 2), dtype=np.bool_)], axis=1),
        np.concatenate([held.cost, np.zeros((40, 1), dtype=np.int64)], axis=1), held.steps, held.complete,
    )  # fmt: skip
    signals = {"p_yes": np.random.default_rng(1).random((40, 4))}
    nothing = np.full((40, 4, 2), np.nan)
    table = EpisodeTable(
        "made", made.table(n=40).ids, made.table(n=40).ids, ("base", "guide"), short, nothing, signals, {}
    )
    problem = posed(table)
    encoding = encoding_of(problem.stages)
    found = walks_of(problem, encoding)
    assert encoding.places[3].size == 0
    assert not found.onward[:, 2:].any()
    assert bool(torch.isfinite(found.inputs).all())
