"""Cost against coverage, with every policy on it. matplotlib is imported when a plot is made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.compare import CLAIRVOYANT, Comparison, Row

FORMATS = (".svg", ".png", ".pdf")
_MARKS = "os^vDPX*<>hpd8H"


def plot(found: Comparison, path: Path) -> None:
    """Draw a comparison into a file: a point for each policy, a line where a threshold trades cost for coverage.

    Raises:
        UsageError: another ending than .svg, .png or .pdf, no costs in the log, or the file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"A plot is written as {', '.join(FORMATS)}, not as {path.name}.")
    if not found.cost_known:
        raise UsageError(f"The costs of {found.dataset} are not known, so there is no cost to draw.")
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingExtraError("matplotlib", "a plot") from None
    figure = Figure(figsize=(10.5, 5.6), layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(found.rows):
        _draw(axes, row, number)
    axes.axvline(1 - found.alpha, color="0.6", linewidth=1, linestyle="--")
    axes.annotate(
        f"target {1 - found.alpha:g}",
        (1 - found.alpha, 1.0),
        xycoords=("data", "axes fraction"),
        ha="center",
        va="bottom",
        fontsize=8,
        color="0.35",
    )
    axes.set_xlabel("coverage: a right answer is kept, or there is none in the log")
    axes.set_ylabel("cost, USD per 1,000 questions")
    costs = [row.mean.cost_usd for row in found.rows if row.mean.cost_usd]
    if costs and max(costs) > 30 * min(costs):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("${x:.3g}")
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("${x:.3g}")
    axes.set_xlim(right=1.005)
    figure.suptitle(f"{found.dataset}: {found.n} questions, T = {found.horizon}, {found.splits} splits", fontsize=11)
    axes.grid(alpha=0.25)
    figure.legend(loc="outside right center", fontsize=8, frameon=False)
    try:
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None


def _draw(axes: Any, row: Row, number: int) -> None:
    if row.mean.cost_usd is None:
        return
    bound = row.policy == CLAIRVOYANT
    colour = "black" if bound else f"C{number % 10}"
    if row.curve:
        axes.plot([x for x, _ in row.curve], [y * 1_000 for _, y in row.curve], color=colour, linewidth=1.2, alpha=0.7)
    axes.errorbar(
        row.mean.coverage,
        row.mean.cost_usd * 1_000,
        xerr=row.sd.coverage,
        yerr=None if row.sd.cost_usd is None else row.sd.cost_usd * 1_000,
        fmt="*" if bound else _MARKS[number % len(_MARKS)],
        color=colour,
        markersize=9 if bound else 6,
        elinewidth=0.8,
        alpha=0.9,
        label=row.policy,
    )
