"""Draw one question at random from each group of questions that belong together (a document, a user).

Outcomes within a group are correlated, so n questions of few groups tell less than n unrelated ones. If they are
calibrated as if they were unrelated, 12 documents of 20 questions cover 85 % where 90 % is promised. If the groups are
independent of, or exchangeable with, a fresh group, then the questions drawn, one from each, are exchangeable with a
question drawn at random from the fresh group. Every guarantee then holds for that question, with n the number of
groups. The draw must not depend on any outcome, so a keyed hash decides it.

Bounds on the groups' mean losses use all questions, and certify less in all but the mildest cases
(`benchmarks/clusters.py`, `design/clusters.md`).

Reference: Dunn, Wasserman & Ramdas, Distribution-free prediction sets for two-layer hierarchical models (2023),
subsampling once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from hashlib import sha256

import numpy as np

from cascade.conformal.arrays import Ints
from cascade.errors import UsageError


def one_of_each(groups: Sequence[Hashable], *, labels: Sequence[str] | None = None, seed: int = 0) -> Ints:
    """Return one row of each group, each row of a group as likely as the others: int64, ascending.

    Args:
        groups: the group of each row; None = of no group, a group by itself.
        labels: decide the draw together with the seed, and must differ within a group. If they are the questions'
            names, the order of the rows changes nothing. By default a row's position within its group.
        seed: the same seed gives the same rows.

    Raises:
        UsageError: the number of labels differs from the number of rows.

    >>> one_of_each(["a", "b", "a", None, None]).tolist() in ([0, 1, 3, 4], [1, 2, 3, 4])
    True
    """
    if labels is not None and len(labels) != len(groups):
        raise UsageError(f"There are {len(groups)} groups, and {len(labels)} labels.")
    chosen: dict[Hashable, tuple[bytes, int]] = {}
    place = Counter[Hashable]()
    for row, group in enumerate(groups):
        key = (row,) if group is None else (group, None)  # no row's number is a group's name
        label = f"{group!r}|{place[key]}" if labels is None else labels[row]
        place[key] += 1
        turn = sha256(f"one of each|{seed}|{label}".encode("utf-8", "replace")).digest(), row
        chosen[key] = min(chosen.get(key, turn), turn)
    return np.array(sorted(row for _, row in chosen.values()), dtype=np.int64)
