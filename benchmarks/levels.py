"""What levels cover and cost on questions that nothing has seen, and what it brings that each has a policy of its own.

    python benchmarks/levels.py            20 simulated logs of 600 questions, 20,000 fresh ones
    python benchmarks/levels.py --logs 5
    python benchmarks/levels.py --policy auto --world NAME

"moved" is the medium level's policy at another level's alpha: its threshold set anew on the same calibration questions.
Means over logs, ± one standard deviation between them. It ends with 1 where a level covers less on average than it
promises, beyond three standard errors.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import NamedTuple

import numpy as np
from published.worlds import WORLDS, simulate

from cascade.calibration.calibrating import calibrate_policy
from cascade.calibration.samples import among
from cascade.calibration.scores import scored
from cascade.conformal.arrays import levels, rollout
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted
from cascade.training.levels import fit_levels, level_notes
from cascade.types import Certificate

ALPHAS = {"low": 0.2, "medium": 0.1, "high": 0.05}
QUESTIONS, FRESH, FRESH_SEED = 600, 20_000, 999
TODAY = date(2026, 11, 21)


class Played(NamedTuple):
    """What a policy at a threshold does on fresh questions: the share covered, and USD per 1,000."""

    covered: float
    cost: float


class Row(NamedTuple):
    """A level on one log: its own policy, and the medium level's at its alpha."""

    own: Played
    moved: Played


def played(fitted: Fitted, certificate: Certificate, fresh: EpisodeTable) -> Played:
    """Play a fitted policy at a certified threshold."""
    table, scores = scored(fitted.policy, fresh)
    kappa = -np.inf if certificate.keeps_everything else certificate.kappa
    walked = rollout(table.arrays, levels(table.arrays, scores), kappa)
    return Played(float(walked.covered.mean()), float(walked.cost.mean()) / 1e6)


def one_log(world: str, method: str, seed: int, fresh: EpisodeTable) -> tuple[dict[str, Row], bool]:
    """Fit all levels on one log; return what they do, and whether one of them is not worth asking for."""
    log = simulate(WORLDS[world], QUESTIONS, seed)
    found = fit_levels([log], Guarantee("coverage"), ALPHAS, method=method, seed=seed, today=TODAY)
    medium = found["medium"]
    certifying = log.take(np.flatnonzero(among(log, frozenset(medium.artifact.questions))))
    bare = replace(medium.artifact, certificates=(), questions=(), asked=None)
    rows = {}
    for name, alpha in ALPHAS.items():
        again = calibrate_policy(
            [certifying], medium.policy, bare.policy, Guarantee("coverage", alpha), held=bare, today=TODAY
        )
        own = played(found[name], found[name].artifact.certificates[0], fresh)
        rows[name] = Row(own, played(medium, again.artifact.certificates[0], fresh))
    return rows, bool(list(level_notes(found)))


def shown(values: Sequence[float]) -> str:
    """Return a mean ± the standard deviation between logs."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.3f} ± {spread:.3f}"


def main() -> None:
    """Print the table; end with 1 where a promise is broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=int, default=20)
    parser.add_argument("--world", default="hotpotqa/llama-2-7b")
    parser.add_argument("--policy", default="net_benefit")
    given = parser.parse_args()
    fresh = simulate(WORLDS[given.world], FRESH, FRESH_SEED)
    found, dominated = list[dict[str, Row]](), 0
    for seed in range(given.logs):
        rows, worse = one_log(given.world, given.policy, seed, fresh)
        found.append(rows)
        dominated += worse
    print(f"{given.world}, {given.policy}: {given.logs} logs of {QUESTIONS}, {FRESH:,} fresh questions")
    print(
        f"{'level':8} {'alpha':>5} {'covered':>15} {'USD per 1,000':>15} {'moved: covered':>15} {'USD per 1,000':>15}"
    )
    broken = []
    for name, alpha in ALPHAS.items():
        own, moved = [rows[name].own for rows in found], [rows[name].moved for rows in found]
        cells = [shown([getattr(one, of) for one in part]) for part in (own, moved) for of in ("covered", "cost")]
        print(f"{name:8} {alpha:5g} " + " ".join(f"{cell:>15}" for cell in cells))
        covered = [one.covered for one in own]
        error = statistics.stdev(covered) / math.sqrt(len(covered)) if len(covered) > 1 else 0.0
        broken += [name] if statistics.mean(covered) < 1 - alpha - 3 * error else []
    print(f"logs with a level that costs no less than a stricter one: {dominated} of {given.logs}")
    if broken:
        sys.exit(f"covered less than promised: {', '.join(broken)}")


if __name__ == "__main__":
    main()
