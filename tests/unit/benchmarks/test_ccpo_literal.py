"""The benchmark of the literal text: each variant is one repair beyond the last, and curves are running means."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import pytest

from cascade.training.networks.problem import Row

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import ccpo_literal
from ccpo_literal import DEFAULTS, OPEN, REPAIRS, Ran, configs, curves, lines
from ccpo_literal_figure import draw
from literal.config import LiteralConfig


def ran(variant: str, seed: int, ratio: float, calibrated: float = 0.2) -> Ran:
    shown = curves([row(step) for step in range(1, 201)])
    return Ran(variant, seed, ratio, calibrated, 0.9, {"active": 150, "recover": 50}, None, 2.0, shown, 1.3)


def row(step: int) -> Row:
    return Row(step, 1.0, 0.8, 0.0, 1 / step, 1.0, 0.0, float(step), 0.2, "active")


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


def test_curves_are_means_of_the_last_hundred_steps() -> None:
    found = curves([row(step) for step in range(1, 201)])
    assert found["step"][0] == 100
    assert found["onward"][0] == pytest.approx(50.5)
    assert found["onward"][-1] == pytest.approx(150.5)
    assert found["kappa"][-1] == 1 / 200
    assert found["believed"] == pytest.approx([1.0] * len(found["step"]))


def test_the_table_counts_what_is_below_the_grid() -> None:
    runs = [ran(name, seed, 1.5 + seed, 1e-9 if seed else 0.1) for name in configs() for seed in (0, 1)]
    said = lines(runs)[2]
    assert "| 2.00 | 1.50, 2.50 |" in said
    assert "| 1 of 2 |" in said
    assert "| 25 % | 75 % | 0 % | 0 % |" in said


def test_the_same_runs_are_drawn_the_same(tmp_path: Path) -> None:
    names = ["as printed", "put right", "exact"]
    runs = [ran(name, 0, 1.5) for name in names]
    for file in ("one.svg", "two.svg"):
        draw(runs, names, tmp_path / file, 1 - ccpo_literal.ALPHA, 1.3)
    drawn = (tmp_path / "one.svg").read_text(encoding="utf-8")
    assert drawn == (tmp_path / "two.svg").read_text(encoding="utf-8")
    assert "1. as printed" in drawn
