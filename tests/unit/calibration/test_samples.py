"""Which questions a certificate is made from: of one cascade, each once, none on both sides; and their hash."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from cases import each

from cascade.calibration.samples import among, data_sha256, joined, once, places, selected
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from unit.calibration.logs import log, some


def test_one_data_set_is_taken_as_it_is() -> None:
    table = log(5)
    assert joined([table]) is table


def test_data_sets_of_one_cascade_are_one_table() -> None:
    first, second = log(5), replace(log(4, 1), dataset="other", walks={}, cost_known=False)
    both = joined([first, second])
    assert both.n == 9
    assert both.questions == first.questions + second.questions
    assert len(set(both.ids)) == 9
    assert not both.cost_known
    assert both.take(np.arange(5)).arrays.answer.tolist() == first.arrays.answer.tolist()
    assert not both.walks["guide only"].known[5:].any()
    assert np.isnan(joined([first, replace(second, signals={})]).signals["p_yes"][5:]).all()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: replace(t, models={"base": ("small",), "guide": ("larger",)}),
        lambda t: replace(t, sources=("base", "other")),
        lambda t: replace(t, models={}),
    ],
)
def test_different_cascades_are_not_mixed(change: Callable[[EpisodeTable], EpisodeTable]) -> None:
    with pytest.raises(UsageError, match="--where dataset=NAME"):
        joined([log(5), change(replace(log(5), dataset="other"))])


def test_ladders_of_the_same_models_in_another_order_are_not_mixed() -> None:
    one = replace(log(10), dataset="one", step_models=("small", "large", None, None))
    more = replace(log(10), dataset="more", step_models=("small", None, "small", None))
    assert joined([one, more]).step_models == ("small", "large", "small", None)
    other = replace(log(10), dataset="other", step_models=("large", "small", None, None))
    with pytest.raises(UsageError, match=r"one: .* in the order small, large, any, any; other: .* in the order large"):
        joined([one, other])


def test_a_log_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no episode"):
        joined([])


def repeated() -> EpisodeTable:
    """Return questions 0, 1, 2 with three episodes of 0 and two of 2."""
    table = some(log(3), 0, 1, 0, 2, 0, 2)
    return replace(table, ids=tuple("abcdef"), groups=("x", "x", "y", "y", "x", "y"))


def test_each_question_counts_once() -> None:
    table = repeated()
    rows = once(table)
    assert sorted(table.questions[row] for row in rows) == sorted(set(table.questions))
    table = replace(table, segments=table.groups)
    in_groups = once(table, separate=True)
    assert Counter((table.questions[row], table.segments[row]) for row in in_groups) == Counter(
        set(zip(table.questions, table.segments, strict=True))
    )


def test_which_episode_counts_hangs_on_its_name_alone() -> None:
    table = repeated()
    kept = {table.ids[row] for row in once(table)}
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(table.n)
        shuffled = table.take(order)
        assert {shuffled.ids[row] for row in once(shuffled)} == kept
    lowest = min(["a", "c", "e"], key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    assert kept & {"a", "c", "e"} == {lowest}


def test_a_share_of_whole_groups_is_selected() -> None:
    groups = [f"g{row % 7}" for row in range(40)]
    table = log(40, groups=groups)
    chosen = selected(table, 0.3, seed=3)
    inside = {group for group, here in zip(groups, chosen, strict=True) if here}
    outside = {group for group, here in zip(groups, chosen, strict=True) if not here}
    assert len(inside) == 2
    assert not inside & outside
    assert (selected(table, 0.3, seed=3) == chosen).all()
    assert any((selected(table, 0.3, seed=seed) != chosen).any() for seed in range(5))


def test_the_order_of_rows_selects_nothing_else() -> None:
    table = log(40)
    names = {table.ids[row] for row in np.flatnonzero(selected(table, 0.25, seed=1))}
    assert len(names) == 10
    shuffled = table.take(np.random.default_rng(0).permutation(40))
    assert {shuffled.ids[row] for row in np.flatnonzero(selected(shuffled, 0.25, seed=1))} == names


def test_groups_that_share_a_question_stay_together() -> None:
    table = some(log(6), 0, 1, 1, 2, 2, 3, 4, 5)
    table = replace(table, groups=("a", "a", "b", "b", "c", "d", "e", "f"))
    for seed in range(20):
        chosen = selected(table, 0.5, seed)
        assert not set(np.array(table.questions)[chosen]) & set(np.array(table.questions)[~chosen])
        assert len(set(chosen[:5].tolist())) == 1


@pytest.mark.parametrize("share", [0.0, 1.0, -0.5, float("nan")])
def test_a_share_lies_between_nothing_and_all(share: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        selected(log(5), share, 0)


def test_one_group_cannot_be_divided() -> None:
    with pytest.raises(UsageError, match="one group"):
        selected(log(5, groups=["a"] * 5), 0.5, 0)


def test_among_knows_its_questions() -> None:
    table = log(4)
    assert among(table, frozenset(table.questions[1:3])).tolist() == [False, True, True, False]


# --- the hash of the data


def test_the_order_of_rows_is_not_in_the_hash() -> None:
    table = log(30)
    shuffled = table.take(np.random.default_rng(2).permutation(30))
    assert data_sha256(shuffled) == data_sha256(table)


def test_the_numbers_of_answers_are_not_in_the_hash() -> None:
    table = log(30)
    top = table.arrays.answer.max() + 1
    turned = np.where(table.arrays.answer >= 0, (table.arrays.answer + 1) % top, -1)
    assert (turned != table.arrays.answer).any()
    assert data_sha256(replace(table, arrays=replace(table.arrays, answer=turned))) == data_sha256(table)


def test_other_rows_of_a_log_change_nothing() -> None:
    short = log(30)
    arrays = short.arrays
    short = replace(
        short,
        arrays=replace(arrays, steps=np.minimum(arrays.steps, 2)),
        signals={**short.signals, "rare": np.where(np.arange(30)[:, None] == 29, 1.0, np.full((30, 4), np.nan))},
    )
    most = short.take(np.arange(29))
    bare = replace(most, signals={name: values for name, values in most.signals.items() if name != "rare"})
    assert data_sha256(most) == data_sha256(bare)


def changed(table: EpisodeTable, name: str) -> EpisodeTable:
    """Return the table with one value of it changed."""
    arrays = table.arrays
    if name in {"correct", "complete", "cost", "steps", "answer"}:
        values = getattr(arrays, name).copy()
        first, second = values.flat[0], values.flat[1]
        other = {"answer": 99 if first == second else second, "steps": first - 1, "cost": first + 1}
        values.flat[0] = other.get(name, not first)
        return replace(table, arrays=replace(arrays, **{name: values}))
    if name in {"questions", "segments"}:
        return replace(table, **{name: ("changed", *getattr(table, name)[1:])})
    if name == "cost_known":
        return replace(table, cost_known=False)
    if name == "walk":
        walk = table.walks["guide only"]
        right = walk.right.copy()
        right[0] = ~right[0]
        return replace(table, walks={**table.walks, "guide only": replace(walk, right=right)})
    confidence, p_yes = table.confidence.copy(), table.signals["p_yes"].copy()
    confidence.flat[0], p_yes.flat[0] = 0.123, 0.456
    if name == "confidence":
        return replace(table, confidence=confidence)
    return replace(table, signals={**table.signals, "p_yes": p_yes})


@each(
    "name",
    [
        "answer",
        "correct",
        "cost",
        "steps",
        "complete",
        "confidence",
        "signal",
        "walk",
        "questions",
        "segments",
        "cost_known",
    ],
)
def test_everything_that_a_calibration_reads_is_in_the_hash(name: str) -> None:
    table = log(20)
    assert data_sha256(changed(table, name), separate=True) != data_sha256(table, separate=True)


def test_segments_are_in_the_hash_only_where_promises_are_by_segment() -> None:
    table = log(20)
    assert data_sha256(changed(table, "segments")) == data_sha256(table)
    assert data_sha256(changed(table, "questions")) != data_sha256(table)


def test_a_repeated_row_is_in_the_hash() -> None:
    table = log(3)
    assert data_sha256(some(table, 0, 1, 2, 2)) != data_sha256(table)


def test_unknown_is_unknown_in_whatever_bits() -> None:
    table = log(5)
    other = np.frombuffer(np.uint64(0x7FF8000000000123).tobytes(), dtype=np.float64)[0]
    p_yes = table.signals["p_yes"].copy()
    p_yes[0, 0], p_yes[1, 0] = np.nan, 0.0
    twin = p_yes.copy()
    twin[0, 0], twin[1, 0] = other, -0.0
    one, two = (replace(table, signals={"p_yes": values}) for values in (p_yes, twin))
    assert data_sha256(one) == data_sha256(two)


def test_a_group_without_a_promise_of_its_own_has_that_of_all_others() -> None:
    table = log(4, segments=["a", "b", "c", "a"])
    assert places(["a", None, "b"], table).tolist() == [0, 2, 1, 0]
    assert places(["b"], table).tolist() == [-1, 0, -1, -1]
