"""The benchmark of regret: what is called a breach is one, and where nothing is certified the guide is paid."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

from cascade.evaluation.logs import open_log

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import fit_regret
from fit_regret import ALPHAS, DELTA, Outcome, Row, halves, split


def outcome(regret: float) -> Outcome:
    return Outcome(True, "threshold", regret, 1.0, 2.0, 0.1, 0.1)


def row(regrets: list[float], alpha: float = 0.05) -> Row:
    return Row("log", "auto", alpha, 70, 30, tuple(map(outcome, regrets)), 0.1)


def test_groups_are_not_cut_and_seven_of_ten_are_fitted_on() -> None:
    groups = [f"g{number // 3}" for number in range(300)]
    to_fit, to_test = halves(groups, seed=1)
    assert sorted([*to_fit.tolist(), *to_test.tolist()]) == list(range(300))
    assert not {groups[one] for one in to_fit} & {groups[one] for one in to_test}
    assert to_fit.size == 210
    assert halves(groups, 1)[0].tolist() == to_fit.tolist() != halves(groups, 2)[0].tolist()


def test_exactly_alpha_breaks_nothing() -> None:
    assert row([0.05] * 10).broken == 0
    assert row([0.051] * 3 + [0.0] * 7).broken == pytest.approx(0.3)


def test_a_breach_is_more_than_delta_and_three_standard_errors() -> None:
    splits = 200
    may = math.floor(splits * (DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / splits)))
    assert not row([1.0] * may + [0.0] * (splits - may)).breach
    assert row([1.0] * (may + 1) + [0.0] * (splits - may - 1)).breach


def test_a_split_of_the_demo_ladder() -> None:
    (log,) = open_log("demo-ladder").tables
    found = split(log, "threshold", 0.15, seed=0)
    assert found.certified
    assert found.chosen == "threshold"
    assert 0 < found.cost < 2 * found.guide
    assert found.regret >= found.error - found.guide_error  # the guide is wrong now and then where the base is right
    none = split(log, "threshold", min(ALPHAS) / 10, seed=0)  # no 51 questions certify one miss in 500
    assert none == Outcome(True, "reference", 0.0, none.guide, none.guide, none.guide_error, none.guide_error)


def test_the_table_says_a_breach(capsys: pytest.CaptureFixture[str]) -> None:
    assert "BREACH" in "\n".join(fit_regret.lines([row([1.0] * 10)]))
    assert "BREACH" not in "\n".join(fit_regret.lines([row([0.0] * 10)]))
    assert fit_regret.main(["no-such-folder"]) == 2
    assert "no-such-folder" in capsys.readouterr().err
