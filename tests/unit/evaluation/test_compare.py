"""Every way to answer on the same splits: means, paired differences, what is not known, and nothing of the test seen."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from cascade.api.comparing import comparison_document
from cascade.api.tables import compare_table, legend
from cascade.calibration.samples import KNOWN
from cascade.calibration.scores import Played
from cascade.conformal.arrays import levels
from cascade.conformal.frontier import frontier
from cascade.episodes.table import EpisodeTable, Walk
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation import baselines, methods
from cascade.evaluation import compare as module
from cascade.evaluation.baselines import CLAIRVOYANT, Depth, Ready, reference_of
from cascade.evaluation.compare import Comparison, compare
from cascade.evaluation.methods import Threshold
from cascade.evaluation.splits import corrected_interval, splits
from cascade.policies.fixed import FixedPolicy
from unit.evaluation.plain import Asked, Did, Shown, draw, each, live, table_of
from unit.evaluation.plain import row as logged_row

UALA, THRESHOLD, MIXTURE = "UALA on verdict, tuned", "threshold on verdict, conformal", "depth mixture, conformal"
LEARNED = "net benefit, conformal"


def questions(n: int = 60, horizon: int = 3, width: int = 2, seed: int = 0) -> list[Asked]:
    rng = np.random.default_rng(seed)
    return [draw(rng, horizon, width) for _ in range(n)]


def made(n: int = 60, horizon: int = 3, width: int = 2, seed: int = 0, **more: Any) -> EpisodeTable:
    return table_of(questions(n, horizon, width, seed), horizon, width, **more)


def curve_of(did: list[Did], known: np.ndarray) -> Walk:
    columns = {name: np.array([getattr(one, name) for one in did]) for name in Did._fields}
    flags = [known, columns["in_set"] > 0, columns["right"] > 0]
    return Walk(*flags, *(columns[name].astype(np.int64) for name in ("cost", "length", "leaves", "distinct")))


def with_walks(table: EpisodeTable, **walks: Walk) -> EpisodeTable:
    return replace(table, walks={name.replace("_", " "): walk for name, walk in walks.items()})


def without_seconds(found: Comparison) -> str:
    document = comparison_document(found)
    for row in document["rows"]:
        assert row.pop("fit_seconds") >= 0
    return json.dumps(document)


@dataclass(frozen=True)
class Fixed:
    """A method that does to each question what a function says."""

    name: str
    does: Callable[[EpisodeTable], Played]

    def prepare(self, train: EpisodeTable, calibration: EpisodeTable, alpha: float, seed: int) -> Ready:
        return Ready(self.does)


def paying(name: str, amount: int) -> Fixed:
    """Return a method that covers nothing and pays one amount."""

    def does(table: EpisodeTable) -> Played:
        zero = np.zeros(table.n)
        return Played(zero, zero, zero, zero + amount, zero + 1, zero, zero, zero)

    return Fixed(name, does)


# --- figures ---


def test_the_figures_are_those_of_the_questions_asked_live() -> None:
    asked = questions()
    found = compare(table_of(asked, 3, 2), count=6, seed=3)
    did = [live(one, FixedPolicy("both", 2), 2) for one in asked]
    per_split = [
        [
            float(np.mean([getattr(did[q], name) for q in split.test]))
            for name in ("covered", "right", "cost", "distinct")
        ]
        for split in splits([f"q{q}" for q in range(60)], 6, 3)
    ]
    row = found.row("all answers, depth 2")
    assert row.sd is not None
    got = [row.mean.coverage, row.mean.accuracy, (row.mean.cost_usd or 0) * 1e9, row.mean.set_size]
    sd = [row.sd.coverage, row.sd.accuracy, (row.sd.cost_usd or 0) * 1e9, row.sd.set_size]
    assert got == pytest.approx(np.mean(per_split, axis=0).tolist())
    assert sd == pytest.approx(np.std(per_split, axis=0, ddof=1).tolist())
    assert (found.n, found.horizon, found.splits, found.seed, found.alpha) == (60, 3, 6, 3, 0.1)
    assert found.sizes == (36, 12, 12)
    assert found.unsolvable == pytest.approx(np.mean([one.complete and not one.solvable for one in asked]))


def test_the_rows_are_the_contestants_and_the_bound_last() -> None:
    found = compare(made(), count=2)
    depths = [f"all answers, depth {depth}" for depth in (1, 2, 3)]
    assert [row.policy for row in found.rows] == ["random", *depths, MIXTURE, UALA, THRESHOLD, LEARNED, CLAIRVOYANT]
    assert found.reference == "all answers, depth 3"  # no model alone is on record; 0.5.0 took the cheapest row


def test_differences_are_paired_over_the_splits_and_corrected() -> None:
    table = made()
    found = compare(table, count=5, others=[paying("cheap", 3), paying("dear", 10)], reference="cheap")
    dear = found.row("dear").cost_difference
    assert dear is not None
    assert dear == pytest.approx((7e-9,) * 3)
    assert dear.excludes_zero
    covered = np.array([did.covered for did in each(Depth(2).prepare(table, table, 0.1, 0).play(table))])
    gaps = [float(covered[split.test].mean()) for split in splits(table.groups, 5, 0)]
    wanted = corrected_interval(gaps, n_train=48, n_test=12)
    assert found.row("all answers, depth 2").coverage_difference == pytest.approx(wanted)
    cheap = found.row("cheap")
    assert (cheap.cost_difference, cheap.coverage_difference, cheap.matched_difference) == (None, None, None)


def test_the_matched_cost_is_the_frontiers_at_exactly_one_minus_alpha() -> None:
    table = table_of([one._replace(complete=True) for one in questions(80)], 3, 2)
    found = compare(table, alpha=0.2, count=4, reference="all answers, depth 1")
    scores = Threshold(KNOWN[0]).prepare(table, table, 0.2, 0).scores
    assert scores is not None
    matched, gaps, curve = [], [], []
    for split in splits(table.groups, 4, 0):
        test = table.take(split.test)
        points = frontier(test.arrays, levels(test.arrays, scores(test)))
        point, at_98 = points.matched(0.8), points.matched(0.98)
        assert point is not None
        assert at_98 is not None
        matched.append(point.cost / 1e9)
        curve.append(at_98.cost / 1e9)
        gaps.append(point.cost / 1e9 - float(test.arrays.cost[:, 0].mean()) / 1e9)
    row = found.row(THRESHOLD)
    assert row.matched_cost_usd == pytest.approx(np.mean(matched))
    assert row.matched_cost_sd == pytest.approx(np.std(matched, ddof=1))
    assert row.matched_difference == pytest.approx(corrected_interval(gaps, n_train=64, n_test=16))
    assert dict(row.curve)[0.98] == pytest.approx(np.mean(curve))
    assert all(a[1] <= b[1] * (1 + 1e-12) for a, b in itertools.pairwise(row.curve))
    assert found.row("random").matched_cost_usd is None
    assert found.row("random").curve == ()


def test_a_coverage_out_of_reach_has_no_matched_cost() -> None:
    wrong = Asked(questions(1)[0].steps[:1], (1,), ({"p_yes": 0.5, "reply_mean_logprob": None},), complete=False)
    wrong = wrong._replace(steps=(tuple(shown._replace(right=False) for shown in wrong.steps[0]),))
    table = table_of([*questions(20), *[wrong] * 20], 3, 2)
    row = compare(table, count=3).row(THRESHOLD)
    assert (row.matched_cost_usd, row.matched_cost_sd, row.matched_difference) == (None, None, None)


def test_calibrated_rows_cover_what_they_promise_on_average() -> None:
    found = compare(made(400, seed=4), alpha=0.2, count=30)
    for name in (THRESHOLD, MIXTURE):
        row = found.row(name)
        assert row.sd is not None
        # Splits share their questions, so their mean spreads by a good part of one split's spread.
        assert row.mean.coverage > 0.8 - 0.7 * found.coverage_sd
    spread = found.row(THRESHOLD).sd
    assert spread is not None
    assert spread.coverage < 2 * found.coverage_sd


def test_one_split_has_no_spread_and_no_interval() -> None:
    row = compare(made(), count=1).row(THRESHOLD)
    assert row.sd is None
    assert row.cost_difference is not None
    assert (row.cost_difference.low, row.cost_difference.high, row.cost_difference.excludes_zero) == (None, None, False)
    assert comparison_document(compare(made(), count=1))["rows"][0]["coverage_sd"] is None


# --- the same again, and nothing of the test ---


def test_the_same_seed_gives_the_same_bytes() -> None:
    one, again, other = (without_seconds(compare(made(), count=4, seed=seed)) for seed in (1, 1, 2))
    assert one == again
    assert one != other


def test_even_the_seconds_are_the_same_under_the_same_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    found = compare(made(), count=3)
    assert {row.policy: row.fit_seconds for row in found.rows}[UALA] == 1.0
    assert found.row(CLAIRVOYANT).fit_seconds == 0.0


def flipped(table: EpisodeTable, rows: np.ndarray) -> EpisodeTable:
    """Return the table with other truth, costs and confidences on some questions."""
    arrays = table.arrays
    correct, cost = arrays.correct.copy(), arrays.cost.copy()
    correct[rows] = arrays.present[rows] & ~correct[rows]
    cost[rows] = cost[rows] * 3 + 7
    return replace(table, arrays=replace(arrays, correct=correct, cost=cost))


def test_the_truth_of_the_test_questions_moves_no_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    table = made(100)
    (split,) = splits(table.groups, 1, 0)
    kappas: list[float] = []
    real = methods.played_at
    for place in (methods, baselines):
        monkeypatch.setattr(place, "played_at", lambda t, s, k: (kappas.append(k), real(t, s, k))[1])

    def thresholds(changed: EpisodeTable) -> tuple[list[float], Comparison]:
        kappas.clear()
        found = compare(changed, count=1)
        return list(kappas), found

    before, first = thresholds(table)
    after, second = thresholds(flipped(table, split.test))
    assert before == after
    assert len(before) == 7  # three depths, mixture, UALA, threshold, net benefit
    assert first.row(UALA).mean.coverage != second.row(UALA).mean.coverage
    trained, _ = thresholds(flipped(table, split.train))
    calibrated, _ = thresholds(flipped(table, split.calibration))
    assert [a != b for a, b in zip(before, trained, strict=True)] == [False] * 4 + [True, False, True]
    assert [a != b for a, b in zip(before, calibrated, strict=True)] == [False] * 3 + [True, False, True, True]


# --- what is not known ---


def test_unknown_costs_are_none_everywhere() -> None:
    asked = [one._replace(complete=True) for one in questions()]
    assert compare(table_of(asked, 3, 2), count=3).row(THRESHOLD).curve
    found = compare(table_of(asked, 3, 2, cost_known=False), count=3)
    assert not found.cost_known
    for row in found.rows:
        assert row.mean.cost_usd is None
        assert row.sd is not None
        assert row.sd.cost_usd is None
        assert (row.matched_cost_usd, row.matched_cost_sd, row.matched_difference) == (None, None, None)
        assert row.cost_difference is None
        assert row.curve == ()
        assert (row.coverage_difference is None) == (row.policy == found.reference)
    text = json.dumps(comparison_document(found), allow_nan=False)
    assert '"cost_usd": 0' not in text


def test_what_costs_there_are_do_not_matter_where_some_are_unknown() -> None:
    one = made(cost_known=False)
    other = replace(one, arrays=replace(one.arrays, cost=one.arrays.cost * 5 + 1))
    assert without_seconds(compare(one, count=3)) == without_seconds(compare(other, count=3))


def test_a_walk_logged_for_a_part_is_judged_and_compared_on_that_part() -> None:
    """The walk does exactly what depth 1 does, but was logged for the dear and wrong questions only."""
    asked = questions(100)
    did = [live(one, FixedPolicy("both", 1), 2) for one in asked]
    known = np.array([not one.covered and one.cost > 3e8 for one in did])
    assert 10 < known.sum() < 60
    table = with_walks(table_of(asked, 3, 2), part=curve_of(did, known), none=curve_of(did, known & False))
    found = compare(table, count=6, reference="all answers, depth 1")
    row = found.row("part")
    assert row.cost_difference == pytest.approx((0, 0, 0), abs=1e-15)
    assert row.coverage_difference == pytest.approx((0, 0, 0))
    assert (row.mean.coverage, found.row("all answers, depth 1").mean.coverage > 0.2) == (0.0, True)
    judged = [int(known[split.test].sum()) for split in splits(table.groups, 6, 0)]
    assert row.questions == round(float(np.mean(judged)))
    assert found.row("random").questions is None
    assert "none" not in [row.policy for row in found.rows]


def test_the_number_of_questions_judged_counts_the_splits_where_all_are_known() -> None:
    asked = questions(30)
    did = [live(one, FixedPolicy("both", 1), 2) for one in asked]
    known = np.ones(30, dtype=np.bool_)
    known[:2] = False
    table = with_walks(table_of(asked, 3, 2), part=curve_of(did, known))
    judged = [int(known[split.test].sum()) for split in splits(table.groups, 5, 0)]
    assert 6 in judged
    assert compare(table, count=5).row("part").questions == round(sum(judged) / 5)


def test_a_reference_that_is_known_for_a_part_is_compared_on_that_part() -> None:
    asked = questions(100)
    did = [live(one, FixedPolicy("both", 1), 2) for one in asked]
    known = np.array([one.cost > 5e8 for one in did])
    table = with_walks(table_of(asked, 3, 2), guide_only=curve_of(did, known))
    found = compare(table, count=4)
    assert found.reference == "guide only"
    assert found.row("all answers, depth 1").cost_difference == pytest.approx((0, 0, 0), abs=1e-15)
    assert found.row(THRESHOLD).matched_difference is None


def test_a_walk_known_for_hardly_any_question_is_left_out_where_none_was_drawn() -> None:
    asked = questions(60)
    did = [live(one, FixedPolicy("both", 1), 2) for one in asked]
    (split,) = splits([f"q{k}" for k in range(60)], 1, 0)
    known = np.zeros(60, dtype=np.bool_)
    known[split.train[0]] = True
    table = with_walks(table_of(asked, 3, 2), rare=curve_of(did, known))
    assert "rare" not in [row.policy for row in compare(table, count=1).rows]
    with pytest.raises(UsageError, match="rare was logged for none of the drawn questions"):
        compare(table, count=1, reference="rare")
    sometimes = compare(table, count=20).row("rare")
    assert sometimes.cost_difference is None
    assert sometimes.questions == 1


# --- odd logs ---


@pytest.mark.parametrize(("horizon", "width"), [(1, 1), (1, 2), (4, 1), (2, 3)])
def test_any_shape_of_log_has_its_rows(horizon: int, width: int) -> None:
    found = compare(made(30, horizon, width), count=3)
    names = [row.policy for row in found.rows]
    assert names[0] == "random"
    assert (MIXTURE in names) == (THRESHOLD in names) == (horizon > 1)
    json.dumps(comparison_document(found), allow_nan=False)


def test_a_log_without_any_right_answer_and_one_without_any_wrong() -> None:
    for right in (False, True):
        asked = [
            one._replace(steps=tuple(tuple(c._replace(right=right) for c in step) for step in one.steps), complete=True)
            for one in questions(30)
        ]
        found = compare(table_of(asked, 3, 2), count=2)
        assert all(row.mean.covered_given_solvable is None for row in found.rows) == (not right)
        assert found.row("all answers, depth 3").mean.coverage == 1.0
        json.dumps(comparison_document(found), allow_nan=False)


@pytest.mark.parametrize("alpha", [0.0, 1.0, -0.1, 2.0, math.nan])
def test_alpha_is_a_share_between_0_and_1(alpha: float) -> None:
    with pytest.raises(UsageError, match="alpha is a share"):
        compare(made(), alpha=alpha)


def test_other_calls_that_cannot_work_say_so() -> None:
    with pytest.raises(UsageError, match="at least 1 split"):
        compare(made(), count=0)
    with pytest.raises(UsageError, match="2 groups of questions cannot be split"):
        compare(made(4, groups=["a", "a", "b", "b"]))
    with pytest.raises(UsageError, match=r"no row 'guide' to compare with; there are: random; all answers, depth 1"):
        compare(made(), reference="guide")
    asked = questions(20)
    did = [live(one, FixedPolicy("both", 1), 2) for one in asked]
    table = with_walks(table_of(asked, 3, 2), random=curve_of(did, np.ones(20, dtype=np.bool_)))
    with pytest.raises(UsageError, match="Two rows would be called random"):
        compare(table)


def test_progress_is_told_split_by_split() -> None:
    told: list[tuple[int, int]] = []
    assert len(list(splits(list("abc"), 3, 0, tell=lambda done, total: told.append((done, total))))) == 3
    assert told == [(1, 3), (2, 3), (3, 3)]


# --- the bound ---


def exhaustive(asked: list[Asked], misses: int) -> tuple[int, int]:
    """Return the least cost of all ways to stop with at most so many solvable questions missed, and their number."""
    best = None
    for stops in itertools.product(*(range(1, len(one.steps) + 1) for one in asked)):
        missed = sum(
            one.solvable and not any(c.right for step in one.steps[:stop] for c in step)
            for one, stop in zip(asked, stops, strict=True)
        )
        cost = sum(sum(one.costs[:stop]) for one, stop in zip(asked, stops, strict=True))
        if missed <= misses and (best is None or cost < best):
            best = cost
    assert best is not None
    return best, len(asked)


@pytest.mark.parametrize(("alpha", "size"), [(0.0001, 5), (0.25, 6), (0.5, 4), (0.34, 6)])
def test_the_clairvoyant_bound_is_the_best_of_all_choices(alpha: float, size: int) -> None:
    rng = np.random.default_rng(7)
    for _ in range(25):
        asked = [draw(rng, 3, 2) for _ in range(size)]
        table = table_of(asked, 3, 2)
        played = module._clairvoyant(table, alpha).played
        misses = math.floor(alpha * size + 1e-9)
        best, _ = exhaustive(asked, misses)
        assert int(played.cost.sum()) == best
        stops = played.length.astype(int).tolist()
        assert [sum(one.costs[:stop]) for one, stop in zip(asked, stops, strict=True)] == played.cost.tolist()
        hit = [any(c.right for step in one.steps[:stop] for c in step) for one, stop in zip(asked, stops, strict=True)]
        assert played.in_set.tolist() == [float(one) for one in hit]
        assert played.covered.tolist() == [float(a or one.hopeless) for a, one in zip(hit, asked, strict=True)]


def test_the_clairvoyant_bound_of_eight_questions() -> None:
    rng = np.random.default_rng(8)
    asked = [draw(rng, 3, 1) for _ in range(8)]
    assert int(module._clairvoyant(table_of(asked, 3, 1), 0.13).played.cost.sum()) == exhaustive(asked, 1)[0]


@pytest.mark.parametrize(("n", "alpha"), [(120, 0.15), (23, 0.1), (17, 0.31), (12, 0.04)])
def test_nobody_is_cheaper_than_the_bound_at_its_coverage(n: int, alpha: float) -> None:
    """Also where alpha is no whole number of test questions, so that a coin decides about one of them."""
    table = table_of([one._replace(complete=True) for one in questions(n, seed=9)], 3, 2)
    found = compare(table, alpha=alpha, count=5)
    bound = found.row(CLAIRVOYANT)
    assert bound.matched_cost_usd is not None
    assert bound.matched_cost_usd <= (bound.mean.cost_usd or 0)
    checks = 0
    for row in found.rows:
        if row.matched_cost_usd is not None:
            assert row.matched_cost_usd >= bound.matched_cost_usd * (1 - 1e-12)
            checks += 1
    assert checks == 4


def test_the_bound_at_its_coverage_gives_up_a_part_of_one_question_by_a_coin() -> None:
    wrong, right = Shown(0, 0, False, None), Shown(0, 1, True, None)
    silent = ({"p_yes": 0.5, "reply_mean_logprob": None},) * 2
    asked = [Asked(((wrong,), (right,)), (1, dear), silent, True) for dear in (100, 40, 10, 3)]
    table = table_of(asked, 2, 1)
    costs = {
        alpha: (module._clairvoyant(table, alpha).matched_usd or 0) * 4e9 for alpha in (0.0, 0.125, 0.25, 0.375, 1.0)
    }
    assert costs == pytest.approx({0.0: 157, 0.125: 107, 0.25: 57, 0.375: 37, 1.0: 4})


def test_without_costs_the_bound_gives_up_where_the_way_is_longest() -> None:
    table = made(40, cost_known=False)
    played = module._clairvoyant(table, 0.2).played
    first = table.arrays.correct.any(axis=2).argmax(axis=1) + 1
    gave_up = played.length < first
    assert 0 < gave_up.sum() <= 8
    assert first[gave_up].min() >= first[~gave_up & (first > 1)].max(initial=0) - 1
    assert played.length[gave_up].tolist() == [1.0] * int(gave_up.sum())


# --- what counts as a question, and as a reference ---


def test_replicates_are_no_questions() -> None:
    """0.5.0 counted ten episodes of one question as ten questions, and said ± .016 where ± .05 was true."""
    table = made(60)
    many = table.take(np.repeat(np.arange(60), 10))
    again = replace(many, ids=tuple([f"{name} {k}" for k, name in enumerate(many.ids)]))
    found, once = compare(again, count=4), compare(table, count=4)
    assert (found.n, found.repeated, found.sizes, found.groups) == (60, 540, (36, 12, 12), (36, 12, 12))
    assert found.coverage_sd == once.coverage_sd
    assert found.rows[1].mean == once.rows[1].mean
    assert "60 questions (540 more episodes of the same ones left out)" in str(compare_table(found, 100).renderables[0])


def test_groups_are_what_is_independent() -> None:
    table = made(60, groups=[f"document {k // 6}" for k in range(60)])
    found = compare(table, count=4)
    assert (found.n, found.groups) == (60, (6, 2, 2))
    assert found.coverage_sd == pytest.approx((0.09 / 4 + 0.09 / 2) ** 0.5)
    assert "With so few questions, of 10 groups, coverage can vary" in legend(found, 200)


def test_groups_that_share_a_question_are_never_cut() -> None:
    """0.5.0 let the same question stand in the training and the test part, under two groups."""
    table = made(20)
    twice = table.take(np.repeat(np.arange(20), 2))
    apart = replace(twice, groups=tuple([f"g{k}" for k in range(40)]))
    assert compare(apart, count=2).groups == (12, 4, 4)


def test_a_few_questions_earn_no_star() -> None:
    """0.5.0 called a difference on three questions more than chance."""
    for many, sure in ((5, False), (6, True)):
        ways = [paying("cheap", 3), paying("dear", 10)]
        found = compare(made(many), count=5, others=ways, reference="cheap")
        gap = found.row("dear").cost_difference
        assert gap is not None
        assert (gap.mean * 1e9, gap.excludes_zero) == (pytest.approx(7), sure)
        assert ("cannot tell a difference from chance" in legend(found, 200)) != sure


def test_the_reference_of_a_ladder_is_its_last_model() -> None:
    """0.5.0 took the base: the first row after chance."""
    rungs = [
        logged_row(f"q{q}", step, source=f"m{step}", horizon=2, correct=q % 3 < step, cost_nano_usd=10**step)
        for q in range(20)
        for step in (1, 2)
    ]
    found = compare(tables_from_rows(rungs)[0], count=2)
    assert found.reference == reference_of(tables_from_rows(rungs)[0]).name == "last model only"


def test_the_rows_that_are_left_out_are_named_with_the_reason() -> None:
    """0.5.0 dropped the rows of the threshold and of UALA in silence where a signal was of no known kind."""
    table = made(30)
    odd = replace(table, signals={"likes": table.signals["p_yes"]})
    (said,) = compare(odd, count=2).left_out
    assert said.startswith("The rows of a threshold and of UALA are left out: the signal likes is of no known kind")
    assert compare(table, count=2).left_out == ()
    silent = compare(replace(table, signals={}), count=2).left_out
    assert silent[0] == "The rows of a threshold and of UALA are left out: the log has no signals."
    share = replace(table, signals={"answer_share": table.signals["p_yes"]})
    assert "threshold on share of this answer, conformal" in [one.policy for one in compare(share, count=2).rows]


def test_the_segment_that_is_covered_least_stands_beside_the_mean() -> None:
    table = made(80)
    right = table.arrays.correct.any(axis=(1, 2))
    order = np.argsort(~right, kind="stable")  # the questions that no step answers come last
    names = np.full(80, "easy", dtype=object)
    names[order[40:]] = "hard"
    parted = replace(table, segments=tuple(names.tolist()))
    found = compare(parted, count=2)
    first = found.rows[0]
    assert first.worst is not None
    assert first.worst[0] in {"easy", "hard"}
    assert first.worst[1] <= first.mean.coverage
    assert comparison_document(found)["rows"][0]["worst_segment"].keys() == {"segment", "coverage"}
    assert "worst segment" in legend(found, 200)
    assert compare(table, count=2).rows[0].worst is None
    few = replace(table, segments=("small",) * 10 + ("large",) * 70)
    assert compare(few, count=2).rows[0].worst is None
