"""Invariants of the comparison: the same again, in any unit of money, and never better than the bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from unit.evaluation.plain import Asked, Shown, by_chance, each, table_of

from cascade.calibration.samples import KNOWN
from cascade.conformal.split import allowed_misses, split_kappa
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.baselines import CLAIRVOYANT, Depth, Uala, played_at
from cascade.evaluation.compare import Comparison, compare
from cascade.evaluation.methods import Chance, Threshold, means
from cascade.evaluation.splits import splits
from property.examples import times

WIDTH, HORIZON = 2, 3
VERDICT = KNOWN[0]
SIGNAL = st.none() | st.floats(0, 1)


@st.composite
def shown(draw: st.DrawFn) -> tuple[Shown, ...]:
    present = draw(st.sets(st.integers(0, WIDTH - 1)))
    sure = st.none() | st.floats(0, 1)
    return tuple(Shown(a, draw(st.integers(0, 3)), draw(st.booleans()), draw(sure)) for a in sorted(present))


@st.composite
def questions(draw: st.DrawFn) -> Asked:
    steps = draw(st.lists(shown(), min_size=1, max_size=HORIZON))
    costs = draw(st.lists(st.integers(0, 10**10), min_size=len(steps), max_size=len(steps)))
    signals = [{"p_yes": draw(SIGNAL), "reply_mean_logprob": None} for _ in steps]
    return Asked(tuple(steps), tuple(costs), tuple(signals), draw(st.booleans()))


LOG = st.lists(questions(), min_size=1, max_size=8)
LARGER = st.lists(questions(), min_size=6, max_size=14)
ENDS_WITH_AN_ANSWER = st.lists(questions().filter(lambda asked: bool(asked.steps[-1])), min_size=6, max_size=14)


def table(log: list[Asked]) -> EpisodeTable:
    return table_of(log, HORIZON, WIDTH)


def figures(found: Comparison) -> list[tuple[object, ...]]:
    return [(row.policy, row.mean, row.sd, row.cost_difference, row.matched_cost_usd) for row in found.rows]


@given(LOG)
def test_chance_is_the_mean_of_all_paths(log: list[Asked]) -> None:
    got = each(Chance().prepare(table(log), table(log), 0.1, 0).play(table(log)))
    for one, wanted in zip(got, map(by_chance, log), strict=True):
        assert np.allclose(one, wanted, rtol=1e-9, atol=1e-12)


@given(LOG, st.integers(1, HORIZON))
def test_more_depth_costs_more_and_covers_more(log: list[Asked], depth: int) -> None:
    one, other = (each(Depth(d).prepare(table(log), table(log), 0.1, 0).play(table(log))) for d in (depth, depth + 1))
    for less, more in zip(one, other, strict=True):
        assert all(a <= b for a, b in zip(less[:2] + less[3:], more[:2] + more[3:], strict=True))


@given(LOG, st.floats(0, 1))
def test_a_threshold_covers_no_fewer_as_it_falls(log: list[Asked], kappa: float) -> None:
    scores = Threshold(VERDICT).prepare(table(log), table(log), 0.5, 0).scores
    assert scores is not None
    high, low = (means(table(log), played_at(table(log), scores(table(log)), k)) for k in (kappa, kappa / 2))
    assert low.coverage >= high.coverage
    assert (low.cost_usd or 0) >= (high.cost_usd or 0)


@given(LOG, st.sampled_from([0.0, 0.05, 0.1, 0.25, 0.5, 0.9, 1.0]))
def test_of_the_calibration_questions_themselves_no_more_than_allowed_are_missed(
    log: list[Asked], alpha: float
) -> None:
    ready = Threshold(VERDICT).prepare(table([]), table(log), alpha, 0)
    missed = sum(not did.covered for did in each(ready.play(table(log))))
    never = sum(not did.covered for did in each(played_at(table(log), ready.scores(table(log)), -np.inf)))  # type: ignore[misc]
    assert missed <= max(allowed_misses(len(log) + 1, alpha) - 1, never)


@given(LOG, st.sampled_from([0.1, 0.34, 0.5]))
def test_ualas_threshold_covers_enough_of_its_training_questions_or_as_many_as_any(
    log: list[Asked], alpha: float
) -> None:
    ready = Uala(VERDICT).prepare(table(log), table([]), alpha, 0)
    covered = sum(did.covered for did in each(ready.play(table(log))))

    def at(threshold: float) -> float:
        return float(played_at(table(log), Uala(VERDICT).scores(table(log), threshold), threshold).covered.sum())

    best = max(at(threshold) for threshold in (0.0, 0.05, 0.2, 0.4, 0.6, 0.7, np.inf))
    assert covered >= min(len(log) - allowed_misses(len(log), alpha), best)


@times(0.8)
@given(LARGER, st.integers(0, 3))
def test_units_of_money_do_not_matter(log: list[Asked], seed: int) -> None:
    one = table(log)
    dearer = replace(one, arrays=replace(one.arrays, cost=one.arrays.cost * 1_000))
    for row, more in zip(
        compare(one, count=2, seed=seed, alpha=0.3).rows,
        compare(dearer, count=2, seed=seed, alpha=0.3).rows,
        strict=True,
    ):
        assert (row.policy, row.mean.coverage, row.mean.accuracy) == (
            more.policy,
            more.mean.coverage,
            more.mean.accuracy,
        )
        assert np.isclose((row.mean.cost_usd or 0) * 1_000, more.mean.cost_usd or 0)


@times(0.8)
@given(LARGER, st.sampled_from([0.05, 0.2, 0.5]))
def test_whatever_the_log_it_compares_and_nobody_beats_the_bound(log: list[Asked], alpha: float) -> None:
    found = compare(table(log), count=2, alpha=alpha)
    assert figures(found) == figures(compare(table(log), count=2, alpha=alpha))
    bound = found.row(CLAIRVOYANT)
    for row in found.rows:
        assert 0 <= row.mean.accuracy <= 1  # an answer that was not kept is served where the last step brought none
        assert row.mean.in_set <= row.mean.coverage + 1e-12 <= 1 + 1e-9
        assert row.mean.set_size <= row.mean.leaves + 1e-12
        assert 1 <= row.mean.avg_length <= HORIZON
        if row.matched_cost_usd is not None:
            assert row.matched_cost_usd >= (bound.matched_cost_usd or 0) * (1 - 1e-9)


@given(st.lists(st.text(max_size=3), min_size=3, max_size=40), st.integers(0, 5))
def test_splits_hold_every_question_once_and_cut_no_group(groups: list[str], seed: int) -> None:
    assume(len(set(groups)) >= 3)
    for split in splits(groups, 2, seed):
        parts = (split.train, split.calibration, split.test)
        assert sorted(np.concatenate(parts).tolist()) == list(range(len(groups)))
        names = [{groups[row] for row in part} for part in parts]
        assert all(names)
        assert sum(map(len, names)) == len(set(groups))


@given(st.lists(st.floats(allow_nan=False), max_size=30), st.sampled_from([0.0, 0.1, 0.29, 0.5, 0.99, 1.0]))
def test_no_more_calibration_questions_than_allowed_lie_below_the_threshold(values: list[float], alpha: float) -> None:
    critical = np.array(values)
    kappa = split_kappa(critical, alpha)
    k = allowed_misses(critical.size + 1, alpha)
    assert np.count_nonzero(critical < kappa) <= max(k - 1, 0)
    if 0 < k <= critical.size:
        assert np.count_nonzero(critical <= kappa) >= k
    assert split_kappa(np.sort(critical)[::-1], alpha) == kappa


@times(0.8)
@given(ENDS_WITH_AN_ANSWER, st.sampled_from([0.05, 0.2, 0.5]))
def test_where_the_last_step_has_an_answer_the_one_served_is_among_those_kept(log: list[Asked], alpha: float) -> None:
    for row in compare(table(log), count=2, alpha=alpha).rows:
        assert 0 <= row.mean.accuracy <= row.mean.in_set + 1e-12
