"""The choice: cross-fitted, at one loss, and the simplest within noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.samples import folds
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import levels, rollout
from cascade.conformal.frontier import frontier
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees import get
from cascade.guarantees.base import Guarantee
from cascade.policies.base import BatchScores, History, Policy
from cascade.policies.estimators import Constant
from cascade.policies.features import FeatureSet
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.choosing import Candidate, Choice, Rule, choose, cross_fitted, unchosen
from cascade.training.objective import Objective, prices_of
from cascade.training.simple import doubtful_verdict, fixed_depth, one_threshold
from unit.calibration.logs import log

TABLE = log(500)
TERMS = Objective(Guarantee("coverage", 0.1), 0.1, prices_of(TABLE))
FOLD = folds(TABLE, 5, 0)
DEPTH = Candidate("depth", "depth", 0, fixed_depth)
VERDICT = Candidate("verdict", "threshold", 1, doubtful_verdict)


def on(signal: str, complexity: int = 1) -> Candidate:
    return Candidate(signal, "threshold", complexity, lambda table: one_threshold(table, signal, get("coverage")))


def chosen(
    *candidates: Candidate, table: EpisodeTable = TABLE, objective: Objective = TERMS, rule: Rule | None = None
) -> Choice:
    return choose(table, candidates, objective, folds(table, 5, 0), rule=Rule() if rule is None else rule)


def test_each_question_is_scored_by_a_model_that_has_not_seen_it() -> None:
    """A policy that remembers its questions' answers would be perfect on them; out of fold it knows nothing."""
    seen: list[frozenset[str]] = []

    def remembers(table: EpisodeTable) -> Policy:
        seen.append(frozenset(table.questions))
        return fixed_depth(table)

    cross_fitted(TABLE, [replace(DEPTH, fit=remembers)], FOLD)
    assert len(seen) == 5
    for number, known in enumerate(seen):
        held_out = {TABLE.questions[row] for row in np.flatnonzero(number == FOLD)}
        assert held_out
        assert known == set(TABLE.questions) - held_out


def test_scores_out_of_fold_are_those_of_the_fold_s_model() -> None:
    found = cross_fitted(TABLE, [on("p_yes")], FOLD)[0][on("p_yes").name]
    for number in range(5):
        policy = one_threshold(TABLE.take(number != FOLD), "p_yes", get("coverage"))
        part = sample_of(TABLE.take(number == FOLD), policy)
        assert np.array_equal(found.sample.scores.next[number == FOLD], part.scores.next)
    assert np.array_equal(found.sample.levels.reach, levels(TABLE.arrays, found.sample.scores).reach)


def test_the_figure_is_the_cost_at_the_loss_matched_in_each_fold() -> None:
    found = chosen(DEPTH, VERDICT).of("verdict")
    costs = []
    for number in range(5):
        part = sample_of(TABLE.take(number == FOLD), doubtful_verdict(TABLE))
        point = frontier(part.table.arrays, part.levels).matched(0.9)
        assert point is not None
        costs.append((part.table.n, point.cost))
    assert found.matched == pytest.approx(sum(n * cost for n, cost in costs) / TABLE.n)


def test_a_depth_is_served_at_one_depth_and_no_coin_helps_it() -> None:
    arrays, total = TABLE.arrays, 0
    for number in range(5):
        rows = number == FOLD
        right = np.logical_or.accumulate(arrays.correct[rows].any(axis=2), axis=1)
        missed = (~right & arrays.solvable[rows][:, None]).mean(axis=0)
        total += int(arrays.cost[rows][:, : int((missed <= 0.1).argmax()) + 1].sum())
    found = chosen(DEPTH, VERDICT)
    assert found.of("depth").matched == pytest.approx(total / TABLE.n)
    assert found.of("depth").why.endswith("more than chance")


def test_of_equals_the_simplest_is_chosen() -> None:
    twin = replace(VERDICT, name="twin", complexity=4)
    found = chosen(twin, VERDICT)
    assert found.chosen is VERDICT
    assert found.of("twin").matched == found.winner.matched
    assert found.of("twin").difference == (0.0, 0.0)


def test_the_best_wins_over_a_simpler_one_that_is_worse() -> None:
    found = chosen(on("agrees_with_earlier", 0), replace(VERDICT, complexity=5))
    assert found.chosen.name == "verdict"
    worse = found.of("agrees_with_earlier")
    assert worse.difference is not None
    assert worse.difference.low > 0
    assert worse.matched is not None
    assert found.winner.matched is not None
    assert worse.matched > found.winner.matched


