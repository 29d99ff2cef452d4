"""Plots of a comparison and of a fit: cost against coverage. matplotlib is imported when one is made."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.baselines import CLAIRVOYANT
from cascade.evaluation.report.drawing import Drawing
from cascade.evaluation.report.figures import save

if TYPE_CHECKING:
    from cascade.evaluation.compare import Comparison, Row

FORMATS = (".svg", ".png", ".pdf")
_MARKS, _BASELINE_MARKS = "os^vDPX<>hpd8H", "PXdv<>h8"
_FAR_APART = 30
_TICKS = (1.0, 2.0, 5.0)
_LONGEST_LABEL = 48


def available() -> bool:
    """Whether there is something to draw with."""
    return find_spec("matplotlib") is not None


def check(path: Path, dataset: str, *, cost_known: bool) -> None:
    """Refuse a plot that cannot be drawn.

    Raises:
        UsageError: another ending than .svg, .png or .pdf, or no costs in the log.
        MissingExtraError: matplotlib is not installed.
    """
    if path.suffix not in FORMATS:
        raise UsageError(f"A plot is written as {', '.join(FORMATS)}, not as {path.name}.")
    if not cost_known:
        raise UsageError(f"The costs of {dataset} are not known, so there is no cost to draw.")
    if not available():
        raise MissingExtraError("matplotlib", "a plot")


def plot(found: Comparison, path: Path) -> None:
    """Draw a comparison into a file: a point for each policy, a line where a threshold trades cost for coverage.

    The same comparison gives the same bytes.

    Raises:
        UsageError: as `check` does, or the file cannot be written.
        MissingExtraError: matplotlib is not installed.
    """
    check(path, found.dataset, cost_known=found.cost_known)
    from matplotlib import rcParams
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, max(5.6, 1.0 + 0.19 * len(found.rows))), layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(found.rows):
        _draw(axes, row, number)
    _mark_target(axes, f"target {1 - found.alpha:g}", 1 - found.alpha)
    axes.set_xlabel("coverage: a right answer is kept, or no step of the question has one")
    axes.set_ylabel("cost, USD per 1,000 questions")
    axes.set_xlim(right=1.012)
    _scale(axes, [row.mean.cost_usd * 1_000 for row in found.rows if row.mean.cost_usd is not None])
    title = f"{_label(found.dataset)}: {found.n:,} questions, T = {found.horizon}, {found.splits} splits"
    figure.suptitle(title, fontsize=11, parse_math=False)
    axes.grid(alpha=0.25)
    _list_names(figure)
    try:
        save(figure, path, dpi=150, fonttype=rcParams["svg.fonttype"])
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def _mark_target(axes: Any, said: str, target: float) -> None:
    axes.axvline(target, color="0.6", linewidth=1, linestyle="--")
    place = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
    axes.annotate(said, (target, 1.0), fontsize=8, color="0.35", **place)


def _list_names(figure: Any) -> None:
    """Write the legend beside the plot; foreign names in it are no formulas."""
    for text in figure.legend(loc="outside right center", fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)


def _scale(axes: Any, costs: Sequence[float]) -> None:
    """Choose a logarithmic axis where costs lie far apart; what is free has its place on it, at the bottom."""
    from matplotlib.ticker import LogLocator, NullFormatter, SymmetricalLogLocator

    paid = [cost for cost in costs if cost > 0]
    if not paid or max(paid) <= _FAR_APART * min(paid):
        axes.set_ylim(bottom=0)
    elif len(paid) == len(costs):
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=_TICKS))
    else:
        least = 10.0 ** math.floor(math.log10(min(paid)))
        axes.set_yscale("symlog", linthresh=least, linscale=0.3)
        axes.yaxis.set_major_locator(SymmetricalLogLocator(base=10, linthresh=least, subs=_TICKS))
        axes.set_ylim(-0.2 * least, 1.6 * max(paid))
    axes.yaxis.set_major_formatter("${x:.3g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _draw(axes: Any, row: Row, number: int) -> None:
    from matplotlib import color_sequences

    if row.mean.cost_usd is None:
        return
    bound = row.policy == CLAIRVOYANT
    palette = (*color_sequences["tab10"], *color_sequences["Dark2"])
    colour = "black" if bound else palette[number % len(palette)]
    if row.curve:
        axes.plot([x for x, _ in row.curve], [y * 1_000 for _, y in row.curve], color=colour, linewidth=1.2, alpha=0.7)
    sd = row.sd
    axes.errorbar(
        row.mean.coverage,
        row.mean.cost_usd * 1_000,
        xerr=None if sd is None else sd.coverage,
        yerr=None if sd is None or sd.cost_usd is None else sd.cost_usd * 1_000,
        fmt="*" if bound else _MARKS[number % len(_MARKS)],
        color=colour,
        markersize=9 if bound else 6,
        elinewidth=0.8,
        alpha=0.9,
        label=_label(row.policy),
        zorder=3,
    )


def _label(name: str) -> str:
    """Return a foreign name as it can be drawn: printable, not too long, and not hidden by a leading underscore."""
    shown = "".join([letter if letter.isprintable() else " " for letter in name]).strip()
    shown = shown if len(shown) <= _LONGEST_LABEL else f"{shown[: _LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


def plot_fit(what: Drawing) -> bytes:
    """Return the plot as SVG: the same drawing gives the same bytes with the same matplotlib, whatever its settings."""
    from matplotlib import style
    from matplotlib.figure import Figure

    out = io.BytesIO()
    with style.context("default"):
        figure = Figure(figsize=(8.5, 5.0), layout="constrained")
        _fit_drawn(figure, figure.add_subplot(), what)
        save(figure, out, "svg", fonttype="path")
    return out.getvalue()


def _fit_drawn(figure: Any, axes: Any, what: Drawing) -> None:
    if what.bound:
        axes.plot(*zip(*what.bound, strict=True), color="black", linewidth=1, linestyle=":", label=CLAIRVOYANT)
    axes.plot(*zip(*what.curve, strict=True), color="tab:blue", linewidth=1.6, label="chosen policy, cross-fitted")
    for number, one in enumerate(what.candidates):
        style = {"marker": _MARKS[number % len(_MARKS)], "color": f"C{number % 10}", "alpha": 0.8, "linestyle": "none"}
        axes.plot([one.kept], [one.cost], label=_label(one.name), markersize=5, **style)
    for number, one in enumerate(what.baselines):
        style = {"marker": _BASELINE_MARKS[number % len(_BASELINE_MARKS)], "color": "0.4", "linestyle": "none"}
        axes.plot([one.kept], [one.cost], label=_label(one.name), markersize=7, **style)
    if what.certified is not None:
        one = what.certified
        style = {"color": "tab:red", "markerfacecolor": "none", "markersize": 14, "markeredgewidth": 1.4}
        axes.plot([one.kept], [one.cost], "*", label=_label(one.name), zorder=4, **style)
    if what.target is not None:
        _mark_target(axes, f"promised: {what.target:g}", what.target)
    axes.set_xlabel(what.kept)
    axes.set_ylabel(what.cost)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)
    axes.set_title(_label(what.title), fontsize=11, pad=16, parse_math=False)
    _list_names(figure)
