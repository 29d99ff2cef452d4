"""The plot of a comparison: cost against coverage.

The same figure always gives the same bytes (`save`). matplotlib is imported only to draw one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.baselines import CLAIRVOYANT

if TYPE_CHECKING:
    from cascade.evaluation.compare import Comparison, Row

FORMATS = (".svg", ".png", ".pdf")
_MARKS = "os^vDPX<>hpd8H"
_FAR_APART = 30
_TICKS = (1.0, 2.0, 5.0)
_LONGEST_LABEL = 48


def available() -> bool:
    """Whether matplotlib is installed."""
    return find_spec("matplotlib") is not None


def check(path: Path, dataset: str, *, cost_known: bool) -> None:
    """Raise UsageError for a plot that cannot be drawn."""
    if path.suffix not in FORMATS:
        raise UsageError(f"A plot must be a file {', '.join(FORMATS)}, not {path.name}.")
    if not cost_known:
        raise UsageError(f"The costs of {dataset} are not known, so there is no cost to draw.")
    if not available():
        raise MissingExtraError("matplotlib", "a plot")


def plot(found: Comparison, path: Path) -> None:
    """Draw a comparison into a file: a point for each policy, a line where a threshold trades cost for coverage.

    The same comparison gives the same bytes.
    """
    check(path, found.dataset, cost_known=found.cost_known)
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, max(5.6, 1.0 + 0.19 * len(found.rows))), layout="constrained")
    axes = figure.add_subplot()
    for number, row in enumerate(found.rows):
        _draw(axes, row, number)
    target = 1 - found.alpha
    axes.axvline(target, color="0.6", linewidth=1, linestyle="--")
    place: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "ha": "center", "va": "bottom"}
    axes.annotate(f"target {target:g}", (target, 1.0), fontsize=8, color="0.35", **place)
    axes.set_xlabel("coverage: a right answer is kept, or no step of the question has one")
    axes.set_ylabel("cost, USD per 1,000 questions")
    axes.set_xlim(right=1.012)
    _scale(axes, [row.mean.cost_usd * 1_000 for row in found.rows if row.mean.cost_usd is not None])
    title = f"{_label(found.dataset)}: {found.n:,} questions, T = {found.horizon}, {found.splits} splits"
    figure.suptitle(title, fontsize=11, parse_math=False)
    axes.grid(alpha=0.25)
    for text in figure.legend(loc="outside right center", fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)
    try:
        save(figure, path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def _scale(axes: Any, costs: Sequence[float]) -> None:
    """Choose a logarithmic axis if costs lie far apart; free methods are drawn at the bottom."""
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
    """Return a foreign name for drawing: printable, not too long, and not hidden by a leading underscore."""
    shown = "".join([letter if letter.isprintable() else " " for letter in name]).strip()
    shown = shown if len(shown) <= _LONGEST_LABEL else f"{shown[: _LONGEST_LABEL - 1]}…"
    return f" {shown}" if shown.startswith("_") else shown


_DIGITS = 6
"""Positions are rounded to a millionth of the figure's width."""

_UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Without a date, since a date would change the bytes of every drawing."""


def save(figure: Any, path: Path) -> None:
    """Write a figure with a constrained layout: the same figure gives the same bytes.

    The layout solver of matplotlib orders its equations by their addresses in memory. The positions of axes then differ
    in their last digits from one drawing to the next, and the names of clip paths in an SVG are hashes of those digits.
    So the layout is computed once, and its positions are rounded before the figure is drawn. The figure has
    `layout="constrained"`, and no layout engine afterwards.
    """
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    kind = path.suffix.removeprefix(".")
    with rc_context({"svg.hashsalt": "cascade"}):
        get_registered_canvas_class(kind)(figure)  # so that text has the same sizes in the layout and in the file
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
        _round_places(figure)
        figure.savefig(path, format=kind, dpi=150, metadata=_UNDATED[kind])


def _round_places(figure: Any) -> None:
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(_DIGITS))
        _round_places(part)
    for text in figure.texts:
        text.set_position([round(float(one), _DIGITS) for one in text.get_position()])
    for axes in figure.get_axes():
        axes.set_position(type(axes.get_position()).from_extents(*axes.get_position().extents.round(_DIGITS)))
