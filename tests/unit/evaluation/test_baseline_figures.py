"""The baselines' figures for a fit, on a log on which every figure is known."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each

from cascade.calibration.samples import doubt_of
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.baselines import CLAIRVOYANT, BaselineFigures, Uala, baseline_figures
from cascade.guarantees import get
from unit.cli.certified import hard_rows
from unit.scaled import ladder


def made() -> EpisodeTable:
    (table,) = tables_from_rows(hard_rows(100, range(0, 40, 2)))
    return table


def by_name(found: list[BaselineFigures]) -> dict[str, BaselineFigures]:
    return {one.name: one for one in found}


def test_every_figure_is_known() -> None:
    found = by_name(baseline_figures(made(), get("coverage"), 0.1))
    # 20 of 100 are answered by the second step alone; steps cost 0.001 and 0.002
    assert found["last model only"] == BaselineFigures("last model only", 0.002, 1.0, 1.0, 1.0)
    assert found["base only"] == BaselineFigures("base only", 0.001, 1.0, 0.8, 0.8)
    assert found["all steps"].cost_usd == pytest.approx(0.003)
    assert found[CLAIRVOYANT].cost_usd == pytest.approx(0.001 + 0.1 * 0.002)  # ten of the twenty are given up
    assert (found[CLAIRVOYANT].kept, found[CLAIRVOYANT].right) == (0.9, None)


@each("kind", ["coverage", "error", "regret"])
@each("alpha", [0.0, 0.05, 0.1, 0.19, 0.2, 0.3])
def test_the_depth_mixture_is_the_cheapest_coin_that_keeps_the_promise(kind: str, alpha: float) -> None:
    """One step costs 0.001 and is wrong on a fifth, two cost 0.003 and are never wrong."""
    found = by_name(baseline_figures(made(), get(kind), alpha))["depth mixture"]
    share = max(0.0, 1 - alpha / 0.2)  # of the questions that take the second step too
    assert found.cost_usd == pytest.approx(0.001 + 0.002 * share)
    assert found.length == pytest.approx(1 + share)
    assert found.kept == pytest.approx(0.8 + 0.2 * share)


def test_where_no_depth_keeps_the_promise_there_is_no_mixture() -> None:
    rows = [one | ({"correct": False, "answer": "no"} if one["step"] == 2 else {}) for one in hard_rows(100, range(40))]
    (table,) = tables_from_rows(rows)
    assert "depth mixture" not in by_name(baseline_figures(table, get("error"), 0.1))


def test_uala_is_as_it_is_tuned() -> None:
    table = made()
    doubt = doubt_of(table)
    assert doubt is not None
    uala = Uala(doubt)
    played = uala.prepare(table, table, 0.1, 0).play(table)
    found = by_name(baseline_figures(table, get("error"), 0.1))[uala.name]
    assert found.cost_usd == pytest.approx(played.cost.mean() / 1e9)
    assert found.kept == found.right == pytest.approx(played.right.mean())


def test_regret_counts_where_the_reference_is_right() -> None:
    found = by_name(baseline_figures(made(), get("regret"), 0.1))
    assert found["last model only"].kept == 1
    assert found["base only"].kept == 0.8


def test_without_costs_none_is_shown() -> None:
    found = baseline_figures(replace(made(), cost_known=False), get("coverage"), 0.1)
    assert all(one.cost_usd is None for one in found)
    assert CLAIRVOYANT not in by_name(found)


@pytest.mark.parametrize("kind", ["coverage", "regret", "error"])
def test_a_ladder_of_three_models_has_one_threshold_per_rung_tuned_to_the_same_loss(kind: str) -> None:
    found = by_name(baseline_figures(ladder(300, 3), get(kind), 0.2))
    own = found["one threshold per rung, tuned"]
    assert own.kept is not None
    assert own.kept >= 0.8 - 1e-9
    assert own.cost_usd is not None
    assert own.cost_usd < 0.9 * (found["depth mixture"].cost_usd or 0.0)
    assert "one threshold per rung, tuned" not in by_name(baseline_figures(ladder(300, 2), get(kind), 0.2))
