"""Simulated loops of the modes: how often a promotion or an alarm is false, and how often both come where they should.

    python benchmarks/loops.py [LOOPS]

Each loop observes whole conversations, looks up to four times, serves and audits, by the code that a server runs:
`modes.certify` sets the threshold, and `CascadeState` counts the audits of turns, drawn at random, in their order. A
turn has a doubt; at a threshold the base's answer is kept where the doubt is below it, and from then on the guide
answers the conversation. A kept answer differs with a probability that depends on the turn and its doubt. Where the
promise is regret, people say later of an answer that differs whether it loses, or never.
"""

import math
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator
from random import Random
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.modes.certify import Proof, Stops, Turns, grid, most_lenient
from cascade.modes.draws import look_level
from cascade.modes.state import CascadeState, Draw, InForce, audits_each, in_order, missed

DELTA, LEVEL, AUDIT = 0.1, 0.05, 0.1
LOOKS, CONVERSATIONS, AUDITS, OPEN = 4, 200, 300, 20
"""Looks, the conversations of each, those that fit, audits afterwards, and conversations under way at once."""
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


class Turn(NamedTuple):
    """A turn of a conversation: its doubt is uniform between two values, and says how likely the base differs."""

    differs: Callable[[Floats], Floats]
    low: float = 0.0
    high: float = 1.0

    def lost(self, threshold: float) -> tuple[float, float]:
        """Return how likely it is kept at a threshold, and kept and different, exactly but for a grid."""
        u = self.low + (self.high - self.low) * (np.arange(4_000) + 0.5) / 4_000
        return float((u < threshold).mean()), float((self.differs(u) * (u < threshold)).mean())


Kinds = tuple[tuple[float, tuple[Turn, ...]], ...]
"""Kinds of conversations: the share and the turns of each."""


class World(NamedTuple):
    """Conversations, by their share and their turns, what the two calls cost in nano-USD, and who judges."""

    name: str
    kinds: Kinds
    alpha: float = 0.1
    base: float = 100.0
    guide: float = 1_000.0
    labels: Labels | None = None

    def rate(self, threshold: float) -> float:
        """Return how often what is served counts against the promise, of all requests."""
        share = 1.0 if self.labels is None else self.labels.counted
        lost = 0.0
        for weight, turns in self.kinds:
            covered = 1.0
            for turn in turns:
                kept, differs = turn.lost(threshold)
                lost += weight * covered * differs
                covered *= 1 - kept
        return share * lost / sum(weight * len(turns) for weight, turns in self.kinds)

    def drawn(self, chance: Random, *, by_length: bool = False) -> tuple[Turn, ...]:
        """Draw a conversation; with `by_length` one that is under way at some moment, from then on."""
        weights = [weight * (len(turns) if by_length else 1) for weight, turns in self.kinds]
        (turns,) = chance.choices([turns for _, turns in self.kinds], weights)
        return turns[chance.randrange(len(turns)) :] if by_length else turns


def alike(differs: Callable[[Floats], Floats], *lengths: tuple[float, int]) -> Kinds:
    """Return conversations whose turns are all alike, by their shares and lengths; one turn each without any."""
    return tuple((share, (Turn(differs),) * turns) for share, turns in lengths or ((1.0, 1),))


def flat(rate: float) -> Callable[[Floats], Floats]:
    """Return a base that differs at a rate, whatever its doubt."""
    return lambda u: np.full_like(u, rate)


