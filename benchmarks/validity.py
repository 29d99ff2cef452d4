"""Do the promises hold? Thousands of calibrations on populations of which every risk is known.

    python benchmarks/validity.py                      20,000 calibrations a row: half an hour of two cores
    python benchmarks/validity.py --calibrations 500   a trial
    python benchmarks/validity.py FOLDER --draws 1000  real logs, each as the population that is drawn from

Calibration requests are drawn from a population with replacement, and certified as `fit` does. The risk of what is
served is then a mean over the population: no test set, no error of its own. A promise with confidence 1 − δ is broken
by a calibration whose served risk is above the promise, which may happen in a share of δ. On average
over calibrations the mean risk counts. Rows called "naive" are rules that people use; they must fail, or the others
could not. It ends with 1 where a promise fails by more than three standard errors, or a naive rule does not fail.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import cache, partial
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade.conformal.certify import certify, path_of, points_of
from cascade.conformal.path import UNITS, Jumps
from cascade.conformal.promise import Promise
from cascade.fitting.divide import drawn
from cascade.fitting.fit import FitSettings, fit
from cascade.fitting.menu import run_tests, simple_members
from cascade.policies.policy import Depth, Policy, Threshold, score_policy
from cascade.table import Ints, Log, Node, Reference

CALIBRATIONS, SIZE, DELTA = 20_000, 10_000, 0.1
SIZES = ((100, 0.1), (400, 0.05))
"""Requests that certify, and the risk that is promised."""
ERRORS = 3.0
LEARNS = 0.4
"""Requests that put points in order, as a share of those that certify."""
LONGEST = 6
HARD = "hard"
"""The segment whose certificate is judged, on its own requests."""
Served = tuple[Policy, float]
Method = Callable[[Log, Promise, np.random.Generator], "Served | None"]


class Row(NamedTuple):
    """What many calibrations came to.

    Attributes:
        name: the promise; "naive …" for a rule that is to fail.
        population: what requests are drawn from.
        n, risk: the requests that certify, and the promise.
        promised: what `measured` may not exceed.
        measured: the share of calibrations that broke the promise; on average the mean risk.
        error: its standard error.
        certified: the share of calibrations that proved something.
    """

    name: str
    population: str
    n: int
    risk: float
    promised: float
    measured: float
    error: float
    certified: float

    @property
    def excess(self) -> float:
        """By how many standard errors the measured value is above the promise."""
        return (self.measured - self.promised) / max(self.error, 1e-12)

    @property
    def holds(self) -> bool:
        """Whether it is as it should be: a promise that is kept, a naive rule that breaks it."""
        return (self.excess > ERRORS) if self.name.startswith("naive") else self.excess <= ERRORS


# --- populations ---


@cache
def population(name: str) -> Log:
    """Return a population; the same each time.

    "scores" and "ties": three models of rising strength and price, doubts that follow the difficulty, with noise; in
    "ties" they have 16 values. "conversations": of one hard turn, or of six easy ones. "one score": every answer has
    the same doubt, and one request of all is lost too much at each threshold but the strictest.
    """
    rng, rows = np.random.default_rng(11), SIZE
    member = np.arange(rows)
    hardness = rng.random(rows)
    if name == "conversations":
        long = rng.random(rows) < 0.5
        member = np.repeat(member, np.where(long, LONGEST, 1))
        hardness = np.where(long[member], 0.0, 0.6) + 0.4 * rng.random(member.size)
        rows = member.size
    right = hardness[:, None] < np.array([0.6, 0.8, 0.95]) + 0.12 * rng.standard_normal((rows, 3))
    score = -hardness[:, None] + 0.2 * rng.standard_normal((rows, 3)) + 0.2 * right
    if name == "ties":
        score = np.round(score * 8) / 8
    answer = np.where(right, 0, rng.integers(1, 5, (rows, 3)))
    cost = np.array([20_000, 100_000, 1_000_000]) * np.ones((rows, 1), dtype=np.int64)
    return Log(
        name, tuple([Node(each, at) for at, each in enumerate(("small", "medium", "large"))]),
        tuple(map(str, range(rows))), tuple(map(str, member.tolist())), answer, right.astype(np.float64), cost,
        np.ones((rows, 3), dtype=np.bool_), np.ones(rows, dtype=np.bool_), np.clip(0.5 + score / 3, 0, 1),
        signals={"reply_mean_logprob": score, "reply_tokens": rng.integers(1, 400, (rows, 3)).astype(np.float64)},
        reference=Reference(right[:, 2].astype(np.float64), cost[:, 2], is_last=True),
    )  # fmt: skip


@cache
def hardest(risk: float) -> Log:
    """Return a pair of models whose first is wrong on one request more than may be lost, and says nothing of it."""
    log = population("scores").only((0, 2))
    wrong = np.arange(log.n) <= round(risk * log.n)
    right = np.stack([~wrong, np.ones(log.n, dtype=np.bool_)], axis=1).astype(np.float64)
    signals = {"reply_mean_logprob": np.zeros((log.n, 2))}
    reference = Reference(right[:, 1], log.cost_nano_usd[:, 1], is_last=True)
    return replace(log, name="one score", answer=1 - right.astype(np.int64), right=right, signals=signals,
                   reference=reference)  # fmt: skip


def in_segments(log: Log) -> Log:
    """Return a log in two segments; the first model doubts the requests of one."""
    doubtful = log.signals["reply_mean_logprob"][:, 0] < np.median(log.signals["reply_mean_logprob"][:, 0])
    return replace(log, segments=tuple(np.where(doubtful, HARD, "easy").tolist()))


def unsafe(log: Log) -> Log:
    """Return a ladder whose reference is asked apart, so that a walk to the end proves nothing by definition."""
    assert log.reference is not None  # noqa: S101 - of every population
    return replace(log, reference=log.reference._replace(is_last=False))


def compared(log: Log) -> Log:
    """Return a log whose truth is the reference's output: an answer is right if it equals the last one."""
    return replace(log, right=(log.answer == log.answer[:, -1:]).astype(np.float64))


