"""Do the guarantees hold? Thousands of calibrations on populations of which every risk is known.

    python benchmarks/validity.py                    20,000 calibrations a row: 15 minutes of one core
    python benchmarks/validity.py --quick            1,000
    python benchmarks/validity.py --jobs 2 --svg design/validity.svg
    python benchmarks/validity.py --only coverage --markdown

A row is one guarantee, one population, one n and one level. "promised" is what the risk, or the share of calibrations
that break the promise, is not to exceed; "law" what it should be exactly, where that is known. z is how many standard
errors the measured value lies from the law, or above the promise. "certified" is the share of calibrations that gave a
certificate: none can break a promise that was not made. Rows called "naive" are rules that people use, to see that the
others could fail.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[report]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from known_risk import coverage, means, single
from known_risk.cells import ALPHAS, DELTA, SIMULATIONS, SIZES, Cell
from known_risk.populations import Population, cut_short, population

from cascade.evaluation.plots import save

QUICK = 1_000
Guarantee: TypeAlias = Callable[[Population, int, int], list[Cell]]
GUARANTEES: Mapping[str, Guarantee] = {
    "coverage": coverage.coverage,
    "solvable": coverage.solvable,
    "groups": coverage.groups,
    "loss": means.graded_loss,
    "budget": means.budget,
    "error": single.error,
    "abstain": single.error_or_abstain,
    "regret": single.regret,
    "joint": single.joint,
    "hardest": single.hardest,
}
MEANS = (
    ("coverage", "#08519c", "missed, k = ⌊α(n + 1)⌋"),
    ("given solvable", "#6baed6", "missed, given solvable"),
    ("groups: the pool", "#238b45", "missed, pool of small groups"),
    ("graded loss", "#756bb1", "graded loss"),
    ("naive: ⌊αn⌋ misses", "#d94801", "naive: ⌊αn⌋ misses"),
    ("naive: one threshold for all groups", "#fdae6b", "naive: worst group, one threshold"),
)
VIOLATIONS = (
    ("coverage, 1 − δ", "#08519c", "coverage"),
    ("graded loss, 1 − δ", "#756bb1", "graded loss"),
    ("error", "#238b45", "error"),
    ("regret", "#74c476", "regret"),
    ("error, abstaining", "#c51b8a", "error, abstaining"),
    ("error and budget", "#636363", "error and budget"),
    (single.HARDEST, "#000000", "error, all points just above α"),
    ("naive: error as seen", "#d94801", "naive: error as seen"),
)
"""Guarantee, colour and label of what is drawn."""
_COLUMNS = ("guarantee", "population", "n", "level", "promised", "law", "measured", "se", "z", "certified", "")
_WIDTHS = (37, 22, 6, 7, 10, 8, 10, 9, 8, 11, 6)


def populations(name: str) -> tuple[Population, ...]:
    """Return the populations on which a guarantee is measured: without ties, with them, and with records cut short."""
    both = population(ties=False), population(ties=True)
    if name == "hardest":
        return both[:1]
    return (*both, cut_short(both[1])) if name == "coverage" else both


def measure(name: str, simulations: int, sizes: Iterable[int] = SIZES) -> list[Cell]:
    """Return the rows of one guarantee."""
    found = []
    for source in populations(name):
        for n in sizes:
            found += GUARANTEES[name](source, n, simulations)
    return found


def timed(name: str, simulations: int) -> list[Cell]:
    """Return the rows of one guarantee and say how long they took."""
    started = time.process_time()
    cells = measure(name, simulations)
    print(f"{name}: {time.process_time() - started:.0f} s of one core", file=sys.stderr, flush=True)
    return cells


def table_lines(cells: Sequence[Cell], *, markdown: bool) -> list[str]:
    """Return the rows as a table."""
    rows = [
        (
            cell.guarantee,
            cell.population,
            str(cell.n),
            f"{cell.level:g}",
            f"{cell.promised:.4f}",
            "" if cell.law is None else f"{cell.law:.4f}",
            f"{cell.measured:.4f}",
            f"{cell.se:.5f}",
            f"{cell.z:+.1f}" if math.isfinite(cell.z) else "",
            f"{cell.certified:.3f}",
            "holds" if cell.holds else "FAILS",
        )
        for cell in cells
    ]
    if markdown:
        return [f"| {' | '.join(row)} |" for row in (_COLUMNS, ["---"] * len(_COLUMNS), *rows)]
    return ["".join(cell.ljust(width) for cell, width in zip(row, _WIDTHS, strict=True)) for row in (_COLUMNS, *rows)]


def summary_lines(cells: Sequence[Cell]) -> list[str]:
    """Return a line for each guarantee: its rows, how many hold, the largest excess and distance from a law."""
    lines = [
        "| guarantee | rows | hold | most above the promise, in se | furthest from its law, in se |",
        "|---|---|---|---|---|",
    ]
    for name in dict.fromkeys(cell.guarantee for cell in cells):
        rows = [cell for cell in cells if cell.guarantee == name]
        laws = [abs(cell.z) for cell in rows if cell.law is not None and not cell.naive]
        excess = max(cell.excess for cell in rows)
        far = f"{max(laws):.1f}" if laws else "–"
        lines.append(f"| {name} | {len(rows)} | {sum(cell.holds for cell in rows)} | {excess:+.1f} | {far} |")
    exact = [abs(cell.z) for cell in cells if cell.law is not None and cell.se > 0]
    shares = " and ".join(f"{sum(z > limit for z in exact)} by more than {limit} se" for limit in (2, 3))
    return [
        *lines,
        "",
        f"{len(exact)} rows have an exact law that is not 0: {shares} from it (chance: 4.6 % and 0.3 %).",
    ]


def draw(cells: Sequence[Cell], path: Path) -> None:
    """Draw what is missed beside what is promised, and how often a promise with confidence is broken."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 6.8), layout="constrained")
    grid = figure.subplots(2, len(ALPHAS), sharex=True, sharey="row")
    for column, alpha in enumerate(ALPHAS):
        rows = [cell for cell in cells if cell.level == alpha]
        _draw_curves(grid[0][column], rows, MEANS, 1.0, unit=alpha)
        _draw_curves(grid[1][column], rows, VIOLATIONS, DELTA)
        grid[1][column].set_yscale("function", functions=(_root, _square))
        grid[1][column].set_yticks([0.0, 0.02, DELTA, 0.3, 0.6])
        grid[0][column].set_title(f"α = {alpha:g}", fontsize=10)
        grid[1][column].set_xlabel("calibration questions")
        grid[1][column].set_xscale("log")
        grid[1][column].set_xticks(SIZES, [str(n) for n in SIZES])
        grid[1][column].minorticks_off()
    grid[0][0].set_ylabel("risk of a fresh question / α")
    grid[1][0].set_ylabel("share of calibrations that break\na promise with confidence 0.9")
    for line in grid:
        handles, labels = line[0].get_legend_handles_labels()
        line[-1].legend(handles, labels, fontsize=8, frameon=False, loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, path)


