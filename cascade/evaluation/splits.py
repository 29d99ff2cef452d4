"""Splits into training, calibration and test questions that never cut through a group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Ints
from cascade.errors import UsageError

SHARES = (0.6, 0.2, 0.2)
"""Training, calibration, test."""


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of each part, int64, disjoint, together all."""

    train: Ints
    calibration: Ints
    test: Ints


def splits(
    groups: Sequence[str], count: int, seed: int, shares: tuple[float, float, float] = SHARES
) -> Iterator[Split]:
    """Yield `count` random splits.

    Args:
        groups: the group of each question; a group falls into one part as a whole.
        count: how many splits.
        seed: the same seed gives the same splits.
        shares: of the groups that go to training, calibration and test.

    Raises:
        UsageError: there are fewer than three groups, or a share is not positive.
    """
    member = numbered(groups)
    many = len(set(groups))
    if many < len(shares):
        raise UsageError(f"{many} groups of questions cannot be split into {len(shares)} parts; log more.")
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise UsageError(f"The shares of a split are positive and sum to 1, not {shares}.")
    first = max(1, round(shares[0] * many))
    second = min(many - 1, max(first + 1, round((shares[0] + shares[1]) * many)))
    first = min(first, second - 1)
    for number in range(count):
        order = np.random.default_rng([seed, number]).permutation(many)
        part = np.empty(many, dtype=np.int64)
        part[order[:first]], part[order[first:second]], part[order[second:]] = 0, 1, 2
        of = part[member]
        yield Split(*(np.flatnonzero(of == which) for which in range(3)))


def numbered(groups: Sequence[str]) -> Ints:
    """Return the number of each question's group, int64 (n,): groups are numbered by their names, in order.

    >>> numbered(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    number = {name: place for place, name in enumerate(sorted(set(groups)))}
    return np.fromiter((number[name] for name in groups), dtype=np.int64, count=len(groups))
