"""The plot of learning curves: what is in each panel, for each way to train; the same bytes each time."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("matplotlib")

from cascade.evaluation.learning_plot import plot_learning
from cascade.training.networks.config import CCPOConfig
from cascade.training.networks.progress import FIELDS, Training, csv_of


def rows(steps: int) -> Iterator[tuple[Any, ...]]:
    chance = random.Random(0)
    for step in range(1, steps + 1):
        values = [chance.random() for _ in FIELDS[1:-1]]
        yield (step, *values, "dual")


def training(steps: int = 100, **more: Any) -> Training:
    settings = CCPOConfig().model_dump(mode="json")
    plain = Training("ccpo", settings, steps, 50, 1, 0.9, None, csv_of(rows(steps)))  # type: ignore[arg-type]
    return plain._replace(**more)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the figure of a run as matplotlib has it."""
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    def draw(one: Training) -> Any:
        held: list[Any] = []
        with monkeypatch.context() as patch:  # to lay it out and to write it take longer than to draw it
            patch.setattr(ConstrainedLayoutEngine, "execute", lambda *_: None)
            patch.setattr(Figure, "savefig", lambda self, *_, **__: held.append(self))
            plot_learning(one)
        return held[0]

    return draw


def titles(figure: Any) -> list[str]:
    return [axes.get_title() for axes in figure.axes]


def labels(figure: Any, panel: str) -> list[str]:
    (axes,) = [axes for axes in figure.axes if panel in axes.get_title()]
    legend = axes.get_legend()
    return [] if legend is None else [one.get_text() for one in legend.get_texts()]


def test_the_same_run_gives_the_same_bytes() -> None:
    once = plot_learning(training())
    assert once == plot_learning(training())
    assert once.startswith(b"<?xml")


def test_a_run_with_a_multiplier_shows_it(drawn: Any) -> None:
    figure = drawn(training())
    assert "multiplier μ, mean steps for a missed question" in titles(figure)
    assert [one.split()[0] for one in titles(figure)] == [
        "cost", "covered", "surrogate", "slack:", "threshold", "KL", "mean", "multiplier",
    ]  # fmt: skip


def test_the_target_stands_where_it_is(drawn: Any) -> None:
    figure = drawn(training(covered=0.85))
    assert labels(figure, "covered") == ["aimed at: 0.85"]
    (axes,) = [axes for axes in figure.axes if "covered" in axes.get_title()]
    assert axes.lines[-1].get_ydata()[0] == 0.85


def test_each_column_is_drawn_in_its_panel(drawn: Any) -> None:
    one = training(60)
    figure = drawn(one)
    for name, panel in (("cost", "cost"), ("coverage", "covered"), ("violation", "surrogate"), ("slack", "slack:"),
                        ("kappa", "threshold"), ("kl", "KL"), ("onward", "going on")):  # fmt: skip
        axes = next(axes for axes in figure.axes if panel in axes.get_title())
        wanted = [row[FIELDS.index(name)] for row in rows(60)]
        assert list(axes.lines[0].get_ydata()) == pytest.approx(wanted), name


def test_a_run_of_one_step_is_drawn_too() -> None:
    assert plot_learning(training(1)).startswith(b"<?xml")


def test_what_is_not_known_is_left_out(drawn: Any) -> None:
    unknown = [(*row[:5], math.nan, *row[6:]) for row in rows(30)]
    assert drawn(training(30, curves=csv_of(unknown))) is not None  # type: ignore[arg-type]
