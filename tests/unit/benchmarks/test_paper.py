"""The benchmark of the paper's tables: what is printed is copied right, each row is what it says, verdicts follow rules."""

from __future__ import annotations

import doctest
import json
import math
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from cascade.evaluation.simulate import WORLDS, simulate
from cascade.training.networks.config import CCPOConfig
from cascade.training.stages import step_cost

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import paper
from literal.config import LiteralConfig
from paper import Done, Task
from published import claims as claims_module
from published import contest, printed
from published.claims import AGREES, DIFFERS, UNDECIDED, Mean, claims, gaps, ratio, side, verdict
from published.contest import LIMIT, OSC, Figures, Judged, Settings, draw, play_limit, play_split
from published.marginals import PUBLISHED, marginals
from published.printed import CCPO, CHARGED, CPO, CPO_BATCH, EXIT_BASE, EXIT_GUIDE, RANDOM, TABLES, UALA

TINY = Settings(CCPOConfig(steps=20, layers=(8,)), many=500, fresh=400)


# --- what is printed ---


@pytest.mark.parametrize("number", sorted(TABLES))
def test_the_tables_have_the_figures_that_the_worlds_were_fitted_to(number: int) -> None:
    """Both were copied from the paper, at different times: where they speak of the same row they are the same."""
    table, checked = TABLES[number], 0
    walks = {"LLM-exit, guide": EXIT_GUIDE, "LLM-exit, base": EXIT_BASE, "Random": RANDOM}
    for one in PUBLISHED[table.world]:
        *words, figure = one.marginal.split()
        name = walks.get(" ".join(words), UALA if words[:1] == ["UALA"] else None)
        tables, _, row = one.source.partition(",")
        of = {int(word) for word in tables.split() if word.isdigit()}
        if name is None or number not in of or figure not in {"cents", "coverage", "length", "leaves"}:
            continue
        if row.strip().split(" ")[0] in {"Random", "EXIT", "UALA"}:
            assert getattr(table.rows[name], figure) == one.value, one
            checked += 1
    assert checked >= 4


def test_the_gains_are_those_that_the_tables_imply() -> None:
    """12.5 % and 16.4 % in Table 2, 58 and 64 in Table 4, as worked out from the printed page by hand."""
    rows = {number: TABLES[number].rows for number in (2, 3, 4, 5)}
    to_online = [1 - rows[number][CCPO].cents / rows[number][printed.CPO_ONLINE].cents for number in rows]
    to_batch = [1 - rows[number][CCPO].cents / rows[number][CPO_BATCH].cents for number in rows]
    assert [round(100 * one, 1) for one in to_online] == [12.5, 20.0, 58.3, 8.0]
    assert [round(100 * one, 1) for one in to_batch] == [16.4, 11.8, 64.3, 10.7]


def test_every_table_has_its_world_and_rows() -> None:
    assert sorted(TABLES) == [2, 3, 4, 5, 6, 7, 8, 9]
    assert {one.world for one in TABLES.values()} == set(WORLDS)
    assert [TABLES[number].alpha for number in sorted(TABLES)] == [0.1, 0.1, 0.1, 0.1, 0.2, 0.05, 0.2, 0.2]
    assert [len(TABLES[number].rows) for number in sorted(TABLES)] == [11] * 4 + [9] * 4
    assert [TABLES[number].depth for number in sorted(TABLES)] == [2, 2, 2, 2, 1, 3, 1, 1]
    assert [TABLES[number].train for number in sorted(TABLES)] == [1000, 1000, 560, 560, 1000, 1000, 560, 560]
    for number, name in printed.IMPOSSIBLE:
        assert name in TABLES[number].rows


# --- the contest ---


def test_splits_are_of_the_paper_s_sizes_and_fresh() -> None:
    one, other = draw(TABLES[4], 0), draw(TABLES[4], 1)
    assert [part.n for part in one] == [560, 200, 200]
    ids = [set(part.ids) for part in (*one, *other)]
    assert sum(map(len, ids)) == len(set().union(*ids)) == 1920
    assert not np.array_equal(one.test.arrays.cost, other.test.arrays.cost)


