"""What an adaptive stop saves of self-consistency's samples, at the accuracy of a fixed number of them.

    python benchmarks/self_consistency.py FOLDER

FOLDER holds `bfcl_v4_live.parquet`: tool calls that users contributed, each answered five times by gpt-oss-120b. A run
is one sample. Fixed: k samples, the most frequent answer, of equally frequent ones the first. Twice: samples until two
are equal, k at most. Settled: samples until no other answer can overtake the most frequent one, so that the answer is
that of k. One: a single sample. Ours: net benefit, fitted for `error` on seven of ten groups; it buys a further sample
where that is worth its price, and serves the answer that is most likely right. It is read at the threshold where it
errs as often on the test requests as the fixed k: that flatters it. Costs are means over 20 splits, shares of k.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
from collections import Counter
from pathlib import Path

import numpy as np
from agreement import DELTA
from chat_pairs import LIVE
from fit_regret import halves
from fitted.report import head, table

from cascade.calibration.scores import sample_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.episodes.importers import import_rows
from cascade.episodes.schema import Dropped
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.guarantees.base import Guarantee
from cascade.training.objective import cost_at_loss, curve_of, prices_of
from cascade.training.stages import FitTarget
from cascade.training.stopping import build, fit_net_benefit

MODEL, DRAWS, SPLITS = "gpt-oss-120b", 5, 20


def read(folder: Path) -> EpisodeTable:
    """Return the requests, each with five samples as five steps that do not read each other."""
    rows = []
    for row in import_rows(folder / LIVE, Dropped(), models=(MODEL,)):
        episode, _, run = row["episode_id"].partition("#")
        step = int(run or 1)
        told = {"episode_id": episode, "step": step, "parents": [], "horizon": DRAWS, "candidate": 0}
        rows.append({**row, **told})
    found = tables_from_rows(rows)[0]
    return found.take(found.arrays.steps == DRAWS).costed()


def most_frequent(answers: Ints) -> tuple[int, int, int]:
    """Return the place of the most frequent answer, how often it came, and how often the next one did.

    >>> most_frequent(np.array([3, 1, 1]))
    (1, 2, 1)
    """
    many = Counter(answers.tolist()).most_common()
    best = next(answer for answer, times in many if times == many[0][1])
    return int(np.flatnonzero(answers == best)[0]), many[0][1], many[1][1] if len(many) > 1 else 0


def stopped(log: EpisodeTable, most: int, rule: str) -> tuple[Bools, Floats, Ints]:
    """Return whether each request is answered right, its cost, and its samples, under a rule."""
    answers, right, cost = log.arrays.answer[:, :, 0], log.arrays.correct[:, :, 0], log.arrays.cost
    served, drawn = np.zeros(log.n, dtype=np.bool_), np.full(log.n, most)
    for row in range(log.n):
        for k in range(1, most + 1):
            place, first, second = most_frequent(answers[row, :k])
            if (
                rule == "one"
                or (rule == "twice" and first >= 2)
                or (rule == "settled" and first > second + most - k)
                or k == most
            ):
                served[row], drawn[row] = right[row, place], k
                break
    paid = np.cumsum(cost, axis=1)[np.arange(log.n), drawn - 1]
    return served, paid.astype(np.float64), drawn


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    log = read(parser.parse_args().folder)
    found: dict[tuple[int, str], list[tuple[float, float, float]]] = {}
    for seed in range(SPLITS):
        given, test = (log.take(rows) for rows in halves(log.groups, seed))
        for most in (3, DRAWS):
            some, shown = (one.only(range(1, most + 1)) for one in (given, test))
            right, cost, _ = stopped(shown, most, "fixed")
            for rule in ("fixed", "one", "twice", "settled"):
                served, paid, drawn = stopped(shown, most, rule)
                figures = float(served.mean()), float(paid.sum() / cost.sum()), float(drawn.mean())
                found.setdefault((most, rule), []).append(figures)
            aim = float(1 - stopped(some, most, "fixed")[0].mean())
            asked, wrong = Guarantee("error", aim, DELTA), float(1 - right.mean())
            policy = fit_net_benefit(build(some, FitTarget("error", aim), seed=seed))
            curve = curve_of(sample_of(shown, policy), asked, prices_of(shown))
            ours = 1 - wrong, min(1.0, cost_at_loss(curve, wrong) / float(cost.mean())), np.nan
            found.setdefault((most, "ours"), []).append(ours)
    print(f"{head()}; {log.n} requests, {SPLITS} splits")
    rows = []
    for (most, rule), each in found.items():
        means, error = np.mean(each, axis=0), np.std(each, axis=0, ddof=1) / SPLITS**0.5
        samples = "" if np.isnan(means[2]) else f"{means[2]:.2f}"
        rows.append([str(most), rule, f"{means[0]:.3f}", f"{means[1]:.3f} ± {error[1]:.3f}", samples])
    print("\n".join(table(("k", "rule", "right", "cost ÷ fixed k", "samples"), rows)))


if __name__ == "__main__":
    main()
