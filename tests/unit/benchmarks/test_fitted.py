"""The harness that judges fitted policies: a known policy gets its known cost, a bad one is called bad."""

from __future__ import annotations

import doctest
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cascade.conformal.arrays import ScoreArrays, StepArrays
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.simulate import WORLDS, simulate
from cascade.evaluation.splits import Interval

sys.path.append(str(Path(__file__).parents[3] / "benchmarks"))

import fit_logs
from fitted import cells, figures, records, report, splitting
from fitted import trial as trial_module
from fitted.cells import LADDERS, Cell, placebo, shorter, unsuitable, without_first, without_last
from fitted.opponents import (
    CLAIRVOYANT,
    MIXTURE,
    TUNED,
    clairvoyant_cost,
    going_on,
    matched,
    mixture_cost,
    single_signals,
)
from fitted.splitting import rows
from fitted.trial import SINGLE, Fitted, Method, run


def ladder(n: int = 10, wrong: int = 5) -> EpisodeTable:
    """n questions of two steps at 1 and 10 µUSD: the first is right but for `wrong` ones, the second always.

    The signal "doubt" is 1 where the first step is wrong, "noise" the question's number, "p_yes" sure everywhere.
    """
    bad = np.arange(n) < wrong
    correct = np.stack([~bad, np.ones(n, dtype=np.bool_)], axis=1)[:, :, None]
    answer = np.where(correct, 0, 1)
    cost = np.tile(np.array([1_000, 10_000]), (n, 1))
    arrays = StepArrays(answer, correct, cost, np.full(n, 2), np.ones(n, dtype=np.bool_))
    doubt = np.stack([bad.astype(np.float64), np.zeros(n)], axis=1)
    noise = np.tile(np.arange(n, dtype=np.float64)[:, None], (1, 2))
    signals = {"doubt": doubt, "noise": noise, "p_yes": np.full((n, 2), np.nan)}
    names = tuple(f"q{number:03}" for number in range(n))
    return EpisodeTable("made/one>two", names, names, ("answer",), arrays, np.full((n, 2, 1), np.nan), signals, {})


def world(n: int = 600) -> EpisodeTable:
    return simulate(WORLDS["hotpotqa/llama-2-7b"], n, seed=3)


@pytest.mark.parametrize("module", [cells, figures, report, splitting])
def test_examples_in_the_docstrings(module: object) -> None:
    assert doctest.testmod(module).failed == 0  # type: ignore[arg-type]  # a module


class TestOpponents:
    def test_a_perfect_doubt_costs_what_the_clairvoyant_does(self) -> None:
        table = ladder()
        # 5 of 10 go on for 10 µUSD each, beside 1 for everybody; a miss of 1 in 10 saves one of them
        costs = matched(table.arrays, going_on(table, table.signals["doubt"]), (0.0, 0.1))
        assert costs == pytest.approx([6.0e-6, 5.0e-6])
        assert [clairvoyant_cost(table.arrays, alpha) for alpha in (0.0, 0.1)] == pytest.approx(costs)

    def test_between_two_numbers_of_questions_the_clairvoyant_tosses_a_coin(self) -> None:
        table = ladder()
        assert clairvoyant_cost(table.arrays, 0.15) == pytest.approx(4.5e-6)

    def test_the_mixture_is_a_coin_between_depths(self) -> None:
        table = ladder()  # depth 1 covers .5 at 1 µUSD, depth 2 all at 11
        assert mixture_cost(table.arrays, 0.1) == pytest.approx(1e-6 + 0.8 * 10e-6)
        assert mixture_cost(table.arrays, 0.6) == pytest.approx(1e-6)

    def test_a_useless_number_costs_more_than_the_mixture(self) -> None:
        table = ladder()  # the wrong ones have the lowest numbers: going on at high ones wastes five
        high, low = (matched(table.arrays, going_on(table, sign * table.signals["noise"]), (0.1,)) for sign in (1, -1))
        assert high[0] == pytest.approx(1e-6 + 0.9 * 10e-6)
        assert low[0] == pytest.approx(1e-6 + 0.4 * 10e-6)

    def test_out_of_reach_is_not_a_number(self) -> None:
        table = ladder()
        never = ScoreArrays(np.full((10, 2, 1), np.inf), np.full((10, 2), -np.inf))
        assert math.isnan(matched(table.arrays, never, (0.1,))[0])

    def test_signals_that_say_something_before_the_last_step_are_used_in_both_directions(self) -> None:
        assert set(single_signals(ladder())) == {"doubt, high", "doubt, low", "noise, high", "noise, low"}

    def test_without_signals_the_price_is_used(self) -> None:
        table = ladder()
        cost = table.arrays.cost.copy()
        cost[0, 0] = 1_500
        bare = replace(table, signals={}, arrays=replace(table.arrays, cost=cost))
        assert {name.split(",")[0] for name in single_signals(bare)} == {"price of the first step"}


