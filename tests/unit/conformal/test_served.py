"""What is counted along a path is what the engine would have served, question by question."""

from __future__ import annotations

import math

import numpy as np
import pytest

from cascade.conformal import served as module
from cascade.conformal.arrays import Bools, Floats, Levels, StepArrays, levels, rollout
from cascade.conformal.served import PathPoint, Served, served, served_losses
from cascade.errors import UsageError
from unit.conformal.brute import Case, Place, batches, expand, pack, telling_kappas
from unit.conformal.brute import served as oracle

BARS = (-math.inf, math.inf, 0.0, 0.3, 0.5, 0.7, 1.0, 0.45)


def expected(case: Case, point: PathPoint) -> tuple[bool, bool, int, bool]:
    """Return loss, abstained, cost and cut of one question, by the tree and `engine.rank`."""
    tree = expand(case, point.kappa)
    cut = not case.complete and len(tree.visited) == len(case.steps)
    answer, right = oracle(case, point.kappa)
    known = [leaf.place.confidence for leaf in tree.leaves if leaf.place.answer == answer]
    sure = max((each for each in known if not math.isnan(each)), default=None)
    if cut:  # whatever may have come: wrong, and as sure as can be
        abstained = point.abstain_below == math.inf
    else:
        abstained = point.abstain_below > -math.inf and (sure is None or sure < point.abstain_below)
    wrong = cut or answer < 0 or not right
    return wrong and not abstained, abstained, sum(case.costs[step] for step in tree.visited), cut


def random_path(case: Case, rng: np.random.Generator, count: int) -> list[PathPoint]:
    return [PathPoint(kappa, BARS[int(rng.integers(len(BARS)))]) for kappa in telling_kappas(case, rng, count)]


def log_of(*cases: Case, horizon: int, width: int = 1) -> tuple[StepArrays, Levels, Floats]:
    steps, scores, confidence = pack(cases, horizon, width)
    return steps, levels(steps, scores), confidence


def test_random_questions_at_random_points_are_those_of_the_engine() -> None:
    rng = np.random.default_rng(4)
    checks, wrong = 0, []
    for cases, horizon, width in batches(seed=31, per_shape=60):
        steps, found, confidence = log_of(*cases, horizon=horizon, width=width)
        everything = served(steps, found, confidence)
        for q, case in enumerate(cases):
            one = everything.take(np.array([q]))
            path = random_path(case, rng, 8)
            along = one.along(path)
            for k, point in enumerate(path):
                got = one.at(point)
                told = (bool(got.loss[0]), bool(got.abstained[0]), int(got.cost[0]), bool(got.cut[0]))
                totals = (int(along.losses[k]), int(along.abstained[k]), int(along.cost_nano_usd[k]))
                if told != expected(case, point) or totals != tuple(int(each) for each in told[:3]):
                    wrong.append((case, point))
                checks += 1
    assert (checks, wrong) == (15 * 60 * 8, [])


def test_totals_along_a_path_are_sums_over_the_questions() -> None:
    rng = np.random.default_rng(5)
    for cases, horizon, width in batches(seed=41, per_shape=50):
        steps, found, confidence = log_of(*cases, horizon=horizon, width=width)
        path = [point for case in cases[:6] for point in random_path(case, rng, 6)]
        along = served_losses(steps, found, confidence, path)
        each = [along.at(k) for k in range(len(path))]
        assert along.losses.tolist() == [int(one.loss.sum()) for one in each]
        assert along.abstained.tolist() == [int(one.abstained.sum()) for one in each]
        assert along.cost_nano_usd.tolist() == [int(rollout(steps, found, point.kappa).cost.sum()) for point in path]
        assert along.losses.dtype == along.abstained.dtype == along.cost_nano_usd.dtype == np.int64


def test_the_questions_are_done_in_pieces_without_a_seam(monkeypatch: pytest.MonkeyPatch) -> None:
    cases, horizon, width = batches(seed=51, per_shape=40)[-1]
    log = log_of(*cases, horizon=horizon, width=width)
    whole = served(*log)
    monkeypatch.setattr(module, "_CHUNK", 7)
    pieces = served(*log)
    assert np.array_equal(whole.loss, pieces.loss)
    assert np.array_equal(whole.sure, pieces.sure, equal_nan=True)


