"""The learning curves of a policy network as one plot. matplotlib is imported when one is made."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.evaluation.report.figures import save
from cascade.training.networks.progress import Training, columns_of

_WINDOWS = 40
"""Parts of a run over which means are drawn."""
_FAINT = {"color": "tab:blue", "linewidth": 0.5, "alpha": 0.3}
_TARGET = {"color": "0.4", "linewidth": 1, "linestyle": "--"}


def plot_learning(training: Training) -> bytes:
    """Return the plot as SVG: cost, coverage, violation, slack, threshold, divergence, π(next), multiplier.

    The same run gives the same bytes with the same matplotlib, whatever its settings.
    """
    from matplotlib import style
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with style.context(["default", {"font.size": 9}]):
        figure = Figure(figsize=(9.0, 9.5), layout="constrained")
        curves = _Curves(training)
        for axes, panel in zip(figure.subplots(4, 2, sharex=True).flat, curves.panels(), strict=True):
            panel(axes)
            axes.grid(alpha=0.25)
        figure.supxlabel("step", fontsize=9)
        save(figure, out, "svg", fonttype="path")
    return out.getvalue()


class _Curves:
    """What is drawn, panel by panel."""

    def __init__(self, training: Training) -> None:
        self._training, columns = training, columns_of(training.curves)
        columns.pop("case")
        self._found: dict[str, Floats] = {name: np.array(values, float) for name, values in columns.items()}
        steps = len(columns["step"])
        self._windows = np.array_split(np.arange(steps), max(1, min(_WINDOWS, steps)))

    def panels(self) -> list[Callable[[Any], None]]:
        """Return what draws each panel, row by row."""
        return [
            self._cost, self._coverage, self._violation, self._slack, self._kappa, self._divergence, self._onward,
            self._multiplier,
        ]  # fmt: skip

    def _cost(self, axes: Any) -> None:
        self._line(axes, "cost", "cost of a question, mean steps")
        if self._training.cost is not None:
            axes.axhline(self._training.cost, label="budget", **_TARGET)
            axes.legend(frameon=False, fontsize=8)

    def _coverage(self, axes: Any) -> None:
        self._line(axes, "coverage", "covered at κ, share of the batch")
        if self._training.covered is not None:
            axes.axhline(self._training.covered, label=f"aimed at: {self._training.covered:.3g}", **_TARGET)
            axes.legend(frameon=False, fontsize=8, loc="lower right")

    def _violation(self, axes: Any) -> None:
        self._line(axes, "violation", "surrogate of the constraint: how far above its limit, in limits")
        axes.axhline(0.0, **_TARGET)

    def _slack(self, axes: Any) -> None:
        self._line(axes, "slack", "slack: coverage of the surrogate − that of the sets")
        axes.axhline(0.0, **_TARGET)

    def _onward(self, axes: Any) -> None:
        self._line(axes, "onward", "mean probability of going on")

    def _kappa(self, axes: Any) -> None:
        axes.plot(self._found["step"], self._found["kappa"], color="tab:blue", linewidth=1.4)
        axes.set_title("threshold κ", fontsize=9)

    def _divergence(self, axes: Any) -> None:
        self._line(axes, "kl", "KL divergence of a step, nats")

    def _multiplier(self, axes: Any) -> None:
        axes.plot(self._found["step"], self._found["multiplier"], color="tab:blue", linewidth=1.4)
        axes.set_title("multiplier μ, mean steps for a missed question", fontsize=9)

    def _line(self, axes: Any, name: str, title: str) -> None:
        """Draw a column faintly, and its means over windows."""
        values = self._found[name]
        axes.plot(self._found["step"], values, **_FAINT)
        axes.plot(self._middles(), [float(values[some].mean()) for some in self._windows], color="tab:blue")
        axes.set_title(title, fontsize=9)

    def _middles(self) -> list[float]:
        return [float(self._found["step"][some].mean()) for some in self._windows]
