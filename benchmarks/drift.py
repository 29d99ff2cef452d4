"""A monitor on audited misses: how often it alarms without drift, and how soon with it.

    python benchmarks/drift.py                            some minutes of one core
    python benchmarks/drift.py --quick                    a tenth of the streams

Streams without drift are calibrated anew, each with questions of its own, and end after 1,000 audits. A drift is a jump
of the miss rate from 10 % to 25 %.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cascade.conformal.certify import most_units
from cascade.conformal.monitor import UNLUCKY, Monitor
from cascade.conformal.path import UNITS
from cascade.conformal.promise import Promise
from cascade.table import Bools, Floats

ALPHA, DELTA, LEVEL = 0.1, 0.1, 0.05
BEFORE, AFTER = 0.10, 0.25
AUDITS = 1000
LONGEST = 3000
"""Audits after a jump, of which a stream without an alarm counts as "not found"."""
_Draw = Callable[[np.random.Generator, int], Floats]


def misses_allowed(n: int, delta: float | None) -> int:
    """Return the most misses of n questions at which a threshold is certified."""
    return most_units(n, Promise("coverage", ALPHA, None if delta is None else 1 - delta), delta) // UNITS


# --- without drift ---


class Steady(NamedTuple):
    """A world without drift: what critical values are drawn from, and what is promised of how many of them."""

    name: str
    draw: _Draw
    n: int
    delta: float | None = None


def _coarse(chance: np.random.Generator, count: int) -> Floats:
    return np.floor(chance.random(count) * 8) / 8


def _two_values(chance: np.random.Generator, count: int) -> Floats:
    """Return two values, the lower with probability 0.13: 1 of 14 calibrations of 200 misses all of the lower."""
    return np.where(chance.random(count) < 0.13, 0.0, 1.0)


def _continuous(chance: np.random.Generator, count: int) -> Floats:
    return chance.random(count)


STEADY = (
    Steady("on average, n = 200, no ties", _continuous, 200),
    Steady("on average, n = 50, no ties", _continuous, 50),
    Steady("on average, n = 200, 8 values", _coarse, 200),
    Steady("on average, n = 200, 2 values", _two_values, 200),
    Steady("with δ = 0.1, n = 200, no ties", _continuous, 200, DELTA),
    Steady("with δ = 0.1, n = 200, 8 values", _coarse, 200, DELTA),
)


def false_alarms(world: Steady, streams: int, audits: int = AUDITS) -> int:
    """Return how many of so many streams alarm, each with its own calibration."""
    chance, alarms = np.random.default_rng(1), 0
    for _ in range(streams):
        values = world.draw(chance, world.n + audits)
        most = misses_allowed(world.n, world.delta)
        start = Monitor.start(risk=ALPHA, n=world.n, k=most + 1 if world.delta is None else None, level=LEVEL)
        alarms += fed(start, values[world.n :] < np.sort(values[: world.n])[most]).alarmed
    return alarms


def false_alarms_at_alpha(streams: int, audits: int = AUDITS) -> int:
    """Return how many streams alarm whose miss rate is the promised one exactly: the worst that a promise allows."""
    chance, start = np.random.default_rng(2), Monitor.start(risk=ALPHA, level=LEVEL)
    return sum(fed(start, chance.random(audits) < ALPHA).alarmed for _ in range(streams))


def fed(monitor: Monitor, misses: Bools) -> Monitor:
    """Return a monitor after these audits, or at its alarm."""
    for missed in misses.tolist():
        monitor = monitor.update(missed)
        if monitor.alarmed:
            break
    return monitor


# --- a jump ---


class Delay(NamedTuple):
    """Audits from a jump to the alarm, over the streams that had not alarmed before it."""

    streams: int
    early: int
    median: int | None
    late: int | None


def watched(null: str, n: int) -> Monitor:
    """Return the monitor of a certificate of this kind on n questions."""
    return Monitor.start(risk=ALPHA, n=n, k=None if null == "delta" else misses_allowed(n, None) + 1, level=LEVEL)


def delay(start: Monitor, quiet: int, streams: int) -> Delay:
    """Return how long after `quiet` audits at 10 % a rate of 25 % is found."""
    chance, waits, early = np.random.default_rng(3), [], 0
    for _ in range(streams):
        calm = fed(start, chance.random(quiet) < BEFORE)
        early += calm.alarmed
        if not calm.alarmed:
            after = fed(calm, chance.random(LONGEST) < AFTER)
            waits.append(after.audits - quiet if after.alarmed else LONGEST + 1)
    return Delay(streams, early, _of(waits, 0.5), _of(waits, 0.95))


def _of(delays: list[int], share: float) -> int | None:
    """Return within how many audits that share of the streams alarms; None where it is not reached."""
    value = sorted(delays)[math.ceil(share * len(delays)) - 1]
    return None if value > LONGEST else value


JUMPS = [
    *[("delta", 200, quiet) for quiet in (0, 100, 500, 2000)],
    *[("average", n, quiet) for n in (50, 100, 200, 1000) for quiet in (0, 100, 500, 2000)],
]


def shown(audits: int | None) -> str:
    """Return a number of audits for a table."""
    return f"> {LONGEST:,}" if audits is None else f"{audits:,}"


# --- tables ---


def alarm_lines(streams: int) -> Iterator[str]:
    """Yield the table of false alarms."""
    yield f"| drift-free, {AUDITS:,} audits, level {LEVEL} | streams | false alarms | share | allowed |"
    yield "|---|---|---|---|---|"
    for world in STEADY:
        alarms, allowed = false_alarms(world, streams), LEVEL + (world.delta or UNLUCKY)
        yield f"| {world.name} | {streams:,} | {alarms} | {alarms / streams:.4f} | {allowed:.2f} |"
    alarms = false_alarms_at_alpha(streams)
    yield f"| with δ, the rate α exactly | {streams:,} | {alarms} | {alarms / streams:.4f} | {LEVEL:.2f} |"


def delay_lines(streams: int) -> Iterator[str]:
    """Yield the table of delays."""
    yield "| promise | n | audits before the jump | audits to the alarm: median | 95 % of streams | alarms before |"
    yield "|---|---|---|---|---|---|"
    for null, n, quiet in JUMPS:
        row = delay(watched(null, n), quiet, streams)
        size = f"{n:,}" if null == "average" else "any"
        yield f"| {null} | {size} | {quiet:,} | {shown(row.median)} | {shown(row.late)} | {row.early} of {streams} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the streams")
    parser.add_argument("--only", choices=("false-alarms", "delays"), help="one of the tables")
    given = parser.parse_args()
    part = 10 if given.quick else 1
    if given.only in {None, "false-alarms"}:
        print("\n".join(alarm_lines(2000 // part)), flush=True)
    if given.only in {None, "delays"}:
        print("\n".join(delay_lines(400 // part)), flush=True)


if __name__ == "__main__":
    main()
