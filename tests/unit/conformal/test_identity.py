"""Whether the answer served depends on which answers are the same: against every way in which they could be."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints, Levels, StepArrays
from cascade.conformal.served import Single, single, votes_decide


def partitions(many: int) -> Iterator[tuple[int, ...]]:
    """Yield every way to say which of so many answers are the same, numbered as they come."""
    for one in product(range(many), repeat=many):
        if all(number <= max((*one[:at], -1)) + 1 for at, number in enumerate(one)):
            yield one


MANY = 4
PARTITIONS = np.array(list(partitions(MANY)))
TRUTHS = np.array(list(product([False, True], repeat=MANY)))
SHAPES = ((4, 1), (2, 2))


def levels_of(leaf: Floats) -> Levels:
    return Levels(np.full(leaf.shape[:2], np.inf), leaf, leaf > -np.inf)


def possible(truth: Bools) -> Ints:
    """Return the ways in which answers may be the same, given which are right: equal texts are equally right."""
    same = PARTITIONS[:, :, None] == PARTITIONS[:, None, :]
    apart = truth[:, None] != truth[None, :]
    return PARTITIONS[~(same & apart).any(axis=(1, 2))]


def served(
    truth: Bools, answers: Ints, shape: tuple[int, int], case: tuple[Floats, Floats, Floats]
) -> Iterator[Single]:
    """Yield what is served at each threshold, a row for each way in which the answers may be the same."""
    many = len(answers)
    steps = StepArrays(
        answers.reshape(many, *shape),
        np.tile(truth.reshape(1, *shape), (many, 1, 1)),
        np.ones((many, shape[0]), dtype=np.int64),
        np.full(many, shape[0]),
        np.ones(many, dtype=np.bool_),
    )
    leaf, confidence, sure = (np.tile(one.reshape(1, *shape), (many, 1, 1)) for one in case)
    for kappa in np.unique(case[0][case[0] > -np.inf]).tolist():
        yield single(steps, levels_of(leaf), confidence, kappa, sure=sure)


def test_there_are_as_many_ways_as_bell_says() -> None:
    assert (len(PARTITIONS), len(possible(np.array([True] * 4))), len(possible(np.array([True, False] * 2)))) == (
        15,
        15,
        4,
    )


def test_what_does_not_hang_on_it_is_the_same_in_every_way_and_what_does_is_not() -> None:
    rng, hung = np.random.default_rng(7), [0, 0, 0, 0]
    for number in range(200):
        shape = SHAPES[number % 2]
        leaf = rng.choice([-np.inf, 0.1, 0.2, 0.3, np.inf], size=MANY)
        confidence = rng.choice([np.nan, 0.2, 0.4, 0.6, 0.8], size=MANY)
        sure = np.where(rng.random(MANY) < 0.5, confidence, rng.choice([np.nan, 0.3, 0.7], size=MANY))
        case = leaf, confidence, sure
        ways = [list(served(truth, possible(truth), shape, case)) for truth in TRUTHS]
        right = any(np.ptp(one.right.astype(int)) > 0 for found in ways for one in found)
        likely = any(np.unique(np.nan_to_num(one.sure, nan=-1.0)).size > 1 for found in ways for one in found)
        given = levels_of(leaf.reshape(1, *shape)), confidence.reshape(1, *shape)
        assert bool(votes_decide(*given)[0]) == right
        assert bool(votes_decide(*given, sure=sure.reshape(1, *shape))[0]) == (right or likely)
        for kappa, each in zip(np.unique(leaf[leaf > -np.inf]).tolist(), zip(*ways, strict=True), strict=True):
            there = any(np.ptp(one.right.astype(int)) > 0 for one in each)
            assert bool(votes_decide(*given, kappa=kappa)[0]) == there
        hung[2 * right + likely] += 1
    assert min(hung) > 5, hung


def test_nothing_hangs_on_it_where_nothing_is_kept() -> None:
    leaf = np.full((2, 3, 1), -np.inf)
    assert not votes_decide(levels_of(leaf), np.full(leaf.shape, np.nan), kappa=-np.inf).any()
    unknown, sure = np.full(leaf.shape, np.nan), np.full(leaf.shape, 0.5)
    assert not votes_decide(levels_of(leaf), unknown, sure=sure).any()
