"""The same log gives the same bytes whatever the threads: a BLAS library sums in as many parts as it has."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log


def wide(n: int) -> EpisodeTable:
    """Return a log with many numbers at a step."""
    table, rng = log(n), np.random.default_rng(0)
    shape, right = table.arrays.cost.shape, table.arrays.correct[:, :, 0]
    numbers = {f"s{k}": rng.normal(size=shape) + right for k in range(4)}
    known = {name: np.where(rng.random(shape) < 0.02, np.nan, values) for name, values in numbers.items()}
    return replace(
        table,
        signals={"p_yes": table.signals["p_yes"], **known},
        confidence=np.full(table.confidence.shape, np.nan),
        texts_known=np.zeros(n, dtype=np.bool_),
    )


def fitted() -> Fitted:
    return fit_policy([wide(3_000)], Guarantee("coverage", 0.1), method="net_benefit", today=date(2026, 11, 21))


def test_one_thread_and_two_give_the_same_bytes() -> None:
    """Without `one_thread` sums differ in their last bits, and the files with them."""
    seen = []
    for threads in (1, 2):
        with threadpool_limits(threads):
            assert {one["num_threads"] for one in threadpool_info()} == {threads}
            found = fitted()
        assert (found.choice.chosen.name, found.sizes.training) == ("net benefit", 2100)
        seen.append((found.artifact.files, found.artifact.policy))
    assert seen[0] == seen[1]