@pytest.mark.parametrize("depth", [1, 2])
def test_judged_answers_are_the_row_that_the_worlds_were_fitted_to(depth: int) -> None:
    table = simulate(WORLDS["hotpotqa/llama-2-7b"], 500, seed=3)
    played, figures = Judged("x", depth).prepare(table, table, 0.1, 0).play(table), marginals(table)
    assert played.covered.mean() == pytest.approx(figures[f"UALA {depth} coverage"])
    assert played.leaves.mean() == played.length.mean() == depth
    if depth > 1:
        assert played.cost.mean() * contest.CENTS == pytest.approx(figures[f"UALA {depth} cents"])


def test_the_charge_is_the_printed_one_in_usd() -> None:
    train = draw(TABLES[2], 0).train
    steps = contest.charge_in_steps(TABLES[2], train)
    unit = step_cost(train).unit_nano_usd
    assert unit is not None
    assert steps * unit == pytest.approx(2e-4 * 1e9)
    assert 0.5 < steps < 1.5  # a round of HotpotQA is printed as 4.6 cents for 200 questions, 2.3e-4 USD


def test_sampled_rollouts_have_defaults_of_their_own_and_what_was_set() -> None:
    found = contest.sampled(CCPOConfig(steps=9))
    assert found == LiteralConfig(estimator="sampled", steps=9)
    assert (found.steps, found.batch) == (9, 10)


@pytest.fixture(scope="module")
def split() -> dict[str, Figures]:
    return play_split(TABLES[2], 0, TINY)


def test_a_split_has_every_row_but_the_limit(split: dict[str, Figures]) -> None:
    assert set(split) == {*contest.ROWS} - {printed.BASE_POLICY, LIMIT}
    test = draw(TABLES[2], 0).test
    assert split[RANDOM].length == pytest.approx(40 / 27)
    assert split[UALA].length == split[UALA].leaves == 2
    assert split[contest.FIRST].cents == pytest.approx(float(test.arrays.cost[:, 0].mean()) * contest.CENTS)
    assert split[contest.FIRST].leaves == 2
    assert split[CPO].leaves == 1
    assert split[CPO].matched is None
    assert split[CPO_BATCH].matched == split[printed.CPO_ONLINE].matched
    walk = test.walks["LLM-exit, guide"]
    assert split[EXIT_GUIDE].cents == pytest.approx(float(walk.cost.mean()) * contest.CENTS)


def test_at_matched_coverage_all_cover_the_same_and_none_costs_less_than_knowing(split: dict[str, Figures]) -> None:
    bound = split[contest.CLAIRVOYANT].matched
    assert bound is not None
    turned = [one for one in split.values() if one.matched is not None]
    assert len(turned) == 8
    for one in turned:
        assert one.reached == pytest.approx(0.9)
        assert one.matched is not None
        assert one.matched >= bound - 1e-9


def test_the_limit_is_learned_once_and_calibrated_on_each_split() -> None:
    found = play_limit(TABLES[2], (0, 3), TINY)
    assert sorted(found) == [0, 3]
    assert found[0].matched == found[3].matched
    assert found[0].cents != found[3].cents
    alone = play_limit(TABLES[2], (3,), TINY)
    assert alone[3] == found[3]


# --- the verdicts ---


def figures(cents: float, coverage: float = 0.9, length: float = 1.4, leaves: float = 2.0) -> Figures:
    return Figures(cents, coverage, length, leaves, leaves / 2, cents, 0.9)


def several(*cents: float, **others: float) -> list[Figures]:
    return [figures(one, **others) for one in cents]


def of(said: Sequence[claims_module.Claim], kind: str) -> claims_module.Claim:
    (found,) = [one for one in said if one.kind == kind]
    return found