def test_the_rule_says_what_is_as_good() -> None:
    simple, best = on("reply_mean_logprob", 0), replace(VERDICT, complexity=5)
    loose = chosen(simple, best, rule=Rule(level=0.0, margin=10.0))
    assert loose.chosen is simple
    assert "simpler" in loose.winner.why
    assert "which is simpler" in loose.of("verdict").why
    assert chosen(simple, best, rule=Rule(level=0.0, margin=0.0)).chosen is best
    assert chosen(simple, best, rule=Rule(level=1.0, margin=10.0)).chosen is best


def test_what_cannot_be_fitted_is_told_and_left_out() -> None:
    def fails(table: EpisodeTable) -> Policy:
        raise UsageError("it needs what is not there")

    broken = Candidate("broken", "purchases", 5, fails)
    found = chosen(DEPTH, broken)
    assert found.chosen is DEPTH
    assert found.of("broken").why == "not fitted: it needs what is not there"
    assert (found.of("broken").matched, found.of("broken").coverage) == (None, None)
    with pytest.raises(UsageError, match="No policy can be fitted: it needs"):
        chosen(broken)

    def fails_too(table: EpisodeTable) -> Policy:
        raise UsageError("it is too slow")

    with pytest.raises(UsageError, match="fitted: broken: it needs what is not there; slow: it is too slow"):
        chosen(broken, Candidate("slow", "purchases", 5, fails_too))


def test_what_keeps_the_promise_at_no_threshold_is_not_chosen() -> None:
    def never(table: EpisodeTable) -> Policy:
        nothing = (None, None)
        rule = StepRule(FeatureSet((), table.sources), Constant(-math.inf), nothing, nothing)
        return LearnedPolicy("depth", (rule,) * table.arrays.horizon)

    stuck = Candidate("stuck", "depth", 0, never)
    found = chosen(stuck, VERDICT)
    assert found.chosen is VERDICT
    assert found.of("stuck").why == "keeps the promise at no threshold"


def test_the_order_of_the_questions_changes_nothing() -> None:
    groups = [f"g{row // 4}" for row in range(500)]
    table = replace(TABLE, groups=tuple(groups))
    order = np.random.default_rng(1).permutation(500)
    one = chosen(DEPTH, VERDICT, on("p_yes"), table=table)
    other = chosen(DEPTH, VERDICT, on("p_yes"), table=table.take(order))
    for a, b in zip(one.judged, other.judged, strict=True):
        assert replace(a, fit_seconds=0.0) == replace(b, fit_seconds=0.0)


def test_fewer_questions_are_fitted_on_where_a_candidate_is_slow() -> None:
    sizes: list[int] = []

    def counts(table: EpisodeTable) -> Policy:
        sizes.append(table.n)
        return fixed_depth(table)

    table = replace(TABLE, groups=tuple([f"g{row // 5}" for row in range(500)]))
    cross_fitted(table, [Candidate("slow", "depth", 0, counts, most_rows=200)], folds(table, 5, 0))
    assert sizes == [200] * 5
    first = list(sizes)
    sizes.clear()
    cross_fitted(table, [Candidate("slow", "depth", 0, counts, most_rows=200)], folds(table, 5, 0))
    assert sizes == first


