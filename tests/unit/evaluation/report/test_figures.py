"""Figures are saved to the same bytes whatever lies in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from cascade.evaluation.plots import save


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    """0.5.0: clip paths had other names from one drawing to the next, by what lay where in memory."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    drawn, held = set(), []
    for number in range(3):
        figure = Figure(figsize=(10, 10.4), layout="constrained")
        for part, shape in zip(figure.subfigures(2, 1, height_ratios=(6.7, 3.7)), ((3, 3), (1, 2)), strict=True):
            part.suptitle("parts")
            for axes in part.subplots(*shape, sharex="col", squeeze=False).flat:
                axes.plot([0.1, 0.2, 0.7], [1e-3, 2.0, 0.3])
                axes.set_ylabel("y")
        held.append([bytes(100 + 7 * k) for k in range(997 * number)][:: 2 + number % 3])  # memory in another order
        save(figure, tmp_path / "drawn.svg")
        drawn.add((tmp_path / "drawn.svg").read_bytes())
    assert len(drawn) == 1
