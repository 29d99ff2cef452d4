"""Real logs, split into calibration and test questions a thousand times: is the realised coverage what the law says?

    python benchmarks/resplits.py FOLDER          about a minute

A log of N questions is split at random: n to calibrate, m = N − n to test. Whatever the policy and its scores, without
ties the number of test questions that are missed follows one law exactly, that of the questions that stand before the
k-th of n marked ones in a random order of N:

    Pr[j misses] = C(j + k − 1, j) · C(m − j + n − k, m − j) / C(n + m, m)     Beta-binomial(m, k, n + 1 − k)

With ties fewer are missed. So every row is tested twice: as logged, the misses may not exceed the law anywhere;
and with ties broken by lot they must follow it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import Doubt, doubt_of
from cascade.conformal.arrays import Floats, Ints, levels
from cascade.conformal.binomial import miss_log_pmf
from cascade.conformal.split import calibrate, critical_kappa, pac_rank, split_rank
from cascade.evaluation.baselines import all_kept
from cascade.evaluation.logs import open_log

SPLITS = 1_000
DELTA = 0.1
_REPLICATES = 20_000  # draws of the law's own statistic: a p-value to within 0.0015 at 0.05
_BINS = 20
_DKW = 1.517  # sqrt(ln(1/0.01)/2): an empirical law is that far below the true one, over √splits, once in 100


class Source(NamedTuple):
    """A log: its file, one of its data sets, what it is called, and the sizes of the calibration set."""

    file: str
    dataset: str
    name: str
    sizes: tuple[int, ...]


SOURCES = (
    Source("episodes_mmlu_pro", "mmlu_pro/qwen2.5-3b>gemini-1.5-pro", "MMLU-Pro", (200, 1000)),
    Source("episodes_single_round", "routellm_mmlu/mixtral-8x7b>gpt-4-1106", "RouteLLM MMLU", (200, 1000)),
    Source("episodes_zell_mmlu", "zell_mmlu/llama-1b,3b,8b,70b>gpt-4o", "MMLU, ladder of five", (200, 900)),
)
LEVELS = ((0.1, None), (0.05, None), (0.1, DELTA))
"""alpha and delta."""


class Questions(NamedTuple):
    """The questions of a log, one a group, under a threshold on the doubt about a step."""

    name: str
    doubt: str
    critical: Floats

    @property
    def tied(self) -> float:
        """The share of the finite critical values that another question has too."""
        finite = self.critical[np.isfinite(self.critical)]
        _, counts = np.unique(finite, return_counts=True)
        return float(counts[counts > 1].sum() / max(1, finite.size))


@dataclass(frozen=True, slots=True)
class Resplit:
    """What the splits of one log came to, for one n, alpha and delta.

    Attributes:
        name: the log's.
        n, m: calibration and test questions.
        k: the rank of the threshold.
        alpha, delta: what was asked for.
        misses: int64 (splits,), test questions missed, as logged.
        by_lot: the same with ties broken by lot.
        law: float64 (m + 1,), the probability of each number of misses without ties.
    """

    name: str
    n: int
    m: int
    k: int
    alpha: float
    delta: float | None
    misses: Ints
    by_lot: Ints
    law: Floats

    @property
    def expected(self) -> float:
        """The mean coverage without ties: 1 − k/(n + 1)."""
        return 1 - self.k / (self.n + 1)

    @property
    def sd(self) -> float:
        """The standard deviation of the coverage without ties."""
        share = np.arange(self.m + 1) / self.m
        return float(((share**2 * self.law).sum() - (share * self.law).sum() ** 2) ** 0.5)

    def coverage(self, misses: Ints) -> Floats:
        """Return the realised coverages."""
        return 1 - misses / self.m

    def below(self, misses: Ints) -> float:
        """Return the share of splits whose coverage is below 1 − alpha."""
        return float((misses > self.alpha * self.m).mean())

    @property
    def law_below(self) -> float:
        """The same without ties, exactly."""
        return float(self.law[np.arange(self.m + 1) > self.alpha * self.m].sum())

    @property
    def p_value(self) -> float:
        """How probable it is that splits by lot fit the law no better than these do: chi-square, by simulation."""
        edges = np.unique(np.searchsorted(self.law.cumsum(), np.arange(1, _BINS) / _BINS))
        probability = np.add.reduceat(self.law, np.concatenate([[0], edges + 1]))
        seen = np.bincount(np.searchsorted(edges, self.by_lot, side="left"), minlength=probability.size)
        drawn = np.random.default_rng(9).multinomial(seen.sum(), probability, size=_REPLICATES)
        far = _chi_square(drawn, probability) >= _chi_square(seen, probability)
        return float((far.sum() + 1) / (_REPLICATES + 1))

    @property
    def excess(self) -> float:
        """How far the law of the misses as logged lies below the law without ties, at the worst: max F − F_logged."""
        counts = np.bincount(self.misses, minlength=self.m + 1)
        return float((self.law.cumsum() - counts.cumsum() / self.misses.size).max())

    @property
    def dominated(self) -> bool:
        """Whether nothing speaks against fewer misses than the law has; wrong once in 100 (Massart, 1990)."""
        return bool(self.excess <= _DKW / self.misses.size**0.5)


def _chi_square(counts: Ints, probability: Floats) -> Floats:
    expected = counts.sum(axis=-1, keepdims=True) * probability
    return np.asarray(((counts - expected) ** 2 / expected).sum(axis=-1))


def questions(source: Source, folder: Path) -> Questions:
    """Read a log and return the critical values of its questions, the first of each group."""
    table = next(
        one for one in open_log(str(folder / f"{source.file}.parquet")).tables if one.dataset == source.dataset
    )
    _, first = np.unique(np.array(table.groups), return_index=True)
    table = table.take(np.sort(first))
    doubt = doubt_of(table)
    if doubt is None:  # no signal in this log: long questions go on
        signals = {**table.signals, "price": table.arrays.cost.astype(np.float64)}
        table, doubt = replace(table, signals=signals), Doubt("price", "price of the answer", lambda values: values)
    kept = levels(table.arrays, all_kept(table, doubt.read(table)))
    return Questions(source.name, doubt.name, critical_kappa(table.arrays, kept))


def law_of_misses(n: int, m: int, k: int) -> Floats:
    """Return the Beta-binomial(m, k, n + 1 − k) law: float64 (m + 1,); all at 0 where k is 0: everything is kept.

    >>> law_of_misses(3, 2, 1).round(3).tolist()
    [0.6, 0.3, 0.1]
    """
    if k == 0:
        return np.asarray(np.arange(m + 1) == 0, dtype=np.float64)
    return np.asarray(np.exp(miss_log_pmf(m, n, k)))


def resplit(found: Questions, n: int, alpha: float, delta: float | None, splits: int = SPLITS) -> Resplit:
    """Split, calibrate and test, `splits` times."""
    size = found.critical.size
    chance = np.random.default_rng([5, n, round(alpha * 1000), delta is not None])
    misses, by_lot = np.empty(splits, dtype=np.int64), np.empty(splits, dtype=np.int64)
    for number in range(splits):
        order = chance.permutation(size)
        misses[number] = _misses(found.critical[order], n, alpha, delta)
        rank = np.empty(size)
        rank[np.lexsort((chance.random(size), found.critical))] = np.arange(size)
        by_lot[number] = _misses(rank[order], n, alpha, delta)
    k = split_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
    law = law_of_misses(n, size - n, k)
    return Resplit(found.name, n, size - n, k, alpha, delta, misses, by_lot, law)


def _misses(critical: Floats, n: int, alpha: float, delta: float | None) -> int:
    """Calibrate on the first n, and return how many of the rest are missed."""
    kappa = calibrate(critical[:n], alpha, delta=delta).kappa
    return int(np.count_nonzero(critical[n:] < kappa))


def resplits(folder: Path, splits: int = SPLITS) -> list[tuple[Questions, list[Resplit]]]:
    """Do it for every log that is in the folder."""
    found = []
    for source in SOURCES:
        if (folder / f"{source.file}.parquet").exists():
            logged = questions(source, folder)
            wanted = [(n, alpha, delta) for n in source.sizes for alpha, delta in LEVELS]
            found.append((logged, [resplit(logged, *one, splits=splits) for one in wanted]))
    return found


def table_lines(found: Sequence[tuple[Questions, list[Resplit]]]) -> list[str]:
    """Return the figures as a table in Markdown."""
    columns = ("log", "n", "m", "α", "δ", "1 − k/(n+1) ± sd", "mean ± sd, ties by lot", "p", "mean ± sd, as logged")
    below = "below 1 − α: law, by lot, logged"
    lines = [f"| {' | '.join((*columns, below, 'worst excess'))} |", "|---" * (len(columns) + 2) + "|"]
    for _, rows in found:
        for row in rows:
            lot, logged = row.coverage(row.by_lot), row.coverage(row.misses)
            below = f"{row.law_below:.3f}, {row.below(row.by_lot):.3f}, {row.below(row.misses):.3f}"
            lines.append(
                f"| {row.name} | {row.n} | {row.m:,} | {row.alpha:g} | {'' if row.delta is None else row.delta} "
                f"| {row.expected:.4f} ± {row.sd:.4f} | {lot.mean():.4f} ± {lot.std():.4f} | {row.p_value:.2f} "
                f"| {logged.mean():.4f} ± {logged.std():.4f} | {below} "
                f"| {row.excess:+.3f}{'' if row.dominated else ' !'} |"
            )
    return lines


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 if a row speaks against its law."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("folder", type=Path, help="where the logs are")
    parser.add_argument("--splits", type=int, default=SPLITS)
    given = parser.parse_args(argv)
    started = time.monotonic()
    found = resplits(given.folder, given.splits)
    if not found:
        print(f"No log is in {given.folder}.", file=sys.stderr)
        return 2
    for logged, _ in found:
        finite = np.isfinite(logged.critical)
        shares = f"{finite.mean():.1%} with a finite critical value, {logged.tied:.1%} of these shared"
        print(f"{logged.name}: {logged.critical.size:,} questions, doubt: {logged.doubt}; {shares}")
    print("\n".join(["", *table_lines(found), "", f"{time.monotonic() - started:.0f} s"]))
    rows = [row for _, many in found for row in many]
    return int(not all(row.dominated and row.p_value > 0.01 / len(rows) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
