"""What certified agreement, and certified regret, cost on logged chat requests, beside what engineers write in a day.

    python benchmarks/agreement.py FOLDER                 every pair, 20 splits
    python benchmarks/agreement.py FOLDER --only mini --splits 5
    python benchmarks/agreement.py FOLDER --resplits 1000 --only mini
    python benchmarks/agreement.py FOLDER --keep done.jsonl      each split is kept there, and not done again

FOLDER holds `bfcl_v1.parquet`, `bfcl_v4_live.parquet`, `css_classification.parquet`. A split draws three of ten groups
for the test; of the others exactly 200 groups certify, with one request each (150 of the live log), and the rest train.
"agreement" compares with the last model's own output and reads no label; "regret" reads the labels of the log. A cost
is a share of what the last model alone costs on the test requests; where nothing is certified that is 1. With "+", a
second cheap model may be asked too; `fit` leaves out what does not pay. Ways:

* ours: `cascade fit LOG --guarantee agreement` (or regret) with the share that sets so many groups aside, and no other
  option.
* classifier: scikit-learn's boosted classifier of "stopping loses something" on the training requests, by the same
  numbers of request and reply, and MAPIE's Learn-then-Test along 400 quantiles of it on the certifying ones. It knows
  the first model and the last.
* tokens: the exact fixed sequence along the reply's tokens, all requests certify.
* agree: serve where the two cheap models give the same output, else ask the last; tested as a whole on the others.

`--resplits`: how often the loss over certifying and test requests together, given the training, is above alpha.

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import extras  # noqa: F401 - before the packages that it speaks of

import argparse
import functools
import json
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from chat_pairs import PAIRS, Pair, runs
from simple.opponents import Rows, Served, exact, mapie, serve

from cascade.calibration.samples import one_a_group
from cascade.calibration.scores import play, sample_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.binomial import most_losses
from cascade.episodes.schema import Dropped
from cascade.episodes.table import AGREEMENT, EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.truth import labelled_by_reference
from cascade.evaluation.evaluate import numbered
from cascade.guarantees.base import Guarantee
from cascade.policies.artifact import Threshold
from cascade.training.dividing import divided
from cascade.training.fitting import Fitted, fit_policy

DELTA = 0.1
ASKED = tuple(
    Guarantee(kind, alpha, DELTA)
    for kind, alpha in (("agreement", 0.05), ("agreement", 0.1), ("regret", 0.02), ("regret", 0.05))
)
SHARES = (0.4, 0.3, 0.3)


class Figures(NamedTuple):
    """A way on one split: cost as a share of the reference's, the loss on the test, whether a saving is certified."""

    cost: float
    loss: float
    certified: bool


def read(folder: Path, pair: Pair, kind: str) -> EpisodeTable:
    """Return a log as one promise reads it; of the runs of one request the first."""
    rows = runs(folder, pair)
    if kind != "agreement":
        return tables_from_rows(rows)[0]
    found = labelled_by_reference(lambda: rows)
    table = tables_from_rows(found.rows(Dropped()))[0]
    return replace(table, truth=found.truths[table.dataset])


def lost(table: EpisodeTable, step: int) -> Bools:
    """Return where stopping at a step, from 0, counts against the promise: bool (n,)."""
    right = table.arrays.correct[:, :, 0]
    return ~right[:, step] & (right[:, -1] | (table.truth is not None))


def fitted(log: EpisodeTable, asked: Guarantee, certify: int, seed: int) -> Fitted:
    """Fit with the share that sets exactly so many groups aside: of each one request certifies."""
    low, high = 0.0, 1.0
    while high - low > 1e-6:  # groups are set aside one after the other until they have the share of the requests
        share = (low + high) / 2
        found = divided([log], asked, share=share, seed=seed).calibration.n
        if found == certify:
            return fit_policy([log], asked, seed=seed, calibration_share=share)
        low, high = (share, high) if found < certify else (low, share)
    raise SystemExit(f"No share of this log sets {certify} groups aside.")


def ours(log: EpisodeTable, test: EpisodeTable, asked: Guarantee, certify: int, seed: int) -> Figures:
    """Return what `fit` brings on the test requests."""
    found = fitted(log, asked, certify, seed)
    cost, loss = played(found, test)
    return Figures(float(cost.sum() / reference(test).sum()), float(loss.mean()), found.policy.method != "reference")


def played(found: Fitted, table: EpisodeTable) -> tuple[Floats, Floats]:
    """Return the cost, and whether the promise is broken, of each request."""
    sample = sample_of(table, found.policy)
    (certificate,) = found.artifact.certificates
    done = play(sample.table, sample.scores, Threshold(certificate.kappa))
    counts = table.arrays.correct[:, -1, 0] | (table.truth is not None)  # the last model's answer, or its output
    return done.cost, (1 - done.right) * (counts & (not sample.is_reference))


