"""The learning curves of a policy network as one plot. matplotlib is imported only to draw one."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.evaluation.plots import save
from cascade.training.networks.progress import Training, columns_of

_WINDOWS = 40
"""The number of windows of a run whose means are drawn."""
_FAINT = {"color": "tab:blue", "linewidth": 0.5, "alpha": 0.3}
_TARGET = {"color": "0.4", "linewidth": 1, "linestyle": "--"}
_PANELS = {
    "cost": "cost of a question, mean steps",
    "coverage": "covered at κ, share of the batch",
    "violation": "surrogate of the constraint: how far above its limit, in limits",
    "slack": "slack: coverage of the surrogate − that of the sets",
    "kappa": "threshold κ",
    "kl": "KL divergence of a step, nats",
    "onward": "mean probability of going on",
    "multiplier": "multiplier μ, mean steps for a missed question",
}
"""The columns that are drawn, row by row, with their titles."""
_SMOOTH = ("kappa", "multiplier")
"""Columns without batch noise, drawn as they are; others are drawn faintly, with their means over windows."""


def plot_learning(training: Training) -> bytes:
    """Return the plot as SVG: cost, coverage, violation, slack, threshold, divergence, π(next), multiplier.

    The same run gives the same bytes with the same matplotlib, whatever its settings.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    columns = columns_of(training.curves)
    columns.pop("case")
    found = {name: np.array(values, float) for name, values in columns.items()}
    out = io.BytesIO()
    with style.context(["default", {"font.size": 9}]):
        figure = Figure(figsize=(9.0, 9.5), layout="constrained")
        for axes, (name, title) in zip(figure.subplots(4, 2, sharex=True).flat, _PANELS.items(), strict=True):
            _line(axes, found["step"], found[name], smooth=name in _SMOOTH)
            axes.set_title(title, fontsize=9)
            _mark_target(axes, training, name)
            axes.grid(alpha=0.25)
        figure.supxlabel("step", fontsize=9)
        save(figure, out, "svg", fonttype="path")
    return out.getvalue()


def _line(axes: Any, steps: Floats, values: Floats, *, smooth: bool) -> None:
    if smooth:
        axes.plot(steps, values, color="tab:blue", linewidth=1.4)
        return
    windows = np.array_split(np.arange(steps.size), max(1, min(_WINDOWS, steps.size)))
    middles, means = ([float(column[some].mean()) for some in windows] for column in (steps, values))
    axes.plot(steps, values, **_FAINT)
    axes.plot(middles, means, color="tab:blue")


def _mark_target(axes: Any, training: Training, name: str) -> None:
    """Draw the target of a column, if it has one."""
    if name in {"violation", "slack"}:
        axes.axhline(0.0, **_TARGET)
    elif name == "coverage":
        axes.axhline(training.covered, label=f"aimed at: {training.covered:.3g}", **_TARGET)
        axes.legend(frameon=False, fontsize=8, loc="lower right")
