"""What a certified regret costs on every pair, ladder and list of tool-calling models: `fit` beside simpler tests.

    python benchmarks/table.py FOLDER --record FILE              20 splits, regret 5 and 2 %, confidence 90 %: minutes
    python benchmarks/table.py FOLDER --switches --record FILE   what each part of `fit` is worth: it is switched off
    python benchmarks/table.py FOLDER --only zell_mmlu --splits 5 --risks 0.05

FOLDER holds the public logs that `benchmarks/logs.py` names. A split prepares each method on 70 % of the groups and
plays it on the others. A cost is a share of the reference's cost there, 1 where nothing is certified. "bound" is what
the oracle pays; only logs where it saves 10 % or more are used. "fit" is a first attempt, whose whole level is .99 δ.
The others have all of δ: MAPIE's fixed sequence along 400 quantiles of the named score, the exact binomial test at each
of its values, the same with ties broken, and one threshold per rung, learned together on 30 % of the groups. "broken"
counts the splits whose test requests lose more than promised, which a kept promise may do by chance.

With --record each log is written as soon as it is done, and a stopped run goes on from there.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import argparse
import json
import math
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from logs import HAIKU, WORTH, cells
from mapie.risk_control._base_controller import ltt_procedure

from cascade.conformal.certify import certify
from cascade.conformal.path import UNITS
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError
from cascade.fitting import fit as fitting
from cascade.fitting import menu
from cascade.fitting.attempts import Attempts
from cascade.fitting.divide import drawn, usable
from cascade.fitting.fit import RUNGS, FitSettings
from cascade.policies.policy import Policy, score_policy
from cascade.studies.methods import Fitted, Method, Played, one_test, play
from cascade.studies.study import study
from cascade.table import Log

RISKS, CONFIDENCE, SPLITS, GRID = (0.05, 0.02), 0.9, 20, 400
FIT, MAPIE, EXACT, TIES, ONE_PER_RUNG = "fit", "MAPIE", "exact", "exact, ties broken", "one per rung"
SIMPLE = (MAPIE, EXACT)
WAYS = (FIT, *SIMPLE, TIES, ONE_PER_RUNG)
SWITCHES = (FIT, "no ties", "no menu", "nothing learned", "no midway", "no ledger")


# --- the methods ---


@dataclass(frozen=True, slots=True)
class Seeded:
    """`fit`, whose draws differ from split to split, with some of its functions replaced."""

    name: str
    settings: FitSettings = FitSettings()  # noqa: RUF009 - it is frozen
    replaced: tuple[tuple[Any, str, Any], ...] = ()

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Fit with the seed of the split."""
        with ExitStack() as stack:
            for module, name, value in self.replaced:
                stack.enter_context(patch.object(module, name, value))
            return Fitted(replace(self.settings, seed=seed)).prepare(log, promise, seed)


@dataclass(frozen=True, slots=True)
class FixedSequence:
    """MAPIE's fixed sequence along quantiles of the score, strictest first; the cheapest valid one is served."""

    policy: Policy
    name: str = MAPIE

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Test on one request of each group."""
        some = drawn(usable(log, promise).log, seed)
        walked = self.policy.walks(some)
        scores = walked.reach[np.isfinite(walked.reach)]
        grid = np.unique(np.quantile(scores, np.linspace(0, 1, GRID), method="lower")) if scores.size else np.zeros(1)
        losses = promise.rules.jumps(walked).total(grid) / UNITS / some.n
        risk, delta = np.array([[promise.risk]]), 1 - CONFIDENCE
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # that a ladder's risk along the grid need not be monotone
            valid, _ = ltt_procedure(losses[None], risk, delta, np.full((1, grid.size), some.n), True, "fixed_sequence")
        passed = np.array(valid[0], dtype=np.int64)
        if not passed.size:
            raise NotCertifiedError("MAPIE finds no valid threshold.")
        kappa = float(grid[passed[walked.cost.total(grid)[passed].argmin()]])
        return lambda other: play(self.policy, kappa, other, promise)


@dataclass(frozen=True, slots=True)
class OrReference:
    """A test of one score by someone who asks the reference at once where what is certified costs no less."""

    test: Method

    @property
    def name(self) -> str:
        """The test's name."""
        return self.test.name

    def prepare(self, log: Log, promise: Promise, seed: int) -> Callable[[Log], Played]:
        """Compare both on the requests that certify."""
        playing = self.test.prepare(log, promise, seed)
        assert log.reference is not None  # noqa: S101 - these logs have one
        if playing(log).cost.sum() >= log.reference.cost_nano_usd.sum():
            raise NotCertifiedError("No certified threshold is cheaper than the reference.")
        return playing


