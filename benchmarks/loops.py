"""Simulated loops of the modes: how often a promotion or an alarm is false, and how often both come where they should.

    python benchmarks/loops.py [LOOPS]

Each loop observes whole conversations, looks up to four times, serves and audits, by the code that a server runs:
`modes.look` chooses a policy and certifies it, the policy decides on each turn, `modes.draws` draws the audits, and
`modes.state` counts them in their order. A turn has a doubt, which the policy sees as a signal; the base differs with a
probability that depends on the turn and its doubt.
"""

import math
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.config.schema import ModesConfig
from cascade.conformal.monitor import is_drawn
from cascade.modes.certify import ConversationTurns
from cascade.modes.draws import look_level
from cascade.modes.look import Observed, look_at, promise_of, stops_of
from cascade.modes.state import CascadeState, Draw, InForce, Look, counted
from cascade.policies.directory import PolicyDirectory
from cascade.policies.policy import Policy
from cascade.table import Log, Node, Reference

DELTA, LEVEL, AUDIT = 0.1, 0.05, 0.1
LOOKS, CONVERSATIONS, AUDITS, OPEN = 4, 200, 300, 20
"""Looks, the conversations that each certifies with (half as many choose), audits afterwards, and conversations under
way at once."""
TRAFFIC = 10_000
"""The conversations on which it is computed how often a policy breaks its promise."""
AUDITS_A_DAY = 20
DAY_S = 86_400.0
BASE_NANO_USD, GUIDE_NANO_USD = 100, 1_000
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Turn(NamedTuple):
    """A turn of a conversation: its doubt is uniform between two values, and says how likely the base differs."""

    differs: Callable[[Floats], Floats]
    low: float = 0.0
    high: float = 1.0


Kinds = tuple[tuple[float, tuple[Turn, ...]], ...]
"""Kinds of conversations: the share and the turns of each."""


class World(NamedTuple):
    """Conversations, by their share and their turns, and what is promised of them."""

    name: str
    kinds: Kinds
    risk: float = 0.1

    @property
    def modes(self) -> ModesConfig:
        """What a look is for."""
        return ModesConfig(risk=self.risk, confidence=1 - DELTA)

    def traffic(self, rng: np.random.Generator, count: int) -> "Traffic":
        """Draw conversations."""
        shares, kinds = zip(*self.kinds, strict=True)
        chosen = [kinds[number] for number in rng.choice(len(kinds), count, p=shares)]
        every = [turn for turns in chosen for turn in turns]
        doubt = rng.uniform([turn.low for turn in every], [turn.high for turn in every])
        chance, rules = np.empty(doubt.size), [turn.differs for turn in every]
        for rule in {*rules}:
            rows = np.array([each is rule for each in rules])
            chance[rows] = rule(doubt[rows])
        return Traffic(doubt, chance, np.repeat(np.arange(count), [len(turns) for turns in chosen]))


