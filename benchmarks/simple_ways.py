"""Compare the cost of a certified regret with `cascade fit` and with the simple ways that an engineer writes in a day.

    python benchmarks/simple_ways.py FOLDER                      every pair and ladder, 20 splits
    python benchmarks/simple_ways.py FOLDER --quick              5 splits
    python benchmarks/simple_ways.py FOLDER --only "8b>405b" --alpha 0.05 --jobs 2 --record FILE
    python benchmarks/simple_ways.py FOLDER --resplits 1000      whether ours keeps its promise, over many splits

A pair is a base and a guide, a ladder three models or more; the last model is the reference, and a regret an answer
that is wrong where the reference's is right. Only logs are used on which the clairvoyant bound saves 10 % or more of
the reference's cost at the promise. A split draws seven of ten groups. Every way gets all of their rows and divides
them as it likes; the other groups are the test. Nothing is tuned on any of them. "ours" is `cascade fit LOG --guarantee
regret`; `simple/opponents.py` describes the others. A cost is a share of the reference's cost on the test questions.
Where a way certifies no saving, the reference is asked at once: cost 1.00, no regret. This counts the same for every
way; beside each mean the table shows the mean of the certified splits alone.

With `--record` each split is written as soon as it is done, and a stopped run continues from there.

`--resplits`: a certificate speaks of the questions that its calibration rows were drawn from. Given what a fit trained
on, these are the calibration and the test rows together. The promise is broken where the policy's regret over them is
above alpha, which may happen in a share of delta of the splits.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from fit_regret import halves
from fitted.cells import Cell, LeftOut
from fitted.report import head, table
from simple.cells import WORTH, read, saves
from simple.opponents import WAYS, Served, rows_of, serve

from cascade.conformal.arrays import Bools, Floats
from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError
from cascade.evaluation.baselines import reference_of
from cascade.evaluation.evaluate import play_policy
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import reference_right
from cascade.training.fitting import Fitted, fit_policy

ALPHAS, DELTA = (0.02, 0.05), 0.1
SPLITS, QUICK = 20, 5
OURS = "ours"
SIMPLE = ("mapie", "exact")
"""The ways with one threshold; ours is held against the better of them."""
NAMES = (OURS, *WAYS)
LADDERS_BAR, RUNGS_BAR = 0.95, 0.98


class Job(NamedTuple):
    """One split of one log."""

    name: str
    alpha: float
    seed: int

    @property
    def key(self) -> str:
        """Its name in a record."""
        return f"{self.name} @ {self.alpha:g} # {self.seed}"


class Done(NamedTuple):
    """What every way came to on one split."""

    job: Job
    ways: Mapping[str, Served]
    seconds: float


class Cellwise(NamedTuple):
    """All splits of one log at one alpha."""

    cell: Cell
    alpha: float
    saves: float
    splits: Sequence[Done]

    @property
    def is_ladder(self) -> bool:
        """Whether there are three models or more."""
        return self.cell.table.arrays.horizon > 2

    def ratios(self, way: str) -> Floats:
        """Return what a way costs on each split, as a share of the reference."""
        return np.array([one.ways[way].ratio for one in self.splits])

    def certified(self, way: str) -> Bools:
        """Return on which splits it certifies a saving."""
        return np.array([bool(one.ways[way].certified) for one in self.splits])

    def regrets(self, way: str) -> Floats:
        """Return what share of the test questions it serves wrongly where the reference is right."""
        return np.array([one.ways[way].regret for one in self.splits])

    def broken(self, way: str) -> float:
        """Return the share of splits whose test questions show a regret above alpha: by chance too."""
        return float(np.mean(self.regrets(way) > self.alpha + 1e-12))

    @property
    def better(self) -> str:
        """The better of the simple ways, on the mean of the splits."""
        return min(SIMPLE, key=lambda way: float(self.ratios(way).mean()))

    @property
    def gap(self) -> tuple[float, float]:
        """Ours less the better simple way, on the same splits, and the standard error of that mean."""
        gaps = self.ratios(OURS) - self.ratios(self.better)
        return float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(gaps.size)) if gaps.size > 1 else math.nan


# --- one split ---


@lru_cache(maxsize=2)
def _cells(folder: Path, names: tuple[str, ...]) -> tuple[dict[str, Cell], list[LeftOut]]:
    found, left = read(folder, names)
    return {cell.name: cell for cell in found}, left


def split(job: Job, folder: Path, names: tuple[str, ...]) -> Done:
    """Let every way choose on a split's rows, and serve the others."""
    started = time.perf_counter()
    log = _cells(folder, names)[0][job.name].table
    to_fit, to_test = halves(log.groups, job.seed)
    rows = rows_of(log)
    given, test = rows.take(to_fit), rows.take(to_test)
    ways = {name: serve(way(given, job.alpha, DELTA), test) for name, way in WAYS.items()}
    ours = ours_on(log.take(to_test), fitted(log.take(to_fit), job))
    return Done(job, {OURS: ours, **ways}, time.perf_counter() - started)


