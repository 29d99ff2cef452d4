"""Tables 2 to 9 of the CCPO paper on simulated worlds: every row beside the printed one, and what agrees.

    python benchmarks/paper/tables.py                     all tables, 20 splits: half an hour of two cores
    python benchmarks/paper/tables.py --table 2 --splits 3 --steps 300

The worlds are fitted to marginals of the same tables (`design/paper.md`), so the rows of Random, UALA and the EXITs
prove nothing; those of the networks do. A split draws new questions: 1,000 (HotpotQA) or 560 (MMLU) to train, 200 to
calibrate, 200 to test. Cents are for 200 questions. "At 1 − α" is a row's cost at a coverage of exactly 1 − α on 20,000
more questions. ± is one standard error over the splits. A ratio is "the same" where its 95 % interval lies within 3 %.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev,dev-train]"
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np

sys.path.append(str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[2] / "tests"))

from printed import (
    CCPO,
    CHARGED,
    CPO,
    CPO_BATCH,
    CPO_ONLINE,
    EXIT_BASE,
    EXIT_GUIDE,
    GUIDE_POLICY,
    IMPOSSIBLE,
    QUESTIONS,
    RANDOM,
    TABLES,
    UALA,
    Table,
)
from simulated import WORLDS, simulated_log

from cascade.conformal.certify import certify
from cascade.conformal.path import UNITS, Scores, hopeless, reaches, strict_to_lenient
from cascade.conformal.promise import Promise
from cascade.policies.networks import NetworkSettings, train
from cascade.policies.policy import Policy, score_policy
from cascade.studies.methods import Uniform
from cascade.studies.study import student_quantile
from cascade.table import Log

CENTS, FRESH, ABOVE_ALL, ALIKE = QUESTIONS * 1e-7, 20_000, 1.0, 0.03
THRESHOLD = "one threshold, conformal"
EXITS = {EXIT_GUIDE: "LLM-exit, guide", EXIT_BASE: "LLM-exit, base"}
PAIRS = ((CCPO, CPO_BATCH), (CCPO, CPO_ONLINE), (CCPO, UALA), (CHARGED, CCPO))


class Figures(NamedTuple):
    """One row of one split: means over its questions; `matched` in cents, NaN where nothing can be moved."""

    cents: float
    coverage: float
    length: float
    leaves: float
    matched: float = math.nan


@dataclass(frozen=True, slots=True)
class Judged(Policy):
    """Keep of each of the first rounds the answer that the verdict favours: the printed UALA of that many rounds."""

    kind: ClassVar[str] = "judged"
    depth: int = 1
    nodes: tuple[int, ...] | None = None

    def scores(self, log: Log) -> Scores:
        """Return +∞ for the guide's answers, which after a yes are the base's."""
        guide = np.arange(log.width) % 2 == 1
        onward = np.where(log.steps < self.depth - 1, np.inf, -np.inf)
        shape = log.answer.shape
        return Scores(np.broadcast_to(onward, shape).copy(), np.broadcast_to(np.where(guide, np.inf, -np.inf), shape))


def at_kappa(policy: Policy, kappa: float, log: Log) -> Figures:
    """Return what a policy brings at a threshold."""
    walked = policy.walks(log)
    in_set = log.answers & reaches(walked.keep, kappa)
    covered = (in_set & (log.right == 1)).any(axis=1) | hopeless(log)
    rounds = log.steps[walked.stop(kappa)] + 1
    cents = float(walked.cost.at(kappa).mean()) * CENTS
    return Figures(cents, float(covered.mean()), float(rounds.mean()), float(in_set.sum(axis=1).mean()))


def matched(policy: Policy, log: Log, coverage: float) -> float:
    """Return the mean cost, nano-USD, at exactly a coverage: between two thresholds in proportion; NaN: not reached."""
    walked = policy.walks(log)
    path = strict_to_lenient(walked, Promise("coverage").rules.jumps(walked))
    covers, cost = 1.0 - path.loss / UNITS / log.n, path.cost_nano_usd / log.n
    enough = np.flatnonzero(covers >= coverage)
    if not enough.size:
        return math.nan
    last = int(enough[-1])
    if last == covers.size - 1:
        return float(cost[last])
    share = (covers[last] - coverage) / (covers[last] - covers[last + 1])
    return float(cost[last] + share * (cost[last + 1] - cost[last]))


@cache
def fresh(world: str) -> Log:
    """Return the questions that all splits of a world share."""
    return simulated_log(WORLDS[world], FRESH, 2)


def play(of: int, number: int, settings: NetworkSettings) -> dict[str, Figures]:
    """Return the rows of one split of a table."""
    table = TABLES[of]
    drawn = simulated_log(WORLDS[table.world], table.train + 2 * QUESTIONS, 100 + number)
    ends = np.split(np.arange(drawn.n), [table.train, table.train + QUESTIONS])
    training, calibration, test = (drawn.take(rows) for rows in ends)
    promise = Promise("coverage", table.alpha)
    unit = float(drawn.cost_nano_usd[:, 1::2].mean())
    charged = settings.model_copy(update={"lambda_set": table.charge * 1e9 / unit})
    online = train(training, promise, "cpo_online", settings, number)
    simple = score_policy(training)
    assert simple is not None  # noqa: S101 - a simulated world has verdicts

    def calibrated(policy: Policy) -> Figures:
        walked = policy.walks(calibration)
        proven = certify(strict_to_lenient(walked, promise.rules.jumps(walked)), promise)
        kappa = -math.inf if proven is None else proven.kappa
        return at_kappa(policy, kappa, test)._replace(matched=dial(policy))

    def dial(policy: Policy) -> float:
        return matched(policy, fresh(table.world), 1 - table.alpha) * CENTS

    batch = calibrated(online)
    return {
        **{row: _recorded(test, name) for row, name in EXITS.items()},
        RANDOM: at_kappa(Uniform(number), -math.inf, test),
        GUIDE_POLICY: at_kappa(Judged(1), 0.0, test),
        UALA: at_kappa(Judged(table.depth), 0.0, test),
        THRESHOLD: calibrated(simple),
        CPO: at_kappa(online, ABOVE_ALL, test),
        CPO_BATCH: batch,
        CPO_ONLINE: at_kappa(online, online.kappa, test)._replace(matched=batch.matched),
        CCPO: calibrated(train(training, promise, "ccpo", settings, number)),
        CHARGED: calibrated(train(training, promise, "ccpo", charged, number)),
    }


def _recorded(log: Log, name: str) -> Figures:
    way = log.baselines[name]
    covered = way.covered | hopeless(log)
    means = (float(each.mean()) for each in (way.cost_nano_usd * CENTS, covered, way.length, way.size))
    return Figures(*means)


# --- what is printed ---


def _mean(values: Sequence[float], digits: int) -> str:
    mean = f"{np.mean(values):.{digits}f}"
    many = len(values)
    return mean if many < 2 else f"{mean} ± {np.std(values, ddof=1) / math.sqrt(many):.{digits}f}"


def verdict(values: Sequence[float]) -> str:
    """Return what a ratio says over the splits.

    >>> verdict([0.9, 0.91, 0.89]), verdict([1.0, 1.001, 0.999]), verdict([0.8, 1.2, 1.0])
    ('less', 'the same', 'undecided')
    """
    mean, many = float(np.mean(values)), len(values)
    noise = math.inf if many < 2 else student_quantile(0.975, many - 1) * np.std(values, ddof=1) / math.sqrt(many)
    if abs(mean - 1) + noise <= ALIKE:
        return "the same"
    return "less" if mean + noise < 1 else "more" if mean - noise > 1 else "undecided"


def lines(table: Table, splits: Sequence[Mapping[str, Figures]]) -> Iterator[str]:
    """Yield a table: printed figures, then ours; and the ratios that the paper speaks of."""
    yield f"## Table {table.number}: {table.world}, α = {table.alpha:g}\n"
    yield "| | cents | covered | rounds | leaves | ours: cents | covered | rounds | leaves | cents at 1 − α |"
    yield "|---" * 10 + "|"
    for row in splits[0]:
        printed = table.rows.get(row)
        there = ["–"] * 4 if printed is None else [f"{value:g}" for value in printed]
        ours = [_mean([getattr(split[row], name) for split in splits], 3) for name in Figures._fields]
        mark = " (cannot be)" if (table.number, row) in IMPOSSIBLE else ""
        yield f"| {row}{mark} | {' | '.join([*there, *ours])} |".replace("nan ± nan", "–").replace("| nan |", "| – |")
    yield "\n| cost as played | printed | ours | | at 1 − α | |\n|---|---|---|---|---|---|"
    for over, under in PAIRS:
        printed_ratio = table.rows[over].cents / table.rows[under].cents
        ratios = [split[over].cents / split[under].cents for split in splits]
        same = [split[over].matched / split[under].matched for split in splits]
        at = [_mean(same, 3), verdict(same)] if not np.isnan(same).any() else ["–", "–"]
        yield f"| {over} ÷ {under} | {printed_ratio:.3f} | {_mean(ratios, 3)} | {verdict(ratios)} | {' | '.join(at)} |"
    yield ""


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", type=int, choices=sorted(TABLES), action="append")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1_000, help="updates of a network")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    settings = NetworkSettings(steps=given.steps)
    with ProcessPoolExecutor(given.jobs) as pool:
        for number in given.table or sorted(TABLES):
            table = TABLES[number]
            splits = list(pool.map(partial(play, number, settings=settings), range(given.splits)))
            print("\n".join(lines(table, splits)), flush=True)


if __name__ == "__main__":
    main()