class Traffic(NamedTuple):
    """The turns of conversations: the doubt of each, how likely the base differs, and the conversation's number."""

    doubt: Floats
    chance: Floats
    of: Ints

    def log(self, lost: Bools) -> Log:
        """Return the turns as a log, with the turns on which the base's answer is lost."""
        n, shape = self.doubt.size, (self.doubt.size, 2)
        names = tuple([f"turn {number}" for number in range(n)])
        right = np.column_stack([~lost, np.ones(n)]).astype(np.float64)
        cost = np.tile(np.array([BASE_NANO_USD, GUIDE_NANO_USD], dtype=np.int64), (n, 1))
        return Log(
            *("world", (Node("base", 0, reads=()), Node("guide", 1, reads=())), names),
            *(tuple([f"c{number:06}" for number in self.of]), np.column_stack([np.zeros(n), lost]).astype(np.int64)),
            *(right, cost),
            bought=np.ones(shape, dtype=np.bool_),
            complete=np.ones(n, dtype=np.bool_),
            confidence=np.full(shape, np.nan),
            signals={"self_check": np.column_stack([1 - self.doubt, np.full(n, np.nan)])},
            reference=Reference(right[:, 1], cost[:, 1], is_last=True),
        )


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
UNEQUAL = World("the same, in conversations of one or twelve turns, at 5 %", alike(np.square, *MIXED), risk=0.05)
_LATER = (Turn(flat(0.02), 0.5),) * 11
FIRST_HARD = World(
    "the base is sure and fails on the first of twelve turns, at 5 %",
    ((0.75, (Turn(flat(0.02), 0.0, 0.5),)), (0.25, (Turn(flat(0.9), 0.0, 0.5), *_LATER))),
    risk=0.05,
)
SHORT_HARD = World(
    "single turns are hard, twelve never differ", ((0.75, (Turn(np.sqrt),)), (0.25, (Turn(flat(0.0), 0.9),) * 12))
)
WORLDS = (FLAT, SAVES, TALKS, UNEQUAL, FIRST_HARD, SHORT_HARD)
DRIFT = 0.8


class Service(NamedTuple):
    """A policy in force, with its threshold."""

    certificate: InForce
    policy: Policy
    kappa: float

    def by_base(self, world: World, traffic: Traffic) -> Bools:
        """Return which turns the base answers; the guide answers the rest of the conversation."""
        stops = stops_of(self.policy, traffic.log(np.zeros(traffic.of.size, dtype=np.bool_)), promise_of(world.modes))
        since = ConversationTurns(np.arange(traffic.of.size), traffic.of).served(stops(self.kappa)).since
        return np.asarray(since == 0, dtype=np.bool_)


