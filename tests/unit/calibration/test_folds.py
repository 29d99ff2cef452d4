"""Folds: whole groups, balanced, and nothing but seed and names decides."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.samples import clusters, folds
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from unit.calibration.logs import log


def grouped(n: int, groups: int, seed: int = 0) -> EpisodeTable:
    drawn = np.random.default_rng(seed).integers(0, groups, n)
    return replace(log(n), groups=tuple(f"document {number}" for number in drawn))


def test_a_group_falls_into_one_fold_as_a_whole() -> None:
    table = grouped(300, 40)
    found = folds(table, 5, seed=3)
    for group in set(table.groups):
        assert len({fold for fold, name in zip(found, table.groups, strict=True) if name == group}) == 1
    assert set(found.tolist()) == {0, 1, 2, 3, 4}


def test_groups_that_share_a_question_fall_into_one_fold() -> None:
    table = log(40)
    questions = [*table.questions]
    questions[1] = questions[0]
    questions[3] = questions[2]
    groups = [f"g{number}" for number in range(40)]
    groups[2] = groups[1]
    linked = replace(table, questions=tuple(questions), groups=tuple(groups))
    assert len(set(clusters(linked)[:4])) == 1
    for seed in range(20):
        assert len(set(folds(linked, 4, seed)[:4].tolist())) == 1


def test_folds_of_single_questions_differ_by_one_at_most() -> None:
    for k in (2, 3, 5, 7):
        sizes = np.bincount(folds(log(101), k, seed=1), minlength=k)
        assert sizes.max() - sizes.min() <= 1


def test_folds_of_uneven_groups_differ_by_the_largest_group_at_most() -> None:
    for seed in range(10):
        table = grouped(200, 15, seed)
        largest = max(table.groups.count(name) for name in set(table.groups))
        sizes = np.bincount(folds(table, 4, seed), minlength=4)
        assert sizes.max() - sizes.min() <= largest


def test_the_order_of_the_rows_changes_nothing() -> None:
    table = grouped(120, 50)
    order = np.random.default_rng(9).permutation(120)
    assert folds(table.take(order), 5, seed=2).tolist() == folds(table, 5, seed=2)[order].tolist()


def test_another_seed_gives_other_folds_and_the_same_seed_the_same() -> None:
    table = log(60)
    assert folds(table, 5, seed=0).tolist() == folds(table, 5, seed=0).tolist()
    assert folds(table, 5, seed=0).tolist() != folds(table, 5, seed=1).tolist()


def test_there_are_no_more_folds_than_groups() -> None:
    assert sorted(set(folds(grouped(50, 3), 10, seed=0).tolist())) == [0, 1, 2]


def test_one_fold_or_one_group_cannot_be_cross_fitted() -> None:
    with pytest.raises(UsageError, match="at least 2 folds, not 1"):
        folds(log(10), 1, seed=0)
    with pytest.raises(UsageError, match="belong to one group"):
        folds(replace(log(10), groups=("same",) * 10), 5, seed=0)
