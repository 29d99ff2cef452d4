"""Folds for cross-fitting: every question is scored by a model that has not seen it, nor anything of its group."""

from __future__ import annotations

import hashlib
from collections import Counter

import numpy as np

from cascade.calibration.samples import clusters
from cascade.conformal.arrays import Ints
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

FOLDS = 5
"""How many there are wherever a policy, or a part of one, is fitted without the questions that it is judged by."""


def folds(table: EpisodeTable, k: int, seed: int) -> Ints:
    """Return the fold of each row, int64 (n,), in 0..k − 1.

    Groups that hang together by a question fall into one fold, whole (`samples.clusters`). The largest are dealt out
    first, each to the fold that has the fewest rows so far, so that folds differ by at most the size of the largest
    cluster. Which of those of one size falls where is settled by a hash of seed and name: neither the order of the rows
    nor the other groups' names change it. Where there are fewer than k clusters, there are as many folds.

    Raises:
        UsageError: k is below 2, or all questions hang together.
    """
    if k < 2:
        raise UsageError(f"Cross-fitting takes at least 2 folds, not {k}.")
    named = clusters(table)
    rows = Counter(named)
    if len(rows) < 2:
        raise UsageError("The questions are all of one group: there is nothing to cross-fit with.")
    order = sorted(rows, key=lambda name: (-rows[name], _hash(seed, name)))
    filled = [0] * min(k, len(rows))
    fold: dict[str, int] = {}
    for name in order:
        fold[name] = filled.index(min(filled))
        filled[fold[name]] += rows[name]
    return np.fromiter((fold[name] for name in named), dtype=np.int64, count=table.n)


def _hash(seed: int, name: str) -> bytes:
    """Return what settles a cluster's turn; not the hash of `samples.selected`, which may use the same seed."""
    return hashlib.sha256(f"fold|{seed}|{name}".encode("utf-8", "replace")).digest()
