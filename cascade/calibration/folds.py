"""Folds for cross-fitting: the model that scores a question has seen neither the question nor its group."""

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

    Groups that share a question form a cluster (`samples.clusters`), and a cluster falls into one fold, whole. The
    largest clusters are dealt out first, each to the fold with the fewest rows so far, so that folds differ by at most
    the size of the largest cluster. Among clusters of one size a hash of seed and name decides; the order of the rows
    and the names of other groups do not. If there are fewer than k clusters, there are as many folds as clusters.

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
    """Return the key that orders clusters. It differs from that of `samples.selected`, which may use the same seed."""
    return hashlib.sha256(f"fold|{seed}|{name}".encode("utf-8", "replace")).digest()