class TestSplits:
    def test_parts_are_disjoint_whole_groups_of_the_right_size(self) -> None:
        groups = [f"g{number // 2}" for number in range(1_800)]
        train, calibration, test = rows(groups, seed=1, number=0)
        assert sorted(np.concatenate([train, calibration, test]).tolist()) == list(range(1_800))
        assert (train.size, calibration.size) == (1_000, 200)
        held = [{groups[row] for row in part} for part in (train, calibration, test)]
        assert not held[0] & held[1]
        assert not held[1] & held[2]
        assert not held[0] & held[2]

    def test_a_group_at_the_edge_is_not_cut(self) -> None:
        groups = [f"g{number // 7}" for number in range(700)]
        parts = rows(groups, seed=1, number=0)
        assert [part.size % 7 for part in parts] == [0, 0, 0]
        assert 420 <= parts[0].size < 427
        assert 140 <= parts[1].size < 147

    def test_the_seed_and_the_number_draw(self) -> None:
        groups = [str(number) for number in range(50)]
        one, same, other = (rows(groups, 1, number)[0].tolist() for number in (0, 0, 1))
        assert one == same
        assert one != other


class TestCells:
    def test_without_the_last_rung_it_is_as_if_it_had_never_been_asked(self) -> None:
        table = world(50)
        cut = without_last(table)
        assert cut.arrays.horizon == 3
        assert cut.confidence.shape == (50, 3, 2)
        assert all(values.shape == (50, 3) for values in cut.signals.values())
        assert (cut.arrays.cost == table.arrays.cost[:, :3]).all()
        assert (cut.arrays.steps == 3).all()
        assert cut.arrays.complete.all()

    def test_without_the_first_rung_answers_are_numbered_anew(self) -> None:
        table = world(50)
        cut = without_first(table)
        answer, kept = cut.arrays.answer.reshape(50, -1), table.arrays.answer[:, 1:].reshape(50, -1)
        assert cut.arrays.horizon == 3
        assert answer.max() < answer.shape[1]
        same, was = (held[:, :, None] == held[:, None, :] for held in (answer, kept))
        assert (same == was).all()
        assert (answer.min(axis=1) == 0).all()
        assert (cut.signals["p_yes"] == table.signals["p_yes"][:, 1:]).all()

    def test_of_a_question_cut_short_nothing_is_invented(self) -> None:
        table = world(50)
        short = replace(
            table, arrays=replace(table.arrays, steps=np.full(50, 2), complete=np.zeros(50, dtype=np.bool_))
        )
        assert (without_first(short).arrays.steps == 1).all()
        assert not without_first(short).arrays.complete.any()
        assert (without_last(short).arrays.steps == 2).all()

    def test_the_ladders_of_four_within_one_of_five(self) -> None:
        table = world(50)
        names = [[one.dataset for one in shorter(replace(table, dataset=name))] for name in (*LADDERS, "demo-ladder")]
        assert names[0] == ["zell_mmlu/llama-1b,3b,8b,70b", "zell_mmlu/llama-3b,8b,70b>gpt-4o"]
        assert names[1] == ["zell_mmlu/llama-3b,8b,70b>405b"]
        assert not names[2]

    def test_a_placebo_keeps_the_rates_and_takes_the_meaning(self) -> None:
        table = ladder(600, 300)
        free = placebo(table, seed=1)
        assert free.arrays.correct.mean() == table.arrays.correct.mean()
        assert mixture_cost(free.arrays, 0.1) == pytest.approx(mixture_cost(table.arrays, 0.1))
        real, none = (
            matched(one.arrays, going_on(one, one.signals["doubt"]), (0.1,))[0] / mixture_cost(one.arrays, 0.1)
            for one in (table, free)
        )
        assert real < 0.6
        assert abs(none - 1) < 0.1
        assert (free.arrays.answer[:, 0] != free.arrays.answer[:, 1]).all()

    def test_what_is_not_suitable_and_why(self) -> None:
        table = ladder(300, 100)
        assert unsuitable(table) is None
        assert unsuitable(ladder()) == "fewer than 200 questions"
        assert unsuitable(replace(table, cost_known=False)) == "some costs are unknown"
        assert unsuitable(without_last(table)) == "a single step: nothing is to be decided"

    def test_the_floor_and_the_controls(self) -> None:
        cell = Cell("made", "made", ladder(100, 8))
        assert cell.floor(0.1)
        assert not cell.floor(0.05)
        assert not cell.control
        assert Cell("uala_mmlu/a>b", "uala_mmlu", ladder()).control


