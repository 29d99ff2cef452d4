"""Plots of a comparison and of a fit: cost against coverage, or against how often the promise is kept (`drawing`).

The same figure always gives the same bytes (`save`). matplotlib is imported only to draw one.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.baselines import CLAIRVOYANT, BaselineFigures, clairvoyant_cost, label
from cascade.guarantees.base import Kind
from cascade.training.choosing import Choice, Judged
from cascade.training.objective import CostLossCurve, curve_of

if TYPE_CHECKING:
    from cascade.evaluation.compare import Comparison, Row

FORMATS = (".svg", ".png", ".pdf")
_MARKS, _BASELINE_MARKS = "os^vDPX<>hpd8H", "PXdv<>h8"
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
    """Write the legend beside the plot; names in it are not parsed as formulas."""
    for text in figure.legend(loc="outside right center", fontsize=8, frameon=False).get_texts():
        text.set_parse_math(False)


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


_DIGITS = 6
"""Positions are rounded to a millionth of the figure's width."""

_UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""Without a date, since a date would change the bytes of every drawing."""


def save(figure: Any, out: Path | IO[bytes], kind: str = "", *, dpi: int = 110, fonttype: str = "none") -> None:
    """Write a figure with a constrained layout: the same figure gives the same bytes.

    The layout solver of matplotlib orders its equations by their addresses in memory. The positions of axes then differ
    in their last digits from one drawing to the next, and the names of clip paths in an SVG are hashes of those digits.
    So the layout is computed once, and its positions are rounded before the figure is drawn. The figure has
    `layout="constrained"`, and no layout engine afterwards. The kind is by default the suffix of the path; in an SVG a
    font type of "none" keeps text as text, and "path" draws its letters.
    """
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    kind = kind or Path(str(out)).suffix.removeprefix(".")
    with rc_context({"svg.hashsalt": "cascade", "svg.fonttype": fonttype}):
        get_registered_canvas_class(kind)(figure)  # so that text has the same sizes in the layout and in the file
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")
        _round_places(figure)
        figure.savefig(out, format=kind, dpi=dpi, metadata=_UNDATED[kind])


def _round_places(figure: Any) -> None:
    for part in figure.subfigs:
        part.bbox_relative.set_points(part.bbox_relative.get_points().round(_DIGITS))
        _round_places(part)
    for text in figure.texts:
        text.set_position([round(float(one), _DIGITS) for one in text.get_position()])
    for axes in figure.get_axes():
        axes.set_position(type(axes.get_position()).from_extents(*axes.get_position().extents.round(_DIGITS)))


_POINTS = 200
"""The most points of a curve; more would not be visible."""
_BOUND = tuple(round(0.02 * k, 2) for k in range(26))
"""The shares of questions given up at which the bound is drawn."""


class Mark(NamedTuple):
    """One method: how often it keeps the promise, and what it costs."""

    name: str
    kept: float
    cost: float


class Drawing(NamedTuple):
    """The contents of a drawing. Costs are USD per 1,000 questions, or steps a question if the log has no costs.

    Attributes:
        title: the name of the questions.
        kept, cost: the labels of the axes.
        curve: (kept, cost) of the chosen policy at its thresholds, on questions that each of its models had not seen.
        bound: the same for the clairvoyant bound.
        candidates: each candidate's cost at the point that keeps the promise, by name.
        baselines: methods without a fitted policy.
        certified: the policy at its certified threshold, on the calibration questions.
        target: the promised share; None under a budget.
    """

    title: str
    kept: str
    cost: str
    curve: tuple[tuple[float, float], ...]
    bound: tuple[tuple[float, float], ...]
    candidates: tuple[Mark, ...]
    baselines: tuple[Mark, ...]
    certified: Mark | None
    target: float | None


def drawing(choice: Choice, baselines: Sequence[BaselineFigures], certified: Mark | None) -> Drawing:
    """Return the drawing of a choice.

    The scores of `choice` and the baselines are of questions that the models had not seen.
    """
    sample, objective = choice.sample, choice.objective
    table, kind = sample.table, objective.guarantee.rules
    matched = [(one.name, one.matched) for one in _told(choice) if one.matched is not None]
    walk, share = curve_of(sample, objective.guarantee, objective.prices), float(kind.counted(table).mean())
    scale = 1e-6 if objective.prices.in_money else 1.0
    marks = [Mark(name, 1 - objective.alpha, cost * scale) for name, cost in matched]
    curve = tuple(_curve(walk, share, scale))
    ways = tuple(_marks(baselines, in_money=objective.prices.in_money))
    least = min([kept for kept, _ in curve] + [way.kept for way in ways])  # the bound ends here on the left
    bound = _bound(table, kind) if objective.prices.in_money else ()
    return Drawing(
        title=table.dataset,
        kept=kind.kept,
        cost="cost, USD per 1,000 questions" if objective.prices.in_money else "steps a question",
        curve=curve,
        bound=tuple([point for point in bound if point[0] >= least]),
        candidates=tuple(marks),
        baselines=ways,
        certified=certified,
        target=1 - objective.guarantee.alpha,
    )


def _told(choice: Choice) -> Iterator[Judged]:
    """Yield the candidates that are drawn: the best of each method, and the chosen one."""
    best: dict[str, float] = {}
    for one in choice.judged:
        if one.matched is not None:
            best[one.method] = min(one.matched, best.get(one.method, math.inf))
    drawn: set[str] = set()
    for one in choice.judged:
        least = one.matched is not None and one.matched == best[one.method] and one.method not in drawn
        if one.chosen or least:
            drawn |= {one.method} if least else set()
            yield one


def _curve(walk: CostLossCurve, share: float, scale: float) -> Iterator[tuple[float, float]]:
    """Yield points of a curve."""
    gap = float(walk.gap.sum()) + np.concatenate([[0.0], np.cumsum(walk.gap_jump)])
    value = float(walk.value.sum()) + np.concatenate([[0.0], np.cumsum(walk.value_jump)])
    ends = np.append(walk.start, walk.row.size)
    chosen = np.unique(np.linspace(0, ends.size - 1, _POINTS).round().astype(np.int64))
    for at in ends[chosen]:
        lost, paid = gap[at], value[at]
        yield float(1 - lost / walk.n / share), float(paid / walk.n * scale)


def _bound(table: EpisodeTable, kind: Kind) -> Iterator[tuple[float, float]]:
    for alpha in _BOUND:
        cost = clairvoyant_cost(table, kind, alpha)
        if cost is not None:
            yield 1 - alpha, cost / 1e6


def _marks(baselines: Sequence[BaselineFigures], *, in_money: bool) -> Iterator[Mark]:
    for one in baselines:
        cost = one.length if not in_money else None if one.cost_usd is None else one.cost_usd * 1e3
        if one.kept is not None and cost is not None and one.name != CLAIRVOYANT:
            yield Mark(label(one.name), one.kept, cost)