def _root(share: Any) -> Any:
    return np.sqrt(np.maximum(share, 0.0))


def _square(root: Any) -> Any:
    return np.square(root)


def _draw_curves(
    axes: Any, rows: Sequence[Cell], curves: Iterable[tuple[str, str, str]], promised: float, unit: float = 1.0
) -> None:
    """Draw the measured values of some guarantees against n: a full line without ties, a dotted one with them."""
    axes.axhline(promised, color="0.4", linestyle="--", linewidth=1, label="promised: at most (dotted: ties)")
    for name, colour, label in curves:
        for population_name, style in (("no ties", "-"), ("ties", ":")):
            found = [cell for cell in rows if cell.guarantee == name and cell.population == population_name]
            shown = label if style == "-" else None
            axes.plot(
                [cell.n for cell in found],
                [cell.measured / unit for cell in found],
                style,
                color=colour,
                marker="o",
                markersize=3,
                linewidth=1.3,
                label=shown,
            )
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.2)
    axes.tick_params(labelsize=8)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a guarantee does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--simulations", type=int, default=SIMULATIONS, help="calibrations a row")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} calibrations a row")
    parser.add_argument("--only", choices=GUARANTEES, action="append", help="one guarantee; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--markdown", action="store_true")
    parser.add_argument("--svg", type=Path, help="the figure's file")
    given = parser.parse_args(argv)
    simulations = QUICK if given.quick else given.simulations
    names = list(given.only or GUARANTEES)
    if given.jobs == 1:
        found = [timed(name, simulations) for name in names]
    else:
        with ProcessPoolExecutor(given.jobs) as pool:
            found = list(pool.map(timed, names, [simulations] * len(names)))
    cells = [cell for rows in found for cell in rows]
    print("\n".join([*table_lines(cells, markdown=given.markdown), "", *summary_lines(cells)]))
    if given.svg:
        draw(cells, given.svg)
    return int(not all(cell.holds for cell in cells if not cell.naive))


if __name__ == "__main__":
    sys.exit(main())
