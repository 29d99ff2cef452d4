"""Is it worth it to set no question aside? A share that certifies, against cross-calibration.

    python benchmarks/cross_calibration.py                   30 logs of each size, about ten minutes on two cores
    python benchmarks/cross_calibration.py --quick           a minute

Logs of n questions are drawn from one simulated world. Of each a policy is fitted and certified in each way, and played
on other questions of that world. What it covers there and what it costs are its threshold's doing and its own; what it
would cost at exactly 1 − alpha there is its own alone.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from typing import NamedTuple

import numpy as np

from cascade.calibration.scores import play, sample_of
from cascade.conformal.frontier import frontier
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import PolicyArtifact, Threshold
from cascade.policies.base import Policy
from cascade.training.crossing import fit_crossed
from cascade.training.fitting import fit_policy

WORLD = "hotpotqa/llama-2-7b"
SIZES = (100, 200, 400)
ALPHA = 0.1
TEST, TEST_SEED = 4_000, 10**6


class Made(NamedTuple):
    """A policy and its certificate."""

    policy: Policy
    artifact: PolicyArtifact


class Drawn(NamedTuple):
    """What one draw gives: covered, USD per 1,000 questions, the same at exactly 1 − alpha; NaN where refused."""

    coverage: float
    cost: float
    matched: float


def _split(table: EpisodeTable, method: str) -> Made:
    fitted = fit_policy([table], Guarantee("coverage", ALPHA), method=method)
    return Made(fitted.policy, fitted.artifact)


def _cross(alpha: float) -> Callable[[EpisodeTable, str], Made]:
    def made(table: EpisodeTable, method: str) -> Made:
        done = fit_crossed([table], Guarantee("coverage", alpha), method=method)
        return Made(done.policy, done.artifact)

    return made


WAYS: dict[str, tuple[float, Callable[[EpisodeTable, str], Made]]] = {
    "30 % set aside, alpha 0.1": (ALPHA, _split),
    "crossed, alpha 0.1": (2 * ALPHA, _cross(ALPHA)),
    "crossed, alpha 0.15": (0.3, _cross(0.15)),
    "crossed, alpha 0.05": (ALPHA, _cross(ALPHA / 2)),
}
"""By name: the share that may be missed by what is proven, and how the policy is made."""


@cache
def _test() -> EpisodeTable:
    return simulate(WORLDS[WORLD], TEST, TEST_SEED)


def drawn(job: tuple[str, int, int, str]) -> Drawn:
    """Return what one way makes of one draw: a way, a size, a seed and a method."""
    way, n, seed, method = job
    try:
        policy, artifact = WAYS[way][1](simulate(WORLDS[WORLD], n, seed), method)
    except NotCertifiedError:
        return Drawn(np.nan, np.nan, np.nan)
    (certificate,) = artifact.certificates
    sample = sample_of(_test(), policy)
    played = play(_test(), sample.scores, Threshold(certificate.kappa, certificate.keeps_everything))
    point = frontier(_test().arrays, sample.levels).matched(1 - ALPHA)
    matched = np.nan if point is None else point.cost / 1e6
    return Drawn(float(played.covered.mean()), float(played.cost.mean()) / 1e6, matched)


def lines(draws: int, sizes: Sequence[int], method: str, processes: int) -> Iterator[str]:
    """Yield the table, as Markdown."""
    yield f"| questions | made | proven | covered, ± 1 sd | USD per 1,000, ± se | at exactly {1 - ALPHA:g} | refused |"
    yield "|---|---|---|---|---|---|---|"
    with ProcessPoolExecutor(processes) as pool:
        for n in sizes:
            for way, (missed, _) in WAYS.items():
                jobs = [(way, n, seed, method) for seed in range(draws)]
                found = np.array(list(pool.map(drawn, jobs, chunksize=5)))
                held = found[~np.isnan(found[:, 0])]
                covered, cost, matched = held.mean(axis=0)
                sd, error = held[:, 0].std(ddof=1), held[:, 1].std(ddof=1) / np.sqrt(len(held))
                figures = f"{covered:.3f} ± {sd:.3f} | {cost:.3f} ± {error:.3f} | {matched:.3f}"
                yield f"| {n} | {way} | {1 - missed:g} | {figures} | {draws - len(held)} of {draws} |"


def main() -> None:
    """Print the table, and how long it took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=30)
    parser.add_argument("--method", default="net_benefit", help="what is fitted; auto takes three times as long")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="10 draws of 100 questions")
    asked = parser.parse_args()
    draws, sizes = (10, SIZES[:1]) if asked.quick else (asked.draws, SIZES)
    started = time.perf_counter()
    for line in lines(draws, sizes, asked.method, asked.processes):
        print(line, flush=True)
    print(f"\n{draws} logs of each size of {WORLD}, {TEST:,} others to test on; {time.perf_counter() - started:.0f} s.")


if __name__ == "__main__":
    main()
