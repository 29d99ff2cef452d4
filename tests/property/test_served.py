"""Invariants of what is served along a path: exact sums, rising with boldness, blind to order."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from unit.conformal.brute import Case, pack

from cascade.conformal.arrays import levels
from cascade.conformal.ltt import order_path
from cascade.conformal.served import PathPoint, Served, last_resort, served, single
from property.test_rollout_arrays import HORIZON, KAPPA, LOG, WIDTH

BAR = st.floats(0, 1) | st.sampled_from([math.inf, -math.inf, 0.0, 0.5])
PATH = st.lists(st.builds(PathPoint, KAPPA, BAR), min_size=1, max_size=6)


def served_of(log: list[Case]) -> Served:
    steps, scores, confidence = pack(log, HORIZON, WIDTH)
    return served(steps, levels(steps, scores), confidence)


@given(LOG, PATH)
def test_totals_are_the_sums_of_the_questions_looked_up_one_by_one(log: list[Case], path: list[PathPoint]) -> None:
    found = served_of(log)
    along, each = found.along(path), [found.at(point) for point in path]
    assert along.losses.tolist() == [one.loss.sum() for one in each]
    assert along.abstained.tolist() == [one.abstained.sum() for one in each]
    assert along.cost_nano_usd.tolist() == [one.cost.sum() for one in each]


@given(LOG, KAPPA)
def test_without_a_bar_the_losses_of_whole_records_are_those_of_single(log: list[Case], kappa: float) -> None:
    whole = [case._replace(complete=True) for case in log]
    steps, scores, confidence = pack(whole, HORIZON, WIDTH)
    found = single(steps, levels(steps, scores), confidence, kappa)
    right = np.where(found.answer < 0, last_resort(steps, confidence), found.right)
    assert served_of(whole).at(PathPoint(kappa)).loss.tolist() == (~right).tolist()


@given(LOG, KAPPA, BAR, BAR)
def test_a_lower_bar_answers_and_loses_no_less(log: list[Case], kappa: float, one: float, other: float) -> None:
    found = served_of(log)
    bold, shy = found.at(PathPoint(kappa, min(one, other))), found.at(PathPoint(kappa, max(one, other)))
    assert not (bold.abstained & ~shy.abstained).any()
    assert not (shy.loss & ~bold.loss).any()
    assert np.array_equal(bold.cost, shy.cost)


@given(LOG, KAPPA, KAPPA, BAR)
def test_a_lower_kappa_costs_no_less(log: list[Case], one: float, other: float, bar: float) -> None:
    found = served_of(log)
    low, high = found.at(PathPoint(min(one, other), bar)), found.at(PathPoint(max(one, other), bar))
    assert (low.cost >= high.cost).all()


@given(LOG, PATH, st.randoms(use_true_random=False))
def test_the_order_of_the_questions_does_not_matter(log: list[Case], path: list[PathPoint], random) -> None:
    order = np.array(random.sample(range(len(log)), len(log)))
    one = served_of(log)
    other = one.take(order)
    assert one.along(path).losses.tolist() == other.along(path).losses.tolist()
    for abstain in (False, True):
        assert order_path(one, alpha=0.3, abstain=abstain) == order_path(other, alpha=0.3, abstain=abstain)


@given(LOG, st.booleans(), st.integers(3, 40))
def test_a_path_falls_in_cost_from_the_safest_to_the_cheapest(log: list[Case], abstain: bool, most: int) -> None:
    found = served_of(log)
    path = order_path(found, alpha=0.3, abstain=abstain, most_points=most)
    along = found.along(path)
    assert len(set(path)) == len(path) <= most
    assert (np.diff(along.cost_nano_usd) <= 0).all()
    assert (np.diff(along.abstained) <= 0).all()
    assert (path[0].abstain_below == math.inf) == abstain
    assert path[-1].abstain_below == -math.inf


@given(LOG, st.integers(3, 40))
def test_a_path_comes_to_the_fewest_losses_from_hardly_more_and_leaves_them_rising(log: list[Case], most: int) -> None:
    found = served_of(log)
    losses = found.along(order_path(found, alpha=0.3, most_points=most)).losses.tolist()
    kappas = [math.inf, *found.level[found.level > -math.inf].tolist()]
    fewest = min(int(found.at(PathPoint(kappa)).loss.sum()) for kappa in kappas)
    last = len(losses) - 1 - losses[::-1].index(fewest)
    assert all(lost <= fewest + math.sqrt(max(fewest, 1)) for lost in losses[:last])
    assert losses[last:] == sorted(set(losses[last:])), "strictly rising"
