"""What a walk counts is what the guarantees count: losses against the rules that certify, costs against the rollout."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.scores import Sample, sample_of
from cascade.conformal.arrays import levels, rollout
from cascade.conformal.served import PathPoint, served
from cascade.conformal.split import covered_at
from cascade.guarantees.base import Guarantee
from cascade.guarantees.served_answer import Error, Regret
from cascade.training.objective import Prices, cost_at_loss, curve_of, prices_of
from unit.calibration.logs import POLICY, log
from unit.conformal.brute import batches, pack, telling_kappas

FREE = Prices(in_money=True)


def sample(n: int = 400, seed: int = 0) -> Sample:
    return sample_of(log(n, seed), POLICY)


def at(one: Sample, kind: str, allowed: float, **more: object) -> float:
    return cost_at_loss(curve_of(one, Guarantee(kind, **more), FREE), allowed, coin=0.0)  # type: ignore[arg-type]  # as given


def kappas(one: Sample) -> np.ndarray:
    """Return every threshold at which something changes, falling."""
    found = one.levels.reach[np.isfinite(one.levels.reach)]
    return np.append(np.inf, np.unique(found)[::-1])


def test_coverage_costs_what_the_first_threshold_that_keeps_it_costs() -> None:
    one = sample()
    for allowed in (0.05, 0.1, 0.2):
        for kappa in kappas(one).tolist():
            if (~covered_at(one.critical(), kappa)).mean() <= allowed:
                expected = rollout(one.table.arrays, one.levels, kappa).cost.mean()
                break
        assert at(one, "coverage", allowed) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["error", "regret"])
def test_the_single_answer_counts_as_served_does(kind: str) -> None:
    one = sample(300)
    held = {"error": Error(), "regret": Regret()}[kind].served(one)
    for allowed in (0.1, 0.3, 0.5):
        losses = [(held.at(PathPoint(kappa)).loss.mean(), kappa) for kappa in kappas(one).tolist()]
        first = next((kappa for loss, kappa in losses if loss <= allowed), None)
        expected = math.inf if first is None else rollout(one.table.arrays, one.levels, first).cost.mean()
        assert at(one, kind, allowed, delta=0.1) == pytest.approx(expected)


def test_single_losses_are_those_of_random_questions_at_every_threshold() -> None:
    rng = np.random.default_rng(0)
    checked = 0
    for cases, horizon, width in batches(seed=7, per_shape=40):
        steps, scores, confidence = pack(cases, horizon, width)
        held = served(steps, levels(steps, scores), confidence)
        losses = held.losses()
        for row, case in enumerate(cases):
            for kappa in telling_kappas(case, rng, 6):
                assert int(losses.at(kappa)[row]) == int(held.at(PathPoint(kappa)).loss[row])
                checked += 1
    assert checked > 1_000


def test_costs_that_are_not_known_count_in_steps() -> None:
    table = replace(log(300), cost_known=False)
    one = sample_of(table, POLICY)
    prices = prices_of(table)
    assert not prices.in_money
    found = cost_at_loss(curve_of(one, Guarantee("coverage", 0.1), prices), 0.1, coin=0.0)
    for kappa in kappas(one).tolist():
        if (~covered_at(one.critical(), kappa)).mean() <= 0.1:
            assert found == pytest.approx(rollout(table.arrays, one.levels, kappa).length.mean())
            return
    raise AssertionError
