"""What is served to score with, held against plain Python; and files of it that are refused with every reason."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from cases import each

from cascade.errors import ConfigError, UsageError
from cascade.policies.design import Design
from cascade.policies.estimators import (
    Constant,
    Linear,
    Logistic,
    Piecewise,
    Scorer,
    Signal,
    form_of,
)
from cascade.policies.trees import Trees
from unit.policies import learned_made as made

NAN, INF = math.nan, math.inf
DESIGN = Design(
    centre=np.array([1.0, 0.0]),
    scale=np.array([2.0, 1.0]),
    low=np.array([-3.0, -1.0]),
    high=np.array([5.0, 1.0]),
    indicators=np.array([1]),
    pairs=np.array([[0, 0], [0, 2]]),
)
LINEAR = Linear(DESIGN, np.array([1.0, 10.0, 100.0, 1000.0, 10_000.0]), 0.5)
STUMPS = Trees(
    feature=np.array([0, 0, 0, 1, 0, 0]),
    threshold=np.array([0.0, 0.0, 0.0, 0.5, 0.0, 0.0]),
    left=np.array([1, -1, -1, 4, -1, -1]),
    right=np.array([2, -1, -1, 5, -1, -1]),
    missing_left=np.array([False, False, False, True, False, False]),
    leaf=np.array([0.0, 1.0, 2.0, 0.0, 10.0, 20.0]),
    roots=np.array([0, 3]),
    intercept=100.0,
    foreseen=np.array([False, True]),
)


@pytest.mark.parametrize(
    ("raw", "columns"),
    [
        ([3.0, 0.5], [1.0, 0.5, 0.0, 1.0, 0.0]),
        ([99.0, -99.0], [2.0, -1.0, 0.0, 4.0, 0.0]),  # clipped
        ([-INF, INF], [-2.0, 1.0, 0.0, 4.0, -0.0]),
        ([3.0, NAN], [1.0, 0.0, 1.0, 1.0, 1.0]),  # its indicator stands for it
    ],
)
def test_columns_are_clipped_scaled_marked_and_multiplied(raw: list[float], columns: list[float]) -> None:
    assert DESIGN.rows(np.array(raw)).tolist() == columns
    assert DESIGN.rows(np.array([raw, raw])).tolist() == [columns, columns]
    assert DESIGN.columns == 5


def test_what_is_missing_for_the_first_time_goes_on() -> None:
    raw = np.array([[3.0, NAN], [NAN, 0.5]])
    assert DESIGN.designed(raw, np.isnan(raw)).unforeseen.tolist() == [False, True]
    assert LINEAR.values(raw).tolist() == [0.5 + 1.0 + 0.0 + 100.0 + 1000.0 + 10_000.0, INF]
    assert LINEAR.value([NAN, 0.5]) == INF
    assert STUMPS.values(raw).tolist() == [100.0 + 2.0 + 10.0, INF]
    for one in (Logistic(LINEAR), Signal(0)):
        assert one.value([NAN, 0.5]) == INF
        assert one.value([3.0, NAN]) < INF


def test_a_signal_is_a_doubt_and_a_constant_is_none() -> None:
    assert Signal(1, -1.0).values(np.array([[0.0, 0.7], [0.0, NAN]])).tolist() == [-0.7, INF]
    assert Constant(-INF).values(np.zeros((3, 0))).tolist() == [-INF] * 3
    assert Constant(INF).value([]) == INF


def test_a_piecewise_score_joins_its_knots_is_flat_beyond_them_and_goes_on_where_the_feature_is_missing() -> None:
    knots, scores = np.array([-1.0, 0.0, np.nextafter(0.0, 1.0), 3.0]), np.array([-1.0, 0.0, 4.0, 5.0])
    one = Piecewise(1, knots, scores)
    asked = np.array([-INF, -1.0, -0.25, -0.0, 5e-324, 1.5, 3.0, INF, NAN])
    found = one.values(np.stack([np.full(9, NAN), asked], axis=1))
    assert found.tolist() == [-1.0, -1.0, -0.25, 0.0, 4.0, 4.5, 5.0, 5.0, INF]
    assert [one.value([NAN, value]) for value in asked.tolist()] == found.tolist()
    assert one.needs(3).tolist() == [False, True, False]
    assert Piecewise(0, np.array([2.0]), np.array([7.0])).values(np.array([[1.0], [NAN]])).tolist() == [7.0, INF]


def test_a_piecewise_score_rises_with_its_feature_however_its_sums_are_rounded() -> None:
    rng = np.random.default_rng(8)
    for _ in range(200):
        knots = np.sort(rng.normal(size=6) * 10.0 ** rng.integers(-9, 9))
        one = Piecewise(0, knots, np.sort(rng.normal(size=6)))
        near = np.concatenate([knots, np.nextafter(knots, INF), np.nextafter(knots, -INF), rng.choice(knots, 50)])
        asked = np.sort(np.concatenate([near, rng.uniform(knots[0], knots[-1], 200)]))
        found = one.values(asked[:, None])
        assert (np.diff(found) >= 0).all()
        assert one.values(knots[:, None]).tolist() == one.scores.tolist()


def test_knots_that_do_not_rise_are_refused() -> None:
    with pytest.raises(ConfigError, match="the knots must rise"):
        Piecewise(0, np.array([1.0, 0.0]), np.array([0.0, 1.0]))


def walked(trees: Trees, raw: np.ndarray[Any, Any]) -> float:
    """Return the sum of a row, walking down each tree."""
    if (np.isnan(raw) & ~trees.foreseen).any():
        return INF
    total = trees.intercept
    for root in trees.roots.tolist():
        node = root
        while trees.left[node] >= 0:
            x = raw[trees.feature[node]]
            left = bool(trees.missing_left[node]) if math.isnan(x) else x <= trees.threshold[node]
            node = int(trees.left[node] if left else trees.right[node])
        total += float(trees.leaf[node])
    return total


@pytest.mark.parametrize("leaves", [1, 2, 8, 9, 17, 33, 64])
def test_trees_give_what_walking_down_them_gives(leaves: int) -> None:
    rng = np.random.default_rng(leaves)
    for _ in range(20):
        trees = made.trees(rng, 4, many=int(rng.integers(1, 6)), leaves=leaves, foreseen=0.8)
        rows = made.raw_rows(rng, 30, 4)
        rows[::3, 0] = trees.threshold[rng.integers(trees.threshold.size, size=10)]  # at a threshold: left
        assert trees.values(rows).tolist() == [walked(trees, row) for row in rows]


def test_many_rows_are_scored_some_at_a_time_in_little_memory() -> None:
    rng = np.random.default_rng(3)
    trees = made.trees(rng, 6, many=60, leaves=8, foreseen=0.5)
    rows = made.raw_rows(rng, 40_000, 6)
    tracemalloc.start()
    found = trees.values(rows)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    inner = 60 * 7
    assert most < rows.nbytes + rows.shape[0] * inner  # all at once takes 8 bytes for each row and inner node
    picked = rng.integers(len(rows), size=100)
    assert found[picked].tolist() == [trees.value(row) for row in rows[picked]]
    assert trees.values(rows.reshape(2, -1, 6)[:, :5]).tolist() == found.reshape(2, -1)[:, :5].tolist()


@each(
    "change, said",
    [
        ({"left": [1, -1, -1, 9, -1, -1]}, "they must name nodes from 0 to 5"),
        ({"left": [1, 2, -1, 4, -1, -1], "right": [2, -1, -1, 5, -1, -1]}, "both must be −1 at a leaf"),
        ({"left": [1, -1, -1, 2, -1, -1]}, "every node must have one parent"),
        ({"roots": [0]}, "every node must have one parent"),
        ({"roots": [0, 3, 3]}, "every node must have one parent"),
        ({"roots": []}, "there is no tree"),
        ({"left": [3, -1, -1, 0, -1, -1], "right": [1, -1, -1, 2, -1, -1], "roots": [4, 5]}, "lead in a circle"),
        ({"feature": [0, 0, 0, 2, 0, 0]}, "it must name one of 2 features"),
        ({"feature": [-1, 0, 0, 1, 0, 0]}, "it must name one of 2 features"),
        ({"leaf": [0, NAN, 2, 0, 10, 20]}, "must be finite"),
        ({"leaf": [0, 1e308, 1e308, 0, 1e308, 20]}, "and so must their sum"),
        ({"threshold": [INF, 0, 0, 0.5, 0, 0]}, "must be finite"),
        ({"leaf": [0.0, 1.0]}, "must have one length"),
    ],
)
def test_arrays_that_are_no_trees_are_refused(change: Mapping[str, Any], said: str) -> None:
    parts = STUMPS.arrays() | {name: np.array(values) for name, values in change.items()}
    with pytest.raises(UsageError, match=said):
        Trees(**parts)


def thin(leaves: int) -> Trees:
    """Return a tree of which every right child is the next inner node."""
    inner = leaves - 1
    return Trees(
        feature=np.zeros(inner + leaves),
        threshold=np.arange(inner + leaves, dtype=float),
        left=np.concatenate([np.arange(inner) + inner, np.full(leaves, -1)]),
        right=np.concatenate([np.arange(1, inner), [2 * inner], np.full(leaves, -1)]),
        missing_left=np.zeros(inner + leaves, dtype=bool),
        leaf=np.arange(inner + leaves, dtype=float),
        roots=np.array([0]),
        intercept=0.0,
        foreseen=np.array([True]),
    )


def test_a_tree_may_be_long_and_thin_and_has_at_most_64_leaves() -> None:
    rows = np.array([[-1.0], [0.0], [0.5], [40.2], [62.0], [63.0], [NAN]])
    assert thin(64).values(rows).tolist() == [walked(thin(64), row) for row in rows] == [63, 63, 64, 104, 125, 126, 126]
    with pytest.raises(UsageError, match="the tree at 0 has 65 leaves, and 64 are the most"):
        thin(65)


# --- from a file


@pytest.mark.parametrize("kind", made.KINDS)
def test_a_scorer_comes_back_as_it_was(kind: str) -> None:
    rng = np.random.default_rng(3)
    for _ in range(20):
        one = made.scorer(rng, kind, 5)
        again = made.from_arrays(one.kind, one.arrays(), 5)
        rows = made.raw_rows(rng, 20, 5)
        assert type(again) is type(one) is form_of(kind)
        assert again.values(rows).tolist() == one.values(rows).tolist()
        assert {name: values.tolist() for name, values in again.arrays().items()} == {
            name: values.tolist() for name, values in one.arrays().items()
        }


def changed(one: Scorer, **arrays: Any) -> dict[str, Any]:
    """Return a scorer's arrays with some replaced ("__" for a dot), or left out where None."""
    given = {name.replace("__", "."): values for name, values in arrays.items()}
    found = {**one.arrays(), **given}
    return {name: values for name, values in found.items() if values is not None}


