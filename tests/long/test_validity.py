"""Every guarantee, in 20,000 simulated calibrations on populations of which the risks are known."""

from __future__ import annotations

import doctest
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from scipy.stats import norm

from cascade.conformal.arrays import Floats, rollout
from cascade.conformal.split import calibrate, pac_rank, split_rank

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))

import validity  # noqa: E402
from known_risk import cells as cells_module  # noqa: E402
from known_risk import coverage, populations, single  # noqa: E402
from known_risk.cells import ALPHAS, DELTA, SIMULATIONS, SIZES, Cell  # noqa: E402
from known_risk.populations import cut_short, missed, population  # noqa: E402

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("validity"),
]  # they share what is measured


@cache
def measured(name: str) -> tuple[Cell, ...]:
    """Measure a guarantee once for all tests."""
    return tuple(validity.measure(name, SIMULATIONS))


def of(name: str, guarantee: str, *, ties: bool = False) -> list[Cell]:
    """Return the rows of a guarantee on one of the two populations."""
    wanted = "ties" if ties else "no ties"
    return [cell for cell in measured(name) if cell.guarantee == guarantee and cell.population == wanted]


@pytest.mark.parametrize("name", validity.GUARANTEES)
def test_a_guarantee_holds(name: str) -> None:
    broken = [cell for cell in measured(name) if not cell.naive and not cell.holds]
    assert not broken, validity.table_lines(broken, markdown=False)
    assert {cell.n for cell in measured(name)} == set(SIZES)


@pytest.mark.parametrize(
    ("name", "guarantee", "levels"),
    [
        ("coverage", coverage.COVERAGE, ALPHAS),
        ("coverage", coverage.CONFIDENT, ALPHAS),
        ("error", "error", ALPHAS),
        ("abstain", "error, abstaining", ALPHAS),
        ("regret", "regret", ALPHAS),
    ],
)
@pytest.mark.parametrize("ties", [False, True])
def test_every_size_and_level_is_measured_and_something_is_certified(
    name: str, guarantee: str, levels: tuple[float, ...], ties: bool
) -> None:
    rows = of(name, guarantee, ties=ties)
    assert {(cell.n, cell.level) for cell in rows} == {(n, level) for n in SIZES for level in levels}
    assert all(cell.certified > 0 for cell in rows if cell.n == 1000)


def test_coverage_is_what_it_should_be_without_ties_and_never_less_with_them() -> None:
    for cell in of("coverage", coverage.COVERAGE):
        k = int(cell.level * (cell.n + 1) + 1e-9)
        assert cell.law == pytest.approx(k / (cell.n + 1))
        assert abs(cell.measured - cell.law) <= 3 * cell.se
    for cell in of("coverage", coverage.COVERAGE, ties=True):
        assert cell.measured <= int(cell.level * (cell.n + 1) + 1e-9) / (cell.n + 1) + 3 * cell.se


def test_violations_of_a_promise_with_confidence_are_rare() -> None:
    sigma = (DELTA * (1 - DELTA) / SIMULATIONS) ** 0.5
    sure = [
        cell for name in validity.GUARANTEES for cell in measured(name) if not cell.naive and cell.promised == DELTA
    ]
    assert len({cell.guarantee for cell in sure}) >= 5
    assert all(cell.measured <= DELTA + 3 * sigma for cell in sure)


@pytest.mark.parametrize(
    ("name", "guarantee"),
    [
        ("coverage", coverage.NAIVE),
        ("error", "naive: error as seen"),
        ("abstain", "naive: error, abstaining as seen"),
        ("regret", "naive: regret as seen"),
    ],
)
def test_the_rule_that_people_use_fails_everywhere(name: str, guarantee: str) -> None:
    rows = of(name, guarantee)
    assert len(rows) == len(SIZES) * 3
    assert not [cell for cell in rows if cell.excess <= 3]


def test_one_threshold_for_all_groups_fails_the_worst() -> None:
    assert all(cell.excess > 3 for cell in of("groups", "naive: one threshold for all groups") if cell.n == 1000)