def fitted(log: EpisodeTable, job: Job) -> Fitted | None:
    """Fit as `cascade fit LOG --guarantee regret` does; None where nothing can be certified."""
    try:
        return fit_policy([log], Guarantee("regret", job.alpha, DELTA), seed=job.seed)
    except NotCertifiedError:
        return None


def ours_on(test: EpisodeTable, found: Fitted | None) -> Served:
    """Serve questions as a fitted policy would; as the reference alone where nothing is certified."""
    if found is None:
        return Served(1.0, 0.0, certified=False)
    played = play_policy(test, found.artifact.calibrated(found.policy))
    paid = reference_of(test).cost
    saving = not np.array_equal(played.cost, paid)  # a policy that asks the reference at once certifies none
    return Served(float(played.cost.sum() / paid.sum()), _regret(test, played.right), saving)


def _regret(test: EpisodeTable, right: Floats) -> float:
    return float(np.mean((1 - right) * reference_right(test)))


def resplit(job: Job, folder: Path, names: tuple[str, ...]) -> Done:
    """Fit on a split's rows, and count the regret over all questions but those that trained."""
    started = time.perf_counter()
    log = _cells(folder, names)[0][job.name].table
    found = fitted(log.take(halves(log.groups, job.seed)[0]), job)
    trained = set() if found is None else set(found.training.ids)
    others = log.take(np.flatnonzero([name not in trained for name in log.ids]))
    return Done(job, {OURS: ours_on(others, found)}, time.perf_counter() - started)


# --- all splits, with a record ---


def run(jobs: Sequence[Job], one: Callable[[Job], Done], processes: int, record: Path | None) -> list[Done]:
    """Do every job that the record lacks, and write each as it is done."""
    held = {} if record is None else recorded(record)
    found = [held[job.key] for job in jobs if job.key in held]
    for done in _each([job for job in jobs if job.key not in held], one, processes):
        found.append(done)
        if record is not None:
            with record.open("a", encoding="utf-8") as file:
                file.write(json.dumps([*done.job, done.ways, done.seconds]) + "\n")
    return found


def _each(jobs: Sequence[Job], one: Callable[[Job], Done], processes: int) -> Iterator[Done]:
    if processes == 1:
        yield from map(one, jobs)
        return
    with ProcessPoolExecutor(processes) as pool:
        for future in as_completed([pool.submit(one, job) for job in jobs]):
            yield future.result()


def recorded(record: Path) -> dict[str, Done]:
    """Return the splits of a record; a last line that was cut short is left out."""
    found: dict[str, Done] = {}
    for line in record.read_text("utf-8").splitlines() if record.exists() else ():
        try:
            name, alpha, seed, ways, seconds = json.loads(line)
        except json.JSONDecodeError:
            continue
        done = Done(Job(name, alpha, seed), {way: Served(*served) for way, served in ways.items()}, seconds)
        found[done.job.key] = done
    return found


def gathered(
    cells: Mapping[str, Cell], worth: Mapping[tuple[str, float], float], all_: Iterable[Done]
) -> list[Cellwise]:
    """Return the splits by log and alpha."""
    splits: dict[tuple[str, float], list[Done]] = {}
    for done in sorted(all_, key=lambda done: done.job):
        splits.setdefault((done.job.name, done.job.alpha), []).append(done)
    return [Cellwise(cells[name], alpha, worth[name, alpha], splits[name, alpha]) for name, alpha in worth]


# --- what is printed ---


def lines(found: Sequence[Cellwise]) -> Iterator[str]:
    """Yield the table of one alpha."""
    columns: tuple[str, ...] = ("log", "models", "clairvoyant", *(f"{name}" for name in NAMES))
    columns += ("ours − better of mapie, exact ± s.e.", "÷ rungs", "regret %: ours", *SIMPLE, "rungs", "above α: ours")
    yield from table((*columns, *SIMPLE, "rungs", "s a split"), [_cells_of(one) for one in found])


def _cells_of(one: Cellwise) -> list[str]:
    ways, (gap, error) = (OURS, *SIMPLE, "rungs"), one.gap
    return [
        one.cell.name,
        str(one.cell.table.arrays.horizon),
        f"{one.saves:.3f}",
        *(_cost(one, way) for way in NAMES),
        f"{gap:+.3f} ± {error:.3f}" + (" BEHIND" if gap > 2 * error else ""),
        f"{one.ratios(OURS).mean() / one.ratios('rungs').mean():.3f}",
        *(f"{100 * one.regrets(way).mean():.2f}" for way in ways),
        *(f"{one.broken(way):.0%}" for way in ways),
        f"{np.mean([done.seconds for done in one.splits]):.2f}",
    ]


