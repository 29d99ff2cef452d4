"""Splits: whole groups, everything once, the same for the same seed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cascade.errors import UsageError
from cascade.evaluation.splits import SHARES, Split, numbered, splits


def parts(split: Split) -> list[set[int]]:
    return [set(rows.tolist()) for rows in (split.train, split.calibration, split.test)]


def test_splits_are_disjoint_complete_and_never_cut_a_group() -> None:
    rng = np.random.default_rng(0)
    checks = 0
    for _ in range(150):
        n, many = int(rng.integers(3, 80)), int(rng.integers(3, 40))
        groups = [f"group {number}" for number in rng.integers(0, many, n)]
        if len(set(groups)) < 3:
            continue
        for split in splits(groups, 4, seed=int(rng.integers(100))):
            train, calibration, test = parts(split)
            assert len(split.train) + len(split.calibration) + len(split.test) == n
            assert train | calibration | test == set(range(n))
            assert all((train, calibration, test))
            names = [{groups[row] for row in part} for part in (train, calibration, test)]
            assert not (names[0] & names[1])
            assert not (names[0] & names[2])
            assert not (names[1] & names[2])
            checks += 1
    assert checks > 500


def test_the_shares_are_those_of_the_groups() -> None:
    for many in (10, 35, 100, 1_001):
        (split,) = splits([f"{k}" for k in range(many)], 1, seed=0)
        sizes = [len(rows) for rows in (split.train, split.calibration, split.test)]
        assert all(abs(size - share * many) <= 1 for size, share in zip(sizes, SHARES, strict=True))


@pytest.mark.parametrize("shares", [(0.98, 0.01, 0.01), (0.01, 0.98, 0.01), (0.01, 0.01, 0.98), SHARES])
def test_no_part_is_ever_empty(shares: tuple[float, float, float]) -> None:
    for many in range(3, 30):
        (split,) = splits([f"{k}" for k in range(many)], 1, 0, shares)
        assert min(map(len, parts(split))) >= 1


def test_the_same_seed_gives_the_same_splits_and_another_seed_others() -> None:
    groups = [f"{k % 30}" for k in range(90)]
    one, again, other = ([parts(split) for split in splits(groups, 5, seed)] for seed in (7, 7, 8))
    assert one == again
    assert one != other
    assert all(a != b for a, b in itertools.pairwise(one))
    assert [parts(split) for split in splits(groups, 2, 7)] == one[:2]


def test_the_order_of_the_questions_does_not_matter() -> None:
    """A group falls into the same part wherever its questions stand."""
    groups = [f"{k % 20}" for k in range(60)]
    (one,), (other,) = splits(groups, 1, 3), splits(groups[::-1], 1, 3)
    assert {groups[row] for row in one.test} == {groups[::-1][row] for row in other.test}


def test_a_question_falls_into_the_test_part_as_often_as_its_share() -> None:
    hits = np.zeros(50)
    for split in splits([f"{k}" for k in range(50)], 400, seed=1):
        hits[split.test] += 1
    sigma = (0.2 * 0.8 / 400) ** 0.5
    assert abs(hits / 400 - 0.2).max() < 4.5 * sigma


@pytest.mark.parametrize("groups", [[], ["a"], ["a", "b"], ["a", "a", "b", "b"]])
def test_fewer_than_three_groups_cannot_be_split(groups: list[str]) -> None:
    with pytest.raises(UsageError, match="groups of questions cannot be split into 3 parts; log more"):
        next(splits(groups, 1, 0))


@pytest.mark.parametrize("shares", [(0.5, 0.5, 0.0), (0.7, 0.2, 0.2), (1.2, -0.1, -0.1)])
def test_shares_are_positive_and_sum_to_one(shares: tuple[float, float, float]) -> None:
    with pytest.raises(UsageError, match="positive and sum to 1"):
        next(splits(["a", "b", "c"], 1, 0, shares))


def test_groups_are_numbered_in_the_order_of_their_names_whatever_they_are() -> None:
    long, odd = "x" * 100_000, "a\x00"
    assert numbered([odd, "a", long, "a", "é"]).tolist() == [1, 0, 2, 0, 3]
    assert numbered([]).tolist() == []