def test_the_risk_of_a_threshold_is_that_of_a_rollout() -> None:
    for source in (population(ties=False), population(ties=True), cut_short(population(ties=True))):
        for kappa in (-np.inf, 0.0, 0.109375, 0.125, 0.2, 0.3, 0.61, np.inf):
            found = rollout(source.steps, source.levels, kappa)
            share = missed(source.critical, np.array([kappa]))[0]
            assert round(share * source.size) == np.count_nonzero(~found.covered)


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (3, 2), (5, 1), (5, 5)])
def test_the_law_with_ties_is_the_enumeration(n: int, rank: int) -> None:
    """Every calibration set of n from four questions, two of them tied."""
    small = population(ties=True)
    values = np.array([0.1, 0.2, 0.2, np.inf])
    source = populations.replace(small, critical=values, steps=small.steps.take(np.arange(4)))
    sets = np.sort(values[np.indices((4,) * n).reshape(n, -1)], axis=0)
    risks = missed(values, sets[rank - 1])
    assert coverage.rank_law(source, n, rank) == pytest.approx(risks.mean())
    for alpha in (0.0, 0.25, 0.5):
        assert coverage.violation_law(source, n, rank, alpha) == pytest.approx((risks > alpha).mean())


def test_a_rank_that_is_one_too_high_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(values: np.ndarray, alpha: float, *, delta: float | None = None) -> object:
        found = calibrate(values, alpha, delta=delta)
        return populations.replace(found, kappa=float(np.sort(values)[found.k]))

    monkeypatch.setattr(coverage, "calibrate", careless)
    found = coverage.coverage(population(ties=False), 200, 5_000)
    assert all(not cell.holds for cell in found if not cell.naive)


def test_the_examples_in_the_benchmark_are_true() -> None:
    for module in (validity, cells_module, coverage, populations, single):
        assert doctest.testmod(module).failed == 0


def test_the_command_prints_every_row_and_says_what_fails(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = ["--simulations", "200", "--only", "coverage", "--markdown"]
    assert validity.main(given) == 0
    printed = capsys.readouterr().out
    assert printed.count("| coverage |") == 3 * len(SIZES) * len(ALPHAS) + 1
    assert "FAILS" in printed
    monkeypatch.setattr(coverage, "calibrate", lambda values, alpha, delta=None: calibrate(values, min(1.0, 3 * alpha)))
    assert validity.main(given) == 1


class World(NamedTuple):
    """So many groups of so many questions; critical values of the same group correlate by icc."""

    groups: int
    each: int
    icc: float


def risks(world: World, way: Callable[..., float], delta: float | None) -> Floats:
    """Return the share of fresh groups' questions that each calibration misses."""
    missed_by = np.empty(SIMULATIONS)
    for number in range(SIMULATIONS):
        rng = np.random.default_rng([0, number])
        shared, own = rng.standard_normal((world.groups, 1)), rng.standard_normal((world.groups, world.each))
        critical = np.sqrt(world.icc) * shared + np.sqrt(1 - world.icc) * own
        missed_by[number] = norm.cdf(way(critical, 0.1, delta, rng))
    return missed_by


def by_rows(critical: Floats, alpha: float, delta: float | None, _: np.random.Generator) -> float:
    """Every question counts, as if unrelated."""
    values = critical.ravel()
    k = split_rank(values.size, alpha) if delta is None else pac_rank(values.size, alpha, delta)
    return float(np.partition(values, k - 1)[k - 1]) if k else -np.inf


def by_calibrate(critical: Floats, alpha: float, delta: float | None, rng: np.random.Generator) -> float:
    """Calibrate in groups as anybody would."""
    names = np.repeat(np.arange(len(critical)), critical.shape[1]).tolist()
    return calibrate(critical.ravel(), alpha, delta=delta, groups=names, seed=int(rng.integers(1 << 30))).kappa


@pytest.mark.parametrize("world", [World(12, 20, 0.8), World(60, 4, 0.8)], ids=str)
def test_one_question_of_each_group_keeps_the_promise(world: World) -> None:
    """Taking the questions of a group for unrelated ("rows") breaks both promises here."""
    on_average = risks(world, by_calibrate, None)
    assert on_average.mean() <= 0.1 + 3 * on_average.std() / np.sqrt(SIMULATIONS)
    broken = (risks(world, by_calibrate, 0.1) > 0.1).mean()
    assert broken <= 0.1 + 3 * np.sqrt(0.1 * 0.9 / SIMULATIONS)
    assert risks(world, by_rows, None).mean() > 0.1
    assert (risks(world, by_rows, 0.1) > 0.1).mean() > 0.14
