"""Do the guarantees hold? Thousands of calibrations on populations of which every risk is known.

    python benchmarks/validity.py                    20,000 calibrations a row: 15 minutes of one core
    python benchmarks/validity.py --quick            1,000
    python benchmarks/validity.py --jobs 2
    python benchmarks/validity.py --only coverage --markdown

A row is one guarantee, one population, one n and one level. "promised" is what the risk, or the share of calibrations
that break the promise, is not to exceed; "law" what it should be exactly, where that is known. z is how many standard
errors the measured value lies from the law, or above the promise. "certified" is the share of calibrations that gave a
certificate: none can break a promise that was not made. Rows called "naive" are rules that people use, to see that the
others could fail.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeAlias

from known_risk import coverage, single
from known_risk.cells import SIMULATIONS, SIZES, Cell
from known_risk.populations import Population, cut_short, population

QUICK = 1_000
Guarantee: TypeAlias = Callable[[Population, int, int], list[Cell]]
GUARANTEES: Mapping[str, Guarantee] = {
    "coverage": coverage.coverage,
    "groups": coverage.groups,
    "error": single.error,
    "abstain": single.error_or_abstain,
    "regret": single.regret,
    "hardest": single.hardest,
}
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


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a guarantee does not hold."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--simulations", type=int, default=SIMULATIONS, help="calibrations a row")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK:,} calibrations a row")
    parser.add_argument("--only", choices=GUARANTEES, action="append", help="one guarantee; may be repeated")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--markdown", action="store_true")
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
    return int(not all(cell.holds for cell in cells if not cell.naive))


if __name__ == "__main__":
    sys.exit(main())
