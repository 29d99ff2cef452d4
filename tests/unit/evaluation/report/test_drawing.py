"""What is drawn of a fit, and that it is drawn the same way each time."""

from __future__ import annotations

import numpy as np
import pytest

from cascade.conformal.frontier import frontier
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.evaluation.baselines import baseline_figures, clairvoyant
from cascade.evaluation.plots import Drawing, Mark, available, drawing, plot_fit
from cascade.guarantees import get
from cascade.guarantees.base import Guarantee
from cascade.training.fitting import Fitted, fit_policy
from unit.cli.certified import hard_rows

pytest.importorskip("matplotlib")


def fitted(guarantee: Guarantee, *, cost: bool = True) -> Fitted:
    rows = hard_rows(200, range(0, 80, 2))
    if not cost:
        rows = [one | {"cost_nano_usd": None} for one in rows]
    return fit_policy(tables_from_rows(rows), guarantee, method="threshold", calibration_share=0.3)


def drawn_of(found: Fitted, certified: Mark | None) -> Drawing:
    choice = found.choice
    baselines = baseline_figures(found.training, choice.objective.guarantee.rules, choice.alpha)
    return drawing(choice, baselines, certified)


def steps(found: Fitted) -> EpisodeTable:
    return found.choice.sample.table


def test_the_curve_is_the_frontier_of_the_policy_that_was_chosen() -> None:
    found = fitted(Guarantee("coverage", 0.1))
    drawn = drawn_of(found, None)
    curve = frontier(steps(found).arrays, found.choice.sample.levels)
    for kept, cost in drawn.curve:
        at = curve.matched(kept)
        assert at is not None
        assert cost == pytest.approx(at.cost / 1e6)
    assert drawn.curve[-1][0] == pytest.approx(float(curve.coverage[-1]))
    assert drawn.target == pytest.approx(0.9)


def test_candidates_stand_at_what_they_were_compared_at() -> None:
    found = fitted(Guarantee("coverage", 0.1))
    drawn = drawn_of(found, None)
    known = {one.name: one for one in found.choice.judged}
    for mark in drawn.candidates:
        matched = known[mark.name].matched
        assert matched is not None
        assert mark.cost == pytest.approx(matched / 1e6)
        assert mark.kept == pytest.approx(1 - (found.choice.alpha or 0))
    assert any(known[mark.name].chosen for mark in drawn.candidates)


def test_the_bound_is_that_of_one_who_knows_everything_and_ends_where_the_rest_does() -> None:
    found = fitted(Guarantee("coverage", 0.1))
    drawn = drawn_of(found, None)
    least = min(kept for kept, _ in drawn.curve)
    for kept, cost in drawn.bound:
        known = clairvoyant(steps(found), get("coverage"), 1 - kept, None).cost_nano_usd
        assert known is not None
        assert cost == pytest.approx(known / 1e6)
        assert kept >= min(least, *(way.kept for way in drawn.baselines))


@pytest.mark.parametrize(
    ("guarantee", "cost"),
    [
        (Guarantee("coverage", 0.1), True),
        (Guarantee("coverage", 0.1), False),
        (Guarantee("regret", 0.3, 0.1), True),
        (Guarantee("error", 0.3, 0.1), True),
    ],
)
def test_every_kind_is_drawn_within_what_can_be(guarantee: Guarantee, cost: bool) -> None:
    found = fitted(guarantee, cost=cost)
    drawn = drawn_of(found, Mark("certified", 0.9, 1.0))
    points = [*drawn.curve, *drawn.bound, *((one.kept, one.cost) for one in (*drawn.candidates, *drawn.baselines))]
    assert all(-1e-9 <= kept <= 1 + 1e-9 and paid >= 0 for kept, paid in points)
    assert drawn.cost.startswith("cost, USD" if cost else "steps")
    most = float(steps(found).arrays.cost.sum(axis=1).mean()) / 1e6 if cost else 2.0
    assert max(paid for _, paid in points) <= most + 1e-9
    assert plot_fit(drawn).startswith(b"<?xml")


def test_the_same_fit_gives_the_same_bytes_whatever_matplotlib_is_set_to() -> None:
    import matplotlib as mpl

    assert available()
    drawn = drawn_of(fitted(Guarantee("coverage", 0.1)), Mark("_hidden $x$ \x1b[31m", 0.9, 1.0))
    first = plot_fit(drawn)
    with mpl.rc_context({"svg.hashsalt": "other", "font.size": 20, "axes.grid": True}):
        assert plot_fit(drawn) == first
    assert b"\x1b" not in first
    assert b"<dc:date>" not in first
    assert np.isfinite([kept for kept, _ in drawn.curve]).all()
