"""Simulated loops of the modes: how often a promotion or an alarm is false, and how often both come where they should.

    python benchmarks/loops.py [LOOPS]

Each loop observes whole conversations, looks up to four times, serves and audits, by the code that a server runs:
`modes.look` chooses a policy and certifies it, the policy decides on each turn, `modes.draws` draws the audits, and
`modes.state` counts them in their order. A turn has a doubt, which the policy sees as a signal; the base differs with a
probability that depends on the turn and its doubt. Where the promise is regret, people say later of an answer that
differs whether it loses, or never.
"""

import math
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cascade.config.schema import ModesConfig
from cascade.conformal.monitor import is_drawn
from cascade.modes.certify import ConversationTurns
from cascade.modes.draws import look_level
from cascade.modes.look import LookSettings, Observed, look_at, stops_of
from cascade.modes.state import CascadeState, Draw, InForce, Look, counted, missed
from cascade.policies.directory import PolicyDirectory
from cascade.policies.policy import Policy
from cascade.table import Log, Node, Reference

DELTA, LEVEL, AUDIT = 0.1, 0.05, 0.1
LOOKS, CONVERSATIONS, AUDITS, OPEN = 4, 200, 300, 20
"""Looks, the conversations that each certifies with (half as many choose), audits afterwards, and conversations under
way at once."""
TRAFFIC = 10_000
"""The conversations on which it is computed how often a policy breaks its promise."""
ROW_DAYS, AUDITS_A_DAY, LABEL_DAYS = 20.0, 20, 7.0
"""Over how many days the rows of a look were drawn; audits a day; and after how many days an unjudged one is a loss."""
DAY_S = 86_400.0
BASE_NANO_USD, GUIDE_NANO_USD = 100, 1_000
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]


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


Kinds = tuple[tuple[float, tuple[Turn, ...]], ...]
"""Kinds of conversations: the share and the turns of each."""


class World(NamedTuple):
    """Conversations, by their share and their turns, what is promised of them, and who judges."""

    name: str
    kinds: Kinds
    risk: float = 0.1
    labels: Labels | None = None

    @property
    def settings(self) -> LookSettings:
        """What a look is for."""
        modes = ModesConfig(risk=self.risk, confidence=1 - DELTA, audit=AUDIT)
        return LookSettings(modes if self.labels is None else modes.model_copy(update={"promise": "regret"}))

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
HALF = Labels(losing=0.5, days=2.0, days_of_losses=2.0, never=0.1)
LATE = Labels(losing=0.4, days=6.0, days_of_losses=0.5, never=0.2)
FLAT_REGRET = World("regret: the base loses on 12 %, all judged", alike(flat(0.24)), labels=Labels(0.5, 0.1, 0.1, 0.0))
REGRET = World("regret: differs with u², half of it loses, a tenth is never judged", alike(np.square), labels=HALF)
LATE_REGRET = World("regret: losses are told at once, the rest late, a fifth never", alike(np.square), labels=LATE)
TALKS_REGRET = World("regret, in conversations of one or twelve turns", alike(np.square, *MIXED), labels=HALF)
WORLDS = (FLAT, SAVES, TALKS, UNEQUAL, FIRST_HARD, SHORT_HARD, FLAT_REGRET, REGRET, LATE_REGRET, TALKS_REGRET)
DRIFT = 0.8


class Service(NamedTuple):
    """A policy in force, with its threshold."""

    certificate: InForce
    policy: Policy
    kappa: float

    def kept(self, world: World, traffic: Traffic) -> Bools:
        """Return which turns the base answers; the guide answers the rest of the conversation."""
        stops = stops_of(self.policy, traffic.log(np.zeros(traffic.of.size, dtype=np.bool_)), world.settings.promise)
        since = ConversationTurns(np.arange(traffic.of.size), traffic.of).served(stops(self.kappa)).since
        return np.asarray(since == 0, dtype=np.bool_)


