"""The figure of `ccpo_literal`: three variants while they learn, and what every one of them costs in the end.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[report]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cascade.evaluation.plots import save

FLOOR = 1e-4
"""κ below it is drawn there: 0 has no place on a logarithmic axis."""
THICK = 2.0
DARK, LIGHT = "#1f5fa8", "#7a7a7a"


class Run(Protocol):
    """What is drawn of a run."""

    @property
    def variant(self) -> str:
        """Its name."""

    @property
    def seed(self) -> int:
        """Its seed."""

    @property
    def ratio(self) -> float:
        """Cost over the limit's."""

    @property
    def curves(self) -> Mapping[str, Sequence[float]]:
        """By name, over the steps."""


def draw(runs: Sequence[Run], names: Sequence[str], path: Path, wanted: float, coin: float) -> None:
    """Draw it; the same runs give the same bytes.

    Args:
        runs: of all variants.
        names: the variants, in the order in which they are shown.
        path: .svg or .png.
        wanted: 1 − alpha.
        coin: what the best coin between two depths costs, over the limit.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"font.size": 9}):
        figure = Figure(figsize=(10, 10.4), layout="constrained")
        top, bottom = np.asarray(figure.subfigures(2, 1, height_ratios=(6.7, 3.7)))
        shown = names[0], names[1], names[-1]
        _learning(top, {name: [one for one in runs if one.variant == name] for name in shown}, names, wanted)
        _ladder(bottom, runs, names, coin)
        save(figure, path)


def _learning(figure: Any, shown: Mapping[str, Sequence[Run]], names: Sequence[str], wanted: float) -> None:
    """Draw κ, coverage and π(next) of three variants while they learn."""
    grid = figure.subplots(3, 3, sharex="col", sharey="row")
    figure.suptitle("Three of them while they learn: thin lines are runs, thick ones their mean", fontsize=11)
    for column, (name, some) in enumerate(shown.items()):
        _kappa(grid[0, column], some)
        _coverage(grid[1, column], some, wanted)
        _onward(grid[2, column], some)
        grid[0, column].set_title(f"{names.index(name) + 1}. {name}", fontsize=10, fontweight="bold")
        grid[2, column].set_xlabel("updates of the policy")
        for axes in grid[:, column]:
            axes.spines[["top", "right"]].set_visible(False)
    for axes, said in zip(
        grid[:, 0],
        ("threshold κ\n(probability)", "coverage, share\nof questions", "π(next),\nmean of states"),
        strict=True,
    ):
        axes.set_ylabel(said)
    figure.align_ylabels(grid[:, 0])


def _kappa(axes: Any, some: Sequence[Run]) -> None:
    axes.axhspan(0.1, 1 / 3, color="0.92", zorder=0)
    for run in some:
        axes.plot(run.curves["step"], np.maximum(run.curves["kappa"], FLOOR), color=DARK, lw=1.1)
    axes.set_yscale("log")
    axes.set_ylim(FLOOR * 0.8, 1.2)
    axes.set_yticks([1, 0.1, 0.01, 0.001, FLOOR], ["1", "0.1", "0.01", "0.001", "≤ 0.0001"])
    axes.minorticks_off()
    if axes.get_subplotspec().is_first_col():
        axes.text(
            0.98, 0.19, "grey: 0.1 to 1/3, where the\nmask has a gradient and\nno set can be empty", **_corner(axes)
        )


def _coverage(axes: Any, some: Sequence[Run], wanted: float) -> None:
    axes.axhline(wanted, color="0.3", lw=0.9, ls=":")
    _both(axes, some, "believed", color=LIGHT, ls="--")
    _both(axes, some, "coverage", color=DARK, ls="-")
    axes.set_ylim(0.7, 1.75)
    if axes.get_subplotspec().is_first_col():
        thick = [line for line in axes.lines if line.get_lw() == THICK]
        axes.legend(
            thick, ["as the constraint counts it", "of the sets, what it is to hold"], frameon=False, fontsize=8
        )
        place = {"transform": axes.get_yaxis_transform(), "ha": "right", "va": "bottom", "fontsize": 8}
        axes.text(0.99, wanted, f"wanted: {wanted:g}", **place)


def _onward(axes: Any, some: Sequence[Run]) -> None:
    _both(axes, some, "onward", color=DARK, ls="-")
    axes.set_ylim(0, 0.4)


def _both(axes: Any, some: Sequence[Run], name: str, **style: Any) -> None:
    """Draw each run thin, and their mean thick."""
    for run in some:
        axes.plot(run.curves["step"], run.curves[name], lw=0.5, alpha=0.6, **style)
    axes.plot(*_mean(some, name), lw=THICK, **style)


def _mean(some: Sequence[Run], name: str) -> tuple[list[float], Any]:
    """Return the steps that all runs have, and the mean over the runs."""
    shortest = min((run.curves["step"] for run in some), key=len)
    return list(shortest), np.mean([run.curves[name][: len(shortest)] for run in some], axis=0)


def _corner(axes: Any) -> dict[str, Any]:
    return {"transform": axes.transAxes, "ha": "right", "va": "center", "fontsize": 8, "color": "0.3"}


def _ladder(figure: Any, runs: Sequence[Run], names: Sequence[str], coin: float) -> None:
    """Draw what each variant costs in the end: a ring a run, a bar at the median."""
    axes = figure.subplots()
    for place, name in enumerate(names):
        ratios = [one.ratio for one in runs if one.variant == name]
        axes.plot(ratios, [place] * len(ratios), "o", mfc="none", mec=DARK, ms=5.5)
        axes.plot([np.median(ratios)], [place], "|", color="black", ms=17, mew=2.2)
    for at, said in ((1.0, "the limit"), (coin, "the best coin between two depths")):
        axes.axvline(at, color="0.3", lw=0.9, ls=":")
        axes.text(at + 0.004, -0.75, said, fontsize=8, va="center")
    axes.set_ylim(len(names) - 0.5, -1.1)
    axes.set_yticks(range(len(names)), [f"{place + 1}. {name}" for place, name in enumerate(names)])
    axes.set_xlim(left=0.97)
    axes.set_xlabel("cost at coverage 0.90 of fresh questions ÷ the limit's; ring: a run, bar: the median")
    axes.set_title("All of them in the end: each has its repair and those above it", fontsize=11)
    axes.grid(axis="x", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
