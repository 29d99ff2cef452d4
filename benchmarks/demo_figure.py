"""Draw `docs/demo-ladder.svg`, the picture of the README: what each method costs, and how often it is right.

    python benchmarks/demo_figure.py [--out docs/demo-ladder.svg] [--splits 20]

The log is the one that ships with the package. The learned ladder is what `cascade prove demo-ladder` finds: fitted and
certified anew in each split, played on questions that it has not seen. The rounds in which the guide judges stop at the
threshold of `cascade.demo`.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.promise import Promise
from cascade.demo.requests import JUDGING
from cascade.episodes.opening import DEMO, DEMO_LADDER, open_log
from cascade.policies.policy import ReferenceOnly, Uala
from cascade.studies.methods import Fitted, Played, Recorded, fixed
from cascade.studies.study import SERVED, study
from cascade.table import Log
from cascade.types import BASE_ONLY

RISKS = (0.2, 0.15, 0.1, 0.05)
CONFIDENCE = 0.9
BLUE, GREY, RED = "#1f5fa8", "#6b6b6b", "#b4432f"


class Spot(NamedTuple):
    """Where a method stands: its cost as a multiple of the guide's, and the share of right answers."""

    cost: float
    right: float


def learned(splits: int) -> dict[float, Spot]:
    """Return where the certified ladders stand, by risk: means over the splits' test questions."""
    log, spots = _log(DEMO_LADDER), {}
    for risk in RISKS:
        row = study(log, Promise("regret", risk, CONFIDENCE), [Fitted()], splits=splits).row(SERVED)
        if row.cost_share is not None and row.refused < splits:
            spots[risk] = Spot(row.cost_share.mean, row.right)
    return spots


def alone_and_judged() -> tuple[Spot, Spot, Spot]:
    """Return where the base alone, the guide alone, and rounds in which the guide judges stand."""
    log, promise = _log(DEMO), Promise("error", 0.1, CONFIDENCE)
    methods = (Recorded(BASE_ONLY), fixed("guide", ReferenceOnly()), fixed("judged", Uala(), JUDGING))
    base, guide, judged = (method.prepare(log, promise, 0)(log) for method in methods)
    return _spot(base, guide), _spot(guide, guide), _spot(judged, guide)


def _spot(played: Played, guide: Played) -> Spot:
    return Spot(float(played.cost.mean() / guide.cost.mean()), float(played.right.mean()))


def _log(name: str) -> Log:
    return open_log(name).datasets[0].log


def draw(path: Path, ladders: dict[float, Spot]) -> None:
    """Draw it; the same figures give the same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    base, guide, rounds = alone_and_judged()
    with rc_context({"svg.hashsalt": "cascade", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8, 4.6), layout="constrained")
        axes = figure.subplots()
        axes.plot(*zip(base, guide, strict=True), color=GREY, lw=1, ls="--")
        axes.plot(*zip(*ladders.values(), strict=True), color=BLUE, lw=2)
        for spots, colour in (([base, guide], GREY), ([rounds], RED), (ladders.values(), BLUE)):
            axes.plot(*zip(*spots, strict=True), "o", color=colour, ms=7)
        _labels(axes, base, guide, rounds, ladders)
        axes.set_xlim(0, 1.2 * max(mark.cost for mark in (guide, rounds, *ladders.values())))
        axes.set_ylim(0.4, 1)
        axes.set_yticks(np.arange(0.4, 1.01, 0.1), [f"{mark:.0%}" for mark in np.arange(0.4, 1.01, 0.1)])
        axes.set_xlabel("cost per question ÷ cost of asking the guide every time")
        axes.set_ylabel("questions answered rightly")
        axes.spines[["top", "right"]].set_visible(False)
        axes.set_title("Ask the guide only where the base is likely wrong", fontweight="bold", loc="left", fontsize=12)
        figure.savefig(path, dpi=110, metadata={"Date": None} if path.suffix == ".svg" else {})


def _labels(axes: Any, base: Spot, guide: Spot, rounds: Spot, ladders: dict[float, Spot]) -> None:
    """Write what each thing is beside it."""

    def say(spot: Spot, text: str, colour: str, right: float, up: float, side: str = "left") -> None:
        place = {"xytext": (right, up), "textcoords": "offset points", "ha": side, "va": "center"}
        axes.annotate(text, spot, color=colour, fontsize=9.5, **place)

    say(base, "base alone", GREY, 10, -2)
    say(guide, "guide alone", GREY, 0, 14, "center")
    say(rounds, "base and guide in rounds:\nthe guide judges, up to 4 times", RED, 0, -26, "center")
    middle = Spot((base.cost + guide.cost) / 2, (base.right + guide.right) / 2)
    say(middle, "a coin between the two", GREY, 12, -8)
    for risk, spot in ladders.items():
        say(spot, f"{risk:.0%}", BLUE, *((9, -9, "left") if spot.cost > guide.cost else (-7, 8, "right")))
    legend = "learned ladder, certified to be wrong where\nthe guide is right on at most this share:"
    say(next(iter(ladders.values())), legend, BLUE, -28, 84, "center")


def main() -> None:
    """Draw the picture and print its figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("docs/demo-ladder.svg"))
    parser.add_argument("--splits", type=int, default=20)
    given = parser.parse_args()
    ladders = learned(given.splits)
    base, guide, rounds = alone_and_judged()
    named = {"base alone": base, "guide alone": guide, "guide judges, <= 4 rounds": rounds}
    named |= {f"learned ladder, risk {risk:g}": spot for risk, spot in ladders.items()}
    for name, spot in named.items():
        print(f"{name:28} {spot.cost:5.2f} x guide  {spot.right:6.1%} right")
    draw(given.out, ladders)
    print(f"written: {given.out}")


if __name__ == "__main__":
    main()
