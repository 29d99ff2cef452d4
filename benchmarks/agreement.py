"""What certified agreement, and certified regret, cost on logged chat requests, beside what engineers write in a day.

    python benchmarks/agreement.py FOLDER                 every pair, 20 splits
    python benchmarks/agreement.py FOLDER --only mini --splits 5
    python benchmarks/agreement.py FOLDER --resplits 1000 --only mini

FOLDER holds `bfcl_v1.parquet`, `bfcl_v4_live.parquet` and `css_classification.parquet`. A split draws three of ten
groups for the test; of the others about 200 groups certify, with one request each (150 of the live log), and the rest
train. "agreement" compares with the last model's own output and reads no label; "regret" reads the labels of the log.
A cost is a share of what the last model alone costs on the test requests; where nothing is certified that is 1. With
"+", a second cheap model may be asked too; `fit` leaves out what does not pay. Ways:

* ours: `cascade fit LOG --guarantee agreement` (or regret) with this share of certifying requests, and no other option.
* classifier: scikit-learn's boosted classifier of "stopping loses something" on the training requests, by the same
  numbers of request and reply, and MAPIE's Learn-then-Test along 400 quantiles of it on the certifying ones. It knows
  the first model and the last.
* tokens: the exact fixed sequence along the reply's tokens, all requests certify.
* agree: serve where the two cheap models give the same output, else ask the last; tested as a whole on the others.

`--resplits`: how often the loss over certifying and test requests together, given the training, is above alpha.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from simple.opponents import Rows, Served, exact, mapie, serve

from cascade.calibration.samples import one_a_group
from cascade.calibration.scores import play, sample_of
from cascade.conformal.arrays import Bools, Floats
from cascade.conformal.binomial import most_losses
from cascade.episodes.importers import import_rows
from cascade.episodes.lines import Dropped
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.episodes.truth import labelled_by_reference
from cascade.evaluation.splits import splits
from cascade.guarantees.base import Guarantee
from cascade.policies.calibrated import Threshold
from cascade.training.fitting import Fitted, fit_policy

DELTA = 0.1
ASKED = (("agreement", 0.05), ("agreement", 0.1), ("regret", 0.02), ("regret", 0.05))
SHARES = (0.4, 0.3, 0.3)
BFCL, LIVE, CSS = "bfcl_v1.parquet", "bfcl_v4_live.parquet", "css_classification.parquet"
MINI, TURBO, GPT4O = "gpt-4o-mini-2024-07-18-FC", "gpt-3.5-turbo-0125-FC", "gpt-4o-2024-08-06-FC"
NEMO, NEMO_ANY, LARGE = "open-mistral-nemo-2407-FC-Auto", "open-mistral-nemo-2407-FC-Any", "mistral-large-2407-FC-Any"


class Pair(NamedTuple):
    """A cascade of a log: its models, the cheapest first, and about how many requests certify."""

    name: str
    file: str
    models: tuple[str, ...]
    certify: int = 200


PAIRS = (
    Pair("mini > 4o", BFCL, (MINI, GPT4O)),
    Pair("mini + nemo > 4o", BFCL, (MINI, NEMO, GPT4O)),
    Pair("3.5 > 4o", BFCL, (TURBO, GPT4O)),
    Pair("3.5 + nemo > 4o", BFCL, (NEMO, TURBO, GPT4O)),
    Pair("nemo > 4o", BFCL, (NEMO, GPT4O)),
    Pair("nemo > large", BFCL, (NEMO_ANY, LARGE)),
    Pair("nemo + mini > large", BFCL, (NEMO_ANY, MINI, LARGE)),
    Pair("20b > 120b, live", LIVE, ("gpt-oss-20b", "gpt-oss-120b"), 150),
    Pair("curie > davinci-3, control", CSS, ("text-curie-001", "text-davinci-003")),
)


class Figures(NamedTuple):
    """A way on one split: cost as a share of the reference's, the loss on the test, whether a saving is certified."""

    cost: float
    loss: float
    certified: bool


def read(folder: Path, pair: Pair, kind: str) -> EpisodeTable:
    """Return a log as one promise reads it; of the runs of one request the first."""
    rows = [
        one for one in import_rows(folder / pair.file, Dropped(), models=pair.models) if "#" not in one["episode_id"]
    ]
    if kind != "agreement":
        return tables_from_rows(rows)[0]
    found = labelled_by_reference(lambda: rows)
    table = tables_from_rows(found.rows(Dropped()))[0]
    return replace(table, truth=found.truths[table.dataset])