def methods(log: Log) -> list[Method]:
    """Return the methods that are compared; those of one score only where the log names one."""
    simple = score_policy(log)
    if simple is None:
        return [Seeded(FIT)]
    plain = replace(simple, tie=None)
    tests = [OrReference(test) for test in (FixedSequence(plain), one_test(EXACT, plain), one_test(TIES, simple))]
    per_rung = [Seeded(ONE_PER_RUNG, FitSettings(policy=RUNGS))] if log.width > 2 else []
    return [Seeded(FIT), *tests, *per_rung]


def switched(log: Log) -> list[Method]:
    """Return `fit` and the same with one part switched off, each."""
    simple = score_policy(log)
    whole = (menu, "certify", partial(certify, midway=False))
    methods: list[Method] = [Seeded(FIT), Seeded("no midway", replaced=(whole,))]
    methods.append(Seeded("no ledger", replaced=((fitting, "count", lambda *_: Attempts(None, share=1.0)),)))
    if simple is not None:
        methods.append(Seeded("no ties", replaced=((menu, "tie_of", lambda _: None),)))
        methods.append(Seeded("no menu", FitSettings(policy=simple)))
        methods.append(Seeded("nothing learned", FitSettings(policy="threshold")))
    return methods


# --- jobs ---


class Done(NamedTuple):
    """What the methods came to on one log at one risk, over all splits.

    Attributes:
        family, name, risk, requests, groups, models: the log and the promise.
        bound: what the oracle pays.
        cost: the cost of each method in each split.
        lost: its mean loss.
        broken: in how many splits it lost more than promised.
    """

    family: str
    name: str
    risk: float
    requests: int
    groups: int
    models: int
    bound: float
    cost: dict[str, list[float]]
    lost: dict[str, float]
    broken: dict[str, int]

    def mean(self, method: str) -> float:
        """Return the mean cost of a method; NaN if it was not run."""
        return float(np.mean(self.cost[method])) if method in self.cost else math.nan

    @property
    def better(self) -> str:
        """The cheaper of the simple methods; `fit` where no score is named."""
        return min((method for method in SIMPLE if method in self.cost), key=self.mean, default=FIT)

    def gap(self, method: str, other: str) -> str:
        """Return the paired difference of two methods with its standard error over the splits."""
        gaps = np.array(self.cost[method]) - np.array(self.cost[other])
        return f"{gaps.mean():+.3f} ± {gaps.std(ddof=1) / math.sqrt(gaps.size):.3f}" if gaps.size > 1 else "–"


@lru_cache(maxsize=1)
def _cells(folder: Path) -> dict[str, Any]:
    return {cell.log.name: cell for cell in cells(folder)}


def run(folder: Path, name: str, risk: float, splits: int, switches: bool) -> Done:
    """Play every method on all splits of a log."""
    cell, promise = _cells(folder)[name], Promise("regret", risk, CONFIDENCE)
    listed = (switched if switches else methods)(cell.log)
    done = study(cell.log, promise, listed, splits=splits, seed=zlib.crc32(name.encode()) % 1000)
    rows = [row for row in done.rows if row.name in {method.name for method in listed}]
    return Done(
        cell.family, name, risk, done.requests, done.groups, cell.log.width, cell.least(promise),
        {row.name: list(row.curve) for row in rows}, {row.name: row.risk for row in rows},
        {row.name: row.broken for row in rows},
    )  # fmt: skip


def every(jobs: Sequence[tuple[str, float]], work: Callable[[str, float], Done], processes: int) -> Iterator[Done]:
    """Do all jobs, in as many processes."""
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(work, *job) for job in jobs]):
            yield future.result()


def recorded(record: Path | None) -> list[Done]:
    """Return what a record has; a last line that was cut short is left out."""
    results = []
    for line in record.read_text("utf-8").splitlines() if record is not None and record.exists() else ():
        try:
            results.append(Done(*json.loads(line)))
        except (json.JSONDecodeError, TypeError):
            continue
    return results


