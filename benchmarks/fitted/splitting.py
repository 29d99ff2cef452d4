"""Training, calibration and test questions: at most 1,000 to train on, 200 to calibrate on, the rest to test on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Ints
from cascade.episodes.table import EpisodeTable
from cascade.evaluation.evaluate import numbered

TRAIN, CALIBRATION = 1_000, 200


class Part(NamedTuple):
    """One split, as tables: whole groups, disjoint."""

    train: EpisodeTable
    calibration: EpisodeTable
    test: EpisodeTable


def sizes(n: int) -> tuple[int, int]:
    """Return how many rows train and calibrate: 1,000 and 200, or three and one of five where there are fewer.

    >>> sizes(1816), sizes(974), sizes(300)
    ((1000, 200), (584, 194), (180, 60))
    """
    return min(TRAIN, 3 * n // 5), min(CALIBRATION, n // 5)


def rows(groups: Sequence[str], seed: int, number: int) -> tuple[Ints, Ints, Ints]:
    """Return the rows of one split. A group is drawn whole; a part is full once it has its rows."""
    member = numbered(groups)
    place = np.random.default_rng([seed, number]).permutation(int(member.max()) + 1)[member]
    order = np.lexsort((np.arange(member.size), place))
    train, calibration = sizes(member.size)
    first = _whole(place[order], train)
    second = _whole(place[order], first + calibration)
    return order[:first], order[first:second], order[second:]


def _whole(place: Ints, wanted: int) -> int:
    """Return the first end at or after `wanted` that cuts no group."""
    end = wanted
    while 0 < end < place.size and place[end] == place[end - 1]:
        end += 1
    return end


def parts(table: EpisodeTable, count: int, seed: int) -> Iterator[Part]:
    """Yield `count` random splits of a log."""
    for number in range(count):
        yield Part(*(table.take(np.sort(some)) for some in rows(table.groups, seed, number)))