def lost(table: EpisodeTable, step: int) -> Bools:
    """Return where stopping at a step, from 0, counts against the promise: bool (n,)."""
    right = table.arrays.correct[:, :, 0]
    return ~right[:, step] & (right[:, -1] | (table.truth is not None))


def ours(log: EpisodeTable, test: EpisodeTable, asked: Guarantee, share: float, seed: int) -> tuple[Figures, Fitted]:
    """Return what `fit` brings on the test requests."""
    found = fit_policy([log], asked, seed=seed, calibration_share=share)
    cost, loss = played(found, test)
    return Figures(
        float(cost.sum() / reference(test).sum()), float(loss.mean()), found.policy.method != "reference"
    ), found


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
    columns = [values[:, 0] for _, values in sorted(table.signals.items())]
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


def split_of(table: EpisodeTable, pair: Pair, asked: Guarantee, number: int, split: object) -> dict[str, Figures]:
    """Return each way on one split."""
    fit, test = np.sort(np.concatenate([split.train, split.calibration])), table.take(split.test)  # type: ignore[attr-defined]
    log = table.take(fit)
    share = pair.certify / len(set(log.groups))
    found, fitted = ours(log, test, asked, share, number)
    rest = one_a_group(log, seed=number)
    rng = np.random.default_rng(number)
    part = rng.permutation(rest.n)
    certify = rest.take(np.sort(part[: pair.certify]))
    held = set(certify.groups)
    train = log.take(np.array([group not in held for group in log.groups]))
    del fitted
    ways = {"ours": found, "classifier": classifier(train, certify, test, asked, number)}
    ways["tokens"] = tokens(rest, test, asked)
    third = agree(rest, test, asked)
    return ways if third is None else {**ways, "agree": third}


def line(pair: Pair, asked: Guarantee, found: Sequence[dict[str, Figures]], seconds: float) -> str:
    """Return a line of the table."""
    cells = []
    for way in found[0]:
        costs = np.array([one[way].cost for one in found])
        loss = np.mean([one[way].loss for one in found])
        certified = np.mean([one[way].certified for one in found])
        error = costs.std(ddof=1) / np.sqrt(costs.size)
        cells.append(f"{way} {costs.mean():.3f} ± {error:.3f}, loss {loss:.3f}, certified {certified:.2f}")
    return f"| {pair.name} | {asked.kind} {asked.alpha:g} | {' | '.join(cells)} | {seconds:.0f} s |"


def promises() -> Iterator[Guarantee]:
    """Yield what is asked for."""
    yield from (Guarantee(kind, alpha, DELTA) for kind, alpha in ASKED)


def resplit(table: EpisodeTable, pair: Pair, asked: Guarantee, count: int) -> str:
    """Return in how many splits the loss over certifying and test requests is above alpha."""
    broken = 0
    for number, split in enumerate(splits(table.groups, count, 1, SHARES), 1):
        fit = np.sort(np.concatenate([split.train, split.calibration]))
        log = table.take(fit)
        share = pair.certify / len(set(log.groups))
        found = fit_policy([log], asked, seed=number, calibration_share=share)
        trained = set(found.training.groups)
        law = table.take(np.array([group not in trained for group in table.groups]))
        loss, sizes = played(found, law)[1], np.unique(law.groups, return_inverse=True)[1]
        weights = 1 / np.bincount(sizes)[sizes]  # a random request of a random group
        broken += float((loss * weights).sum() / weights.sum()) > (asked.alpha or 0.0)
    bound = DELTA + 3 * np.sqrt(DELTA * (1 - DELTA) / count)
    return f"{pair.name}, {asked.kind} {asked.alpha:g}: broken in {broken} of {count}, at most {bound:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", default="", help="pairs whose name has this")
    parser.add_argument("--kind", default="", help="one kind of promise")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--resplits", type=int, default=0)
    given = parser.parse_args(argv)
    warnings.filterwarnings("ignore", category=RuntimeWarning)
    for pair in PAIRS:
        if given.only not in pair.name:
            continue
        tables: dict[str, EpisodeTable] = {}
        for asked in promises():
            if given.kind not in asked.kind:
                continue
            table = tables.setdefault(asked.kind, tables.get(asked.kind) or read(given.folder, pair, asked.kind))
            if given.resplits:
                print(resplit(table, pair, asked, given.resplits), flush=True)
                continue
            began = time.perf_counter()
            drawn = enumerate(splits(table.groups, given.splits, 0, SHARES), 1)
            found = [split_of(table, pair, asked, number, split) for number, split in drawn]
            print(line(pair, asked, found, time.perf_counter() - began), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