@pytest.mark.parametrize("most", [1, 7, 30, 120, 399, 10_000])
def test_no_more_questions_are_fitted_on_than_is_said_and_at_least_one_group(most: int) -> None:
    rng, taken = np.random.default_rng(most), list[tuple[str, ...]]()
    held = replace(TABLE, groups=tuple([f"g{int(one)}" for one in rng.integers(0, 12, size=500) ** 2 // 10]))
    fold = folds(held, 3, 0)

    def notes(table: EpisodeTable) -> Policy:
        taken.append(tuple(sorted(table.ids)))
        assert 0 < table.n <= most or len(set(table.groups)) == 1
        assert all(table.groups.count(group) == held.groups.count(group) for group in set(table.groups))
        return fixed_depth(table)

    for order in (np.arange(500), rng.permutation(500)):
        cross_fitted(held.take(order), [Candidate("slow", "depth", 0, notes, most_rows=most)], fold[order])
    assert taken[:3] == taken[3:]


def test_a_candidate_whose_answer_votes_decide_is_passed_over_in_a_log_without_texts() -> None:
    """One that is surer of one answer than of the others is not."""
    confidence = np.full(TABLE.confidence.shape, np.nan)
    bare = replace(TABLE, texts_known=np.zeros(TABLE.n, dtype=np.bool_), confidence=confidence)
    objective = Objective(Guarantee("error", 0.45, 0.1), 0.45, prices_of(bare))

    def first_is_surest(table: EpisodeTable) -> Policy:
        return _Surest("depth", fixed_depth(table).rules)

    surest = Candidate("surest", "depth", 1, first_is_surest)
    found = chosen(DEPTH, surest, table=bare, objective=objective)
    assert found.chosen is surest
    assert found.of("depth").why.startswith("not fitted: Votes decide which answer is served on 500 of 500")
    with pytest.raises(UsageError, match=r"fitted: Votes decide which answer is served on 500 of 500 [^;]+$"):
        chosen(DEPTH, replace(DEPTH, name="again"), table=bare, objective=objective)
    assert chosen(DEPTH, table=bare).chosen is DEPTH


class _Surest(LearnedPolicy):
    """A fixed depth that is the surer of an answer the earlier it comes."""

    def batch(self, history: History) -> BatchScores:
        found = LearnedPolicy.batch(self, history)
        places = np.arange(history.answer[0].size).reshape(1, *history.answer.shape[1:])
        return found._replace(confidence=np.where(history.answer >= 0, 1 / (2.0 + places), np.nan))


@pytest.mark.parametrize(
    ("kind", "more", "alpha", "unit"),
    [
        ("coverage", {}, 0.1, "nano_usd"),
        ("error", {"delta": 0.1}, 0.3, "nano_usd"),
        ("regret", {"delta": 0.1}, 0.2, "nano_usd"),
    ],
)
def test_every_kind_has_its_figures(kind: str, more: dict[str, int], alpha: float | None, unit: str) -> None:
    objective = Objective(Guarantee(kind, 0.1, **more), alpha, prices_of(TABLE))  # type: ignore[arg-type]  # as given
    found = chosen(DEPTH, VERDICT, on("p_yes"), objective=objective)
    assert (found.unit, found.alpha, found.folds, found.n) == (unit, alpha, 5, 500)
    figures = [one.matched for one in found.judged]
    assert all(figure is not None and figure > 0 for figure in figures)
    if unit == "missed":
        assert all(figure is not None and figure < 1 for figure in figures)


def test_without_costs_steps_are_counted() -> None:
    table = replace(TABLE, cost_known=False)
    objective = Objective(Guarantee("coverage", 0.1), 0.1, prices_of(table))
    found = chosen(DEPTH, VERDICT, table=table, objective=objective)
    assert found.unit == "steps"
    assert all(one.matched is not None and 1 <= one.matched <= 4 for one in found.judged)


def test_a_fold_that_cannot_keep_the_promise_is_matched_with_the_others() -> None:
    """Records that end early are missed at every threshold; here they all lie in few folds."""
    short = np.isin(FOLD, [0]) & ~TABLE.arrays.solvable
    assert short.sum() / (FOLD == 0).sum() > 0.05
    arrays = replace(TABLE.arrays, complete=~short)
    objective = Objective(Guarantee("coverage", 0.05), 0.05, prices_of(TABLE))
    found = chosen(DEPTH, VERDICT, table=replace(TABLE, arrays=arrays), objective=objective)
    assert found.winner.matched is not None


def test_a_choice_without_a_comparison_says_why() -> None:
    found = unchosen(TABLE, DEPTH, [DEPTH, VERDICT], TERMS)
    assert (found.chosen, found.folds, found.winner.matched) == (DEPTH, 0, None)
    assert found.winner.why == "500 questions are too few to choose by"
    assert unchosen(TABLE, DEPTH, [DEPTH], TERMS).winner.why == "there is no other"


def test_many_useless_numbers_hardly_ever_win_over_a_telling_one() -> None:
    """Of 20 candidates that know nothing the luckiest is seldom taken for better than one that knows something."""
    names = []
    for seed in range(4):
        table = log(500, 40 + seed)
        chance = np.random.default_rng(seed)
        noise = {f"noise {k}": chance.random(table.arrays.cost.shape) for k in range(20)}
        table = replace(table, signals={**table.signals, **noise})
        names.append(chosen(*(on(name) for name in noise), VERDICT, table=table).chosen.name)
    assert names.count("verdict") >= 3


def test_a_signal_of_two_values_is_judged_at_thresholds_that_can_be_served() -> None:
    """Between its thresholds a coin would be cheaper than any of them, and nobody serves it."""
    sure = TABLE.signals["p_yes"]
    table = replace(TABLE, signals={**TABLE.signals, "gate": np.where(np.isnan(sure), np.nan, 1.0 * (sure > 0.5))})
    sample, total = cross_fitted(table, [on("gate")], FOLD)[0]["gate"].sample, 0.0
    for number in range(5):
        rows = np.flatnonzero(number == FOLD)
        part = sample_of(table.take(rows), one_threshold(table.take(number != FOLD), "gate", get("coverage")))
        assert np.array_equal(part.scores.next, sample.scores.next[rows])
        each = [rollout(part.table.arrays, part.levels, kappa) for kappa in (np.inf, 0.0, -0.0, -1.0, -np.inf)]
        total += min(float(did.cost.sum()) for did in each if did.covered.mean() >= 0.9)
    assert chosen(on("gate"), DEPTH, table=table).of("gate").matched == pytest.approx(total / table.n)