def look(world: World, rng: np.random.Generator, number: int) -> Service | None:
    """Look at fresh conversations; return the service that is promoted, if one is."""
    traffic = world.traffic(rng, CONVERSATIONS + CONVERSATIONS // 2)
    lost = rng.random(traffic.of.size) < traffic.chance
    log = traffic.log(lost)
    drawn = [
        Draw(name, "cascade", log.groups[row], name, "certify", float(row), look=number if of < CONVERSATIONS else None)
        for row, (name, of) in enumerate(zip(log.ids, traffic.of.tolist(), strict=True))
    ]
    begun = Look("cascade", number, 0.0, 0.0, look_level(DELTA, number), 0)
    row = {name: number for number, name in enumerate(log.ids)}
    observed = Observed(log, row, np.full(log.n, np.nan), "exact")
    result = look_at(observed, drawn, begun, world.modes, AUDIT)
    if result.in_force is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        for name, data in result.files.items():
            (Path(folder) / name).write_bytes(data)
        directory = PolicyDirectory.read(Path(folder))
    (certificate,) = directory.certificates.values()
    return Service(result.in_force, directory.policy, certificate.kappa)


def audited(world: World, service: Service, rng: np.random.Generator) -> Iterator[tuple[str, bool]]:
    """Yield the audited turns as they are served: the conversation of each, and whether it differs.

    Some conversations are under way at the promotion, at any turn; the policy decides from there on.
    """
    secret, mean = rng.bytes(16), sum(share * len(turns) for share, turns in world.kinds)
    traffic = world.traffic(rng, OPEN + round(2 * AUDITS / AUDIT / mean))
    begins, index = rng.choice(traffic.of.size, OPEN), np.arange(traffic.of.size)
    under_way = dict(zip(traffic.of[begins].tolist(), begins.tolist(), strict=True))
    first = np.array([under_way.get(number, 0) for number in range(int(traffic.of[-1]) + 1)])
    rest = index >= first[traffic.of]
    traffic = Traffic(traffic.doubt[rest], traffic.chance[rest], traffic.of[rest])
    differs = service.by_base(world, traffic) & (rng.random(traffic.of.size) < traffic.chance)
    turns = {number: deque(rows) for number, rows in groupby(range(differs.size), key=traffic.of.__getitem__)}
    waiting = deque([*under_way, *(number for number in turns if number not in under_way)])
    served = [waiting.popleft() for _ in range(OPEN)]
    while waiting:
        at = int(rng.integers(OPEN))
        number, turn = served[at], turns[served[at]].popleft()
        if is_drawn(secret, AUDIT, str(number), str(turn)):
            yield str(number), bool(differs[turn])
        if not turns[number]:
            served[at] = waiting.popleft()


def alarm_of(world: World, service: Service, rng: np.random.Generator) -> int | None:
    """Audit day by day, and count as a server does; return after how many audits the monitor alarms."""
    state = CascadeState("cascade").promoted(service.certificate, LEVEL, "now")
    waiting, ended, number, stream = list[Draw](), set[str](), 0, audited(world, service, rng)
    while number < AUDITS or waiting:
        day = number // AUDITS_A_DAY
        for at in range(AUDITS_A_DAY if number < AUDITS else 0):
            name, differs = next(stream)
            if name in ended:
                continue
            drawn_s = (day + at / AUDITS_A_DAY) * DAY_S
            row = Draw(f"{number + at}", "", name, "", "audit", drawn_s, outcome="complete", differs=differs)
            waiting.append(row)
        number += AUDITS_A_DAY
        state, rows = counted(state, waiting, (day + 1) * DAY_S, "now")
        if state.mode != "enforce":
            return state.monitor.audits if state.monitor else 0
        ended |= {row.conversation for row in rows}
        waiting = [row for row in waiting if row.conversation not in ended]
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
    median: int | None


def shares(world: World, loops: int) -> Shares:
    """Run the loops of one world."""
    rng = np.random.default_rng(7)
    looks = ((look(world, rng, number) for number in range(1, LOOKS + 1)) for _ in range(loops))
    services = [service for each in looks if (service := next(filter(None, each), None))]
    traffic = world.traffic(rng, TRAFFIC)
    masks = [service.by_base(world, traffic) for service in services]
    rates = [float((traffic.chance * turns).mean()) for turns in masks]
    sound = [service for service, rate in zip(services, rates, strict=True) if rate <= world.risk]
    after = sum(turns.mean() for turns, rate in zip(masks, rates, strict=True) if rate <= world.risk)
    false = sum(alarm_of(world, service, rng) is not None for service in sound)
    worse = tuple((share, tuple(turn._replace(differs=flat(DRIFT)) for turn in turns)) for share, turns in world.kinds)
    drifted = world._replace(kinds=worse)
    alarms = sorted(alarm for alarm in (alarm_of(drifted, service, rng) for service in sound) if alarm)
    many = max(len(sound), 1)
    return Shares(
        len(services) / loops,
        (len(services) - len(sound)) / loops,
        len(sound),
        sum(rates) / max(len(rates), 1),
        DRIFT * float(after) / many,
        false / many,
        len(alarms) / many,
        alarms[len(alarms) // 2] if alarms else None,
    )


def main() -> None:
    """Run the loops and print what came."""
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"{loops} loops, up to {LOOKS} looks at {CONVERSATIONS} conversations, {AUDITS} audits; delta {DELTA}.")
    for world in WORLDS:
        result = shares(world, loops)
        print(f"{world.name}: promoted {result.promoted:.3f}; of all requests {result.lost:.4f} are lost")
        print(f"  more than {world.risk:g}: {result.false:.3f} of the promotions (bar {bound(DELTA, loops):.3f})")
        if result.sound:
            print(f"  false alarms {result.false_alarms:.3f} (bar {bound(LEVEL, result.sound):.3f}) without drift")
            when = "never" if result.median is None else f"median after {result.median} audits"
            print(f"  after a drift {result.lost_after:.4f} are lost: alarm {result.alarms:.3f}, {when}", flush=True)


if __name__ == "__main__":
    main()
