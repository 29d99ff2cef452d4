"""Fit the simulated worlds to the published tables and print the parameters for the worlds.

    python benchmarks/fit_worlds.py             both readings, four worlds each (about 90 seconds of one core)
    python benchmarks/fit_worlds.py --only mmlu/llama-2-7b

Damped least squares (Levenberg and Marquardt) on the differences in units of their tolerances, from one starting point,
with the same chance in every evaluation: every run prints the same. A difference d weighs d² + d⁶, so that one far miss
is worse than several near ones. What the tables leave open is held near the start
by a weak pull (`PULL`). A row that contradicts others of the same tables (`LEFT_OUT`) is not fitted to.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from published.marginals import PUBLISHED, Published, marginals
from published.worlds import HOTPOTQA, MMLU, World, simulate

from cascade.conformal.arrays import Floats

QUESTIONS, SEED = 40_000, 7
"""A coverage of so many questions has a standard error of at most .0025, a fourteenth of what the tables' own have."""
FREE = ("base_accuracy", "guide_accuracy", "guide_repeats", "alone_accuracy", "shown_tokens", "shown_growth")
"""Parameters that the tables speak of; in the second reading `hopeless` too, since EXIT's rows can then be met."""
ONLY_FOR = {"mmlu/llama-2-7b": ("false_no",)}
"""What keeping both answers adds to keeping the judged one: printed for this world alone."""
PULL = 0.4
"""Tolerances that moving a parameter by one unit (log-odds, or logarithm of tokens) from its start is worth."""
LEFT_OUT = {
    "hotpotqa/llama-3.2-3b": {("UALA 2 cents", 8.012), ("Random cents a round", 1.411 / 1.51)},
    "mmlu/llama-3.2-3b": {("one round cents", 7.121)},
}
"""Figures that contradict others of the same tables (`design/paper.md`)."""
_CONSTANT = (" leaves", " length", "Random cents", "LLM-exit, guide cents", "LLM-exit, base cents")
"""Ends of the names of what no fitted parameter moves, and Random's cost, which is that of its rounds once more."""
BASE_EXIT_ROUNDS = {
    name: row.value for name, rows in PUBLISHED.items() for row in rows if row.marginal == "LLM-exit, base length"
}
_STEP = 0.1
_MAX_ROUNDS = 30


@dataclass(frozen=True, slots=True)
class Scale:
    """How a parameter is moved freely: through its logarithm or its log-odds, within bounds."""

    to: Callable[[float], float]
    back: Callable[[float], float]
    low: float
    high: float


_TOKENS = Scale(math.log, math.exp, math.log(1.0), math.log(100.0))
_GROWTH = Scale(math.log, math.exp, math.log(1.0), math.log(100.0))
_SHARE = Scale(lambda p: math.log(p / (1.0 - p)), lambda x: 1.0 / (1.0 + math.exp(-x)), -4.6, 4.6)
_BELOW_HALF = replace(_SHARE, high=0.0)
_SCALES = {"false_no": _BELOW_HALF, "shown_tokens": _TOKENS, "shown_growth": _GROWTH}


def start(name: str, *, second: bool) -> World:
    """Return the world from which a fit starts, with what is counted or assumed already in place."""
    world = replace(
        HOTPOTQA if name.startswith("hotpotqa") else MMLU, name=name, exit_base_rounds=BASE_EXIT_ROUNDS[name]
    )
    # In the second reading the base is right more often, so that it may listen to the guide, as the protocol has it.
    return replace(world, hopeless=0.2, base_accuracy=0.4, base_adopts=0.35) if second else world


def targets(name: str, *, second: bool) -> list[Published]:
    """Return the rows to fit to."""
    left_out = LEFT_OUT.get(name, set())
    constant = _CONSTANT if second else (*_CONSTANT, "LLM-exit, base coverage")
    rows = [row for row in PUBLISHED[name] if not row.marginal.endswith(constant)]
    return [row for row in rows if (row.marginal, row.value) not in left_out]


def misses(world: World, rows: list[Published], *, second: bool) -> Floats:
    """Return how far off each row is, in tolerances."""
    found = marginals(simulate(world, QUESTIONS, SEED), yes_is_no_answer=second)
    return np.array([(found[row.marginal] - row.value) / row.tolerance for row in rows])


def free_of(name: str, *, second: bool) -> tuple[str, ...]:
    """Return the parameters to fit."""
    return (*FREE, *ONLY_FOR.get(name, ()), *(("hopeless",) if second else ()))


def fit(name: str, *, second: bool) -> World:
    """Return the fitted world, its free parameters rounded to three significant digits."""
    free = free_of(name, second=second)
    rows = targets(name, second=second)
    scales = [_SCALES.get(parameter, _SHARE) for parameter in free]
    first = start(name, second=second)

    def at(point: Floats) -> World:
        values = {p: s.back(min(max(x, s.low), s.high)) for p, s, x in zip(free, scales, point, strict=True)}
        return replace(first, **values)  # type: ignore[arg-type]  # all of them are floats

    def off(point: Floats) -> Floats:
        missed = misses(at(point), rows, second=second)
        return np.concatenate([missed * np.sqrt(1.0 + missed**4), PULL * (point - begin)])

    begin = np.array([s.to(getattr(first, p)) for p, s in zip(free, scales, strict=True)])
    low, high = np.array([s.low for s in scales]), np.array([s.high for s in scales])
    best = at(descend(off, begin, low, high))
    rounded = {parameter: float(f"{getattr(best, parameter):.3g}") for parameter in free}
    return replace(best, **rounded)  # type: ignore[arg-type]


def descend(off: Callable[[Floats], Floats], point: Floats, low: Floats, high: Floats) -> Floats:
    """Return the point with the least sum of squares that damped Gauss-Newton steps find within the bounds."""
    now, damping = off(point), 0.1
    for _ in range(_MAX_ROUNDS):
        slopes = np.array([(off(point + _STEP * axis) - now) / _STEP for axis in np.eye(point.size)]).T
        gain = 0.0
        while damping < 1e4:
            step = -np.linalg.solve(slopes.T @ slopes + damping * np.eye(point.size), slopes.T @ now)
            candidate = np.clip(point + np.clip(step, -1.0, 1.0), low, high)
            there = off(candidate)
            gain = float(now @ now - there @ there)
            if gain > 0.0:
                point, now, damping = candidate, there, damping / 4
                break
            damping *= 5
        if gain < 1e-3:
            break
    return point


def main() -> None:
    """Fit and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=sorted(PUBLISHED), help="one world, both readings")
    only = parser.parse_args().only
    for second in (False, True):
        print("_FITTED" if second else "_FIRST")
        for name in PUBLISHED if only is None else [only]:
            world = fit(name, second=second)
            names = ("exit_base_rounds", "base_adopts", *dict.fromkeys(("hopeless", *free_of(name, second=second))))
            values = "".join(f'        "{p}": {getattr(world, p)},\n' for p in names)
            print(f'    "{name}": {{\n{values}    }},')
            rows = targets(name, second=second)
            for row, off in zip(rows, misses(world, rows, second=second), strict=True):
                if abs(off) > 1.0:
                    print(f"    # {row.marginal} {row.value:g} ({row.source}): {off:+.2f} tolerances off")


if __name__ == "__main__":
    main()
