"""A thousand random splits of each large real log: the realised coverage follows its Beta-binomial law."""

from __future__ import annotations

import doctest
import sys
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import cascade
from cascade.conformal.binomial import misses_p_value

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import resplits  # noqa: E402
from resplits import LEVELS, SOURCES, SPLITS, Questions, Resplit, Source, law_of_misses, resplit  # noqa: E402

stats = pytest.importorskip("scipy.stats")
pytest.importorskip("pyarrow")
pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("resplits"),
]  # they share what is measured
SHARED = Path(cascade.__file__).parents[1].parent / "shared" / "data"
data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared logs are not beside the project")


@cache
def logged(source: Source) -> Questions:
    """Read a log once for all tests."""
    return resplits.questions(source, SHARED)


@cache
def split(source: Source) -> tuple[Resplit, ...]:
    """Split a log once for all tests."""
    return tuple(resplit(logged(source), n, alpha, delta) for n in source.sizes for alpha, delta in LEVELS)


@pytest.mark.parametrize(("n", "m", "k"), [(200, 11_784, 20), (1000, 812, 88), (9, 40, 1), (5, 3, 5), (30, 7, 0)])
def test_the_law_is_the_beta_binomial_one(n: int, m: int, k: int) -> None:
    law = law_of_misses(n, m, k)
    assert law.sum() == pytest.approx(1)
    if k == 0:
        assert law[0] == 1
        return
    counts = np.arange(m + 1)
    assert np.allclose(law, stats.betabinom(m, k, n + 1 - k).pmf(counts), rtol=1e-6, atol=1e-300)
    assert np.allclose(law, stats.nhypergeom(n + m, m, k).pmf(counts), rtol=1e-6, atol=1e-12)
    assert (counts * law).sum() / m == pytest.approx(k / (n + 1))


@data
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.file)
def test_with_ties_broken_by_lot_the_misses_follow_the_law(source: Source) -> None:
    found = split(source)
    limit = 0.01 / (len(SOURCES) * len(found))
    for row in found:
        assert row.by_lot.size == SPLITS
        assert row.p_value > limit, (row.name, row.n, row.alpha, row.delta)
        assert _kolmogorov(row) > limit
        error = row.sd / SPLITS**0.5
        assert abs(row.coverage(row.by_lot).mean() - row.expected) <= 3 * error


def _kolmogorov(row: Resplit) -> float:
    """Return the p-value of Kolmogorov and Smirnov; on a law of whole numbers it errs on the large side."""
    law = row.law.cumsum()
    seen = np.bincount(row.by_lot, minlength=law.size).cumsum() / row.by_lot.size
    return float(stats.kstwo(row.by_lot.size).sf(np.abs(seen - law).max()))


@data
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.file)
def test_as_logged_no_more_are_missed_than_the_law_has(source: Source) -> None:
    for row in split(source):
        assert row.dominated
        assert row.coverage(row.misses).mean() >= row.expected - 3 * row.sd / SPLITS**0.5
        assert (row.misses <= row.by_lot).all()


@data
@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.file)
def test_a_promise_that_is_kept_is_seldom_held_against_a_certificate(source: Source) -> None:
    """`beta_binomial.misses_p_value` is at most p with probability p at most, ties or none."""
    for row in split(source):
        values = np.array([misses_p_value(int(j), row.m, row.n, row.k) for j in row.misses])
        for level in (0.01, 0.05, 0.2):
            assert (values <= level).mean() <= level + 3 * (level * (1 - level) / SPLITS) ** 0.5


@data
def test_the_logs_are_large_and_one_of_them_is_full_of_ties() -> None:
    sizes = [logged(source).critical.size for source in SOURCES]
    assert sizes == [11_984, 14_042, 1_812]
    assert [round(logged(source).tied, 1) for source in SOURCES] == [0.0, 1.0, 0.0]


def test_a_rank_that_is_one_too_high_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(critical: np.ndarray, n: int, alpha: float, delta: float | None) -> int:
        kappa = np.sort(critical[:n])[int(alpha * (n + 1))]
        return int(np.count_nonzero(critical[n:] < kappa))

    monkeypatch.setattr(resplits, "_misses", careless)
    made_up = Questions("made up", "none", np.random.default_rng(0).random(3_000))
    found = resplit(made_up, 200, 0.1, None)
    assert found.p_value < 0.001
    assert not found.dominated


def test_the_examples_in_the_benchmark_are_true() -> None:
    assert doctest.testmod(resplits).failed == 0