MIXED = (0.75, 1), (0.25, 12)
FLAT = World("the base differs on 12 %, whatever its doubt", alike(flat(0.12)))
SAVES = World("doubt tells: the base differs with probability u²", alike(np.square))
TALKS = World("the same, in conversations of four turns", alike(np.square, (1.0, 4)))
UNEQUAL = World("the same, in conversations of one or twelve turns, at 5 %", alike(np.square, *MIXED), alpha=0.05)
_LATER = (Turn(flat(0.02), 0.5),) * 11
FIRST_HARD = World(
    "the base is sure and fails on the first of twelve turns, at 5 %",
    ((0.75, (Turn(flat(0.02), 0.0, 0.5),)), (0.25, (Turn(flat(0.9), 0.0, 0.5), *_LATER))),
    alpha=0.05,
)
SHORT_HARD = World(
    "single turns are hard, twelve never differ", ((0.75, (Turn(np.sqrt),)), (0.25, (Turn(flat(0.0), 0.9),) * 12))
)
HALF = Labels(losing=0.5, days=2.0, days_of_losses=2.0, never=0.1)
LATE = Labels(losing=0.4, days=6.0, days_of_losses=0.5, never=0.2)
FLAT_REGRET = World("regret: the base loses on 12 %, all judged", alike(flat(0.24)), labels=Labels(0.5, 0.1, 0.1, 0.0))
REGRET = World("regret: differs with u², half of it loses, a tenth is never judged", alike(np.square), labels=HALF)
LATE_REGRET = World("regret: losses are told at once, the rest late, a fifth never", alike(np.square), labels=LATE)
TALKS_REGRET = World("regret, in conversations of one or twelve turns", alike(np.square, *MIXED), labels=HALF)
WORLDS = (FLAT, SAVES, TALKS, UNEQUAL, FIRST_HARD, SHORT_HARD, FLAT_REGRET, REGRET, LATE_REGRET, TALKS_REGRET)
DRIFT = 0.8