LOGISTIC = Logistic(LINEAR, 2.0, -1.0)
PIECES = Piecewise(1, np.array([0.0, 2.0]), np.array([1.0, 5.0]))


@each(
    "one, change, said",
    [
        (LINEAR, {"weights": None}, "weights: is missing"),
        (LINEAR, {"weights": np.zeros(4)}, r"weights: its shape must be \(5,\), not \(4,\)"),
        (LINEAR, {"weights": np.zeros((5, 1))}, "weights: its shape must be"),
        (LINEAR, {"weights": np.zeros(5, dtype=np.float32)}, "its type must be float64, not float32"),
        (LINEAR, {"weights": np.array([0, 0, NAN, 0, 0])}, "its numbers must be finite"),
        (LINEAR, {"weights": np.full(5, 1e308)}, "so large that a score may be infinite"),
        (LINEAR, {"intercept": np.array(INF)}, "intercept: its numbers must be finite"),
        (LINEAR, {"design__scale": np.array([1.0, 0.0])}, "scale must be above 0"),
        (LINEAR, {"design__low": np.array([9.0, 0.0])}, "low at most high"),
        (LINEAR, {"design__centre": np.zeros(3)}, r"design.centre: its shape must be \(2,\)"),
        (LINEAR, {"design__pairs": np.array([[0, 3], [0, 0]])}, "pairs: they must name columns below 3"),
        (LINEAR, {"design__pairs": np.array([[0, -1], [0, 0]])}, "pairs: they must name columns below 3"),
        (
            LINEAR,
            {"design__indicators": np.array([2])},
            "indicators: they must name each of the 2 features at most once",
        ),
        (LINEAR, {"design__indicators": np.array([1, 1])}, "at most once"),
        (LINEAR, {"more": np.zeros(1)}, "more: it has no such array"),
        (LOGISTIC, {"slope": np.array(NAN)}, "slope: its numbers"),
        (LOGISTIC, {"offset": np.array(1e101)}, "too large for a logit"),
        (LOGISTIC, {"linear__design__high": None}, "linear.design.high: is missing"),
        (STUMPS, {"left": np.array([1, -1, -1, 0, -1, -1], dtype=np.int32)}, "one parent"),
        (STUMPS, {"leaf": np.zeros(3)}, "leaf: its shape must be"),
        (STUMPS, {"missing_left": np.full(6, 2, np.uint8).view(np.bool_)}, "its bytes must be 0 or 1"),
        (STUMPS, {"foreseen": np.array([True])}, "foreseen: its shape must be"),
        (Signal(1), {"feature": np.array(2)}, "feature must be one of 2"),
        (Signal(1), {"sign": np.array(0.5)}, "sign 1 or −1"),
        (PIECES, {"feature": np.array(2)}, "feature must be one of 2"),
        (PIECES, {"knots": np.array([1.0, 1.0])}, "the knots must rise"),
        (PIECES, {"knots": np.array([-1e308, 1e308])}, "the range of knots and of scores must be finite"),
        (PIECES, {"scores": np.array([-1e308, 1e308])}, "the range of knots and of scores must be finite"),
        (PIECES, {"scores": np.zeros(3)}, "as many of each"),
        (PIECES, {"knots": np.array([0.0, NAN])}, "knots: its numbers must be finite"),
        (PIECES, {"knots": np.zeros(0), "scores": np.zeros(0)}, "at least one"),
        (Constant(1.0), {"number": np.array(NAN)}, "number: its "),
        (Constant(1.0), {"number": np.zeros(1)}, "number: its shape"),
    ],
)
def test_arrays_that_make_no_scorer_are_refused(one: Scorer, change: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        made.from_arrays(one.kind, changed(one, **change), 2)


def test_everything_that_is_wrong_is_reported_at_once() -> None:
    arrays = changed(
        LOGISTIC, slope=None, linear__weights=np.zeros(1), linear__design__scale=-np.ones(2), odd=np.zeros(1)
    )
    with pytest.raises(ConfigError) as caught:
        made.from_arrays("logistic", arrays, 2)
    said = "\n".join(caught.value.problems)
    assert all(part in said for part in ("slope: is missing", "scale must be above 0", "odd: it has no such array"))


def test_what_is_served_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        LINEAR.weights[0] = 9.0
    weights = np.zeros(5)
    held = Linear(DESIGN, weights, 0.0)
    weights[0] = 9.0
    assert held.weights[0] == 0.0
