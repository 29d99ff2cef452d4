"""The rollout in arrays is the rollout one would get by asking, step by step."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cascade
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, passed, rollout
from cascade.conformal.split import critical_kappa
from cascade.errors import UsageError
from unit.conformal.brute import Case, Outcome, Place, batches, outcome, pack, telling_kappas, weighted_hits

VECTORS = Path(cascade.__file__).parents[1].parent / "shared" / "vectors" / "algorithms-vectors.json"
PER_SHAPE = 334  # × 15 shapes ≥ 5,000 cases
KAPPAS = 10
FIELDS = Outcome._fields


def rows(found: Any) -> list[Outcome]:
    """Return an `Outcomes` question by question."""
    return [Outcome(*values) for values in zip(*(getattr(found, name).tolist() for name in FIELDS), strict=True)]


@pytest.mark.parametrize("per_shape", [PER_SHAPE // 4, pytest.param(PER_SHAPE, marks=pytest.mark.long)])
def test_it_agrees_with_every_tree_of_random_cases(per_shape: int) -> None:
    rng = np.random.default_rng(1)
    checks, wrong, cases_seen = 0, [], 0
    for cases, horizon, width in batches(seed=0, per_shape=per_shape):
        steps, scores, _ = pack(cases, horizon, width)
        found = levels(steps, scores)
        kappas = np.array([telling_kappas(case, rng, KAPPAS) for case in cases])
        for column in range(KAPPAS):
            got = rows(rollout(steps, found, kappas[:, column]))
            wanted = [outcome(case, kappa) for case, kappa in zip(cases, kappas[:, column].tolist(), strict=True)]
            wrong += [(case, a, b) for case, a, b in zip(cases, got, wanted, strict=True) if a != b]
            checks += len(cases)
        cases_seen += len(cases)
    assert (cases_seen, checks, len(wrong)) == (15 * per_shape, 15 * KAPPAS * per_shape, 0), wrong[:3]


def test_one_threshold_is_the_same_threshold_for_each() -> None:
    cases, horizon, width = batches(seed=2, per_shape=40)[-1]
    steps, scores, _ = pack(cases, horizon, width)
    found = levels(steps, scores)
    for kappa in (math.inf, 0.5, 0.0, -math.inf):
        assert rows(rollout(steps, found, kappa)) == rows(rollout(steps, found, np.full(steps.n, kappa)))
        assert rows(rollout(steps, found, kappa)) == [outcome(case, kappa) for case in cases]


def test_the_weight_of_the_right_draws_is_the_number_of_right_leaves() -> None:
    """E_S[Π|C|·1{right}] = N, the identity that CCPO's constraint rests on, by exact enumeration."""
    for cases, horizon, width in batches(seed=3, per_shape=40):
        steps, scores, _ = pack(cases, horizon, width)
        got = rollout(steps, levels(steps, scores), 0.3).correct_leaves
        assert got.tolist() == [weighted_hits(case, 0.3) for case in cases]


def test_the_leaf_that_brings_an_answer_is_the_highest_and_of_several_the_earliest() -> None:
    for cases, horizon, width in batches(seed=4, per_shape=60):
        steps, scores, _ = pack(cases, horizon, width)
        found = levels(steps, scores)
        for q in range(steps.n):
            wanted: dict[int, tuple[float, int]] = {}
            for place, (answer, level) in enumerate(
                zip(steps.answer[q].ravel().tolist(), found.leaf[q].ravel().tolist(), strict=True)
            ):
                if level > wanted.get(answer, (-math.inf, 0))[0]:
                    wanted[answer] = (level, place)
            assert np.flatnonzero(found.first[q]).tolist() == sorted(place for _, place in wanted.values())


def test_a_nan_never_keeps_next_from_being_the_argmax() -> None:
    """As `actions` has it: next = −∞ is the argmax against a lone NaN, and is not against a lone −∞."""
    for score, length in ((math.nan, 2), (-math.inf, 1)):
        case = Case(((Place(0, 0, False, score, 0.5),), (Place(0, 1, True, 0.1, 0.5),)), (5, 7), (-math.inf, 0.0), True)
        steps, scores, _ = pack([case], 2, 1)
        assert rollout(steps, levels(steps, scores), 0.5).length.tolist() == [length]
        assert outcome(case, 0.5).length == length


def test_what_lies_beyond_the_record_is_never_paid() -> None:
    case = Case(((Place(0, 0, False, 0.1, 0.5),),), (5,), (9.0,), False)
    steps, scores, _ = pack([case], 3, 2)
    found = levels(steps, scores)
    assert found.reach.tolist() == [[math.inf, -math.inf, -math.inf]]
    got = rollout(steps, found, -math.inf)
    assert (got.length.tolist(), got.cost.tolist(), got.leaves.tolist()) == ([1], [5], [1])


