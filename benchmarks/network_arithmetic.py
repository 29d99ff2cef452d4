"""What a policy network's arithmetic costs and keeps: a layer added in order, beside a matrix product.

    python benchmarks/network_arithmetic.py    ten seconds

A layer of 64 inputs and 64 units, weights and inputs standard normal. Times are those of one row, the quickest of many
turns. Shares are of numbers whose last bit differs: sums of a block of 2,048 rows as one matrix product against the
same rows by themselves, and numpy's functions of many numbers against those of the module math of each. All of it hangs
on the machine, numpy and its BLAS: that is why the network that serves uses neither (`design/network.md`).
"""

from __future__ import annotations

import math
import timeit
from collections.abc import Callable

import numpy as np

from cascade.conformal.arrays import Floats

UNITS, ROWS, NUMBERS, TURNS, REPEATS = 64, 2_048, 1_000_000, 100, 500


def microseconds(run: Callable[[], object]) -> float:
    """Return how long a call takes: the quickest of many turns, so that other work on the machine does not count."""
    return min(timeit.repeat(run, number=TURNS, repeat=REPEATS)) / TURNS * 1e6


def differing(vector: Callable[[Floats], Floats], scalar: Callable[[float], float], numbers: Floats) -> float:
    """Return the share of numbers of which a function has another last bit at once than one by one."""
    return float(np.mean(vector(numbers) != np.array([scalar(one) for one in numbers.tolist()])))


def main() -> None:
    """Print one table."""
    chance = np.random.default_rng(0)
    weights, bias = chance.normal(size=(UNITS, UNITS)), chance.normal(size=UNITS)
    rows, numbers = chance.normal(size=(ROWS, UNITS)), chance.normal(size=NUMBERS)
    inputs, into = rows[0], np.ascontiguousarray(weights.T)
    terms = np.empty((UNITS + 1, UNITS))
    terms[0] = bias

    def products() -> Floats:
        np.multiply(into, inputs[:, None], out=terms[1:])
        return terms

    block, alone = rows @ weights.T, np.stack([weights @ one for one in rows])
    found = {
        "a layer of one row: products, np.add.reduce, µs": microseconds(lambda: np.add.reduce(products(), axis=0)),
        "products, np.add.accumulate, µs": microseconds(lambda: np.add.accumulate(products(), axis=0)[-1]),
        "a matrix product, µs": microseconds(lambda: weights @ inputs + bias),
        f"sums of a block of {ROWS:,} rows that differ from a row's, %": 100 * float(np.mean(block != alone)),
        "tanh, np against math, %": 100 * differing(np.tanh, math.tanh, numbers),
        "exp, np against math, %": 100 * differing(np.exp, math.exp, numbers),
    }
    for name, value in found.items():
        print(f"{name:<62} {value:6.1f}")


if __name__ == "__main__":
    main()
