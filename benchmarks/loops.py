"""Simulated loops of the modes: how often a promotion or an alarm is false, and how often both come where they should.

    python benchmarks/loops.py [LOOPS]

Each loop observes, looks up to four times, enforces and audits, with the arithmetic that serves: `look_level`, the
exact binomial test along thresholds from the strictest, `Monitor`. A request has a doubt u, uniform in
0..1; at a threshold t the base's answer is served where u < t. It differs from the guide's with a probability that
depends on u. Where the promise is regret, people say later of an answer that differs whether it loses, or never.
"""

import math
import sys
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.conformal.binomial import most_losses
from cascade.conformal.monitor import Monitor
from cascade.modes.draws import look_level
from cascade.modes.state import Draw
from cascade.modes.store import missed

ALPHA, DELTA, LEVEL, AUDIT = 0.1, 0.1, 0.05, 0.1
LOOKS, ROWS, AUDITS = 4, 200, 400
GRID = np.linspace(0, 1, 101)
ROW_DAYS, AUDITS_A_DAY, LABEL_DAYS = 20.0, 20, 7.0
"""Over how many days the rows of a look were drawn; audits a day; and after how many days an unjudged one is a loss."""
DAY_S = 86_400.0
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


class Labels(NamedTuple):
    """What people say of an answer that differs.

    Attributes:
        losing: the share that loses: wrong where the guide's is right.
        days: after how many days they say so, on average, where it loses nothing.
        days_of_losses: the same, where it loses.
        never: the share that nobody judges.
    """

    losing: float
    days: float
    days_of_losses: float
    never: float

    def drawn(self, rng: np.random.Generator, count: int) -> tuple[Bools, Floats]:
        """Return which answers lose, and after how many days somebody says so: inf where nobody does."""
        loses = rng.random(count) < self.losing
        days = rng.exponential(np.where(loses, self.days_of_losses, self.days))
        return loses, np.where(rng.random(count) < self.never, np.inf, days)

    @property
    def counted(self) -> float:
        """The share of the answers that differ that counts as a loss: those that lose, and those not judged in time."""
        late = self.never + (1 - self.never) * math.exp(-LABEL_DAYS / self.days)
        return self.losing + (1 - self.losing) * late


class World(NamedTuple):
    """Requests: how likely the base differs at a doubt, what the two calls cost, in nano-USD, and who judges."""

    name: str
    differs: Callable[[Floats], Floats]
    base: float
    guide: float = 1_000.0
    turns: int = 1
    labels: Labels | None = None

    def rate(self, threshold: float) -> float:
        """Return how often what is served counts against the promise at a threshold, exactly but for the grid."""
        u = (np.arange(10_000) + 0.5) / 10_000
        share = 1.0 if self.labels is None else self.labels.counted
        return share * float((self.differs(u) * (u < threshold)).mean())


class Certified(NamedTuple):
    """A promoted threshold, and the look that promoted it."""

    threshold: float
    look: int


FLAT = World("the base differs on 12 %, whatever its doubt", lambda u: np.full_like(u, 0.12), 100.0)
SAVES = World("doubt tells: the base differs with probability u²", np.square, 100.0)
TALKS = World("the same, in conversations of four turns", np.square, 100.0, turns=4)
HALF = Labels(losing=0.5, days=2.0, days_of_losses=2.0, never=0.1)
LATE = Labels(losing=0.4, days=6.0, days_of_losses=0.5, never=0.2)
FLAT_REGRET = World("regret: the base loses on 12 %, all judged", lambda u: np.full_like(u, 0.24), 100.0)._replace(
    labels=Labels(losing=0.5, days=0.1, days_of_losses=0.1, never=0.0)
)
REGRET = World("regret: differs with u², half of it loses, a tenth is never judged", np.square, 100.0, labels=HALF)
LATE_REGRET = World("regret: losses are told at once, the rest late, a fifth never", np.square, 100.0, labels=LATE)
TALKS_REGRET = World("regret, in conversations of four turns", np.square, 100.0, turns=4, labels=HALF)
WORLDS = (FLAT, SAVES, TALKS, FLAT_REGRET, REGRET, LATE_REGRET, TALKS_REGRET)
DRIFT = 0.8