def test_a_side_needs_the_interval_of_so_many_splits() -> None:
    """Student's t: 2.09 standard errors of 20 splits, 12.7 of two."""
    assert side(Mean(0.95, 0.02, 0.1, 20)) == "less"
    assert side(Mean(0.95, 0.024, 0.1, 20)) == "undecided"
    assert side(Mean(0.95, 0.02, 0.03, 2)) == "undecided"
    assert side(Mean(0.5, math.nan, math.nan, 1)) == "undecided"
    assert side(Mean(1.05, 0.02, 0.1, 20)) == "more"
    assert side(Mean(0.98, 0.0045, 0.02, 20)) == "the same"
    assert side(Mean(0.98, 0.0055, 0.02, 20)) == "less"  # more than noise, and perhaps more than 3 %
    assert verdict("less", "less") == AGREES
    assert verdict("less", "more") == DIFFERS
    assert verdict("less", "undecided") == UNDECIDED


def test_a_ratio_is_paired_over_the_splits() -> None:
    rows = {"a": several(1.0, 2.0, 3.0), "b": several(2.0, 3.0, 4.0)}
    found = ratio(rows, "a", "b", "cents")
    assert found is not None
    assert found.mean == pytest.approx(2 / 3)
    assert found.error == pytest.approx(0, abs=1e-12)  # the gap is 1 in every split
    assert ratio(rows, "a", "c", "cents") is None


def test_the_same_gain_agrees_and_a_loss_does_not() -> None:
    table = TABLES[2]
    said = claims(table, {CCPO: several(6.5, 6.6, 6.5), CPO_BATCH: several(7.8, 7.9, 7.8)})
    assert of(said, "CCPO (λ = 0) beside CPO batch, cents as played").verdict == AGREES
    at_the_same = of(said, "CCPO (λ = 0) beside CPO batch, cents at 1 − α")
    assert at_the_same.verdict == AGREES
    assert at_the_same.ours == "× 0.834 ± 0.000: less"  # the gap is 1.3 in each split
    assert at_the_same.says == "CCPO (λ = 0) costs less at 1 − α than CPO batch"
    lost = of(claims(table, {CCPO: several(8.5, 8.6, 8.5), CPO_BATCH: several(7.8, 7.9, 7.8)}), at_the_same.kind)
    assert lost.verdict == DIFFERS
    assert "1.34 rounds" in lost.why
    assert "1.40" in lost.why


def test_who_misses_the_coverage_that_is_promised_does_not_agree() -> None:
    low = [figures(7.0, coverage=one) for one in (0.80, 0.81, 0.79)]
    said = claims(TABLES[2], {CCPO: low, CPO: [figures(4.7, coverage=one) for one in (0.83, 0.84, 0.83)]})
    assert of(said, "CCPO (λ = 0) covers 1 − α").verdict == DIFFERS
    assert of(said, "CPO beside 1 − α").verdict == AGREES
    one = claims(TABLES[2], {CPO: low[:1]})
    assert of(one, "CPO beside 1 − α").verdict == UNDECIDED  # a single split decides nothing


def test_fewer_answers_for_a_charge_agree() -> None:
    free, charged = ([figures(6.5, leaves=one) for one in some] for some in ((2.3, 2.4, 2.3), (1.9, 2.0, 2.0)))
    found = of(claims(TABLES[2], {CCPO: free, CHARGED: charged}), "CCPO (λ > 0) beside CCPO (λ = 0), leaves")
    assert (found.verdict, found.says) == (AGREES, "CCPO (λ > 0) keeps fewer answers than CCPO (λ = 0)")


def test_where_one_round_covers_enough_the_reason_says_so() -> None:
    rows = {
        CCPO: several(7.6, 7.61, 7.6),
        CPO_BATCH: several(7.6, 7.61, 7.6),
        contest.THRESHOLD: [figures(7.6)._replace(reached=0.901)] * 3,
    }
    found = of(claims(TABLES[4], rows), "CCPO (λ = 0) beside CPO batch, cents as played")
    assert found.verdict == DIFFERS
    assert "nothing is left to be saved" in found.why


def test_the_printed_figures_themselves_have_no_gap_and_others_do() -> None:
    table = TABLES[3]
    same = {name: [Figures(*row, row.leaves)] * 3 for name, row in table.rows.items() if name != printed.BASE_POLICY}
    assert gaps(table, same) == []
    off = {**same, CCPO: [Figures(9.0, 0.9, 1.59, 3.18, 3.0)] * 3, RANDOM: [Figures(6.7, 0.61, 1.48, 1.0, 1.0)] * 3}
    found = {(one.row, one.figure): one.why for one in gaps(table, off)}
    assert set(found) == {(CCPO, "cents"), (RANDOM, "cents")}
    assert found[CCPO, "cents"] == "a round costs 4.44 there, 5.66 here"
    assert "misprint" in found[RANDOM, "cents"]