class TestFigures:
    def test_a_ratio_is_that_of_the_means(self) -> None:
        found = figures.ratio(np.array([1.0, 3.0]), np.array([4.0, 4.0]), n_train=100, n_test=100)
        assert found.mean == 0.5
        # d = ±.25, variance .125, times (1/2 + 1), t(1) = 12.706
        assert found.high == pytest.approx(0.5 + 12.7062 * math.sqrt(0.125 * 1.5), rel=1e-4)

    def test_an_unknown_cost_is_no_ratio(self) -> None:
        assert math.isnan(figures.ratio(np.array([1.0, np.nan]), np.ones(2), n_train=1, n_test=1).mean)

    def test_each_source_has_one_vote(self) -> None:
        found = figures.geometric_mean({"a": [0.25] * 9, "b": [1.0], "c": [math.nan]})
        assert found.mean == pytest.approx(0.5)
        assert found.low is not None
        assert found.low < 0.25

    def test_coverage_below_the_promise_has_a_negative_z(self) -> None:
        below = figures.coverage(np.tile([0.86, 0.84], 10), 0.1, calibration=198, test=200)
        assert below.mean == pytest.approx(0.85)
        assert below.z == pytest.approx(-0.05 / math.sqrt(0.09 * 0.01 / 20), abs=0.01)


def knowing(table: EpisodeTable) -> ScoreArrays:
    """Go on where the step is wrong: the truth itself."""
    wrong = ~np.logical_or.accumulate(table.arrays.correct.any(axis=2), axis=1)
    return ScoreArrays(np.full(table.arrays.answer.shape, np.inf), wrong.astype(np.float64))


def dearest(table: EpisodeTable) -> ScoreArrays:
    """Go on where the step is right first of all; then where it is wrong, one question after the other."""
    found = knowing(table)
    return ScoreArrays(found.candidates, -found.next * np.arange(1, table.n + 1)[:, None])


def method(name: str, scores: trial_module.Scorer) -> Method:
    def fit(_: EpisodeTable, alphas: Sequence[float], __: int) -> Mapping[float, Fitted]:
        return {alpha: Fitted(scores, "told") for alpha in alphas}

    return Method(name, fit)


class TestTrial:
    def test_who_knows_the_truth_costs_what_the_clairvoyant_does_and_who_lies_more_than_all(self) -> None:
        found = run(
            Cell("made", "made", ladder(400, 200)), [method("good", knowing), method("bad", dearest)], (0.1,), 4
        )
        assert found.cost["good", 0.1] == pytest.approx(found.cost[CLAIRVOYANT, 0.1])
        assert (found.cost["bad", 0.1] > found.cost[MIXTURE, 0.1]).all()
        assert found.best_single(0.1) == SINGLE + "doubt, high"
        assert found.cost[found.best_single(0.1), 0.1] == pytest.approx(found.cost[CLAIRVOYANT, 0.1])
        assert (found.hardest_single(0.1) <= found.cost["good", 0.1] + 1e-15).all()
        assert found.notes["good", 0.1] == ["told"] * 4
        assert found.sizes == (240, 80, 80)

    def test_a_calibrated_policy_covers_what_it_promises_on_the_mean(self) -> None:
        found = run(Cell("world", "world", world()), [method("good", knowing)], (0.1, 0.05), 20)
        for alpha in (0.1, 0.05):
            covered = found.coverage(TUNED, alpha)
            assert covered is not None
            assert abs(covered.z) < 3  # without ties: it is 1 − alpha, no more
            assert found.covered[TUNED, alpha].std() > 0


@pytest.fixture
def trials() -> list[trial_module.Trial]:
    cells = [Cell(name, name.split("/")[0], ladder(400, 200)) for name in (LADDERS[0], "made/one>two")]
    return [run(cell, [method("good", knowing), method("bad", dearest)], fit_logs.ALPHAS, 3) for cell in cells]