def two_steps(second_right: bool, sure: tuple[float, float] = (0.6, 0.8), complete: bool = True) -> Case:
    """Return a question that answers at once, and otherwise below 0.5 another way."""
    first = Place(0, 0, not second_right, 1.0, sure[0])
    return Case(((first,), (Place(0, 1, second_right, 1.0, sure[1]),)), (10, 20), (0.5, 0.0), complete)


def lost(case: Case, *path: PathPoint, reference: bool | None = None) -> list[int]:
    right = None if reference is None else np.array([reference])
    return served_losses(*log_of(case, horizon=2), path, reference_right=right).losses.tolist()


def test_the_error_is_not_monotone_in_kappa() -> None:
    places = Place(0, 0, False, 1.0, 0.3), Place(0, 1, True, 1.0, 0.6), Place(0, 2, False, 1.0, 0.9)
    spoilt = Case(tuple((place,) for place in places), (10, 10, 10), (0.6, 0.3, 0.0), True)
    found = served_losses(*log_of(spoilt, horizon=3), [PathPoint(0.8), PathPoint(0.5), PathPoint(0.2)])
    assert found.losses.tolist() == [1, 0, 1]


def test_a_wrong_answer_is_an_error_and_a_regret_only_where_the_reference_is_right() -> None:
    points = PathPoint(0.6), PathPoint(0.4)
    assert lost(two_steps(second_right=True), *points) == [1, 0]
    assert lost(two_steps(second_right=True), *points, reference=True) == [1, 0]
    assert lost(two_steps(second_right=True), *points, reference=False) == [0, 0]


def test_abstaining_is_neither_an_error_nor_a_regret() -> None:
    wrong = two_steps(second_right=True)
    assert lost(wrong, PathPoint(0.6, 0.6), PathPoint(0.6, math.nextafter(0.6, 1)), PathPoint(0.6, math.inf)) == [
        1,
        0,
        0,
    ]
    assert lost(wrong, PathPoint(0.6, 0.61), reference=True) == [0]


def test_an_unknown_confidence_abstains_at_any_bar_but_the_lowest() -> None:
    unknown = two_steps(second_right=True, sure=(math.nan, math.nan))
    found = served_losses(*log_of(unknown, horizon=2), [PathPoint(0.6, -5.0), PathPoint(0.6)])
    assert (found.losses.tolist(), found.abstained.tolist()) == ([0, 1], [1, 0])


def test_confidence_ranks_and_what_the_cascade_is_sure_of_abstains() -> None:
    steps, found, confidence = log_of(two_steps(second_right=True, sure=(0.9, 0.1)), horizon=2)
    sure = np.array([[[0.2], [0.7]]])
    path = [PathPoint(0.4), PathPoint(0.4, 0.2), PathPoint(0.4, 0.5), PathPoint(0.4, 0.8)]
    along = served_losses(steps, found, confidence, path, sure=sure)
    assert along.losses.tolist() == [1, 1, 0, 0], "the first answer is served, wrong, although the second is surer"
    assert along.abstained.tolist() == [0, 0, 1, 1]
    assert served_losses(steps, found, confidence, path).abstained.tolist() == [0, 0, 0, 0]
    with pytest.raises(UsageError, match="sure must have the shape"):
        served(steps, found, confidence, sure=sure[0])


def test_nothing_kept_is_a_loss_where_whatever_there_is_is_served_and_abstains_elsewhere() -> None:
    empty = Case(((), ()), (10, 20), (0.0, 0.0), True)
    path = [PathPoint(0.5), PathPoint(-math.inf), PathPoint(0.5, 0.1), PathPoint(0.5, math.inf)]
    found = served_losses(*log_of(empty, horizon=2), path)
    assert (found.losses.tolist(), found.abstained.tolist()) == ([1, 1, 0, 0], [0, 0, 1, 1])
    assert lost(empty, PathPoint(0.5), reference=True) == [1]