def test_doctests() -> None:
    assert doctest.testmod(claims_module).failed == 0


# --- what is kept and written ---


def made(number: int, split_number: int, *, limit: bool = False) -> Done:
    chance = np.random.default_rng([number, split_number])
    names = [LIMIT] if limit else [one for one in contest.ROWS if one not in {LIMIT, printed.BASE_POLICY}]
    return Done(number, split_number, {name: figures(float(5 + chance.random())) for name in names})


@pytest.fixture
def worked(monkeypatch: pytest.MonkeyPatch) -> list[Task]:
    """Play nothing: note the work, and return made figures."""
    asked: list[Task] = []

    def work(todo: Sequence[Task], *_: Any) -> Iterator[Done]:
        for task in todo:
            asked.append(task)
            yield from (made(task.table, one, limit=task.limit) for one in task.splits)

    monkeypatch.setattr(paper, "work", work)
    return asked


def test_what_is_done_is_not_done_again(worked: list[Task], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "paper.jsonl"
    call = ["--table", "2", "--splits", "2", "--record", str(record), "--json"]
    assert paper.main(call) == 0
    first = json.loads(capsys.readouterr().out)
    assert worked == [Task(2, (0, 1), limit=True), Task(2, (0,)), Task(2, (1,))]
    worked.clear()
    assert paper.main(call) == 0
    assert worked == []
    assert json.loads(capsys.readouterr().out) == first
    assert paper.main(["--read", str(record), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == first
    with pytest.raises(SystemExit, match="other settings"):
        paper.main([*call, "--steps", "7"])


def test_only_splits_that_were_played_in_full_count() -> None:
    done = [made(2, 0), made(2, 1), made(2, 0, limit=True), made(3, 0)]
    found = paper.rows_of(done)
    assert list(found) == [2]
    assert {len(one) for one in found[2].values()} == {1}
    with pytest.raises(SystemExit, match="more time"):
        paper.main(["--table", "2", "--minutes", "-1"])


def test_work_ends_where_the_time_does() -> None:
    assert list(paper.work([Task(2, (0,))], TINY, 1, -math.inf)) == []


def test_the_first_splits_of_all_tables_come_first() -> None:
    order = list(paper.tasks([2, 4], 2))
    assert order[:2] == [Task(2, (0, 1), limit=True), Task(4, (0, 1), limit=True)]
    assert order[2:] == [Task(2, (0,)), Task(4, (0,)), Task(2, (1,)), Task(4, (1,))]


def test_what_is_printed_has_the_tables_and_every_row(worked: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    assert paper.main(["--table", "2", "--splits", "3"]) == 0
    shown = capsys.readouterr().out
    assert "## Table 2: hotpotqa/llama-2-7b, α = 0.1" in shown
    assert "A first look, to be replaced" in shown
    for name in contest.ROWS:
        assert f"\n| {name} |" in shown
    assert f"| {OSC} ÷ {LIMIT} |" in shown


def test_a_full_run_is_no_first_look(worked: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    assert paper.main([]) == 0
    full = capsys.readouterr().out
    assert "At least 20 splits of each table" in full
    assert "the defaults of `CCPOConfig`" in full
    assert "A first look" not in full
    paper.main(["--steps", "9"])
    assert "A first look" in (look := capsys.readouterr().out)
    assert "Networks: steps = 9; 9 updates." in look


def test_every_line_of_a_table_is_as_wide_as_its_head(worked: list[Task], capsys: pytest.CaptureFixture[str]) -> None:
    paper.main(["--splits", "2"])
    lines = capsys.readouterr().out.splitlines()
    widths = [line.count("|") for line in lines]
    for here, after in pairwise(widths):
        assert not here or not after or here == after
    assert sum(line.startswith("## Table") for line in lines) == 8
