"""The paper's tables: what is printed is copied right, each row is what it says, verdicts follow rules."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

pytest.importorskip("torch")

from cascade.training.networks.config import CCPOConfig

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

from published import contest, printed
from published.claims import AGREES, DIFFERS, UNDECIDED, Mean, claims, gaps, side, verdict
from published.contest import LIMIT, Figures, Settings, draw, play_limit, play_split
from published.printed import CCPO, CPO, CPO_BATCH, EXIT_GUIDE, RANDOM, TABLES, UALA

TINY = Settings(CCPOConfig(steps=20, layers=(8,)), many=500, fresh=400)


def test_the_gains_are_those_that_the_tables_imply() -> None:
    """12.5 % and 16.4 % in Table 2, 58 and 64 in Table 4, as worked out from the printed page by hand."""
    rows = {number: TABLES[number].rows for number in (2, 3, 4, 5)}
    to_online = [1 - rows[number][CCPO].cents / rows[number][printed.CPO_ONLINE].cents for number in rows]
    to_batch = [1 - rows[number][CCPO].cents / rows[number][CPO_BATCH].cents for number in rows]
    assert [round(100 * one, 1) for one in to_online] == [12.5, 20.0, 58.3, 8.0]
    assert [round(100 * one, 1) for one in to_batch] == [16.4, 11.8, 64.3, 10.7]


def test_splits_are_of_the_paper_s_sizes_and_fresh() -> None:
    parts = [part for number in (0, 1) for part in draw(TABLES[4], number)]
    assert [part.n for part in parts] == [560, 200, 200] * 2
    assert len({name for part in parts for name in part.ids}) == 1920


def test_each_row_of_a_split_is_what_it_says() -> None:
    split = play_split(TABLES[2], 0, TINY)
    assert set(split) == {*contest.ROWS} - {printed.BASE_POLICY, LIMIT}
    test = draw(TABLES[2], 0).test
    assert split[RANDOM].length == pytest.approx(40 / 27)
    assert split[UALA].length == split[UALA].leaves == split[contest.FIRST].leaves == 2
    assert split[contest.FIRST].cents == pytest.approx(float(test.arrays.cost[:, 0].mean()) * contest.CENTS)
    walk = test.walks["LLM-exit, guide"]
    assert split[EXIT_GUIDE].cents == pytest.approx(float(walk.cost.mean()) * contest.CENTS)
    assert split[CPO].leaves == 1
    bound = split[contest.CLAIRVOYANT].matched
    turned = [one for one in split.values() if one.matched is not None]
    assert len(turned) == 8
    assert bound is not None
    assert all(one.reached == pytest.approx(0.9) for one in turned)
    assert min(one.matched or 0.0 for one in turned) >= bound - 1e-9


def test_the_limit_is_learned_once_and_calibrated_on_each_split() -> None:
    found = play_limit(TABLES[2], (0, 3), TINY)
    assert found[0].matched == found[3].matched
    assert found[0].cents != found[3].cents
    assert play_limit(TABLES[2], (3,), TINY)[3] == found[3]


def test_a_side_needs_the_interval_of_so_many_splits() -> None:
    """Student's t: 2.09 standard errors of 20 splits, 12.7 of two."""
    assert side(Mean(0.95, 0.02, 0.1, 20)) == "less"
    assert side(Mean(0.95, 0.024, 0.1, 20)) == "undecided"
    assert side(Mean(0.95, 0.02, 0.03, 2)) == "undecided"
    assert side(Mean(0.5, math.nan, math.nan, 1)) == "undecided"
    assert side(Mean(1.05, 0.02, 0.1, 20)) == "more"
    assert side(Mean(0.98, 0.0045, 0.02, 20)) == "the same"
    assert side(Mean(0.98, 0.0055, 0.02, 20)) == "less"  # more than noise, and perhaps more than 3 %
    assert [verdict("less", other) for other in ("less", "more", "undecided")] == [AGREES, DIFFERS, UNDECIDED]


@pytest.mark.parametrize(("cents", "expected"), [((6.5, 6.6, 6.5), AGREES), ((8.5, 8.6, 8.5), DIFFERS)])
def test_the_same_gain_agrees_and_a_loss_does_not(cents: Sequence[float], expected: str) -> None:
    rows = {
        name: [Figures(one, 0.9, 1.4, 2.0, 1.0, one, 0.9) for one in row]
        for name, row in ((CCPO, cents), (CPO_BATCH, (7.8, 7.9, 7.8)))
    }
    verdicts = {one.kind: one.verdict for one in claims(TABLES[2], rows)}
    assert verdicts["CCPO (λ = 0) beside CPO batch, cents at 1 − α"] == expected


def test_the_printed_figures_themselves_have_no_gap_and_others_do() -> None:
    table = TABLES[3]
    same = {name: [Figures(*row, row.leaves)] * 3 for name, row in table.rows.items() if name != printed.BASE_POLICY}
    assert gaps(table, same) == []
    off = {**same, CCPO: [Figures(9.0, 0.9, 1.59, 3.18, 3.0)] * 3, RANDOM: [Figures(6.7, 0.61, 1.48, 1.0, 1.0)] * 3}
    assert {(one.row, one.figure) for one in gaps(table, off)} == {(CCPO, "cents"), (RANDOM, "cents")}