def reference(table: EpisodeTable) -> Floats:
    """Return what the last model alone costs, nano-USD."""
    return np.asarray(table.arrays.cost[:, -1], dtype=np.float64)


def numbers(table: EpisodeTable) -> Floats:
    """Return what is known of request and first reply."""
    columns = [values[:, 0] for name, values in sorted(table.signals.items()) if name != AGREEMENT]  # none was earlier
    return np.stack([*columns, *(values for _, values in sorted(table.asked.items()))], axis=1)


def pair_rows(table: EpisodeTable, doubt: Floats) -> Rows:
    """Return the requests as a ladder of the first model and the last, with a score of doubt."""
    cost = np.stack([table.arrays.cost[:, 0], table.arrays.cost[:, 0] + table.arrays.cost[:, -1]], axis=1)
    loss = np.stack([lost(table, 0), np.zeros(table.n, dtype=np.bool_)], axis=1)
    group = np.unique(table.groups, return_inverse=True)[1]
    return Rows(np.nan_to_num(doubt, nan=np.inf)[:, None], loss, cost, table.arrays.cost[:, -1], group)


def figures(served: Served) -> Figures:
    """Return what an opponent brought."""
    return Figures(served.ratio, served.regret, bool(served.certified))


def classifier(train: EpisodeTable, certify: EpisodeTable, test: EpisodeTable, asked: Guarantee, seed: int) -> Figures:
    """Return MAPIE's Learn-then-Test along a classifier."""
    from sklearn.ensemble import HistGradientBoostingClassifier

    bad = lost(train, 0)
    if bad.all() or not bad.any():
        return Figures(1.0, 0.0, certified=False)
    model = HistGradientBoostingClassifier(max_iter=60, max_leaf_nodes=4, learning_rate=0.05, random_state=seed)
    model.fit(numbers(train), bad)
    doubts = [model.predict_proba(numbers(one))[:, 1] for one in (certify, test)]
    chosen = mapie(pair_rows(certify, doubts[0]), asked.alpha or 0.0, DELTA)
    return figures(serve(chosen, pair_rows(test, doubts[1])))


def tokens(rest: EpisodeTable, test: EpisodeTable, asked: Guarantee) -> Figures:
    """Return the exact fixed sequence along the tokens of the first reply."""
    chosen = exact(pair_rows(rest, rest.tokens[:, 0]), asked.alpha or 0.0, DELTA)
    return figures(serve(chosen, pair_rows(test, test.tokens[:, 0])))


def agree(rest: EpisodeTable, test: EpisodeTable, asked: Guarantee) -> Figures | None:
    """Return what serving where two cheap models agree brings; None where there is one."""
    if test.arrays.horizon < 3:
        return None

    def same(table: EpisodeTable) -> Bools:
        first = table.arrays.answer[:, :, 0]
        return np.asarray((first[:, 0] == first[:, 1]) & (first[:, 0] >= 0), dtype=np.bool_)

    most = most_losses(rest.n, asked.alpha or 0.0, DELTA)
    if most is None or int((same(rest) & lost(rest, 0)).sum()) > most:
        return Figures(1.0, 0.0, certified=False)
    cost = test.arrays.cost[:, :2].sum() + reference(test)[~same(test)].sum()
    return Figures(float(cost / reference(test).sum()), float((same(test) & lost(test, 0)).mean()), certified=True)


def split_of(table: EpisodeTable, pair: Pair, asked: Guarantee, number: int, split: Split) -> dict[str, Figures]:
    """Return each way on one split."""
    log, test = table.take(np.sort(np.concatenate([split.train, split.calibration]))), table.take(split.test)
    rest = one_a_group(log, seed=number)
    part = np.random.default_rng(number).permutation(rest.n)
    certify = rest.take(np.sort(part[: pair.certify]))
    held = set(certify.groups)
    train = log.take(np.array([group not in held for group in log.groups]))
    ways = {"ours": ours(log, test, asked, pair.certify, number)}
    ways["classifier"] = classifier(train, certify, test, asked, number)
    ways["tokens"] = tokens(rest, test, asked)
    third = agree(rest, test, asked)
    return ways if third is None else {**ways, "agree": third}


