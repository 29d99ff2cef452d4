"""The plot: in every format, the same bytes for the same figures, with every policy on it, whatever it is called."""

from __future__ import annotations

import itertools
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import MissingExtraError, UsageError
from cascade.evaluation.baselines import CLAIRVOYANT
from cascade.evaluation.compare import Comparison, Row
from cascade.evaluation.methods import Means
from cascade.evaluation.plots import FORMATS, check, plot

MAGIC = {".svg": b"<?xml", ".png": b"\x89PNG\r\n", ".pdf": b"%PDF-"}


def means(coverage: float, cost: float | None) -> Means:
    return Means(coverage, None, 0.1, coverage, coverage, cost, 1.0, 1.0, 1.0)


def row(policy: str, coverage: float, cost: float | None, **more: Any) -> Row:
    sd = means(0.02, None if cost is None else cost / 20)
    return Row(policy, means(coverage, cost), sd, None, None, 0.0, **more)


CURVE = ((0.8, 0.0004), (0.9, 0.0008), (1.0, 0.002))


def comparison(*rows: Row, **more: Any) -> Comparison:
    shown = rows or (
        row("base only", 0.6, 0.0002),
        row("guide only", 0.85, 0.004),
        row("threshold on verdict, conformal", 0.9, 0.0008, curve=CURVE),
        row(CLAIRVOYANT, 0.9, 0.0003),
    )
    given: dict[str, Any] = {"dataset": "made", "alpha": 0.1, "n": 240, "horizon": 4, "splits": 20, "seed": 0}
    given |= {
        "sizes": (144, 48, 48),
        "groups": (144, 48, 48),
        "repeated": 0,
        "unsolvable": 0.1,
        "cost_known": True,
        "reference": "guide only",
    }
    return Comparison(**(given | more), rows=shown)


def drawn(tmp_path: Path, found: Comparison) -> str:
    """Return the SVG with its texts as texts."""
    matplotlib = pytest.importorskip("matplotlib")
    path = tmp_path / "plot.svg"
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot(found, path)
    return path.read_text("utf-8")


@pytest.mark.parametrize("ending", FORMATS)
def test_each_format_is_written_and_twice_the_same(tmp_path: Path, ending: str) -> None:
    pytest.importorskip("matplotlib")
    one, other = tmp_path / f"one{ending}", tmp_path / f"other{ending}"
    plot(comparison(), one)
    plot(comparison(), other)
    assert one.read_bytes().startswith(MAGIC[ending])
    assert len(one.read_bytes()) > 5_000
    assert one.read_bytes() == other.read_bytes()


def test_names_are_drawn_as_they_are_and_not_read_as_mathematics(tmp_path: Path) -> None:
    odd = comparison(
        row("costs $x_{$2", 0.7, 0.001),
        row("_hidden", 0.8, 0.001),
        row("a\x1b[31m\nb", 0.75, 0.001),
        row("long " * 40, 0.85, 0.001),
        dataset="a $\\frac$ & <set>",
    )
    text = drawn(tmp_path, odd)
    assert "costs $x_{$2" in text
    assert "_hidden" in text
    assert "a [31m b" in text
    assert "\x1b" not in text
    assert "a $\\frac$ &amp; &lt;set&gt;: 240 questions" in text
    assert max(len(found) for found in re.findall(r">([^<>]*long [^<>]*)<", text)) <= 48


@pytest.mark.parametrize(
    ("costs", "scale"),
    [((0.001, 0.002), "linear"), ((0.0001, 0.02), "log"), ((0.0, 0.0001, 0.02), "symlog"), ((0.0, 0.0), "linear")],
)
def test_costs_far_apart_are_drawn_on_a_logarithm_and_the_free_one_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, costs: tuple[float, ...], scale: str
) -> None:
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    seen: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, *_args, **_more: seen.append(self))
    plot(comparison(*(row(f"p{k}", 0.7 + k / 10, cost) for k, cost in enumerate(costs))), tmp_path / "x.png")
    (axes,) = seen[0].axes
    assert axes.get_yscale() == scale
    low, high = axes.get_ylim()
    drawn_at = [container.lines[0].get_ydata()[0] for container in axes.containers]
    assert drawn_at == [cost * 1_000 for cost in costs]
    assert all(low <= y <= high for y in drawn_at)
    pixels = [axes.transData.transform((0.8, y))[1] for y in sorted(set(drawn_at))]
    assert all(b - a > 20 for a, b in itertools.pairwise(pixels))  # apart enough to be told apart


def test_a_single_split_is_a_point_without_a_spread(tmp_path: Path) -> None:
    alone = [replace(one, sd=None) for one in comparison().rows]
    assert "guide only" in drawn(tmp_path, comparison(*alone, splits=1))


# --- what cannot be drawn ---


@pytest.mark.parametrize("name", ["plot.jpg", "plot", "plot.svg.gz"])
def test_another_ending_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match=r"must be a file \.svg, \.png, \.pdf, not plot"):
        check(Path(name), "made", cost_known=True)


def test_unknown_costs_cannot_be_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="costs of made are not known"):
        plot(comparison(cost_known=False), tmp_path / "x.svg")


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    with pytest.raises(UsageError, match=r"nowhere.x\.svg cannot be written: No such file"):
        plot(comparison(), tmp_path / "nowhere" / "x.svg")


def test_without_matplotlib_the_pip_command_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr("cascade.evaluation.plots.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[report\]"):
        plot(comparison(), tmp_path / "x.svg")
    assert not (tmp_path / "x.svg").exists()
