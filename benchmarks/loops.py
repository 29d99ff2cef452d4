"""Simulated loops of the modes: how often a promotion or an alarm is false, and how often both come where they should.

    python benchmarks/loops.py [LOOPS]

Each loop observes, looks up to four times, enforces and audits, with the arithmetic that serves: `look_level`, the
exact binomial test along thresholds from the strictest, `least_saving`, `Monitor`. A request has a doubt u, uniform in
0..1; at a threshold t the base's answer is served where u < t. It differs from the guide's with a probability that
depends on u.
"""

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.binomial import most_losses
from cascade.conformal.monitor import Monitor
from cascade.modes.draws import SAVING_LEVEL, look_level
from cascade.modes.saving import Bounds, Costs, least_saving

ALPHA, DELTA, LEVEL, AUDIT = 0.1, 0.1, 0.05, 0.1
LOOKS, ROWS, AUDITS = 4, 200, 400
GRID = np.linspace(0, 1, 101)
Floats = NDArray[np.float64]


class World(NamedTuple):
    """Requests: how likely the base differs at a doubt, and what the two calls cost, in nano-USD."""

    name: str
    differs: Callable[[Floats], Floats]
    base: float
    guide: float = 1_000.0
    turns: int = 1


class Certified(NamedTuple):
    """A promoted threshold, and the look that promoted it."""

    threshold: float
    look: int


FLAT = World("the base differs on 12 %, whatever its doubt", lambda u: np.full_like(u, 0.12), 100.0)
NO_SAVING = World("the base always agrees and, with the audits, saves exactly nothing", lambda u: 0.0 * u, 900.0)
SAVES = World("doubt tells: the base differs with probability u²", np.square, 100.0)
TALKS = World("the same, in conversations of four turns", np.square, 100.0, turns=4)
WORLDS = (FLAT, NO_SAVING, SAVES, TALKS)
DRIFT = 0.8


def rate_at(world: World, threshold: float) -> float:
    """Return how often what is served differs at a threshold, exactly but for the grid."""
    u = (np.arange(10_000) + 0.5) / 10_000
    return float((world.differs(u) * (u < threshold)).mean())


def look(world: World, rng: np.random.Generator, number: int) -> float | None:
    """Look at fresh rows; return the threshold that is promoted, if one is."""
    u = rng.random(ROWS)
    differs = rng.random(ROWS) < world.differs(u)
    most = most_losses(ROWS, ALPHA, look_level(DELTA, number))
    losses = [int((differs & (u < t)).sum()) for t in GRID]
    passed = 0
    while passed < GRID.size and most is not None and losses[passed] <= most:
        passed += 1
    if not passed:
        return None
    threshold = float(GRID[passed - 1])
    jitter = rng.uniform(0.5, 1.5, ROWS)
    guide, base = world.guide * jitter, world.base * jitter
    costs = Costs(guide, base, base + np.where(u < threshold, 0.0, guide), np.zeros(ROWS, dtype=np.bool_))
    bounds = Bounds(4 * 1.5 * world.guide, 4 * 1.5 * world.base)
    least = least_saving(costs.saving(AUDIT, bounds), bounds, look_level(SAVING_LEVEL, number))
    return threshold if least > 0 else None


def promoted(world: World, rng: np.random.Generator) -> Certified | None:
    """Look until a policy is promoted, at most `LOOKS` times."""
    for number in range(1, LOOKS + 1):
        threshold = look(world, rng, number)
        if threshold is not None:
            return Certified(threshold, number)
    return None


def alarm_after(world: World, held: Certified, rng: np.random.Generator) -> int | None:
    """Audit one random turn of each conversation; return after how many the monitor alarms.

    Once the base has written a turn, the guide serves the rest of the conversation: nothing differs there.
    """
    watch = Monitor.start(alpha=ALPHA, delta=look_level(DELTA, held.look), level=look_level(LEVEL, held.look))
    for _ in range(AUDITS):
        u = rng.random(world.turns)
        turn = int(rng.integers(world.turns))
        covered = bool((u[:turn] >= held.threshold).all())
        cheap = covered and bool(u[turn] < held.threshold)
        watch = watch.update(cheap and bool(rng.random() < world.differs(u[turn : turn + 1])[0]))
        if watch.alarmed:
            return watch.alarmed_after
    return None


def bound(level: float, loops: int) -> float:
    """Return the level, plus three standard errors."""
    return level + 3 * math.sqrt(level * (1 - level) / loops)


class Shares(NamedTuple):
    """What came of the loops in one world: shares of the loops, and of the sound promotions."""

    promoted: float
    false: float
    sound: int
    false_alarms: float
    alarms: float
    median: int | None


def shares(world: World, loops: int) -> Shares:
    """Run the loops of one world."""
    rng = np.random.default_rng(7)
    held = [one for one in (promoted(world, rng) for _ in range(loops)) if one is not None]
    sound = [one for one in held if rate_at(world, one.threshold) <= ALPHA and world is not NO_SAVING]
    false = sum(alarm_after(world, one, rng) is not None for one in sound)
    drifted = world._replace(differs=lambda u: np.full_like(u, DRIFT))
    after = sorted(one for one in (alarm_after(drifted, held, rng) for held in sound) if one is not None)
    many = max(len(sound), 1)
    median = after[len(after) // 2] if after else None
    return Shares(
        len(held) / loops, (len(held) - len(sound)) / loops, len(sound), false / many, len(after) / many, median
    )


def main() -> None:
    """Run the loops and print what came."""
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    print(f"{loops} loops, up to {LOOKS} looks at {ROWS} rows, {AUDITS} audits; alpha {ALPHA}, delta {DELTA}.")
    for world in WORLDS:
        found, level = shares(world, loops), SAVING_LEVEL if world is NO_SAVING else DELTA
        print(f"{world.name}: promoted {found.promoted:.3f}, false {found.false:.3f} (bar {bound(level, loops):.3f})")
        if found.sound:
            print(f"  false alarms {found.false_alarms:.3f} (bar {bound(LEVEL, found.sound):.3f}) without drift")
            said = f"alarm {found.alarms:.3f}, median after {found.median} audits"
            print(f"  with drift (the base differs on {DRIFT:.0%}): {said}")


if __name__ == "__main__":
    main()
