"""`calibrate`: its promise by exact enumeration, its law, its ranks, and that it can be had with one import."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import pytest
from cases import each
from crepes import ConformalClassifier
from patience import PATIENCE_S
from scipy import stats

import cascade.conformal
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels
from cascade.conformal.split import Calibration, calibrate, critical_kappa, critical_values, needed_n
from cascade.errors import UsageError

INF = math.inf
# n, alpha, k, k with delta 0.05, k with delta 0.1
KNOWN = [
    (5, 0.1, 0, 0, 0),
    (5, 0.2, 1, 0, 0),
    (9, 0.05, 0, 0, 0),
    (9, 0.1, 1, 0, 0),
    (9, 0.2, 2, 0, 0),
    (19, 0.05, 1, 0, 0),
    (19, 0.1, 2, 0, 0),
    (19, 0.2, 4, 1, 2),
    (50, 0.05, 2, 0, 1),
    (50, 0.1, 5, 2, 2),
    (50, 0.2, 10, 6, 6),
    (100, 0.05, 5, 2, 2),
    (100, 0.1, 10, 5, 6),
    (100, 0.2, 20, 14, 15),
    (200, 0.05, 10, 5, 6),
    (200, 0.1, 20, 13, 15),
    (200, 0.2, 40, 31, 33),
    (500, 0.1, 50, 39, 41),
    (1000, 0.05, 50, 39, 41),
    (1000, 0.1, 100, 85, 88),
    (1000, 0.2, 200, 179, 184),
]


@each("n, alpha, k, at_05, at_10", KNOWN)
def test_known_ranks(n: int, alpha: float, k: int, at_05: int, at_10: int) -> None:
    values = np.random.default_rng(n).permutation(n).astype(float)
    for delta, rank in ((None, k), (0.05, at_05), (0.1, at_10)):
        found = calibrate(values, alpha, delta=delta)
        assert (found.k, found.n, found.alpha, found.delta) == (rank, n, alpha, delta)
        assert found.kappa == (rank - 1 if rank else -INF)
        assert found.misses == max(rank - 1, 0)
        assert found.keeps_everything == (rank == 0)
        assert found.keeps_everything == (n < found.needed_n)
        assert not found.vacuous


def tied(size: int) -> Iterator[list[int]]:
    """Return every way in which `size` values, sorted, can be tied: the lengths of the runs of equal ones."""
    for cuts in itertools.product([False, True], repeat=size - 1):
        runs = [1]
        for cut in cuts:
            if cut:
                runs.append(1)
            else:
                runs[-1] += 1
        yield runs


def misses_in_turn(values: list[float], alpha: float) -> int:
    """Return how many of the values are missed when each is the fresh one in turn."""
    misses = 0
    for value in sorted(set(values)):
        others = values.copy()
        others.remove(value)
        found = calibrate(others, alpha)
        assert not found.vacuous
        misses += values.count(value) * (value < found.kappa)
    return misses


@pytest.mark.parametrize("alpha", [0.1, 0.25, 0.6])
def test_the_promise_holds_exactly_for_every_pattern_of_ties(alpha: float) -> None:
    """All n ≤ 12; the share missed is k/(n + 1) without ties, never more with them; +∞ at the top makes it no worse."""
    patterns = 0
    for size in range(1, 14 if alpha == 0.25 else 11):
        bound = math.floor(Fraction(repr(alpha)) * size)
        for runs in tied(size):
            values = [float(place) for place, many in enumerate(runs) for _ in range(many)]
            values = [INF if value == len(runs) - 1 and len(runs) % 2 else value for value in values]
            missed = misses_in_turn(values, alpha)
            assert missed == bound if len(runs) == size else missed <= bound
            patterns += 1
    assert patterns == 2 ** (13 if alpha == 0.25 else 10) - 1


def test_a_rule_with_one_more_miss_would_break_the_promise() -> None:
    """⌊alpha·n⌋ misses, as is often done: 2 of 11 questions are missed at alpha 0.1, not 1."""
    values = [float(value) for value in range(11)]
    naive = sum(value < sorted(other for other in values if other != value)[math.floor(0.1 * 10)] for value in values)
    assert (naive, misses_in_turn(values, 0.1)) == (2, 1)


def multinomials(n: int, kinds: int) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(n + kinds - 1), kinds - 1):
        ends = (-1, *bars, n + kinds - 1)
        yield tuple(ends[i + 1] - ends[i] - 1 for i in range(kinds))


@pytest.mark.parametrize(("alpha", "delta"), [(0.3, 0.1), (0.5, 0.05), (0.2, 0.3)])
@pytest.mark.parametrize("n", [7, 12])
def test_the_confidence_holds_exactly_under_every_law_on_a_grid(n: int, alpha: float, delta: float) -> None:
    """Laws on four values in steps of an eighth: Pr[the miss rate at kappa is above alpha] ≤ delta, in fractions."""
    kappa_of = {counts: kappa(counts, alpha, delta) for counts in multinomials(n, 4)}
    weight_of = {counts: ways(counts) for counts in kappa_of}
    worst = Fraction(0)
    for law in multinomials(8, 4):
        below = [sum(law[:value]) for value in range(4)]  # eight times Pr[critical value < value]
        violated = Fraction(0)
        for counts, found in kappa_of.items():
            if found is not None and Fraction(below[found], 8) > Fraction(repr(alpha)):
                chance = math.prod(share**count for share, count in zip(law, counts, strict=True))
                violated += weight_of[counts] * Fraction(chance, 8**n)
        worst = max(worst, violated)
    assert worst <= Fraction(repr(delta))
    assert worst > 0 or n < needed_n(alpha, delta)


def kappa(counts: tuple[int, ...], alpha: float, delta: float) -> int | None:
    """Return the threshold for so many questions of each of four critical values; None = everything is kept."""
    found = calibrate([value for value, many in enumerate(counts) for _ in range(many)], alpha, delta=delta)
    return None if found.keeps_everything else int(found.kappa)


def ways(counts: tuple[int, ...]) -> int:
    return math.factorial(sum(counts)) // math.prod(math.factorial(count) for count in counts)


def test_questions_that_no_threshold_covers() -> None:
    few = calibrate([-INF, *np.arange(19)], 0.1)
    assert (few.kappa, few.k, few.misses, few.vacuous) == (0.0, 2, 1, False)
    many = calibrate([-INF, -INF, *np.arange(18)], 0.1)
    assert (many.kappa, many.k, many.misses, many.vacuous, many.keeps_everything) == (-INF, 2, 2, True, False)
    assert many.expected_coverage is None
    assert many.coverage_sd is None
    everything = calibrate([-INF, -INF, 0.5], 0.1)
    assert (everything.k, everything.misses, everything.vacuous, everything.keeps_everything) == (0, 2, False, True)


def test_equal_and_infinite_values() -> None:
    same = calibrate([0.5] * 100, 0.1)
    assert (same.kappa, same.k, same.misses) == (0.5, 10, 0)
    free = calibrate([INF] * 100, 0.1)
    assert (free.kappa, free.misses, free.vacuous) == (INF, 0, False)
    assert calibrate([0.1, *[INF] * 99], 0.1).misses == 1
    lowest = -np.finfo(np.float64).max
    assert calibrate([lowest] * 100, 0.1).misses == 0
    assert calibrate([], 0.1) == Calibration(-INF, 0, 0, 0.1, None, 0)
    assert calibrate([], 1.0).keeps_everything
    assert calibrate([0.4, 0.2], 1.0) == Calibration(0.4, 2, 2, 1.0, None, 1)


def test_the_law_of_the_coverage_is_a_beta_law() -> None:
    for n, alpha, delta in ((9, 0.1, None), (200, 0.05, None), (200, 0.1, 0.1), (31, 0.9, None)):
        found = calibrate(np.arange(n), alpha, delta=delta)
        law = stats.beta(n + 1 - found.k, found.k)
        assert found.expected_coverage == pytest.approx(law.mean())
        assert found.coverage_sd == pytest.approx(law.std())
    assert calibrate(np.arange(3), 0.1).expected_coverage == 1
    assert calibrate(np.arange(3), 0.1).coverage_sd == 0


def test_needed_questions() -> None:
    assert calibrate([0.5], 0.05).needed_n == 19
    assert calibrate([0.5], 0.05, delta=0.1).needed_n == 45
    assert calibrate([0.5] * 500, 0.0).needed_n is None
    assert calibrate([0.5] * 500, 0.0).keeps_everything
    assert calibrate([0.5] * 500, 0.0, delta=0.1).keeps_everything


def test_crepes_has_the_same_sets() -> None:
    """A question is missed where its conformal p-value is at most alpha; −kappa* is how strange a right answer is."""
    rng = np.random.default_rng(3)
    for n, grid in ((9, 0), (50, 0), (50, 5), (200, 12)):
        values, fresh = (rng.integers(0, grid, size) / grid if grid else rng.random(size) for size in (n, 500))
        oracle = ConformalClassifier().fit(-values)
        p_values = oracle.predict_p(-fresh.reshape(-1, 1), smoothing=False).ravel()
        for alpha in (0.05, 0.1, 0.2, 0.34):
            missed = fresh < calibrate(values, alpha).kappa
            # p is a multiple of 1/(n + 1) that rounding may have moved
            assert np.array_equal(missed, np.rint(p_values * (n + 1)) <= math.floor(Fraction(repr(alpha)) * (n + 1)))


@pytest.mark.parametrize("kind", [list, tuple, np.array, lambda values: np.array(values, dtype=np.float32)])
def test_any_sequence_will_do(kind: type) -> None:
    values = kind([3.0, 1.0, 2.0, 9.0])
    assert calibrate(values, 0.4).kappa == 2
    assert list(values) == [3, 1, 2, 9]


def test_whole_numbers_and_numpy_levels() -> None:
    found = calibrate(range(200), np.float64(0.1), delta=np.float64(0.1))
    kinds = [type(value) for value in (found.kappa, found.n, found.k, found.alpha, found.delta, found.misses)]
    assert (found.k, kinds) == (15, [float, int, int, float, float, int])


def test_everything_that_is_wrong_is_said() -> None:
    with pytest.raises(UsageError) as told:
        calibrate([0.1, None, math.nan], 1.2, delta=0)  # type: ignore[list-item]
    for part in ("alpha must lie in 0..1, not 1.2", "delta", "2 of 3 critical values are not a number, the first at 1"):
        assert part in str(told.value)
    for values in ("abc", ["a"], [[0.1], [0.2, 0.3]], [1j], object()):
        with pytest.raises(UsageError, match=r"alpha.*must be numbers"):
            calibrate(values, -1)
    with pytest.raises(UsageError, match=r"one dimension, not the shape \(2, 1\)"):
        calibrate([[0.1], [0.2]], 0.1)
    with pytest.raises(UsageError, match="one dimension"):
        calibrate(0.5, 0.1)
    for alpha in (math.nan, INF):
        with pytest.raises(UsageError, match="alpha"):
            calibrate([0.1], alpha)
    with pytest.raises(UsageError, match="delta"):
        calibrate([0.1], 0.1, delta=math.nan)


def test_scores_to_critical_values_in_one_go() -> None:
    """More questions than are done at once, with steps missing, questions cut short and scores that are no numbers."""
    rng = np.random.default_rng(4)
    n, horizon, width = 40_000, 4, 2
    many = rng.integers(1, horizon + 1, n)
    on_record = np.arange(horizon) < many[:, None]
    answer = np.where(on_record[..., None], rng.integers(-1, 4, (n, horizon, width)), -1)
    steps = StepArrays(
        answer=answer,
        correct=(answer == rng.integers(0, 8, n)[:, None, None]) & (answer >= 0),
        cost=np.where(on_record, 7, 0),
        steps=many,
        complete=rng.random(n) < 0.8,
    )
    special = np.array([INF, -INF, math.nan, 0.5])
    candidates = np.where(rng.random(answer.shape) < 0.3, rng.choice(special, answer.shape), rng.random(answer.shape))
    scores = ScoreArrays(candidates, rng.random((n, horizon)))
    found = critical_values(steps, scores)
    assert np.array_equal(found, critical_kappa(steps, levels(steps, scores)))
    assert {-INF, INF} < set(found.tolist())
    with pytest.raises(UsageError, match=r"scores\.next must have the shape"):
        critical_values(steps, ScoreArrays(candidates, scores.next[:5]))
    assert critical_values(steps.take(np.arange(0)), scores.take(np.arange(0))).shape == (0,)


def test_the_package_exports_functions_and_imports_little() -> None:
    """`calibrate` is a function and a module; the function wins, whatever was imported before."""
    code = (
        "import sys, cascade.conformal\n"
        "assert 'numpy' not in sys.modules\n"
        "from cascade.conformal import calibrate\n"
        "assert calibrate([0.1, 0.2, 0.3], 0.5).kappa == 0.2\n"
        "from cascade.conformal.split import Calibration\n"
        "from cascade.conformal import calibrate as again\n"
        "assert again is calibrate\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_every_exported_name_is_there() -> None:
    assert sorted(cascade.conformal.__all__) == dir(cascade.conformal)
    for name in cascade.conformal.__all__:
        assert getattr(cascade.conformal, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = cascade.conformal.nothing