# --- what certifies ---


def menu(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """The cheapest of the tests that learn nothing, at a shared level."""
    del rng
    tested = run_tests(log, log, simple_members(log), promise, DELTA)
    proven = [(each.cost or 0.0, each.policy, each.certified.kappa) for each in tested if each.certified is not None]
    return min(proven, key=itemgetter(0))[1:] if proven else None


def path(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """One policy, from the strictest threshold on."""
    del rng
    policy = score_policy(log) or Depth()
    proven = certify(path_of(policy.walks(log), promise, None), promise)
    return None if proven is None else (policy, proven.kappa)


def ordered(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """One policy along points that the last requests put in order, certified on the others."""
    del rng
    policy, many = Threshold("reply_mean_logprob", -1.0, tie=None), round(log.n / (1 + LEARNS))
    rows = np.arange(log.n)
    points = points_of(policy.walks(log.take(rows[many:])), promise)
    proven = certify(path_of(policy.walks(log.take(rows[:many])), promise, points), promise)
    return None if proven is None else (policy, proven.kappa)


def judged(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """People judge a share of the requests, drawn at random."""
    return menu(replace(log, drawn=rng.random(log.n) < promise.rate), promise, rng)


def grouped(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """One request of each conversation certifies."""
    return menu(drawn(log, int(rng.integers(1 << 30))), promise, rng)


def fitted(
    log: Log, promise: Promise, rng: np.random.Generator, *, name: str = "", settings: FitSettings | None = None
) -> Served | None:
    """`fit` itself, with all that learns: what it serves under the certificate of a name."""
    names, how = tuple(map(str, range(log.n))), settings or FitSettings()
    fresh = replace(log, ids=names, groups=names)  # each draw is a request of its own
    done = fit(fresh, promise, replace(how, seed=int(rng.integers(1 << 30))))
    proven = done.certified.get(name)
    return None if proven is None else (done.policy, proven.kappa)


def strict_level(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """The stricter of two levels: its policy is chosen for the other one."""
    risks = {"low": 2 * promise.risk, "high": promise.risk}
    return fitted(log, replace(promise, risk=risks["low"]), rng, name="high", settings=FitSettings(levels=risks))


def as_seen(log: Log, promise: Promise, rng: np.random.Generator) -> Served | None:
    """The cheapest threshold that loses no more than promised on these requests."""
    del rng
    policy = score_policy(log) or Depth()
    walked = policy.walks(log)
    tested = path_of(walked, promise, None)
    within = tested.loss <= promise.risk * tested.n * UNITS
    cost = np.where(within, tested.cost_nano_usd, np.iinfo(np.int64).max)
    return policy, float(tested.kappas[cost.argmin()])


def sure(kind: str, risk: float) -> Promise:
    """Return a promise with confidence 1 − DELTA."""
    return Promise(kind, risk, 1 - DELTA)


class Case(NamedTuple):
    """A row to measure: its name, its method, its promise, its population, and whether groups are drawn.

    A row that fits anew each time has only a tenth of the calibrations.
    """

    name: str
    method: Method
    promise: Promise
    log: Log
    n: int
    tenth: bool = False

    @property
    def groups(self) -> bool:
        """Whether whole groups are drawn, and each counts alike."""
        return self.log.name == "conversations"


def cases() -> Iterator[Case]:
    """Yield every row."""
    for n, risk in SIZES:
        for name in ("scores", "ties"):
            log = population(name)
            pair, more = log.only((0, 2)), round(n * (1 + LEARNS))
            yield Case("coverage, on average", path, Promise("coverage", risk), log, n)
            yield Case("coverage", path, sure("coverage", risk), log, n)
            yield Case("error", ordered, sure("error", 2 * risk), log, more)
            yield Case("regret, a pair", menu, sure("regret", risk), pair, n)
            yield Case("regret, a ladder", menu, sure("regret", risk), log, n)
            yield Case("agreement", menu, sure("agreement", risk), compared(log), n)
            yield Case("preference, half judged", judged, replace(sure("preference", risk), rate=0.5), compared(log), n)
            yield Case("naive: regret as seen", as_seen, sure("regret", risk), pair, n)
        ladder, part = population("scores"), partial(fitted, name=HARD, settings=FitSettings(by_segment=True))
        yield Case("regret, fit", fitted, sure("regret", risk), ladder, 4 * n, tenth=True)
        yield Case("regret, a level", strict_level, sure("regret", risk), ladder, 4 * n, tenth=True)
        yield Case("regret, no safe last node", fitted, sure("regret", risk), unsafe(ladder), 4 * n, tenth=True)
        yield Case("regret, a segment", part, sure("regret", risk), in_segments(ladder), 4 * n, tenth=True)
        talks = population("conversations")
        yield Case("regret, conversations", grouped, sure("regret", risk), talks, n)
        yield Case("naive: every turn certifies", menu, sure("regret", risk), talks, n)
        yield Case("regret, just above the promise", menu, sure("regret", risk), hardest(risk), n)


# --- measuring ---


class Judge:
    """Knows the risk of everything that may be served on a population."""

    def __init__(self, log: Log, promise: Promise, *, groups: bool) -> None:
        self._log, self._promise, self._known = log, promise, dict[str, Jumps]()
        _, member = np.unique(np.array(log.groups), return_inverse=True)
        judged = np.array([name in {None, HARD} for name in log.segments])
        self._weight = 1.0 / np.bincount(member)[member] if groups else judged.astype(np.float64)

    def risk(self, served: Served) -> float:
        """Return the share of fresh requests that is lost."""
        policy, kappa = served
        key = f"{policy.kind} {policy.settings()} {policy.nodes}"
        if key not in self._known or policy.tensors():
            walked = policy.walks(self._log)
            self._known[key] = self._promise.rules.jumps(walked)
        return float(np.average(self._known[key].at(kappa) / UNITS, weights=self._weight))


def measure(case: Case, calibrations: int) -> Row:
    """Calibrate so often."""
    calibrations //= 10 if case.tenth else 1
    judge = Judge(case.log, case.promise, groups=case.groups)
    rng, risks, certified = np.random.default_rng([7, case.n]), np.zeros(calibrations), 0
    starts = np.flatnonzero(np.append(True, np.array(case.log.groups)[1:] != np.array(case.log.groups)[:-1]))
    ends = np.append(starts[1:], case.log.n)
    for number in range(calibrations):
        log = _draw(case, rng, starts, ends)
        served = case.method(log, case.promise, rng)
        if served is not None:
            certified += 1
            risks[number] = judge.risk(served)
    share = certified / calibrations
    if case.promise.confidence is None:
        error = float(risks.std(ddof=1)) / math.sqrt(calibrations)
        return Row(case.name, case.log.name, case.n, case.promise.risk, case.promise.risk, risks.mean(), error, share)
    broken = float((risks > case.promise.risk + 1e-12).mean())
    error = math.sqrt(DELTA * (1 - DELTA) / calibrations)
    return Row(case.name, case.log.name, case.n, case.promise.risk, DELTA, broken, error, share)


def _draw(case: Case, rng: np.random.Generator, starts: Ints, ends: Ints) -> Log:
    """Return requests, or whole groups, drawn with replacement; each draw is a request, or a group, of its own."""
    chosen = rng.integers(starts.size, size=case.n)
    if not case.groups:
        return case.log.take(chosen)  # their groups are single requests
    rows = np.concatenate([np.arange(starts[each], ends[each]) for each in chosen])
    member = np.repeat(np.arange(case.n), ends[chosen] - starts[chosen])
    names = tuple(map(str, range(rows.size)))
    return replace(case.log.take(rows), ids=names, groups=tuple(map(str, member.tolist())))


def real(folder: Path, risks: Sequence[float] = (0.05, 0.02)) -> Iterator[Case]:
    """Yield the logs of a folder as populations, 70 % of as many requests as they have certifying."""
    from logs import cells

    for cell in cells(folder):
        single = replace(cell.log, groups=tuple(map(str, range(cell.log.n))))
        yield from (Case("regret", menu, sure("regret", risk), single, round(0.7 * single.n)) for risk in risks)


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    yield "| promise | population | n | risk | at most | measured | s.e. above | certified | holds |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for row in rows:
        yield (
            f"| {row.name} | {row.population} | {row.n} | {row.risk:g} | {row.promised:g} | {row.measured:.4f} | "
            f"{row.excess:+.1f} | {row.certified:.3f} | {'yes' if row.holds else 'NO'} |"
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; return 1 if a row is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--calibrations", type=int, default=CALIBRATIONS)
    parser.add_argument("--draws", type=int, default=1_000, help="of each real log")
    parser.add_argument("--only", default="", help="rows whose name has this")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args(arguments)
    every = cases() if given.folder is None else real(given.folder)
    wanted = [case for case in every if given.only in f"{case.name} {case.log.name}"]
    with ProcessPoolExecutor(given.jobs) as pool:
        many = given.calibrations if given.folder is None else given.draws
        rows = list(pool.map(partial(measure, calibrations=many), wanted))
    print("\n".join(lines(rows)))
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    sys.exit(main())
