"""The whole of `fit` on a thousand random splits, dividing and choosing and all: what is promised is kept.

Given the questions of a log, every split is exchangeable. So the coverage of the questions that were left out, averaged
over splits, is at least 1 − alpha, whatever is fitted and however it is chosen; were a certifying question looked at
before, it would not be.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from simulated import WORLDS, simulate

import cascade
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels, rollout
from cascade.conformal.split import calibrate, covered_at, critical_kappa
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.evaluation.evaluate import numbered, play_policy
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import reference_right
from cascade.training.fitting import fit_policy
from cascade.training.portfolio import AUTO

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]
SHARED = Path(cascade.__file__).parents[1].parent / "shared" / "data"
data = pytest.mark.skipif(not SHARED.is_dir(), reason="the shared logs are not beside the project")
FITTED_ON = 400
SPLITS, PAC_SPLITS = 1_000, 200
WORKERS = 2
"""Processes: half a second a split, so 4 minutes for a thousand."""
ALPHA, DELTA = 0.1, 0.1


@cache
def world() -> EpisodeTable:
    return simulate(WORLDS["hotpotqa/llama-2-7b"], 3_000, 11)


@cache
def logged() -> EpisodeTable:
    pytest.importorskip("pyarrow")
    (table,) = open_log(str(SHARED / "episodes_zell_mmlu.parquet"), {"dataset": NAME}).tables
    return table


NAME = "zell_mmlu/llama-1b,3b,8b,70b>gpt-4o"


class Realised(NamedTuple):
    """Of one split: coverage of the questions left out, and what was chosen."""

    coverage: float
    chosen: str


def resplit(number: int, pool: Callable[[], EpisodeTable], guarantee: Guarantee, method: str) -> Realised:
    """Fit on random whole groups, about `FITTED_ON` questions, and see what is covered of the rest."""
    table = pool()
    member = numbered(table.groups)
    order = np.random.default_rng([29, number]).permutation(int(member.max()) + 1)
    inside = order[member] < FITTED_ON
    found = fit_policy([table.take(inside)], guarantee, method=method, seed=number)
    rest = sample_of(table.take(~inside), found.policy)
    kappa = found.artifact.certificates[0].kappa
    return Realised(float(covered_at(rest.critical(), kappa).mean()), found.choice.chosen.name)


def resplits(pool: Callable[[], EpisodeTable], guarantee: Guarantee, count: int, method: str) -> list[Realised]:
    """Do so many splits, on two cores."""
    with ProcessPoolExecutor(WORKERS) as workers:
        one = partial(resplit, pool=pool, guarantee=guarantee, method=method)
        return list(workers.map(one, range(count), chunksize=10))


def standard_error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / values.size**0.5)


@pytest.mark.parametrize("pool", [world, pytest.param(logged, marks=data)])
def test_on_average_the_promise_is_kept(pool: Callable[[], EpisodeTable]) -> None:
    found = resplits(pool, Guarantee("coverage", ALPHA), SPLITS, AUTO)
    coverage = np.array([one.coverage for one in found])
    assert coverage.size == SPLITS
    assert len({one.chosen for one in found}) > 1  # the choice is a choice
    assert coverage.mean() >= 1 - ALPHA - 3 * standard_error(coverage)
    assert coverage.mean() <= 1 - ALPHA + 0.02  # and not by keeping everything


@pytest.mark.parametrize("pool", [world, pytest.param(logged, marks=data)])
def test_for_most_calibrations_the_promise_is_kept(pool: Callable[[], EpisodeTable]) -> None:
    found = resplits(pool, Guarantee("coverage", ALPHA, DELTA), PAC_SPLITS, "threshold")
    broken = np.array([one.coverage < 1 - ALPHA for one in found])
    assert broken.mean() <= DELTA + 3 * (DELTA * (1 - DELTA) / PAC_SPLITS) ** 0.5


def test_a_choice_that_looks_at_the_certifying_questions_would_be_found() -> None:
    """Of many useless candidates the one that is cheapest on the certifying questions, at its threshold there."""
    table, chance, coverage = world(), np.random.default_rng(5), []
    always = np.full(table.arrays.answer.shape, np.inf)
    for _ in range(100):
        rows = chance.permutation(table.n)
        certify, rest = table.arrays.take(rows[:100]), table.arrays.take(rows[100:1_100])
        best = (np.inf, 0.0)
        for _ in range(50):
            onward = chance.random(table.arrays.cost.shape)
            here, there = (
                levels(part, ScoreArrays(always[some], onward[some]))
                for part, some in ((certify, rows[:100]), (rest, rows[100:1_100]))
            )
            kappa = calibrate(critical_kappa(certify, here), ALPHA).kappa
            cost = float(rollout(certify, here, kappa).cost.mean())
            best = min(best, (cost, float(covered_at(critical_kappa(rest, there), kappa).mean())))
        coverage.append(best[1])
    found = np.array(coverage)
    assert found.mean() < 1 - ALPHA - 3 * standard_error(found)


def luckier(number: int) -> tuple[str, float]:
    """Fit a regret of 5 % where no number tells anything; return what is served, and its regret on 20,000 others.

    The named score and the learned policy are thresholds on noise: the one that was luckier is cheaper, and is served.
    """
    table = noise(300, number)
    found = fit_policy([table], Guarantee("regret", 0.05, DELTA), seed=number)
    world = others()
    served = play_policy(world, found.artifact.calibrated(found.policy)).right
    return found.policy.method, float(((1 - served) * reference_right(world)).mean())


@cache
def others() -> EpisodeTable:
    return noise(20_000, 10**6)


def noise(n: int, seed: int) -> EpisodeTable:
    """Return a pair of models, right on 75 and 95 % of the questions, and numbers that say nothing about either."""
    rng = np.random.default_rng([41, seed])
    correct = rng.random((n, 2)) < np.array([0.75, 0.95])
    answer = np.stack([np.zeros(n, dtype=np.int64), (correct[:, 0] != correct[:, 1]).astype(np.int64)], axis=1)
    cost, one = np.tile(np.array([50, 1_000], dtype=np.int64), (n, 1)), np.ones(n, dtype=np.int64)
    whole = np.ones(n, dtype=np.bool_)
    arrays = StepArrays(answer[:, :, None], correct[:, :, None], cost, 2 * one, whole)
    last = Walk(whole, correct[:, -1], correct[:, -1], cost[:, -1], one, one, one)
    names = tuple(map(str, range(n)))
    return EpisodeTable(
        "noise",
        names,
        names,
        ("answer",),
        arrays,
        np.full(arrays.answer.shape, np.nan),
        {"reply_mean_logprob": rng.normal(size=(n, 2))},
        {LAST_ONLY: last},
        asked={"characters": rng.normal(size=n)},
    )


def test_of_two_certified_policies_the_luckier_keeps_the_promise() -> None:
    with ProcessPoolExecutor(WORKERS) as workers:
        found = list(workers.map(luckier, range(SPLITS), chunksize=10))
    assert {"threshold", "purchases"} <= {method for method, _ in found}
    broken = np.mean([regret > 0.05 for _, regret in found])
    assert broken <= DELTA + 3 * (DELTA * (1 - DELTA) / SPLITS) ** 0.5
    assert broken > DELTA / 5  # the world is one where luck breaks promises
