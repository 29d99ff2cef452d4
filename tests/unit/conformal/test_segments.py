"""A promise for each group that has enough questions: exact, by turning whole bags of questions round."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from crepes import ConformalClassifier

from cascade.conformal.split import calibrate, calibrate_segments, needed_n
from cascade.errors import UsageError

INF = math.inf
Bag = list[tuple[str | None, float]]


def missed_in(bag: Bag, alpha: float) -> tuple[Counter[str], Counter[str]]:
    """Turn each question of a bag into the fresh one: the misses in each group with a threshold, and its members."""
    misses, members = Counter[str](), Counter[str]()
    for fresh, (group, value) in enumerate(bag):
        others = bag[:fresh] + bag[fresh + 1 :]
        found = calibrate_segments([v for _, v in others], [label for label, _ in others], alpha)
        if group is not None and group in found and not found[group].keeps_everything:
            members[group] += 1
            misses[group] += value < found[group].kappa
    return misses, members


@pytest.mark.parametrize("alpha", [0.5, 0.34])
def test_every_bag_of_six_misses_no_more_than_its_share_in_each_group(alpha: float) -> None:
    """With values that all differ it is that share exactly, and a group has all its members there or none."""
    bags = 0
    for labels in itertools.combinations_with_replacement(["a", "b", "c", "d", None], 6):
        for order in ((0, 1, 2, 3, 4, 5), (3, 5, 1, 0, 4, 2), (5, 0, 4, 1, 3, 2)):
            misses, members = missed_in([(label, order[i]) for i, label in enumerate(labels)], alpha)
            sizes = Counter(labels)
            share = {at: math.floor(Fraction(repr(alpha)) * many) for at, many in sizes.items() if at is not None}
            assert members == {at: sizes[at] for at, most in share.items() if most}
            assert all(misses[at] == share[at] for at in members)
            bags += 1
    assert bags == 210 * 3


@pytest.mark.parametrize("alpha", [0.5, 0.34, 0.2, 0.1])
def test_random_bags_with_ties_and_infinities(alpha: float) -> None:
    rng = np.random.default_rng(5)
    seen = Counter[str]()
    for _ in range(150):
        n = int(rng.integers(1, 26))
        labels = rng.choice(np.array(["a", "b", "c", "d", None], dtype=object), n, p=[0.4, 0.25, 0.2, 0.1, 0.05])
        bag = list(zip(labels.tolist(), rng.choice([0.1, 0.2, 0.3, 0.4, 0.5, INF], n).tolist(), strict=True))
        misses, members = missed_in(bag, alpha)
        for at, many in members.items():
            assert Fraction(misses[at], many) <= Fraction(repr(alpha))
        seen.update(list(members))
        seen["missed"] += misses.total() > 0
    assert seen["a"] > 10
    assert seen["missed"] > 5


def test_a_group_has_its_own_threshold_from_the_needed_number_on() -> None:
    """Of nine questions at alpha 0.1 the lowest is the threshold; of eight none. No group reads another's questions."""
    values = np.arange(30.0)
    groups = ["nine"] * 9 + ["eight"] * 8 + ["ten"] * 10 + ["two"] * 2 + [None]
    found = calibrate_segments(values, groups, 0.1)
    assert [(group, one.n, one.k, one.kappa, one.needed_n) for group, one in found.items()] == [
        ("eight", 8, 0, -INF, 9),
        ("nine", 9, 1, 0.0, 9),
        ("ten", 10, 1, 17.0, 9),
        ("two", 2, 0, -INF, 9),
    ]
    assert [group for group, one in found.items() if one.keeps_everything] == ["eight", "two"]


def test_with_confidence_groups_need_more() -> None:
    values = np.arange(143.0)
    found = calibrate_segments(values, ["large"] * 100 + ["just"] * 22 + ["small"] * 21, 0.1, delta=0.1)
    assert found["large"] == calibrate(values[:100], 0.1, delta=0.1)
    assert (found["just"].k, found["just"].kappa) == (1, 100.0)
    assert (found["small"].keeps_everything, found["small"].n, found["small"].needed_n) == (True, 21, 22)


def test_one_group_and_no_groups_are_the_plain_calibration() -> None:
    values = np.random.default_rng(6).random(50)
    for alpha, delta in ((0.1, None), (0.2, 0.1), (0.0, None), (0.0, 0.1)):
        assert calibrate_segments(values, ["all"] * 50, alpha, delta=delta) == {
            "all": calibrate(values, alpha, delta=delta)
        }
        assert calibrate_segments(values, [None] * 50, alpha, delta=delta) == {}
    assert calibrate_segments([], [], 0.1) == {}


def test_crepes_has_the_same_mondrian_sets() -> None:
    rng = np.random.default_rng(7)
    labels, fresh_labels = (rng.choice(["a", "b", "c"], size, p=[0.6, 0.3, 0.1]) for size in (300, 600))
    values, fresh = rng.random(300).round(2), rng.random(600).round(2)
    p_values = (
        ConformalClassifier()
        .fit(-values, bins=labels)
        .predict_p(-fresh.reshape(-1, 1), bins=fresh_labels, smoothing=False)
    )
    many = np.array([np.count_nonzero(labels == label) + 1 for label in fresh_labels])
    for alpha in (0.05, 0.1, 0.25):
        assert min(many) > needed_n(alpha)
        found = calibrate_segments(values, labels.tolist(), alpha)
        kappas = np.array([found[label].kappa for label in fresh_labels])
        allowed = [math.floor(Fraction(repr(alpha)) * size) for size in many.tolist()]
        assert np.array_equal(fresh < kappas, np.rint(p_values.ravel() * many) <= allowed)


def test_a_hundred_thousand_questions_of_many_groups() -> None:
    """The order of rows does not matter."""
    rng = np.random.default_rng(8)
    values = rng.random(100_000)
    groups = [f"tenant {number}" for number in np.minimum(rng.geometric(0.001, values.size), 5_000).tolist()]
    found = calibrate_segments(values, groups, 0.02)
    order = rng.permutation(values.size)
    assert calibrate_segments(values[order], [groups[i] for i in order], 0.02) == found
    sizes = Counter(groups)
    assert {group for group, one in found.items() if one.keeps_everything} == {
        group for group, size in sizes.items() if size < 49
    }
    largest = sizes.most_common(1)[0][0]
    own = [value for value, group in zip(values, groups, strict=True) if group == largest]
    assert found[largest] == calibrate(own, 0.02)


def test_everything_that_is_wrong_is_said() -> None:
    with pytest.raises(UsageError, match="3 critical values, but 2 segments"):
        calibrate_segments([0.1, 0.2, 0.3], ["a", "b"], 0.1)
    with pytest.raises(UsageError, match=r"None for a question without one; not 1, 2\.5, \('x',\), …"):
        calibrate_segments(np.arange(5), ["a", 1, 2.5, ("x",), 7], 0.1)  # type: ignore[list-item]
    with pytest.raises(UsageError, match="alpha"):
        calibrate_segments([0.1], ["a"], 2)
    with pytest.raises(UsageError, match="not a number"):
        calibrate_segments([math.nan], ["a"], 0.1)
    with pytest.raises(UsageError, match="delta"):
        calibrate_segments([0.1], ["a"], 0.1, delta=1)