# --- what is printed ---


def _figure(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3f}"


def _line(values: Iterable[object]) -> str:
    return f"| {' | '.join(map(str, values))} |"


def _geometric(values: Sequence[float]) -> float:
    known = [math.log(value) for value in values if not math.isnan(value)]
    return math.exp(np.mean(known)) if known else math.nan


def table(done: Sequence[Done], columns: Sequence[str], splits: int) -> Iterator[str]:
    """Yield the lines of one risk: a line a log, then the geometric means of each family."""
    compared = columns == WAYS
    head = ["log", "requests", "models", "bound", *columns]
    head += ["fit − better of MAPIE, exact"] if compared else [f"{method} − fit" for method in columns[1:]]
    yield _line([*head, "lost / broken: " + "; ".join(columns)])
    yield _line(["---"] * (len(head) + 1))
    for each in sorted(done, key=lambda result: (result.family, result.name)):
        line = [
            each.name,
            each.requests,
            each.models,
            _figure(each.bound),
            *(_figure(each.mean(method)) for method in columns),
        ]
        if compared:
            line.append(each.gap(FIT, each.better))
        else:
            line += [each.gap(method, FIT) if method in each.cost else "–" for method in columns[1:]]
        lost = [
            f"{100 * each.lost[name]:.1f} % / {each.broken[name]}" if name in each.lost else "–" for name in columns
        ]
        yield _line([*line, "; ".join(lost)])
    yield ""
    extra = ["fit ÷ better of MAPIE, exact"] if compared else [f"{method} ÷ fit" for method in columns[1:]]
    yield _line(["geometric means", "logs", *columns, *extra, f"broken of {splits}, mean: {'; '.join(columns)}"])
    yield _line(["---"] * (len(columns) + len(extra) + 3))
    for family, some in _families(done):
        means = [_geometric([each.mean(method) for each in some]) for method in columns]
        if compared:
            ratios = [_geometric([each.mean(FIT) / each.mean(each.better) for each in some])]
        else:
            ratios = [_geometric([each.mean(method) / each.mean(FIT) for each in some]) for method in columns[1:]]
        broken = [[each.broken[method] for each in some if method in each.broken] for method in columns]
        counts = "; ".join(f"{np.mean(each):.1f}" if each else "–" for each in broken)
        yield _line([family, len(some), *map(_figure, [*means, *ratios]), counts])


def _families(done: Sequence[Done]) -> Iterator[tuple[str, list[Done]]]:
    for family in sorted({each.family for each in done}):
        some = [each for each in done if each.family == family]
        yield family, some
    yield from ((HAIKU, [each]) for each in done if each.name == HAIKU)


def main() -> None:
    """Run what the record lacks, then print a table for each risk."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--splits", type=int, default=SPLITS)
    parser.add_argument("--risks", type=float, nargs="+", default=RISKS)
    parser.add_argument("--only", default="", help="logs whose name has this")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--record", type=Path)
    parser.add_argument("--switches", action="store_true")
    given = parser.parse_args()
    wanted = [cell for name, cell in _cells(given.folder).items() if given.only in name]
    jobs = [
        (cell.log.name, risk)
        for cell in sorted(wanted, key=lambda cell: cell.log.n)
        for risk in given.risks
        if cell.least(Promise("regret", risk, CONFIDENCE)) <= WORTH
    ]
    done = [each for each in recorded(given.record) if (each.name, each.risk) in jobs]
    left = [job for job in jobs if job not in {(each.name, each.risk) for each in done}]
    work = partial(run, given.folder, splits=given.splits, switches=given.switches)
    for each in every(left, work, given.jobs):
        done.append(each)
        if given.record is not None:
            with given.record.open("a", encoding="utf-8") as file:
                file.write(json.dumps(each) + "\n")
    for risk in given.risks:
        print(f"\nRegret {risk:g}, confidence {CONFIDENCE:g}, {given.splits} splits\n")
        some = [each for each in done if each.risk == risk]
        print("\n".join(table(some, SWITCHES if given.switches else WAYS, given.splits)))


if __name__ == "__main__":
    main()
