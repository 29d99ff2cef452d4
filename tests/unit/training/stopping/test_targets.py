"""What a policy is fitted to: losses of stopping and costs of steps, against tables written out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.arrays import Levels, StepArrays, rollout
from cascade.conformal.served import PathPoint, served
from cascade.episodes.schema import GUIDE_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.errors import UsageError
from cascade.guarantees import get
from cascade.training.stages import FitTarget, allowed, decides, on_record, step_cost
from unit.evaluation.plain import draw, table_of

RIGHT, WRONG = True, False


def made(
    rights: list[list[bool]],
    *,
    costs: list[list[int]] | None = None,
    sure: list[list[float]] | None = None,
    steps: list[int] | None = None,
    complete: list[bool] | None = None,
) -> EpisodeTable:
    """Return a ladder's log: one answer a step, the right ones equal."""
    correct = np.array(rights)[:, :, None]
    n, horizon = correct.shape[:2]
    many = np.array([horizon] * n if steps is None else steps)
    there = (np.arange(horizon) < many[:, None])[:, :, None]
    wrong = np.broadcast_to(np.arange(1, horizon + 1)[None, :, None] % (horizon + 1), correct.shape)
    answer = np.where(there, np.where(correct, 0, np.minimum(wrong, horizon - 1)), -1)
    arrays = StepArrays(
        answer,
        correct & there,
        np.where(there[:, :, 0], np.array(costs or [[10, 20, 30][:horizon]] * n), 0),
        many,
        np.array([True] * n if complete is None else complete),
    )
    confidence = np.full(correct.shape, np.nan) if sure is None else np.array(sure)[:, :, None]
    ids = tuple(f"q{row}" for row in range(n))
    return EpisodeTable("made", ids, ids, ("answer",), arrays, confidence, {}, {})


def with_guide(table: EpisodeTable, right: list[bool], known: list[bool] | None = None) -> EpisodeTable:
    n, zero = table.n, np.zeros(table.n, dtype=np.int64)
    held = np.ones(n, dtype=np.bool_) if known is None else np.array(known)
    walk = Walk(held, np.array(right), np.array(right), zero, zero, zero, zero)
    return replace(table, walks={GUIDE_ONLY: walk})


def test_coverage_loses_until_the_first_right_answer_and_never_where_there_is_none() -> None:
    table = made([[RIGHT, WRONG, WRONG], [WRONG, WRONG, RIGHT], [WRONG, WRONG, WRONG]])
    assert get("coverage").loss(table).tolist() == [[0, 0, 0], [1, 1, 0], [0, 0, 0]]


def test_a_record_that_ends_early_keeps_its_loss_and_one_without_a_right_answer_always_loses() -> None:
    table = made([[WRONG, RIGHT, WRONG], [WRONG, WRONG, WRONG]], steps=[2, 2], complete=[False, False])
    assert get("coverage").loss(table).tolist() == [[1, 0, 0], [1, 1, 1]]
    assert get("error").loss(table).tolist() == [[1, 0, 0], [1, 1, 1]]


def test_error_is_that_of_the_answer_served() -> None:
    # By confidence the right answer of step 1 stays; by votes and then by the latest step it is displaced.
    rights = [[RIGHT, WRONG], [WRONG, RIGHT]]
    sure = [[0.9, 0.2], [0.9, 0.2]]
    assert get("error").loss(made(rights, sure=sure)).tolist() == [[0, 0], [1, 1]]
    assert get("error").loss(made(rights)).tolist() == [[0, 1], [1, 0]]
    own = np.array([[[0.1], [0.2]], [[0.9], [0.2]]])
    assert get("error").loss(made(rights, sure=sure), own).tolist() == [[0, 1], [1, 1]]


def test_regret_counts_where_the_reference_alone_is_right_and_known() -> None:
    table = with_guide(made([[WRONG, RIGHT]] * 3), [True, False, True], [True, True, False])
    assert get("regret").loss(table).tolist() == [[1, 0], [0, 0], [0, 0]]
    assert get("regret").counted(table).tolist() == [1, 1, 0]
    assert allowed(table, FitTarget("regret", 0.3)) == pytest.approx(0.2)
    with pytest.raises(UsageError, match="guide alone"):
        get("regret").loss(made([[WRONG, RIGHT]]))


@pytest.mark.parametrize("seed", range(8))
def test_losses_are_those_that_the_conformal_layer_counts(seed: int) -> None:
    """Stopping after step t with everything kept, by `rollout` and `served`; records that end early are apart."""
    rng = np.random.default_rng(seed)
    table = table_of([draw(rng, 3, 2) for _ in range(60)], 3, 2)
    table = table.take(np.flatnonzero(table.arrays.complete))
    found = {kind: get(kind).loss(table) for kind in ("coverage", "error")}
    for t in range(3):
        reach = np.where(np.arange(3) <= t, np.inf, -np.inf) * np.ones((table.n, 1))
        reach = np.where(on_record(table), reach, -np.inf)
        leaf = np.where(table.arrays.present, reach[:, :, None], -np.inf)
        stopped = Levels(reach, leaf, table.arrays.present)
        missed = ~rollout(table.arrays, stopped, 0.0).covered
        wrong = served(table.arrays, stopped, table.confidence).at(PathPoint(0.0)).loss
        assert found["coverage"][:, t].tolist() == missed.astype(float).tolist()
        some = table.arrays.present[:, : t + 1].any(axis=(1, 2))  # without an answer no walk stops
        assert found["error"][some, t].tolist() == wrong[some].astype(float).tolist()


def test_costs_are_in_mean_steps_and_cut_at_their_98th_percentile() -> None:
    table = made([[WRONG, RIGHT]] * 100, costs=[[10, 30]] * 99 + [[10_000, 30]])
    found = step_cost(table)
    assert found.values[:99].round(9).tolist() == [[0.5, 1.5]] * 99
    assert found.values[99].round(9).tolist() == [0.5, 1.5]
    assert found.unit_nano_usd == pytest.approx(20)


def test_past_the_end_a_complete_question_costs_nothing_and_another_the_mean() -> None:
    table = made(
        [[RIGHT] * 3] * 3,
        costs=[[10, 20, 30], [10, 20, 0], [10, 0, 0]],
        steps=[3, 2, 1],
        complete=[True, True, False],
    )
    found = step_cost(table)
    assert (found.values * (found.unit_nano_usd or 0)).round(6).tolist() == [[10, 20, 30], [10, 20, 0], [10, 20, 30]]
    assert decides(table).tolist() == [[True, True, False], [True, False, False], [True, False, False]]


@pytest.mark.parametrize("table", [replace(made([[RIGHT] * 2]), cost_known=False), made([[RIGHT] * 2], costs=[[0, 0]])])
def test_unknown_costs_and_none_at_all_count_steps(table: EpisodeTable) -> None:
    found = step_cost(table)
    assert found.unit_nano_usd is None
    assert found.values.tolist() == [[1, 1]]


def test_no_question_is_nothing_to_fit_on() -> None:
    with pytest.raises(UsageError, match="no question"):
        step_cost(made([[RIGHT]]).take(np.array([], dtype=np.int64)))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"kind": "covrage", "alpha": 0.1}, "coverage"),
        ({"kind": "coverage", "alpha": 1.5}, "between 0 and 1"),
    ],
)
def test_what_makes_no_sense_is_refused_with_all_that_is_wrong(given: dict[str, float], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        FitTarget(**given)  # type: ignore[arg-type]  # the wrong things on purpose