def line(pair: Pair, asked: Guarantee, found: Sequence[dict[str, Figures]]) -> str:
    """Return a line of the table."""
    cells = []
    for way in found[0]:
        costs = np.array([one[way].cost for one in found])
        loss = np.mean([one[way].loss for one in found])
        certified = np.mean([one[way].certified for one in found])
        error = costs.std(ddof=1) / np.sqrt(costs.size)
        cells.append(f"{way} {costs.mean():.3f} ± {error:.3f}, loss {loss:.3f}, certified {certified:.2f}")
    return f"| {pair.name} | {asked.kind} {asked.alpha:g} | {' | '.join(cells)} |"


def broken(table: EpisodeTable, pair: Pair, asked: Guarantee, number: int, split: Split) -> dict[str, Figures]:
    """Return whether the loss over certifying and test requests, given the training, is above alpha on one split."""
    log = table.take(np.sort(np.concatenate([split.train, split.calibration])))
    found = fitted(log, asked, pair.certify, number)
    trained = set(found.training.groups)
    law = table.take(np.array([group not in trained for group in table.groups]))
    (cost, loss), sizes = played(found, law), np.unique(law.groups, return_inverse=True)[1]
    weights = 1 / np.bincount(sizes)[sizes]  # a random request of a random group
    saves = found.policy.method != "reference"
    risk = float((loss * weights).sum() / weights.sum())
    return {"ours": Figures(float(cost.sum() / reference(law).sum()), risk, saves)}


def broken_line(pair: Pair, asked: Guarantee, found: Sequence[dict[str, Figures]]) -> str:
    """Return how often a promise was broken."""
    risks = np.array([one["ours"].loss for one in found])
    saves = np.mean([one["ours"].certified for one in found])
    bound = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / risks.size)
    times = int((risks > (asked.alpha or 0.0)).sum())
    count = f"broken in {times} of {risks.size} ({times / risks.size:.3f}), at most {bound:.3f}"
    return f"{pair.name}, {asked.kind} {asked.alpha:g}: {count}; certified {saves:.2f}, mean loss {risks.mean():.4f}"


# --- the loop over splits, which can go on where it stopped ---


class Split(NamedTuple):
    """The rows of each part, int64, disjoint, together all."""

    train: Ints
    calibration: Ints
    test: Ints


def splits(groups: Sequence[str], count: int, seed: int) -> Iterator[Split]:
    """Yield random splits by `SHARES`; each group is in one part."""
    member, many = numbered(groups), len(set(groups))
    ends = round(SHARES[0] * many), round((SHARES[0] + SHARES[1]) * many)
    for number in range(count):
        part = np.searchsorted(ends, np.random.default_rng([seed, number]).permutation(many).argsort(), "right")[member]
        yield Split(*(np.flatnonzero(part == which) for which in range(3)))


Work = Callable[[EpisodeTable, Pair, Guarantee, int, Split], dict[str, Figures]]


class Kept:
    """Splits that are done, a line of JSON each; without a file nothing is kept."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._done: dict[str, dict[str, Figures]] = {}
        if file is not None and file.exists():
            for one in file.read_text().splitlines():
                key, found = json.loads(one)
                self._done[key] = {way: Figures(*values) for way, values in found.items()}

    def get(self, key: str, make: Callable[[], dict[str, Figures]]) -> dict[str, Figures]:
        """Return what is kept for a key, else make and keep it."""
        if key not in self._done:
            self._done[key] = make()
            if self._file is not None:
                with self._file.open("a") as file:
                    file.write(json.dumps([key, self._done[key]]) + "\n")
        return self._done[key]


Tables = Callable[[Pair, str], EpisodeTable]


def measured(tables: Tables, pair: Pair, asked: Guarantee, kept: Kept, given: argparse.Namespace) -> str:
    """Return one line of what is printed."""
    work: Work = broken if given.resplits else split_of
    table = tables(pair, asked.kind)
    drawn = enumerate(splits(table.groups, given.resplits or given.splits, given.resplits and 1), 1)
    found = [
        kept.get(
            f"{work.__name__} {pair.name} {asked.kind} {asked.alpha} {number}",
            lambda number=number, split=split: work(table, pair, asked, number, split),  # type: ignore[misc]
        )
        for number, split in drawn
    ]
    return broken_line(pair, asked, found) if given.resplits else line(pair, asked, found)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="pairs whose name has this")
    parser.add_argument("--kind", default="", help="one kind of promise")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--resplits", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a file in which each split is kept")
    given = parser.parse_args(argv)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    kept = Kept(given.keep)
    tables = functools.cache(lambda pair, kind: read(given.folder, pair, kind))
    for pair in PAIRS:
        for asked in ASKED:
            if given.only in pair.name and given.kind in asked.kind:
                print(measured(tables, pair, asked, kept, given), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
