"""The rule for a threshold online, with its sign as printed (Eq. 9 of CCPO) and put right, on one and the same stream.

    python benchmarks/online_sign.py --svg design/online-sign.svg          a few seconds

Critical values are drawn from Beta(2, 3), whose 10 % quantile is 0.1426; both rules start at the same thresholds, take
the same steps eta_t = 0.05·t^−0.6 and are held within 0..1.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[report]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import random
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cascade.conformal.online import OnlineThreshold
from cascade.evaluation.plots import save

ALPHA, STEP, UPDATES = 0.1, 0.05, 50_000
STARTS = (0.05, 0.1, 0.2, 0.3)
QUANTILE = 0.142559  # scipy.stats.beta(2, 3).ppf(0.1)
RULES = ((True, "as printed", "#c0392b"), (False, "sign put right", "#1f5fa8"))


class Run(NamedTuple):
    """One run: the thresholds after each update, and the coverage over its second half."""

    literal: bool
    start: float
    kappas: list[float]
    coverage: float


def stream(seed: int = 0) -> list[float]:
    """Return the critical values of all runs."""
    chance = random.Random(seed)
    return [chance.betavariate(2, 3) for _ in range(UPDATES)]


def followed(criticals: list[float], start: float, *, literal: bool) -> Run:
    """Run one rule over the stream."""
    rule = OnlineThreshold(alpha=ALPHA, kappa=start, step=STEP, upper=1.0, literal=literal)
    kappas, covered = [start], 0
    for t, critical in enumerate(criticals):
        missed = rule.missed(critical)
        covered += not missed and t >= len(criticals) // 2
        rule = rule.update(missed)
        rule = replace(rule, kappa=max(rule.kappa, 0.0))
        kappas.append(rule.kappa)
    return Run(literal, start, kappas, covered / (len(criticals) - len(criticals) // 2))


def draw(paths: list[Run], path: Path) -> None:
    """Draw both rules' thresholds against the number of updates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for axes, (literal, name, colour) in zip((left, right), RULES, strict=True):
        for run in paths:
            if run.literal is literal:
                shown = sorted({round(1.02**step) for step in range(560)} & set(range(1, len(run.kappas))))
                axes.plot(shown, [run.kappas[t] for t in shown], color=colour, lw=1.2)
        axes.axhline(QUANTILE, color="#555555", lw=0.8, ls="--")
        axes.set_xscale("log")
        axes.set_title(f"{name}: κ ← κ {'+' if literal else '−'} η (miss − α)", fontsize=10)
        axes.set_xlabel("updates")
        axes.spines[["top", "right"]].set_visible(False)
    left.set_ylabel("threshold κ")
    right.text(1.1, -0.03, "dashed: the 10 % quantile, 0.1426", fontsize=8, color="#555555")
    save(figure, path)


def main() -> None:
    """Print where each run ends, and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, help="the figure's file")
    given, criticals = parser.parse_args(), stream()
    paths = [followed(criticals, start, literal=literal) for literal, *_ in RULES for start in STARTS]
    print("| sign | κ₁ | κ after 100 | after 1,000 | after 50,000 | coverage, second half (wanted 0.900) |")
    print("|---|---|---|---|---|---|")
    names = {literal: name for literal, name, _ in RULES}
    for run in paths:
        at = " | ".join(f"{run.kappas[t]:.4f}" for t in (100, 1000, UPDATES))
        print(f"| {names[run.literal]} | {run.start:.2f} | {at} | {run.coverage:.4f} |")
    if given.svg:
        draw(paths, given.svg)


if __name__ == "__main__":
    main()