def test_an_incomplete_question_without_a_right_answer_is_a_miss() -> None:
    wrong = ((Place(0, 0, False, 0.9, 0.5),),)
    steps, scores, _ = pack([Case(wrong, (5,), (0.0,), True), Case(wrong, (5,), (0.0,), False)], 1, 1)
    got = rollout(steps, levels(steps, scores), 0.5)
    assert got.in_set.tolist() == [False, False]
    assert got.covered.tolist() == [True, False]


def test_chosen_questions_keep_their_levels() -> None:
    cases, horizon, width = batches(seed=5, per_shape=20)[-1]
    steps, scores, _ = pack(cases, horizon, width)
    some = np.array([3, 1, 7])
    one, other = levels(steps, scores).take(some), levels(steps.take(some), scores.take(some))
    assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def test_questions_done_in_chunks_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, horizon, width = batches(seed=10, per_shape=40)[-1]
    steps, scores, _ = pack(cases, horizon, width)
    whole = levels(steps, scores)
    for chunk in (1, 7, 40):
        monkeypatch.setattr("cascade.conformal.arrays._CHUNK", chunk)
        assert all(np.array_equal(a, b) for a, b in zip(whole, levels(steps, scores), strict=True))


def test_no_questions_are_no_outcomes() -> None:
    steps, scores, _ = pack([], 3, 2)
    assert rows(rollout(steps, levels(steps, scores), 0.5)) == []


def test_inputs_are_not_changed() -> None:
    cases, horizon, width = batches(seed=6, per_shape=20)[-1]
    steps, scores, _ = pack(cases, horizon, width)
    before = [scores.candidates.copy(), scores.next.copy(), steps.answer.copy(), steps.cost.copy()]
    found = levels(steps, scores)
    heights = found.leaf.copy()
    rollout(steps, found, 0.5)
    after = [scores.candidates, scores.next, steps.answer, steps.cost]
    assert all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, after, strict=True))
    assert np.array_equal(heights, found.leaf)


@pytest.mark.parametrize("kappa", [math.nan, np.array([0.1, 0.2]), np.array([[0.1]])])
def test_a_threshold_that_does_not_fit_is_refused(kappa: Any) -> None:
    with pytest.raises(UsageError, match="kappa must be one number, or one for each of 3 questions"):
        passed(np.zeros((3, 2)), kappa)


def test_arrays_that_do_not_belong_together_are_all_named() -> None:
    steps, scores, _ = pack(batches(seed=7, per_shape=3)[-1][0], 5, 3)
    with pytest.raises(UsageError) as error:
        levels(steps, ScoreArrays(scores.candidates[:2], scores.next[:, :4]))
    assert "scores.candidates must have the shape (3, 5, 3)" in str(error.value)
    assert "scores.next must have the shape (3, 5)" in str(error.value)


def test_numbers_out_of_range_are_all_named() -> None:
    steps, scores, _ = pack(batches(seed=8, per_shape=3)[-1][0], 5, 3)
    steps.steps[0], steps.answer[1, 0, 0] = 6, 15
    with pytest.raises(UsageError, match=r"steps must lie in 1\.\.5; answers must be numbered 0\.\.14"):
        levels(steps, scores)


def test_answers_without_steps_or_places_are_refused() -> None:
    steps, scores, _ = pack(batches(seed=9, per_shape=3)[-1][0], 5, 3)
    for answer in (steps.answer[:, :, 0], steps.answer[:, :0], steps.answer[:, :, :0]):
        shapeless = StepArrays(answer, steps.correct, steps.cost, steps.steps, steps.complete)
        with pytest.raises(UsageError, match=r"shape \(n, T, m\) with T, m ≥ 1"):
            levels(shapeless, scores)


@pytest.mark.skipif(not VECTORS.exists(), reason="the shared test vectors are not beside the project")
def test_the_shared_vectors() -> None:
    items = json.loads(VECTORS.read_text("utf-8"))["critical_kappa"]["items"]
    checks = 0
    for item in items:
        steps, scores = _of_vector(item)
        found = levels(steps, scores)
        assert critical_kappa(steps, found).tolist() == [float(item["kappa_star"])]
        for wanted in item["rollouts"]:
            got = rollout(steps, found, wanted["kappa"])
            assert [got.covered[0], got.length[0], got.leaves[0], got.correct_leaves[0]] == [
                wanted[name] for name in ("covered", "length", "leaves", "correct_leaves")
            ]
            assert got.cost[0] == round(wanted["cost"] * 1000)
            checks += 1
    assert (len(items), checks) == (12, 60)


def _of_vector(item: dict[str, Any]) -> tuple[StepArrays, ScoreArrays]:
    pi = np.array(item["pi"])[None]
    horizon = pi.shape[1]
    right = np.array([item["base_correct"], item["guide_correct"]], dtype=np.bool_).T[None]
    steps = StepArrays(
        answer=np.arange(2 * horizon, dtype=np.int64).reshape(1, horizon, 2),
        correct=right,
        cost=np.array([[round(cost * 1000) for cost in item["round_cost"]]], dtype=np.int64),
        steps=np.array([horizon], dtype=np.int64),
        complete=np.array([True]),
    )
    return steps, ScoreArrays(pi[:, :, :2], pi[:, :, 2])
