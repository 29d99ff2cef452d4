"""Save a matplotlib figure so that the same figure always gives the same bytes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

_DIGITS = 6
"""Places are kept to a millionth of the figure's width."""

_UNDATED: Mapping[str, dict[str, None]] = {
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None},
    "png": {},
}
"""A date in the file would make every drawing another one."""


def save(figure: Any, out: Path | IO[bytes], kind: str = "", *, dpi: int = 110, fonttype: str = "none") -> None:
    """Write a figure with a constrained layout: the same figure gives the same bytes.

    The layout solver of matplotlib orders its equations by their addresses in memory. Places of axes then differ in
    their last digits from one drawing to the next, and the names of clip paths in an SVG are hashes of those digits.
    So the layout is made once, and its places are rounded before the figure is drawn.

    Args:
        figure: a `matplotlib.figure.Figure` with `layout="constrained"`; it has no layout engine afterwards.
        out: a path or an open binary file.
        kind: "svg", "png" or "pdf"; the suffix of the path where it is empty.
        dpi: pixels an inch of a PNG.
        fonttype: of an SVG: "none" keeps text as text, "path" draws its letters.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib import rc_context
    from matplotlib.backend_bases import get_registered_canvas_class

    kind = kind or Path(str(out)).suffix.removeprefix(".")
    with rc_context({"svg.hashsalt": "cascade", "svg.fonttype": fonttype}):
        get_registered_canvas_class(kind)(figure)  # text has the sizes in the layout that it has in the file
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
