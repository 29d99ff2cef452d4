"""A monitor on audited misses: how often it alarms without drift, how soon with it, and what its fallback keeps.

    python benchmarks/drift.py                            about ten minutes of one core
    python benchmarks/drift.py --quick                    a tenth of the streams
    python benchmarks/drift.py --only served

Streams without drift are calibrated anew, each with questions of its own, and end after 1,000 audits. A drift is a jump
of the miss rate from 10 % to 25 %. "Served" runs whole cascades: three models in turn, of which the first becomes
worse without becoming less sure of itself; every fifth question is audited.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, ScoreArrays, StepArrays, levels, rollout
from cascade.conformal.audits import AuditPlan
from cascade.conformal.monitor import UNLUCKY, Monitor
from cascade.conformal.split import calibrate, covered_at, critical_kappa

ALPHA, DELTA, LEVEL = 0.1, 0.1, 0.05
BEFORE, AFTER = 0.10, 0.25
AUDITS = 1000
LONGEST = 3000
"""Audits after a jump, of which a stream without an alarm counts as "not found"."""
_Draw = Callable[[np.random.Generator, int], Floats]


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
        made = calibrate(values[: world.n], ALPHA, delta=world.delta)
        start = Monitor.start(alpha=ALPHA, n=made.n, k=made.k, delta=world.delta, level=LEVEL)
        alarms += fed(start, ~covered_at(values[world.n :], made.kappa)).alarmed
    return alarms


def false_alarms_at_alpha(streams: int, audits: int = AUDITS) -> int:
    """Return how many streams alarm whose miss rate is the promised one exactly: the worst that a promise allows."""
    chance, start = np.random.default_rng(2), Monitor.start(alpha=ALPHA, delta=DELTA, level=LEVEL)
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
    delta = DELTA if null == "delta" else None
    k = calibrate(np.arange(n), ALPHA, delta=delta).k
    return Monitor.start(alpha=ALPHA, n=n, k=k, delta=delta, level=LEVEL)


def delay(start: Monitor, quiet: int, streams: int) -> Delay:
    """Return how long after `quiet` audits at 10 % a rate of 25 % is found."""
    chance, found, early = np.random.default_rng(3), [], 0
    for _ in range(streams):
        calm = fed(start, chance.random(quiet) < BEFORE)
        early += calm.alarmed
        if not calm.alarmed:
            after = fed(calm, chance.random(LONGEST) < AFTER)
            found.append(after.audits - quiet if after.alarmed else LONGEST + 1)
    return Delay(streams, early, _of(found, 0.5), _of(found, 0.95))


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


# --- whole cascades ---

COSTS_NANO_USD = (20_000, 100_000, 1_000_000)
QUIET, LOUD, WINDOW, CALIBRATED, AUDITED = 2500, 5000, 250, 200, 0.2
_STRENGTHS = (1.0, 2.2, 3.6)  # log-odds of a right answer to an easy question, less 4 for the hardest


def questions(chance: np.random.Generator, n: int, broken: float) -> tuple[StepArrays, ScoreArrays]:
    """Return n questions to three models in turn, and the doubts that say whether to go on.

    Args:
        chance: the source of randomness.
        n: how many.
        broken: the share of questions that the first model now gets wrong with the sureness of a right answer.
    """
    hard = 4 * chance.random((n, 1)) - np.array(_STRENGTHS)
    right = chance.random((n, 3)) < 1 / (1 + np.exp(hard))
    struck = chance.random(n) < broken
    seems = right.copy()
    right[struck, 0], seems[struck, 0] = False, True
    doubt = np.where(seems, chance.beta(2, 5, (n, 3)), chance.beta(5, 2, (n, 3)))
    steps = StepArrays(
        answer=np.where(right, 0, np.array([1, 2, 2]))[:, :, None],
        correct=right[:, :, None],
        cost=np.tile(np.array(COSTS_NANO_USD), (n, 1)),
        steps=np.full(n, 3),
        complete=np.ones(n, dtype=np.bool_),
    )
    return steps, ScoreArrays(np.full((n, 3, 1), np.inf), doubt)


def broken_share() -> float:
    """Return the share of broken questions that makes 25 % of 10 % misses, by a population of 400,000."""
    rates: list[float] = []
    kappa = 0.0
    for broken in (0.0, 1.0):
        steps, scores = questions(np.random.default_rng(4), 400_000, broken)
        critical = critical_kappa(steps, levels(steps, scores))
        if not rates:
            kappa = float(np.quantile(critical, ALPHA))
        rates.append(float(np.mean(~covered_at(critical, kappa))))
    return (AFTER - rates[0]) / (rates[1] - rates[0])


class Served(NamedTuple):
    """What the questions of one stream got: covered or not, and at which cost, each bool or int64 (questions,)."""

    covered: Bools
    cost: Ints


POLICIES = ("as calibrated", "monitor, then everything", "monitor, then guide")


def stream(seed: int, broken: float, delta: float | None = None) -> tuple[dict[str, Served], int | None]:
    """Serve one stream in each way; return also the number of audits from the jump to the alarm.

    The alarm is None where there is none; a false one, before the jump, has a number below 0.
    """
    chance, total = np.random.default_rng([5, seed]), QUIET + LOUD
    calibration = questions(chance, CALIBRATED, 0.0)
    kappa = calibrate(critical_kappa(calibration[0], levels(*calibration)), ALPHA, delta=delta)
    parts = questions(chance, QUIET, 0.0), questions(chance, LOUD, broken)
    names = ("answer", "correct", "cost", "steps", "complete")
    answer, correct, cost, many, complete = (
        np.concatenate([getattr(part[0], name) for part in parts]) for name in names
    )
    steps = StepArrays(answer, correct, cost, many, complete)
    scores = ScoreArrays(*(np.concatenate(two) for two in zip(parts[0][1], parts[1][1], strict=True)))
    found = levels(steps, scores)
    critical, plan = critical_kappa(steps, found), AuditPlan(AUDITED, seed=seed)
    audited = np.array([number for number in range(total) if plan.draw(number)])
    start = Monitor.start(alpha=ALPHA, n=kappa.n, k=kappa.k, delta=delta, level=LEVEL)
    monitor = fed(start, ~covered_at(critical[audited], kappa.kappa))
    alarm = total if monitor.alarmed_after is None else int(audited[monitor.alarmed_after - 1]) + 1
    late = np.arange(total) >= alarm

    def at(threshold: float | Floats) -> Served:
        result = rollout(steps, found, threshold)
        return Served(result.covered, result.cost)

    plain, all_kept = at(kappa.kappa), at(-np.inf)
    guide = steps.correct[:, 2, 0] | ~steps.solvable
    ways = (
        plain,
        Served(np.where(late, all_kept.covered, plain.covered), np.where(late, all_kept.cost, plain.cost)),
        Served(np.where(late, guide, plain.covered), np.where(late, COSTS_NANO_USD[2], plain.cost)),
    )
    since = None if monitor.alarmed_after is None else monitor.alarmed_after - int(np.searchsorted(audited, QUIET))
    return dict(zip(POLICIES, ways, strict=True)), since


class Course(NamedTuple):
    """Means over streams: coverage and cost in each window of questions, float64 (windows,) each; alarms by stream."""

    coverage: dict[str, Floats]
    cost_usd: dict[str, Floats]
    alarms: list[int | None]


def course(streams: int) -> Course:
    """Serve so many streams and average them."""
    broken, runs = broken_share(), []
    covered = {name: np.zeros((QUIET + LOUD) // WINDOW) for name in POLICIES}
    cost = {name: np.zeros((QUIET + LOUD) // WINDOW) for name in POLICIES}
    for seed in range(streams):
        ways, alarm = stream(seed, broken)
        runs.append(alarm)
        for name, served in ways.items():
            covered[name] += served.covered.reshape(-1, WINDOW).mean(axis=1) / streams
            cost[name] += served.cost.reshape(-1, WINDOW).mean(axis=1) / streams * 1e-9
    return Course(covered, cost, runs)


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


def course_lines(found: Course) -> Iterator[str]:
    """Yield the table of whole cascades."""
    jump = QUIET // WINDOW
    yield "| served | coverage before | 1,000 questions after the jump | last 2,500 | USD for 1,000, before | last |"
    yield "|---|---|---|---|---|---|"
    for name in POLICIES:
        coverage, cost = found.coverage[name], found.cost_usd[name] * 1000
        means = [part.mean() for part in (coverage[:jump], coverage[jump : jump + 4], coverage[-10:])]
        spent = [part.mean() for part in (cost[:jump], cost[-10:])]
        yield "| " + " | ".join([name, *(f"{x:.3f}" for x in means), *(f"{x:.3f}" for x in spent)]) + " |"
    early = sum(one is not None and one <= 0 for one in found.alarms)
    late = [LONGEST + 1 if one is None else one for one in found.alarms if one is None or one > 0]
    yield ""
    yield (
        f"{len(found.alarms)} streams: {early} alarms before the jump; after it the median comes within "
        f"{_of(late, 0.5)} audits, 95 % within {_of(late, 0.95)}, none in {sum(one is None for one in found.alarms)}."
    )


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the streams")
    parser.add_argument("--only", choices=("false-alarms", "delays", "served"), help="one of the tables")
    given = parser.parse_args()
    part = 10 if given.quick else 1
    if given.only in {None, "false-alarms"}:
        print("\n".join(alarm_lines(2000 // part)), flush=True)
    if given.only in {None, "delays"}:
        print("\n".join(delay_lines(400 // part)), flush=True)
    if given.only in {None, "served"}:
        print("\n".join(course_lines(course(200 // part))))


if __name__ == "__main__":
    main()
