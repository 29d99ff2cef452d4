"""Policy networks, each trained for a few steps on a small log: their threshold, price of a miss, sets and actions.

What is trained depends on the last bits of a machine's arithmetic, so the figures are compared with a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import passed, rollout
from cascade.conformal.split import calibrate, critical_kappa
from cascade.episodes.table import EpisodeTable
from cascade.policies.learned import CERTIFIABLE
from cascade.training.estimators import one_thread
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.fitting import fit_network
from cascade.training.stages import FitTarget
from record.logs import SHIPPED, tables

LOGS, METHODS, ALPHA = ("demo", "golden rounds"), ("cpo", "cpo_batch", "cpo_online", "ccpo"), 0.1
LAMBDA_SET = 0.1
"""The charge for each further answer in a set."""
CONFIG = CCPOConfig(steps=80, layers=(8, 8), batch=60, lambda_set=LAMBDA_SET)


def trained() -> Iterator[list[Any]]:
    """Yield the log, the method and the figures of each network."""
    for source in SHIPPED:
        if source.name in LOGS:
            (table,) = tables(source)
            for method in METHODS:
                yield [source.name, method, _figures(table, method)]


@one_thread()
def _figures(table: EpisodeTable, method: str) -> dict[str, Any]:
    """Train on every question, set the threshold of CPO batch and CCPO on the same, and count the sets there."""
    learned = fit_network(table, FitTarget("coverage", ALPHA), method=method, config=CONFIG)
    policy = learned.policy
    sample = sample_of(table, policy)
    kappa = policy.kappa
    if method in CERTIFIABLE:
        kappa = calibrate(critical_kappa(sample.table.arrays, sample.levels), ALPHA).kappa
    walk = rollout(sample.table.arrays, sample.levels, kappa)
    kept = passed(sample.levels.leaf, kappa).sum(axis=(0, 1)).tolist()
    sizes = [int((walk.distinct == size).sum()) for size in range(int(walk.distinct.max()) + 1)]
    return {
        "questions": table.n,
        "multiplier": float(learned.trained.state.multiplier[0]),
        "trained kappa": float(policy.kappa),
        "kappa": float(kappa),
        "actions": [*kept, int(passed(sample.levels.reach, kappa)[:, 1:].sum())],
        "sizes": sizes,
        "covered": int(walk.covered.sum()),
        "cost": int(walk.cost.sum()),
    }