def look(world: World, rng: np.random.Generator, number: int) -> InForce | None:
    """Look at fresh conversations; return the certificate and its threshold, if one is promoted."""
    chance = Random(int(rng.integers(2**32)))
    lengths = [len(world.drawn(chance)) for _ in range(CONVERSATIONS // 2)]
    seen = [world.drawn(chance) for _ in range(CONVERSATIONS)]
    all_turns = [turn for turns in seen for turn in turns]
    u = np.array([rng.uniform(turn.low, turn.high) for turn in all_turns])
    differs = rng.random(u.size) < _chances(all_turns, u)
    if world.labels is not None:
        loses, days = world.labels.drawn(rng, u.size)
        differs &= loses | (days > rng.uniform(0, ROW_DAYS, u.size))
    turns = Turns(np.arange(u.size), np.repeat(np.arange(len(seen)), [len(one) for one in seen]))

    def served(kappa: float) -> Stops:
        asks = u >= kappa
        cost = np.where(asks, world.base + world.guide, world.base).astype(np.int64)
        return Stops(differs & ~asks, cost, asks)

    level = look_level(DELTA, number)
    proof = Proof.best(world.alpha, level, len(seen), lengths)
    found = most_lenient(proof, turns, grid(np.linspace(0, 1, 52)), served)
    if found is None:
        return None
    decided = found.replay.since <= 0
    paid = np.where(decided, found.stops.cost, world.guide)
    audits = AUDIT * np.where(decided, world.base + world.guide - paid, 0.0)
    if (world.guide - paid - audits).mean() <= 0:
        return None
    longest = int(max(*lengths, *turns.lengths))
    return InForce(str(found.kappa), number, world.alpha, level, len(seen), "exact", turns=audits_each(AUDIT, longest))


def _chances(turns: list[Turn], u: Floats) -> Floats:
    """Return how likely the base differs on each turn."""
    found, rules = np.empty(u.size), [turn.differs for turn in turns]
    for rule in {*rules}:
        rows = np.array([one is rule for one in rules])
        found[rows] = rule(u[rows])
    return found


def promoted(world: World, rng: np.random.Generator) -> InForce | None:
    """Look until a policy is promoted, at most `LOOKS` times."""
    return next((held for number in range(1, LOOKS + 1) if (held := look(world, rng, number))), None)


def audited(world: World, held: InForce, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """Yield the audited turns as they are served: the conversation of each, and whether it differs."""
    threshold, begun, chance = float(held.certificate), 0, Random(int(rng.integers(2**32)))
    under_way: list[tuple[str, deque[Turn], list[bool]]] = []
    while True:
        while len(under_way) < OPEN:
            turns = world.drawn(chance, by_length=begun < OPEN)
            under_way.append((str(begun), deque(turns), [False]))
            begun += 1
        at = chance.randrange(OPEN)
        name, turns_left, kept_before = under_way[at]
        turn, u = turns_left.popleft(), chance.random()
        doubt = turn.low + (turn.high - turn.low) * u
        kept = not kept_before[0] and doubt < threshold
        kept_before[0] |= kept
        if chance.random() < AUDIT:
            yield name, kept and chance.random() < turn.differs(np.array([doubt]))[0]
        if not turns_left:
            under_way.pop(at)


class Alarm(NamedTuple):
    """After how many audits the monitor alarmed, and how many days after the first."""

    audits: int
    days: float


def alarm_of(world: World, held: InForce, rng: np.random.Generator) -> Alarm | None:
    """Audit and judge day by day, and count as a server does; return when the monitor alarms."""
    state = CascadeState("cascade").promoted(held, LEVEL, "me", "now")
    waiting: list[tuple[Draw, bool, float]] = []
    labels, number, stream = world.labels or Labels(1.0, 0.0, 0.0, 0.0), 0, audited(world, held, rng)
    audits, misses = Counter[str](), Counter[str]()
    while number < AUDITS or waiting:
        day = number // AUDITS_A_DAY
        for _ in range(AUDITS_A_DAY if number < AUDITS else 0):
            name, differs = next(stream)
            (loses,), (after,) = labels.drawn(rng, 1)
            row = Draw("", "", name, "", "audit", AUDIT, day * DAY_S, outcome="complete", differs=differs)
            waiting.append((row, bool(loses), day + float(after)))
        number += AUDITS_A_DAY
        due = (day - LABEL_DAYS) * DAY_S
        judged = [row._replace(lost=loses if told <= day else None) for row, loses, told in waiting]
        counted = in_order(
            *(state, judged, lambda row, due=due: missed(row, {}, late=row.drawn_s <= due)),
            *(lambda row: (audits[row.conversation], misses[row.conversation]), "now"),
        )
        for row, state in counted:
            audits[row.conversation] += 1
            misses[row.conversation] += bool(row.lost)
            waiting.pop(0)
            if state.mode != "enforce":
                return Alarm(audits.total(), day)
    return None


def bound(level: float, loops: int) -> float:
    """Return the level, plus three standard errors."""
    return level + 3 * math.sqrt(level * (1 - level) / loops)


class Shares(NamedTuple):
    """What came of the loops in one world: shares of the loops, and of the sound promotions."""

    promoted: float
    false: float
    sound: int
    lost: float
    lost_after: float
    false_alarms: float
    alarms: float
    median: Alarm | None


def shares(world: World, loops: int) -> Shares:
    """Run the loops of one world."""
    rng = np.random.default_rng(7)
    held = [one for one in (promoted(world, rng) for _ in range(loops)) if one is not None]
    rates = [world.rate(float(one.certificate)) for one in held]
    sound = [one for one, rate in zip(held, rates, strict=True) if rate <= world.alpha]
    false = sum(alarm_of(world, one, rng) is not None for one in sound)
    worse = tuple((share, tuple(turn._replace(differs=flat(DRIFT)) for turn in turns)) for share, turns in world.kinds)
    drifted = world._replace(kinds=worse)
    after = sorted(one for one in (alarm_of(drifted, held, rng) for held in sound) if one)
    many = max(len(sound), 1)
    return Shares(
        len(held) / loops,
        (len(held) - len(sound)) / loops,
        len(sound),
        sum(rates) / max(len(rates), 1),
        sum(drifted.rate(float(one.certificate)) for one in sound) / many,
        false / many,
        len(after) / many,
        after[len(after) // 2] if after else None,
    )


def main() -> None:
    """Run the loops and print what came."""
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"{loops} loops, up to {LOOKS} looks at {CONVERSATIONS} conversations, {AUDITS} audits; delta {DELTA}.")
    for world in WORLDS:
        found = shares(world, loops)
        print(f"{world.name}: promoted {found.promoted:.3f}; of all requests {found.lost:.4f} are lost")
        print(f"  more than {world.alpha:g}: {found.false:.3f} of the promotions (bar {bound(DELTA, loops):.3f})")
        if found.sound:
            print(f"  false alarms {found.false_alarms:.3f} (bar {bound(LEVEL, found.sound):.3f}) without drift")
            when = "never" if found.median is None else f"median after {found.median.audits} audits"
            when += "" if found.median is None or world.labels is None else f", {found.median.days} days"
            print(f"  after a drift {found.lost_after:.4f} are lost: alarm {found.alarms:.3f}, {when}", flush=True)


if __name__ == "__main__":
    main()
