"""The same log gives the same bytes whatever the threads: a BLAS library sums in as many parts as it has."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log

TESTS = Path(__file__).parents[2]


def wide(n: int) -> EpisodeTable:
    """Return a log with so few numbers at a step that their products are tried, and worth it."""
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


def main() -> None:
    """Print what was chosen on how many questions, and a hash of the numbers and of all figures of the choice."""
    found = fitted()
    held = b"".join(found.artifact.files.values()) + repr(found.artifact.policy).encode()
    print(found.choice.chosen.name, found.sizes.training, hashlib.sha256(held).hexdigest(), sep="; ")  # noqa: T201


def test_one_thread_and_two_give_the_same_bytes() -> None:
    """Without `one_thread` the products' sums differ in their last bits, and the files with them."""
    said = []
    for threads in ("1", "2"):
        held = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), threads)
        ran = subprocess.run(
            [sys.executable, "-c", "from unit.training.test_threads import main; main()"],
            env={**os.environ, **held},
            cwd=TESTS,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr
        said.append(ran.stdout)
    assert said[0] == said[1]
    assert said[0].startswith("net benefit, products; 2100; ")
