"""One threshold per rung: what is tuned is what trying all of them finds, and it serves as it was tuned."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.samples import PER_RUNG, doubt_of, folds, rung_doubt
from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import rollout
from cascade.guarantees import get
from cascade.guarantees.base import Guarantee
from cascade.policies import model_file
from cascade.policies.estimators import Constant, Piecewise
from cascade.training.choosing import choose
from cascade.training.objective import Objective
from cascade.training.portfolio import portfolio
from cascade.training.simple import LEVELS, Problem, Vector, search, summed, threshold_per_rung, tuned
from cascade.training.stages import FitTarget
from unit.scaled import ladder

TABLE = ladder(300)
DOUBT = doubt_of(TABLE)


def problem(rng: np.random.Generator, n: int, rungs: int, places: int) -> Problem:
    place = rng.integers(0, places + 1, size=(n, rungs))
    grids = tuple([np.arange(places, dtype=np.float64)] * rungs)
    loss = (rng.random((n, rungs + 1)) < np.linspace(0.5, 0.0, rungs + 1)).astype(np.float64)
    paid = np.cumsum(rng.integers(1, 9, size=(n, rungs + 1)), axis=1).astype(np.float64)
    return Problem(place, grids, loss, paid, float(rng.integers(1, 1 + n // 4)), 0.0)


def sums(one: Problem, vector: Vector) -> tuple[float, float]:
    """Return what is limited and what is paid, question by question."""
    limited = paid = 0.0
    for q, places in enumerate(one.place.tolist()):
        stop = next((r for r, place in enumerate(places) if place < vector[r]), len(vector))
        limited, paid = limited + one.limited[q, stop], paid + one.paid[q, stop]
    return float(limited), float(paid)


@pytest.mark.parametrize("rungs", [1, 2, 3])
def test_the_search_finds_what_trying_all_thresholds_finds(rungs: int) -> None:
    rng = np.random.default_rng(rungs)
    for _ in range(10):
        one = problem(rng, 12, rungs, 4)
        low, high = (1,) + (0,) * (rungs - 1), (4,) * rungs
        box = itertools.product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
        every = {vector: sums(one, vector) for vector in box}
        able = [both for both in every.values() if both[0] <= one.limit]
        found = every[search(one, one.limit, low, high)]
        least = min(limited for limited, _ in every.values())
        wanted = (
            min(able, key=lambda both: both[1]) if able else (least, min(p for m, p in every.values() if m == least))
        )
        assert found[1] == wanted[1]
        assert found[0] <= max(one.limit, least)


def test_the_sums_of_all_combinations_are_those_of_each() -> None:
    one = problem(np.random.default_rng(5), 30, 3, 3)
    found = summed(one.place + 1, one.paid, (4, 4, 4))
    for vector in itertools.product(range(4), repeat=3):
        assert found[vector] == sums(one, vector)[1]


def test_finer_grids_come_near_the_best_where_combinations_are_too_many_to_try(monkeypatch: pytest.MonkeyPatch) -> None:
    one = problem(np.random.default_rng(7), 300, 3, 30)
    exact = sums(one, search(one, one.limit, (0,) * 3, (30,) * 3))
    monkeypatch.setattr("cascade.training.simple.CELLS", 1_000)
    near = sums(one, search(one, one.limit, (0,) * 3, (30,) * 3))
    everything = one.paid[:, -1].sum()
    assert near[0] <= one.limit
    assert everything - near[1] >= 0.9 * (everything - exact[1])


def test_laxer_thresholds_stop_wherever_stricter_ones_do() -> None:
    rng = np.random.default_rng(9)
    for rungs in (1, 2, 4):
        path = np.array(tuned(problem(rng, 100, rungs, 20), LEVELS))
        assert (np.diff(path, axis=0) >= 0).all()
        assert len(np.unique(path, axis=0)) > 2


@pytest.mark.parametrize("kind", ["coverage", "error", "regret"])
def test_the_policy_stops_where_the_thresholds_were_tuned_to(kind: str) -> None:
    """At its own level it keeps what was asked for on the questions that it was tuned on."""
    assert DOUBT is not None
    asked = FitTarget(kind, 0.3)
    made = threshold_per_rung(TABLE, DOUBT, asked)
    sample = sample_of(TABLE, made)
    found = rollout(TABLE.arrays, sample.levels, made.kappa)
    assert 1 < found.length.mean() < 4
    loss = get(kind).loss(TABLE, sample.table.confidence)[np.arange(TABLE.n), found.length - 1]
    assert loss.mean() <= 0.3
    strict = rollout(TABLE.arrays, sample.levels, made.kappa - 2)
    assert (strict.length >= found.length).all()
    assert strict.cost.sum() > found.cost.sum()


def test_its_scores_rise_with_the_doubt_and_an_unknown_one_goes_on() -> None:
    assert DOUBT is not None
    values = TABLE.signals["reply_mean_logprob"].copy()
    values[::5, 1] = np.nan
    table = replace(TABLE, signals={"reply_mean_logprob": values})
    made = threshold_per_rung(table, DOUBT, FitTarget("coverage", 0.1))
    onward = sample_of(table, made).scores.next
    assert (onward[::5, 1] == np.inf).all()
    for rung in range(3):
        known = ~np.isnan(values[:, rung])
        assert (np.diff(onward[known, rung][np.argsort(-values[known, rung])]) >= 0).all()
    data = model_file.dumps(made)
    again = model_file.loads(data, model_file.settings(made, data, {}))
    assert sample_of(table, again).scores.next.tolist() == onward.tolist()


def test_a_rung_whose_doubt_is_never_known_goes_on() -> None:
    assert DOUBT is not None
    values = TABLE.signals["reply_mean_logprob"].copy()
    values[:, 1] = np.nan
    made = threshold_per_rung(replace(TABLE, signals={"reply_mean_logprob": values}), DOUBT, FitTarget("coverage", 0.1))
    first, second, _, _ = (rule.next for rule in made.rules)
    assert isinstance(first, Piecewise)
    assert isinstance(second, Constant)
    assert second.number == math.inf


def test_it_is_tried_on_ladders_of_three_models_and_not_on_pairs() -> None:
    for models, there in ((2, False), (3, True), (4, True)):
        table = ladder(60, models)
        objective = Objective.of(table, Guarantee("coverage", 0.1), 0.1)
        found = {one.name: one for one in portfolio(table, objective)}
        assert (PER_RUNG in found) == there
        assert (rung_doubt(table) is not None) == there
        if there:
            shared, own, learned = (
                found[name] for name in ("threshold on reply_mean_logprob", PER_RUNG, "net benefit")
            )
            assert shared.complexity < own.complexity < learned.complexity
    blind = replace(TABLE, signals={"likes": TABLE.signals["reply_mean_logprob"]})
    assert PER_RUNG not in [one.name for one in portfolio(blind, Objective.of(blind, Guarantee("coverage", 0.1), 0.1))]


@pytest.mark.parametrize("kind", ["coverage", "regret"])
def test_it_beats_one_shared_threshold_where_models_are_sure_on_different_scales(kind: str) -> None:
    """0.5.0 had no such candidate, so that what it showed as a gain by learning was mostly a gain by scales."""
    table, guarantee = ladder(600), Guarantee(kind, 0.05, 0.1)
    objective = Objective.of(table, guarantee, 0.05)
    tried = [one for one in portfolio(table, objective) if one.name in {PER_RUNG, "threshold on reply_mean_logprob"}]
    found = choose(table, tried, objective, folds(table, 5, 0))
    own, shared = found.of(PER_RUNG).matched, found.of("threshold on reply_mean_logprob").matched
    assert own is not None
    assert shared is not None
    assert own < 0.9 * shared
    assert found.chosen.name == PER_RUNG