def look(world: World, rng: np.random.Generator, number: int) -> float | None:
    """Look at fresh rows; return the threshold that is promoted, if one is."""
    u = rng.random(ROWS)
    lost = rng.random(ROWS) < world.differs(u)
    if world.labels is not None:
        loses, days = world.labels.drawn(rng, ROWS)
        lost &= loses | (days > rng.uniform(0, ROW_DAYS, ROWS))
    most = most_losses(ROWS, ALPHA, look_level(DELTA, number))
    losses = [int((lost & (u < t)).sum()) for t in GRID]
    passed = 0
    while passed < GRID.size and most is not None and losses[passed] <= most:
        passed += 1
    if not passed:
        return None
    threshold = float(GRID[passed - 1])
    jitter = rng.uniform(0.5, 1.5, ROWS)
    guide, base = world.guide * jitter, world.base * jitter
    served = base + np.where(u >= threshold, guide, 0.0)
    saving = guide - served - AUDIT * (guide + base - served)
    return threshold if saving.mean() > 0 else None


def promoted(world: World, rng: np.random.Generator) -> Certified | None:
    """Look until a policy is promoted, at most `LOOKS` times."""
    for number in range(1, LOOKS + 1):
        threshold = look(world, rng, number)
        if threshold is not None:
            return Certified(threshold, number)
    return None


def audited(world: World, held: Certified, rng: np.random.Generator) -> bool:
    """Audit one random turn of a conversation; return whether what was served differs from the guide's answer.

    Once the base has written a turn, the guide serves the rest of the conversation: nothing differs there.
    """
    u = rng.random(world.turns)
    turn = int(rng.integers(world.turns))
    covered = bool((u[:turn] >= held.threshold).all())
    cheap = covered and bool(u[turn] < held.threshold)
    return cheap and bool(rng.random() < world.differs(u[turn : turn + 1])[0])


class Alarm(NamedTuple):
    """After how many audits the monitor alarmed, and how many days after the first."""

    audits: int
    days: float


def alarm_of(world: World, held: Certified, rng: np.random.Generator) -> Alarm | None:
    """Audit and judge day by day, and count as a server does; return when the monitor alarms."""
    watch = Monitor.start(alpha=ALPHA, delta=look_level(DELTA, held.look), level=look_level(LEVEL, held.look))
    waiting: deque[tuple[Draw, bool, float]] = deque()
    labels, number = world.labels or Labels(1.0, 0.0, 0.0, 0.0), 0
    while number < AUDITS or waiting:
        day = number // AUDITS_A_DAY
        for _ in range(AUDITS_A_DAY if number < AUDITS else 0):
            differs = audited(world, held, rng)
            (loses,), (after,) = labels.drawn(rng, 1)
            row = Draw("", "", "", "", "certify", "audit", 1.0, day * DAY_S, "complete", differs=differs)
            waiting.append((row, bool(loses), day + float(after)))
        number += AUDITS_A_DAY
        while waiting:
            row, loses, told = waiting[0]
            row = row._replace(lost=loses if told <= day else None)
            against = missed(row, {}, late=row.drawn_s + LABEL_DAYS * DAY_S <= day * DAY_S)
            if against is None:
                break
            waiting.popleft()
            watch = watch.update(against)
            if watch.alarmed:
                return Alarm(watch.audits, day)
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
    median: Alarm | None


def shares(world: World, loops: int) -> Shares:
    """Run the loops of one world."""
    rng = np.random.default_rng(7)
    held = [one for one in (promoted(world, rng) for _ in range(loops)) if one is not None]
    sound = [one for one in held if world.rate(one.threshold) <= ALPHA]
    false = sum(alarm_of(world, one, rng) is not None for one in sound)
    drifted = world._replace(differs=lambda u: np.full_like(u, DRIFT))
    after = sorted(one for one in (alarm_of(drifted, held, rng) for held in sound) if one is not None)
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
        found = shares(world, loops)
        print(f"{world.name}: promoted {found.promoted:.3f}, false {found.false:.3f} (bar {bound(DELTA, loops):.3f})")
        if found.sound:
            print(f"  false alarms {found.false_alarms:.3f} (bar {bound(LEVEL, found.sound):.3f}) without drift")
            when = "never" if found.median is None else f"median after {found.median.audits} audits"
            days = "" if found.median is None or world.labels is None else f", {found.median.days} days"
            said = f"alarm {found.alarms:.3f}, {when}{days}"
            print(f"  with drift (the base differs on {DRIFT:.0%}): {said}")


if __name__ == "__main__":
    main()