def _cost(one: Cellwise, way: str) -> str:
    """Return a mean cost; where not all splits certify, that of those that do beside it, with their share."""
    ratios, certified = one.ratios(way), one.certified(way)
    if way == "uncertified" or certified.all():
        return f"{ratios.mean():.3f}"
    some = f"{ratios[certified].mean():.3f}" if certified.any() else "–"
    return f"{ratios.mean():.3f} ({some} on {certified.mean():.0%})"


def summary(found: Sequence[Cellwise]) -> Iterator[str]:
    """Yield the geometric means over pairs and over ladders, and the demands."""
    for kind, some in (("pairs", [one for one in found if not one.is_ladder]), ("ladders", _ladders(found))):
        if some:
            better = _geometric([one.ratios(OURS).mean() / one.ratios(one.better).mean() for one in some])
            others = ", ".join(f"{way} {_against(some, way):.3f}" for way in WAYS)
            yield f"{kind}, {len(some)}: ours ÷ better of mapie, exact {better:.3f}; ours ÷ {others}"
    behind = [one.cell.name for one in found if not one.is_ladder and one.gap[0] > 2 * one.gap[1]]
    yield f"{_said(not behind)} no pair behind the better simple way by more than 2 s.e.: {'; '.join(behind) or 'none'}"
    if _ladders(found):
        mean = _geometric([one.ratios(OURS).mean() / one.ratios(one.better).mean() for one in _ladders(found)])
        yield f"{_said(mean <= LADDERS_BAR)} ladders, geometric mean {mean:.3f}, at most {LADDERS_BAR}"
        mean = _against(_ladders(found), "rungs")
        yield f"{_said(mean <= RUNGS_BAR)} ladders, ÷ one certified threshold a rung {mean:.3f}, at most {RUNGS_BAR}"


def _ladders(found: Sequence[Cellwise]) -> list[Cellwise]:
    return [one for one in found if one.is_ladder]


def _against(some: Sequence[Cellwise], way: str) -> float:
    return _geometric([one.ratios(OURS).mean() / one.ratios(way).mean() for one in some])


def _geometric(ratios: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(ratios))))


def _said(met: bool) -> str:
    return "ok    " if met else "NOT MET"


def promises(found: Sequence[Cellwise]) -> Iterator[tuple[bool, str]]:
    """Yield whether a promise holds, and over how many re-splits it was broken."""
    for one in found:
        bar = DELTA + 3 * math.sqrt(DELTA * (1 - DELTA) / len(one.splits))
        broken = one.broken(OURS)
        said = f"{one.cell.name}, α {one.alpha:g}: {broken:.1%} of {len(one.splits)} above, at most {bar:.1%}"
        yield broken <= bar, said


def main(argv: Sequence[str] | None = None) -> int:
    """Measure and print; 1 if a promise is broken beyond chance (`--resplits`)."""
    given = _parser().parse_args(argv)
    names, alphas = tuple(given.only), given.alpha or ALPHAS
    cells, left = _cells(given.folder, names)
    if not cells:
        print(f"No log of {given.folder} can be used{' for --only' if names else ''}.", file=sys.stderr)
        return 2
    shares = {(name, alpha): saves(cell.table, alpha) for name, cell in cells.items() for alpha in alphas}
    worth = {key: share for key, share in shares.items() if share <= WORTH}
    count = given.resplits or given.splits or (QUICK if given.quick else SPLITS)
    jobs = [Job(name, alpha, seed) for seed in range(count) for name, alpha in worth]
    started, one = time.monotonic(), partial(resplit if given.resplits else split, folder=given.folder, names=names)
    found = gathered(cells, worth, run(jobs, one, given.jobs, given.record))
    print(f"{head()}; {count} splits, delta {DELTA:g}; {(time.monotonic() - started) / 60:.1f} minutes")
    print("\n".join(_left_out(left, shares)))
    if given.resplits:
        judged = list(promises(found))
        print("\n".join(f"{'ok    ' if holds else 'BROKEN'} {said}" for holds, said in judged))
        return int(not all(holds for holds, _ in judged))
    for alpha in alphas:
        some = [one for one in found if one.alpha == alpha]
        print(f"\n### regret {alpha:g}\n\n" + "\n".join([*lines(some), "", *summary(some)]) if some else "")
    return 0


def _left_out(left: Sequence[LeftOut], shares: Mapping[tuple[str, float], float]) -> Iterator[str]:
    for one in left:
        yield f"left out: {one.name}: {one.why}"
    for (name, alpha), share in shares.items():
        if share > WORTH:
            yield f"left out at {alpha:g}: {name}: the clairvoyant pays {share:.3f} of the reference's cost"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the logs are")
    parser.add_argument("--splits", type=int)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} splits")
    parser.add_argument("--resplits", type=int, help="splits of ours alone: is the promise kept?")
    parser.add_argument("--only", action="append", default=[], help="part of a log's name; may be given several times")
    parser.add_argument("--alpha", action="append", type=float, help=f"by default {ALPHAS}")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--record", type=Path, help="a file that each split is written to, to go on from")
    return parser


if __name__ == "__main__":
    sys.exit(main())
