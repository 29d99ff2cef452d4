"""Learn-then-Test: exact violation probabilities, MAPIE as oracle, and the paths that are tested."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from mapie.risk_control._base_controller import ltt_procedure
from mapie.risk_control.fwer_control import control_fwer

from cascade.conformal.binomial import lower_tail, most_losses
from cascade.conformal.ltt import Forecast, certified_points, fixed_sequence, forecast, learn_then_test, order_path
from cascade.conformal.served import PathPoint, Served
from cascade.errors import UsageError

CENT = 10_000_000


def log(loss: list[list[int]], cost: list[list[int]] | None = None, sure: float = 0.5) -> Served:
    """Return questions that are lost at kappa 1, 2, … as told, K columns, and cost at kappa = j what is told."""
    lost = np.array(loss, dtype=np.bool_)[:, ::-1]  # states from the highest kappa on
    n, many = lost.shape
    kappas = np.tile(np.arange(many, 0, -1, dtype=np.float64), (n, 1))
    total = np.zeros((n, many), dtype=np.int64) if cost is None else np.array(cost)[:, ::-1]
    return Served(
        level=kappas,
        loss=np.concatenate([np.ones((n, 1), dtype=np.bool_), lost], axis=1),
        sure=np.full((n, many + 1), sure),
        reach=kappas.copy(),
        cost=np.diff(total, axis=1, prepend=0),
        cut=np.full(n, -np.inf),
    )


def points(many: int) -> list[PathPoint]:
    return [PathPoint(float(k)) for k in range(1, many + 1)]


def samples(n: int, kinds: int) -> Iterator[tuple[int, ...]]:
    """Yield how many questions of each kind a sample may hold."""
    if kinds == 1:
        yield (n,)
        return
    for first in range(n + 1):
        yield from ((first, *rest) for rest in samples(n - first, kinds - 1))


def chance(counts: tuple[int, ...], weights: list[Fraction]) -> Fraction:
    found = Fraction(math.factorial(sum(counts)))
    for count, weight in zip(counts, weights, strict=True):
        found *= weight**count / math.factorial(count)
    return found


# Four kinds of question, how often each comes, and whether it is lost at the points 1, 2, 3. The true risks are given.
POPULATIONS = [
    ([Fraction(1, 5), Fraction(1, 5), Fraction(1, 4), Fraction(7, 20)], [[1, 1, 1], [1, 0, 1], [0, 1, 1], [0, 0, 0]]),
    (
        [Fraction(36, 100), Fraction(1, 100), Fraction(1, 100), Fraction(62, 100)],
        [[1, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]],
    ),
    (
        [Fraction(1, 10), Fraction(26, 100), Fraction(26, 100), Fraction(38, 100)],
        [[1, 1, 1], [0, 1, 0], [0, 0, 1], [0, 0, 0]],
    ),
    (
        [Fraction(1, 10), Fraction(27, 100), Fraction(26, 100), Fraction(37, 100)],
        [[1, 1, 1], [1, 0, 0], [0, 1, 0], [0, 0, 0]],
    ),
]


def violated(
    weights: list[Fraction], loss: list[list[int]], n: int, alpha: float, delta: float
) -> tuple[Fraction, ...]:
    """Return the exact probability that a point above alpha is certified, and that the naive choice is above it."""
    risks = [sum(w * row[k] for w, row in zip(weights, loss, strict=True)) for k in range(3)]
    kinds, path, broken, naive = log(loss), points(3), Fraction(0), Fraction(0)
    for counts in samples(n, 4):
        along = kinds.take(np.repeat(np.arange(4), counts)).along(path)
        result = learn_then_test(along, alpha=alpha, delta=delta)
        if any(risk > Fraction(repr(alpha)) for risk in risks[: result.certified]):
            broken += chance(counts, weights)
        fine = [k for k in range(3) if along.losses[k] <= n * alpha]
        if fine and risks[fine[-1]] > Fraction(repr(alpha)):
            naive += chance(counts, weights)
    return broken, naive


@pytest.mark.parametrize("n", [8, 12])
def test_the_probability_to_certify_what_is_not_so_is_at_most_delta_exactly(n: int) -> None:
    found = [violated(weights, loss, n, alpha=0.35, delta=0.1) for weights, loss in POPULATIONS]
    assert all(sum(weights) == 1 for weights, _ in POPULATIONS)
    assert max(broken for broken, _ in found) <= Fraction(1, 10)
    assert max(broken for broken, _ in found) > Fraction(2, 100), "the bound is put to the test"
    assert max(naive for _, naive in found) > Fraction(3, 10), "to choose what looks good enough breaks it"


def mapie_p_values(losses: list[int], n: int, alpha: float) -> np.ndarray:
    risks = np.maximum(np.array([losses]) - 1e-9, 0) / n  # MAPIE rounds n·risk up: 14.000000000000002 becomes 15
    _, found = ltt_procedure(risks, np.array([[alpha]]), 0.1, np.full(risks.shape, n), binary=True)
    return found[:, 0]


@pytest.mark.parametrize(("n", "alpha"), [(20, 0.2), (64, 0.1), (200, 0.05), (1000, 0.1)])
def test_the_points_certified_are_those_that_mapie_certifies(n: int, alpha: float) -> None:
    rng = np.random.default_rng(n)
    seen = set()
    for _ in range(20):
        drift = rng.normal(0.15, 0.4, 15).cumsum() - 2.5
        losses = np.clip(n * alpha + math.sqrt(n * alpha) * drift, 0, n).astype(int).tolist()
        wanted = mapie_p_values(losses, n, alpha)
        ours = [lower_tail(count, n, alpha) for count in losses]
        assert np.allclose(ours, wanted, rtol=1e-6)
        assert certified_points(np.array(losses), n, alpha, 0.1) == len(control_fwer(wanted, 0.1, "fixed_sequence"))
        assert fixed_sequence(ours, 0.1) == certified_points(np.array(losses), n, alpha, 0.1)
        seen.add(fixed_sequence(ours, 0.1))
    assert len(seen) > 3


def test_fixed_sequences_published_vector() -> None:
    assert fixed_sequence([0.001, 0.003, 0.01, 0.02, 0.2, 0.6], 0.1) == 4
    assert control_fwer(np.array([0.001, 0.003, 0.01, 0.02, 0.2, 0.6]), 0.1, "fixed_sequence").tolist() == [0, 1, 2, 3]


def test_a_sequence_is_read_no_further_than_the_first_that_fails() -> None:
    read = iter([0.01, 0.05, 0.06, 0.0])
    assert fixed_sequence(read, 0.05) == 2
    assert next(read) == 0.0
    assert fixed_sequence([], 0.05) == 0


@pytest.mark.parametrize("values", [[0.01, math.nan], [-0.1], [1.1]])
def test_what_is_no_p_value_is_refused(values: list[float]) -> None:
    with pytest.raises(UsageError, match=r"A p-value must be a probability: p must lie in 0\.\.1"):
        fixed_sequence(values, 0.05)


def calibrated(lost: list[int], n: int, **asked: float) -> object:
    """Return the result for a path at whose points so many of n are lost."""
    loss = [[int(i < count) for count in lost] for i in range(n)]
    return learn_then_test(log(loss).along(points(len(lost))), alpha=0.1, delta=0.1, **asked)


def test_the_last_certified_point_is_chosen_and_what_comes_after_a_failure_is_not() -> None:
    result = calibrated([3, 14, 15, 2], 200)
    assert (result.point, result.index, result.certified) == (PathPoint(2.0), 1, 2)
    assert (result.losses, result.n, result.needed_n, result.silent) == (14, 200, None, False)


def test_the_count_that_decides_is_the_exact_one() -> None:
    most = most_losses(200, 0.1, 0.1)
    assert most == 14
    assert calibrated([14], 200).certified == 1
    assert calibrated([15], 200).certified == 0


def test_too_few_questions_certify_nothing_and_say_how_many_would() -> None:
    result = calibrated([0, 0], 21)
    assert (result.point, result.index, result.certified, result.needed_n) == (None, None, 0, 107)
    assert result.forecast == forecast(0, 21, 0.1, 0.1)
    assert calibrated([0, 0], 22).certified == 2


def test_what_is_not_certified_says_how_many_such_questions_would_do() -> None:
    result = calibrated([15], 200)
    assert (result.point, result.losses) == (None, 15)
    assert result.forecast == forecast(15, 200, 0.1, 0.1)
    assert result.needed_n == result.forecast.questions > 335, (
        "where 15 of 200 just pass, fresh ones pass half the time"
    )
    assert calibrated([20], 200).forecast.chance < result.forecast.chance
    assert calibrated([30], 200).needed_n is None, "a risk far above alpha is hardly certified by any number"


def test_silence_is_certified_and_called_so() -> None:
    loss = [[1]] * 60
    path = [PathPoint(1.0, math.inf), PathPoint(1.0, 0.5), PathPoint(1.0)]
    result = learn_then_test(log(loss).along(path), alpha=0.1, delta=0.1)
    assert (result.certified, result.silent, result.losses, result.abstained) == (1, True, 0, 60)
    assert result.needed_n is None, "all that is answered is wrong"
    half = [[int(i < 4)] for i in range(60)]
    result = learn_then_test(log(half).along(path), alpha=0.1, delta=0.1)
    assert (result.certified, result.silent) == (1, True)
    assert result.needed_n > 60, "the first point that answers"


def test_the_number_needed_is_searched_for_only_when_it_is_asked_for(monkeypatch) -> None:
    asked = []
    monkeypatch.setattr("cascade.conformal.ltt.forecast", lambda *_: asked.append(1) or Forecast(7, 0.8))
    result = calibrated([15], 200)
    assert (result.certified, result.losses, asked) == (0, 15, [])
    assert (result.needed_n, asked) == (7, [1])


def costly(each: int, n: int = 200) -> Served:
    return log([[0]] * n, [[each]] * n)


def test_everything_wrong_with_a_request_is_said_at_once() -> None:
    along = costly(3 * CENT).along(points(1))
    with pytest.raises(UsageError, match=r"alpha must lie between 0 and 1, not 1; delta "):
        learn_then_test(along, alpha=1.0, delta=0.0)
    nobody = costly(CENT).take(np.array([], dtype=np.int64)).along(points(1))
    with pytest.raises(UsageError, match="there is no calibration question"):
        learn_then_test(nobody, alpha=0.1, delta=0.1)


def staircase(n: int = 200) -> Served:
    """Return questions that cost 10, 8, …, 2 cents at kappa 1..5 and are lost at 1, 3, 2, 8, 30 % of them."""
    lost = [n * share // 100 for share in (1, 3, 2, 8, 30)]
    return log(
        [[int(i < many) for many in lost] for i in range(n)],
        [[10 * CENT, 8 * CENT, 6 * CENT, 4 * CENT, 2 * CENT]] * n,
    )


def test_a_path_goes_from_few_losses_to_low_cost_over_what_is_efficient() -> None:
    assert order_path(staircase(), alpha=0.1) == (PathPoint(1.0), PathPoint(3.0), PathPoint(4.0))
    assert order_path(staircase(), alpha=0.3)[-1] == PathPoint(5.0), "as far as the asked risk and 3 standard errors"


def test_a_path_goes_on_as_far_as_the_risk_may_be_better_than_it_looks() -> None:
    rows = log([[int(i < 2), int(i < 32), int(i < 33)] for i in range(200)], [[3 * CENT, 2 * CENT, CENT]] * 200)
    assert order_path(rows, alpha=0.1) == (PathPoint(1.0), PathPoint(2.0)), "20 + 3 × 4.24 = 32.7 losses"


def test_of_thresholds_that_bring_the_same_a_path_takes_the_highest() -> None:
    rows = log(
        [[int(i < 2), int(i < 2), int(i < 9), int(i < 9)] for i in range(200)], [[3 * CENT] * 2 + [CENT] * 2] * 200
    )
    assert order_path(rows, alpha=0.1) == (PathPoint(2.0), PathPoint(4.0))


def noisy(lost: list[int], cost: list[int]) -> Served:
    """Return 200 questions that cost a cent more or less than told at the highest kappa, the same more at the others."""
    return log(
        [[int(i < many) for many in lost] for i in range(200)],
        [[each + (CENT if i % 2 else -CENT) for each in cost] for i in range(200)],
    )


def unlucky() -> Served:
    """Return questions of which fewest are lost at kappa 9, one more at 1..8, and many at 10; cost falls throughout."""
    lost = [3] * 8 + [2, 60]
    return log([[int(i < many) for many in lost] for i in range(200)], [[(11 - k) * CENT for k in range(1, 11)]] * 200)


def test_a_path_comes_to_the_fewest_losses_from_dearer_thresholds_that_may_be_as_good() -> None:
    path = order_path(unlucky(), alpha=0.1)
    assert [point.kappa for point in path] == [1, 2, 3, 4, 6, 7, 8, 9], "eight at most, their cost falling evenly"


def test_silence_begins_in_the_middle_of_the_thresholds_that_may_be_as_good() -> None:
    path = order_path(unlucky(), alpha=0.1, abstain=True)
    assert path[0] == PathPoint(6.0, math.inf)
    assert [point.kappa for point in path if point.abstain_below == -math.inf] == [6, 7, 8, 9]


def test_a_path_that_may_abstain_begins_silent_and_ends_answering() -> None:
    rows = staircase()
    rows.sure[:, -1] = np.where(np.arange(200) < 50, np.nan, np.arange(200) / 200)
    path = order_path(rows, alpha=0.1, abstain=True, most_points=10)
    assert path[0] == PathPoint(1.0, math.inf)
    assert path[-3:] == (PathPoint(1.0), PathPoint(3.0), PathPoint(4.0))
    assert rows.along(path).abstained.tolist() == [200, 199, 149, 100, 50, 0, 0, 0]


def test_no_bar_is_set_by_a_record_that_is_cut_short() -> None:
    rows = staircase()
    rows.cut[:100], rows.sure[:100] = 1.0, np.finfo(np.float64).max
    path = order_path(rows, alpha=0.1, abstain=True)
    assert [point.abstain_below for point in path if point.kappa == 1.0] == [math.inf, 0.5, -math.inf]


def test_a_path_has_no_more_points_than_asked() -> None:
    rng = np.random.default_rng(5)
    risk = np.linspace(0.02, 0.2, 300)
    rows = log((rng.random((400, 1)) < risk).astype(int).tolist(), np.tile(np.arange(300, 0, -1), (400, 1)).tolist())
    rows.sure[:] = rng.random((400, 1))
    for abstain in (False, True):
        full = order_path(rows, alpha=0.1, abstain=abstain, most_points=1000)
        for most in (3, 4, 7, 8, 20):
            path = order_path(rows, alpha=0.1, abstain=abstain, most_points=most)
            assert len(path) <= most < len(full)
            assert (path[0], path[-1]) == (full[0], full[-1]) or most == 3
            assert set(path) <= set(full)


@pytest.mark.parametrize("most", [3, 8, 12, 20, 32])
def test_a_path_with_a_lead_has_no_more_points_than_asked(most: int) -> None:
    lost = [4] * 20 + [3, *range(6, 36)]
    rows = log(
        [[int(i < many) for many in lost] for i in range(200)], [[(60 - k) * CENT for k in range(len(lost))]] * 200
    )
    rows.sure[:] = np.random.default_rng(1).random((200, 1))
    for abstain in (False, True):
        path = order_path(rows, alpha=0.1, abstain=abstain, most_points=most)
        assert 3 * most // 4 <= len(path) <= most
        assert PathPoint(21.0) in path, "the fewest losses"


def test_thresholds_without_number_are_thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cascade.conformal.ltt._MOST_KAPPAS", 3)
    assert order_path(staircase(), alpha=0.3) == (PathPoint(1.0), PathPoint(3.0), PathPoint(5.0))


def test_where_nothing_is_ever_kept_the_path_is_the_emptiest_way() -> None:
    rows = staircase()
    rows.level[:] = -np.inf
    assert order_path(rows, alpha=0.1) == (PathPoint(math.inf),)
    assert order_path(rows, alpha=0.1, abstain=True)[0] == PathPoint(math.inf, math.inf)


def test_everything_wrong_with_an_order_is_said_at_once() -> None:
    nobody = staircase().take(np.array([], dtype=np.int64))
    with pytest.raises(UsageError, match=r"alpha .*; a path needs selection questions; most_points"):
        order_path(nobody, alpha=0.0, most_points=2)