class TestReport:
    def test_the_tables_hold_every_cell_and_way(self, trials: list[trial_module.Trial]) -> None:
        lines = "\n".join(report.by_cell(trials, "good", 0.1))
        assert all(trial.cell in lines for trial in trials)
        assert "told 3" in lines
        means = report.summary(trials, ["good", "bad"], 0.1)
        assert [line.split(" | ")[3] for line in means[2:]] == ["good", "bad"] * (len(means[2:]) // 2)

    def test_a_bad_policy_misses_the_demands(self, trials: list[trial_module.Trial]) -> None:
        # the opponent of the ladders is the tuned threshold, and this log has no doubt that is known by name
        for trial in trials:
            for alpha in fit_logs.ALPHAS:
                trial.cost[TUNED, alpha] = trial.cost[MIXTURE, alpha]
        good, bad = ([met for met, _ in fit_logs.bars(trials, way)] for way in ("good", "bad"))
        assert all(good)
        # both ladders' bars and the single thresholds' are missed; coverage is not a policy's to break
        assert bad == [False, False, True] * 2

    def test_of_a_log_without_signals_no_threshold_is_demanded(self, trials: list[trial_module.Trial]) -> None:
        bare = [replace(trial, cell="bare", signals=False) for trial in trials]
        assert all(met for met, _ in fit_logs.bars(bare, "bad"))
        assert not all(met for met, _ in fit_logs.bars([replace(trial, cell="told") for trial in trials], "bad"))

    def test_a_broken_certificate_misses_a_demand(self, trials: list[trial_module.Trial]) -> None:
        trials[1].covered["good", 0.05] = np.array([0.7, 0.71, 0.7])
        said = [said for met, said in fit_logs.bars(trials, "good") if not met and "coverage" in said]
        assert len(said) == 1
        assert "made/one>two" in said[0]

    def test_out_of_reach_is_shown_as_unknown(self, trials: list[trial_module.Trial]) -> None:
        assert report.Against(trials[0], "nobody", 0.1).to(MIXTURE) == Interval(
            pytest.approx(math.nan, nan_ok=True), None, None
        )
        assert not report.Against(trials[0], "nobody", 0.1).known


class TestRecords:
    def test_what_is_written_is_read(self, trials: list[trial_module.Trial], tmp_path: Path) -> None:
        trials[0].cost["bad", 0.1][1] = math.nan
        for trial in trials:
            records.append(tmp_path / "all", trial)
        for trial, read in zip(trials, records.read([tmp_path / "all"]), strict=True):
            assert records.document(read) == records.document(trial)
            assert read.notes == trial.notes
            assert report.by_cell([read], "bad", 0.1) == report.by_cell([trial], "bad", 0.1)

    def test_ways_of_several_runs_stand_side_by_side(self, trials: list[trial_module.Trial], tmp_path: Path) -> None:
        other = run(Cell(trials[0].cell, "zell_mmlu", ladder(400, 200)), [method("third", knowing)], fit_logs.ALPHAS, 3)
        records.append(tmp_path / "one", trials[0])
        records.append(tmp_path / "two", other)
        (read,) = records.read([tmp_path / "one", tmp_path / "two"])
        assert set(read.seconds) == {"good", "bad", "third"}
        assert records.done([read], read.cell, ["good", "third"], 3)
        assert not records.done([read], read.cell, ["good"], 4)
        assert not records.done([read], read.cell, ["fourth"], 3)

    def test_other_splits_are_not_mixed(self, trials: list[trial_module.Trial]) -> None:
        other = run(Cell(trials[0].cell, "zell_mmlu", ladder(400, 200)), [method("third", knowing)], fit_logs.ALPHAS, 4)
        with pytest.raises(ValueError, match="different splits"):
            records.merged(trials[0], other)

    def test_a_line_cut_short_is_judged_again(self, trials: list[trial_module.Trial], tmp_path: Path) -> None:
        records.append(tmp_path / "all", trials[0])
        whole = (tmp_path / "all").read_text()
        (tmp_path / "all").write_text(whole + whole[:100])
        assert len(records.read([tmp_path / "all"])) == 1
        records.append(tmp_path / "all", trials[1])
        assert len(records.read([tmp_path / "all"])) == 2

    def test_a_run_goes_on_where_it_stood(
        self,
        trials: list[trial_module.Trial],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        asked = []
        some = [Cell(trial.cell, trial.source, ladder(400, 200)) for trial in trials]

        def judge(cell: Cell, ways: tuple[str, ...], count: int) -> trial_module.Trial:
            asked.append(cell.name)
            trial = run(cell, [method(way, knowing) for way in ways], fit_logs.ALPHAS, count)
            for alpha in fit_logs.ALPHAS:
                trial.cost[TUNED, alpha] = 2 * trial.cost[MIXTURE, alpha]
            return trial

        monkeypatch.setattr(fit_logs, "judge", judge)
        monkeypatch.setattr(fit_logs, "cells", lambda *_: (some[: 1 + bool(asked)], []))
        command = ["logs", "--splits", "2", "--out", str(tmp_path / "out")]
        assert [fit_logs.main(command) for _ in range(3)] == [0, 0, 0]
        assert asked == [cell.name for cell in some]
        first = capsys.readouterr().out
        assert fit_logs.main(["--table", str(tmp_path / "out")]) == 0
        assert capsys.readouterr().out.splitlines()[1:] == first.splitlines()[-len(first.splitlines()) // 3 + 1 :]