def look(world: World, rng: np.random.Generator, number: int) -> Service | None:
    """Look at fresh conversations; return the service that is promoted, if one is."""
    traffic = world.traffic(rng, CONVERSATIONS + CONVERSATIONS // 2)
    lost = rng.random(traffic.of.size) < traffic.chance
    if world.labels is not None:
        loses, days = world.labels.drawn(rng, lost.size)
        lost &= loses | (days > rng.uniform(0, ROW_DAYS, lost.size))
    log = traffic.log(lost)
    drawn = [
        Draw(name, "cascade", log.groups[row], name, "certify", float(row), look=number if of < CONVERSATIONS else None)
        for row, (name, of) in enumerate(zip(log.ids, traffic.of.tolist(), strict=True))
    ]
    begun = Look("cascade", number, "me", 0.0, look_level(DELTA, number), 0)
    row = {name: number for number, name in enumerate(log.ids)}
    observed = Observed(log, row, np.full(log.n, np.nan), "exact")
    result = look_at(observed, drawn, begun, world.settings)
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
    differs = service.kept(world, traffic) & (rng.random(traffic.of.size) < traffic.chance)
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


def _missed(due_s: float, row: Draw) -> bool | None:
    """Return whether an audit was missed, once it is known or due."""
    return missed(row, {}, late=row.drawn_s <= due_s)


def alarm_of(world: World, service: Service, rng: np.random.Generator) -> int | None:
    """Audit and judge day by day, and count as a server does; return after how many audits the monitor alarms."""
    state = CascadeState("cascade").promoted(service.certificate, LEVEL, "me", "now")
    waiting, ended = list[tuple[Draw, bool, float]](), set[str]()
    labels, number, stream = world.labels or Labels(1.0, 0.0, 0.0, 0.0), 0, audited(world, service, rng)
    while number < AUDITS or waiting:
        day = number // AUDITS_A_DAY
        for at in range(AUDITS_A_DAY if number < AUDITS else 0):
            name, differs = next(stream)
            (loses,), (after,) = labels.drawn(rng, 1)
            if name in ended:
                continue
            drawn_s = (day + at / AUDITS_A_DAY) * DAY_S
            row = Draw(f"{number + at}", "", name, "", "audit", drawn_s, outcome="complete", differs=differs)
            waiting.append((row, bool(loses), day + float(after)))
        number += AUDITS_A_DAY
        now_s = (day + 1) * DAY_S
        due_s = now_s - LABEL_DAYS * DAY_S
        judged = [row._replace(lost=loses if told <= day else None) for row, loses, told in waiting]
        state, rows = counted(state, judged, partial(_missed, due_s), now_s, "now")
        if state.mode != "enforce":
            return state.monitor.audits if state.monitor else 0
        ended |= {row.conversation for row in rows}
        waiting = [audit for audit in waiting if audit[0].conversation not in ended]
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
    traffic, counted = world.traffic(rng, TRAFFIC), 1.0 if world.labels is None else world.labels.counted
    kept = [service.kept(world, traffic) for service in services]
    rates = [counted * float((traffic.chance * turns).mean()) for turns in kept]
    sound = [service for service, rate in zip(services, rates, strict=True) if rate <= world.risk]
    after = sum(turns.mean() for turns, rate in zip(kept, rates, strict=True) if rate <= world.risk)
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
        counted * DRIFT * float(after) / many,
        false / many,
        len(alarms) / many,
        alarms[len(alarms) // 2] if alarms else None,
    )


def main() -> None:
    """Run the loops and print what came."""
    loops = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    print(f"{loops} loops, up to {LOOKS} looks at {CONVERSATIONS} conversations, {AUDITS} audits; delta {DELTA}.")
    for world in WORLDS:
        found = shares(world, loops)
        print(f"{world.name}: promoted {found.promoted:.3f}; of all requests {found.lost:.4f} are lost")
        print(f"  more than {world.risk:g}: {found.false:.3f} of the promotions (bar {bound(DELTA, loops):.3f})")
        if found.sound:
            print(f"  false alarms {found.false_alarms:.3f} (bar {bound(LEVEL, found.sound):.3f}) without drift")
            when = "never" if found.median is None else f"median after {found.median} audits"
            print(f"  after a drift {found.lost_after:.4f} are lost: alarm {found.alarms:.3f}, {when}", flush=True)


if __name__ == "__main__":
    main()