def test_a_score_of_minus_infinity_is_kept_at_no_kappa() -> None:
    never = Case(((Place(0, 0, True, -math.inf, 0.9), Place(1, 1, False, 0.1, 0.2)),), (10,), (0.0,), True)
    found = served_losses(*log_of(never, horizon=1, width=2), [PathPoint(-math.inf), PathPoint(0.1)])
    assert found.losses.tolist() == [1, 1]


def test_a_walk_to_the_end_of_a_record_that_is_cut_short_counts_as_lost() -> None:
    cut = two_steps(second_right=True, complete=False)
    steps, found, confidence = log_of(cut, horizon=2)
    along = served_losses(steps, found, confidence, [PathPoint(0.4), PathPoint(0.4, 1.0), PathPoint(0.4, math.inf)])
    assert along.losses.tolist() == [1, 1, 0]
    assert (along.at(0).cut.tolist(), along.served.at(PathPoint(0.6)).cut.tolist()) == ([True], [False])
    stopped = two_steps(second_right=False, complete=False)
    assert lost(stopped, PathPoint(0.6), PathPoint(0.4)) == [0, 1], "what stops before the end is known"


def test_one_threshold_and_many_bars_fall_into_place_whatever_their_order() -> None:
    wrong = two_steps(second_right=True)
    bars = [0.7, -math.inf, 0.6, math.inf, 0.6]
    assert lost(wrong, *(PathPoint(0.6, bar) for bar in bars)) == [0, 1, 1, 0, 1]


def test_rows_are_taken_by_number_by_mark_and_repeatedly() -> None:
    log = log_of(two_steps(second_right=True), two_steps(second_right=False), horizon=2)
    everything = served(*log)
    assert everything.take(np.array([0, 0, 1])).along([PathPoint(0.6)]).losses.tolist() == [2]
    assert everything.take(np.array([False, True])).along([PathPoint(0.6)]).losses.tolist() == [0]
    assert (everything.n, everything.take(np.array([], dtype=np.int64)).n) == (2, 0)


def test_no_questions_have_no_losses() -> None:
    found = served_losses(*log_of(horizon=2), [PathPoint(0.5)])
    assert (found.n, found.losses.tolist(), found.cost_nano_usd.tolist()) == (0, [0], [0])


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ([], "at least one point"),
        ([PathPoint(0.5), PathPoint(math.nan)], "not so at point 1"),
        ([PathPoint(0.5, math.nan), PathPoint(math.nan)], "not so at point 0, 1"),
    ],
)
def test_what_is_no_path_is_refused(path: list[PathPoint], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        lost(two_steps(second_right=True), *path)


def test_arrays_that_do_not_belong_together_are_refused_all_at_once() -> None:
    steps, found, confidence = log_of(two_steps(second_right=True), horizon=2)
    with pytest.raises(UsageError, match=r"confidence must have the shape .*; reference_right must be one bool"):
        served(steps, found, confidence[:, :1], reference_right=np.array([1.0]))


def test_a_table_without_bounds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_CELLS", 7)
    with pytest.raises(UsageError, match="3 thresholds × 1 confidences are too many"):
        lost(two_steps(second_right=True), PathPoint(0.1), PathPoint(0.2), PathPoint(0.3), PathPoint(0.3))


def test_the_reference_alone_decides_what_can_be_regretted() -> None:
    cases, horizon, width = batches(seed=61, per_shape=200)[-1]
    log = log_of(*cases, horizon=horizon, width=width)
    reference: Bools = np.random.default_rng(1).random(len(cases)) < 0.5
    points = [PathPoint(0.4), PathPoint(0.2, 0.5), PathPoint(-math.inf)]
    errors, regrets = served(*log), served(*log, reference_right=reference)
    for point in points:
        assert regrets.at(point).loss.tolist() == (errors.at(point).loss & reference).tolist()
    assert isinstance(regrets, Served)
