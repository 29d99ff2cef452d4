"""How many calibration questions a guarantee needs, and what more of them buy: the tables of docs/certificates.md.

python benchmarks/needed_questions.py        a second
"""

from __future__ import annotations

import math
from itertools import count

from cascade.conformal.certify import most_units
from cascade.conformal.path import UNITS
from cascade.conformal.promise import Promise
from cascade.fitting.attempts import FIRST

ALPHAS = (0.01, 0.02, 0.05, 0.1, 0.2)
DELTAS = (None, 0.1, 0.05, 0.01)
SIZES = (50, 100, 200, 500, 1_000, 5_000)
DELTA = 0.1


def allowed(n: int, alpha: float, delta: float | None) -> int:
    """Return the most of n questions that may be missed; −1: there are too few."""
    return most_units(n, Promise("coverage", alpha, None if delta is None else 1 - delta), delta) // UNITS


def needed(alpha: float, delta: float | None) -> int:
    """Return the least number of questions on which a first fit can prove anything."""
    return next(n for n in count(1) if allowed(n, alpha, delta and FIRST * delta) >= 0)


def needed_table() -> list[str]:
    """Return the least number of questions for each alpha and delta, as lines of Markdown."""
    lines = ["| α | on average | δ = 0.1 | δ = 0.05 | δ = 0.01 |", "|---|---|---|---|---|"]
    return lines + [
        f"| {alpha:g} | {' | '.join(f'{needed(alpha, delta):,}' for delta in DELTAS)} |" for alpha in ALPHAS
    ]


def spread_table(alpha: float = 0.1) -> list[str]:
    """Return what n questions give at one alpha, as lines of Markdown.

    The misses allowed, the standard deviation of the coverage between calibrations (that of Beta(n + 1 − k, k)), and
    the same misses with confidence 1 − DELTA with the mean coverage that they cost.
    """
    lines = [
        f"| questions | misses allowed | coverage, ± 1 sd | with δ = {DELTA:g}: misses allowed | mean coverage |",
        "|---|---|---|---|---|",
    ]
    for n in SIZES:
        k, sure = allowed(n, alpha, None) + 1, allowed(n, alpha, DELTA) + 1
        sd = math.sqrt(k * (n + 1 - k) / (n + 2)) / (n + 1)
        mean, safe = 1 - k / (n + 1), 1 - sure / (n + 1)
        lines.append(f"| {n:,} | {k - 1} | {mean:.3f} ± {sd:.3f} | {sure - 1} | {safe:.3f} |")
    return lines


def main() -> None:
    """Print both tables."""
    print("\n".join([*needed_table(), "", *spread_table()]))


if __name__ == "__main__":
    main()
