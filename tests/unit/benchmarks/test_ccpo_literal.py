"""The benchmark of the literal text: each variant is one repair beyond the last."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from ccpo_literal import DEFAULTS, OPEN, REPAIRS, Ran, configs, lines
from literal.config import LiteralConfig


def ran(variant: str, seed: int, ratio: float, calibrated: float = 0.2) -> Ran:
    return Ran(variant, seed, ratio, calibrated, 0.9, {"active": 150, "recover": 50}, None, 2.0)


def test_each_variant_is_one_repair_beyond_the_last() -> None:
    found = list(configs().items())
    assert [name for name, _ in found] == [*REPAIRS, *DEFAULTS]
    assert found[0][1] == LiteralConfig.literal().model_copy(update=OPEN)
    for (_, before), (name, now) in pairwise(found):
        changed = {key for key, value in now.model_dump().items() if value != getattr(before, key)}
        if name in REPAIRS:
            assert changed == set(REPAIRS[name])
            for key in changed - {"smoothing", "rho_clip"}:  # the default smooths more, and clips for its critics
                assert getattr(now, key) == getattr(LiteralConfig(estimator="sampled"), key)
    assert found[-1][1] == LiteralConfig()


def test_the_table_counts_what_is_below_the_grid() -> None:
    runs = [ran(name, seed, 1.5 + seed, 1e-9 if seed else 0.1) for name in configs() for seed in (0, 1)]
    said = lines(runs)[2]
    assert "| 2.00 | 1.50, 2.50 |" in said
    assert "| 1 of 2 |" in said
    assert "| 25 % | 75 % | 0 % | 0 % |" in said
