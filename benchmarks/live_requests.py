"""Say what a cascade of two models does on logs of chat requests: right, equal, certified, and how many labels it took.

    python benchmarks/live_requests.py bfcl.log.parquet banking77.log.parquet
    python benchmarks/live_requests.py LOG --splits 5          fewer splits than 20

A log is one that `cascade collect REQUESTS.jsonl` makes with a ladder of two models; the dearer one is the reference.
Everything certified is the whole of `cascade fit`, repeated on random splits: four fifths of the requests certify, the
rest is the test. `agreement` reads no label. For `regret` the gold answers play the reviewer: a label is taken only
where the two outputs differ, and only if the next threshold depends on it (`conformal.labels.walk`). What
is counted as a label says right or wrong of one output of one request; labelling all takes one for every distinct
output.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from cascade.api.proving import fit_for
from cascade.calibration.samples import doubt_of
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.conformal.binomial import most_losses
from cascade.conformal.labels import KEPT, LOST, NO_LOSS, UNLABELLED, walk
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.logs import open_log
from cascade.evaluation.proof.proving import Fit, Plan, prove
from cascade.guarantees.base import Guarantee
from cascade.training.portfolio import AUTO

ALPHAS, DELTA = (0.05, 0.1), 0.1


@dataclass(frozen=True, slots=True)
class Requests:
    """One log, read twice: `judged` by its gold answers, `compared` with the guide's output.

    A request whose gold answer is not known is in `compared` alone.
    """

    name: str
    judged: EpisodeTable
    compared: EpisodeTable

    @property
    def right(self) -> Bools:
        """Whether each model is right, bool (n, 2)."""
        return self.judged.arrays.correct[:, :, 0]

    @property
    def same(self) -> Bools:
        """Whether the base's output is the guide's, of the judged requests, bool (n,)."""
        same = dict(zip(self.compared.ids, self.compared.arrays.correct[:, 0, 0].tolist(), strict=True))
        return np.array([same[name] for name in self.judged.ids], dtype=np.bool_)


class Labels(NamedTuple):
    """How many labels a certificate of regret took: along the path, wherever the outputs differ, and of everything."""

    path: int
    differing: int
    everything: int


def read(path: str) -> Requests:
    """Read a log of two models."""
    log = open_log(path)
    (judged,), (compared,) = log.tables, log.compared().tables
    if judged.arrays.horizon != 2:
        sys.exit(f"{path} is no log of a ladder of two models")
    return Requests(judged.dataset, judged, compared)


def labels_taken(requests: Requests, rows: Ints, alpha: float) -> Labels:
    """Return how many labels the certificate of a regret takes on some of the judged requests.

    The path is that of `fit`'s named score: it begins with the request of which the base is surest.
    """
    table = requests.judged.take(rows)
    doubt = doubt_of(table)
    if doubt is None:
        sys.exit(f"{requests.name} has no signal to order thresholds by")
    unsure = doubt.read(table)[:, 0]
    differs, right = ~requests.same[rows], requests.right[rows]
    losses = ~right[:, 0] & right[:, 1]
    path = [np.where(differs & (unsure <= point), 0, NO_LOSS) for point in _points(unsure)]
    most = most_losses(rows.size, alpha, DELTA)
    known = np.full((rows.size, 1), UNLABELLED)
    while (said := walk(path, known, most)).open.any():
        first = min(np.flatnonzero(said.open).tolist(), key=lambda row: unsure[row])
        known[first, 0] = LOST if losses[first] else KEPT
    taken, all_of = int(np.count_nonzero(known != UNLABELLED)), int(np.count_nonzero(differs))
    return Labels(2 * taken, 2 * all_of, rows.size + all_of)


def _points(unsure: Floats) -> Iterator[float]:
    return iter(np.unique(unsure[np.isfinite(unsure)]).tolist())


def accuracy(requests: Requests) -> Iterator[str]:
    """Yield what the two models did."""
    right, same = requests.right, requests.same
    cost = requests.compared.arrays.cost
    yield f"{requests.compared.n} requests, {requests.judged.n} with a gold answer"
    base, guide = right.mean(axis=0)
    yield f"right: base {base:.3f}, guide {guide:.3f}; only the base {(right[:, 0] & ~right[:, 1]).mean():.3f}"
    equal = requests.compared.arrays.correct[:, 0, 0].mean()
    yield f"outputs equal on {equal:.3f} of all requests"
    where = [("equal", same), ("not equal", ~same)]
    told = [f"{said}: base {right[rows, 0].mean():.3f}, guide {right[rows, 1].mean():.3f}" for said, rows in where]
    yield f"right where {'; where '.join(told)}"
    yield f"the base costs {np.nanmean(cost[:, 0]) / np.nanmean(cost[:, 1]):.3f} of the guide"


def certified(requests: Requests, kind: str, alpha: float, splits: int) -> str:
    """Return a row: what certified policies do on test requests."""
    table = requests.compared if kind == "agreement" else requests.judged
    place, taken = {name: row for row, name in enumerate(requests.judged.ids)}, list[Labels]()

    def fit(part: EpisodeTable, guarantee: Guarantee, seed: int) -> Fit:
        if kind == "regret":
            taken.append(labels_taken(requests, np.array([place[name] for name in part.ids]), alpha))
        return fit_for(AUTO, part, guarantee, seed)

    proof = prove(table, Guarantee(kind, alpha, DELTA), fit, Plan(splits))
    way, reference = proof.policy, proof.reference
    saved = way.saving
    cost = "unknown" if saved is None else f"{1 - saved.mean:.2f} [{_bound(saved.high)}, {_bound(saved.low)}]"
    path, differing, everything = np.mean(taken, axis=0) if taken else (0.0, 0.0, 0.0)
    labels = f"{path:.0f} | {differing:.0f} | {everything:.0f}" if taken else "0 | 0 | 0"
    return (
        f"| {kind} | {alpha:.0%} | {proof.sizes[0]} | {cost} | {way.broken:.3f} | {way.accuracy:.3f} "
        f"| {reference.accuracy:.3f} | {proof.exceeded} of {splits} | {labels} |"
    )


def _bound(saved: float | None) -> str:
    return "?" if saved is None else f"{1 - saved:.2f}"


HEAD = """
| promise | α | certify on | cost ÷ guide alone | breaks it on test | right or equal | the guide | splits above α \
| labels, path | where different | all |
|---|---|---|---|---|---|---|---|---|---|---|"""


def main() -> None:
    """Print what the logs say."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("logs", nargs="+", metavar="LOG")
    parser.add_argument("--splits", type=int, default=20)
    given = parser.parse_args()
    say = partial(print, flush=True)
    for path in given.logs:
        requests = read(path)
        say(f"\n## {requests.name}\n")
        for line in accuracy(requests):
            say(f"* {line}")
        say(HEAD)
        for kind in ("agreement", "regret"):
            for alpha in ALPHAS:
                say(certified(requests, kind, alpha, given.splits))


if __name__ == "__main__":
    main()
