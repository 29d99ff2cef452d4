"""What further answers are charged with is shown beside what is paid, never as a part of it."""

from __future__ import annotations

from functools import cache

import pytest

from cascade.evaluation.baselines import baseline_figures
from cascade.evaluation.plots import drawing
from cascade.guarantees import get
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log


@cache
def fit(lambda_set: float, kind: str = "coverage") -> Fitted:
    delta = 0.1 if kind == "error" else None
    alpha = 0.6 if kind == "error" else 0.1
    return fit_policy([log(150)], Guarantee(kind, alpha, delta), method="auto", lambda_set=lambda_set)


@pytest.mark.parametrize("lambda_set", [0.5, 1e9])
def test_costs_are_what_is_paid_and_the_charge_stands_beside(lambda_set: float) -> None:
    free, charged = fit(0.0).choice, fit(lambda_set).choice
    dearest = float(charged.sample.table.arrays.cost.sum(axis=1).mean())
    depth, before = charged.of("fixed depth"), free.of("fixed depth")
    assert depth.matched == pytest.approx(before.matched)
    assert before.charge is None
    for one in charged.judged:
        assert one.matched is not None
        assert 0 < one.matched <= dearest * 1.0001, one.name
        assert one.charge is not None
        assert one.charge >= 0
    assert depth.charge is not None
    assert depth.charge > 0


def test_candidates_are_compared_by_both_together() -> None:
    choice = fit(50.0).choice
    together = {one.name: (one.matched or 0.0) + (one.charge or 0.0) for one in choice.judged}
    best = min(together, key=lambda name: together[name])
    assert choice.of(best).why.startswith("the least")


def test_where_one_answer_is_served_nothing_is_charged() -> None:
    assert all(one.charge is None for one in fit(0.5, "error").choice.judged)


def test_the_plot_shows_what_is_paid() -> None:
    choice = fit(1e9).choice
    shown = drawing(choice, baseline_figures(choice.sample.table, get("coverage"), choice.alpha), None)
    most = float(choice.sample.table.arrays.cost.sum(axis=1).mean()) / 1e6
    assert max(cost for _, cost in shown.curve) <= most * 1.0001
    assert max(mark.cost for mark in shown.candidates) <= most * 1.0001
