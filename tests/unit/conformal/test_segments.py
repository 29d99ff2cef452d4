"""A promise for each group, and for the pool of the small ones: exact, by turning whole bags of questions round."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from crepes import ConformalClassifier

from cascade.conformal.split import SegmentCalibration, calibrate, calibrate_segments, needed_n
from cascade.errors import UsageError

INF = math.inf
POOL = "the pool"
Bag = list[tuple[str | None, float]]


def category(group: str | None, bag: Bag, alpha: float) -> str:
    """Return where a question belongs, told from the labels of the whole bag alone."""
    size = Counter(label for label, _ in bag)[group]
    return group if group is not None and math.floor(Fraction(repr(alpha)) * size) >= 1 else POOL


def missed_in(bag: Bag, alpha: float) -> tuple[Counter[str], Counter[str]]:
    """Turn each question of a bag into the fresh one: the misses in each category, and its members."""
    misses, members = Counter[str](), Counter[str]()
    for fresh, (group, value) in enumerate(bag):
        others = bag[:fresh] + bag[fresh + 1 :]
        found = calibrate_segments([v for _, v in others], [label for label, _ in others], alpha)
        at = category(group, bag, alpha)
        members[at] += 1
        misses[at] += value < found.of(group).kappa
    return misses, members


@pytest.mark.parametrize("alpha", [0.5, 0.34])
def test_every_bag_of_six_misses_no_more_than_its_share_in_each_category(alpha: float) -> None:
    """With values that all differ it is that share exactly."""
    bags = 0
    for labels in itertools.combinations_with_replacement(["a", "b", "c", "d", None], 6):
        for order in ((0, 1, 2, 3, 4, 5), (3, 5, 1, 0, 4, 2), (5, 0, 4, 1, 3, 2)):
            misses, members = missed_in([(label, order[i]) for i, label in enumerate(labels)], alpha)
            for at, many in members.items():
                assert misses[at] == math.floor(Fraction(repr(alpha)) * many)
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
        seen["missed in the pool"] += misses[POOL] > 0
    assert seen[POOL] > 10
    assert seen["a"] > 10 or alpha == 0.1
    assert seen["missed in the pool"] > 5


def test_pooling_only_groups_without_a_threshold_would_break_the_promise() -> None:
    """Ten hard groups of two and four easy ones of one, alpha 0.34: a group of three could stand for itself.

    A fresh question of a hard group leaves one of its group on record. The other nine hard groups have two, which
    serves their own questions: left out of the pool, as seems natural, they are missing where they are needed.
    """
    alpha = 0.34
    bag: Bag = [(f"hard {i // 2}", float(i)) for i in range(20)] + [(f"easy {i}", 100.0 + i) for i in range(4)]
    naive = 0
    for fresh, (_, value) in enumerate(bag):
        others = bag[:fresh] + bag[fresh + 1 :]
        sizes = Counter(label for label, _ in others)
        naive += value < calibrate([v for label, v in others if sizes[label] < needed_n(alpha)], alpha).kappa
    misses, members = missed_in(bag, alpha)
    assert members == {POOL: 24}
    assert (naive, misses[POOL]) == (21, 8)


def test_a_group_has_its_own_threshold_from_the_needed_number_on() -> None:
    """Of nine questions at alpha 0.1 the lowest is the threshold; of eight none."""
    values = np.arange(30.0)
    groups = ["nine"] * 9 + ["eight"] * 8 + ["ten"] * 10 + ["two"] * 2 + [None]
    found = calibrate_segments(values, groups, 0.1)
    assert found.pooled is not None
    assert found.pooled_segments == ("eight", "two")
    assert [(found.of(group).n, found.of(group).k, found.of(group).kappa) for group in ("nine", "ten")] == [
        (9, 1, 0.0),
        (10, 1, 17.0),
    ]
    assert (found.pooled.n, found.pooled.k, found.pooled.kappa) == (20, 2, 1.0)  # nine, eight, two and None
    assert found.of("eight") == found.of("two") == found.of("never seen") == found.of(None) == found.pooled
    assert found.unknown == found.pooled
    assert set(found.by_segment) == {"nine", "eight", "ten", "two"}


def test_a_pool_that_is_too_small_keeps_everything() -> None:
    found = calibrate_segments(np.arange(14.0), ["a"] * 10 + ["b"] * 4, 0.1)
    assert found.pooled is not None
    assert (found.of("a").k, found.of("b").k, found.of("b").n, found.of(None).keeps_everything) == (1, 0, 4, True)
    alone = calibrate_segments(np.arange(10.0), ["a"] * 10, 0.1)
    assert alone.pooled is not None
    assert (alone.of("b").n, alone.of("b").keeps_everything, alone.pooled_segments) == (0, True, ())


def test_with_confidence_small_groups_keep_everything() -> None:
    values = np.arange(200.0)
    groups = ["large"] * 100 + ["just"] * 22 + ["small"] * 21 + [f"g{i}" for i in range(57)]
    found = calibrate_segments(values, groups, 0.1, delta=0.1)
    assert found.pooled is None
    assert found.of("large") == calibrate(values[:100], 0.1, delta=0.1)
    assert (found.of("just").k, found.of("just").kappa) == (1, 100.0)
    for group in ("small", "g0", "never seen", None):
        assert found.of(group).keeps_everything
    assert (found.of("small").n, found.of("never seen").n, found.of(None).delta) == (21, 0, 0.1)
    assert found.of("small").needed_n == 22
    assert found.pooled_segments[-1] == "small"
    assert len(found.pooled_segments) == 58


def test_one_group_and_no_groups_are_the_plain_calibration() -> None:
    values = np.random.default_rng(6).random(50)
    for alpha, delta in ((0.1, None), (0.2, 0.1)):
        assert calibrate_segments(values, ["all"] * 50, alpha, delta=delta).of("all") == calibrate(
            values, alpha, delta=delta
        )
    nobody = calibrate_segments(values, [None] * 50, 0.1)
    assert nobody == SegmentCalibration({}, calibrate(values, 0.1), (), calibrate(values, 0.1))
    assert calibrate_segments(values, [None] * 50, 0.1, delta=0.1).of(None).keeps_everything
    assert calibrate_segments([], [], 0.1).of("a").keeps_everything
    assert calibrate_segments(values, ["all"] * 50, 0.0).of("all").keeps_everything
    assert calibrate_segments(values, ["all"] * 50, 0.0, delta=0.1).of("all").keeps_everything


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
        kappas = np.array([found.of(label).kappa for label in fresh_labels])
        allowed = [math.floor(Fraction(repr(alpha)) * size) for size in many.tolist()]
        assert np.array_equal(fresh < kappas, np.rint(p_values.ravel() * many) <= allowed)


def test_a_hundred_thousand_questions_of_many_groups() -> None:
    """Thousands of small groups share one pool; the order of rows does not matter."""
    rng = np.random.default_rng(8)
    values = rng.random(100_000)
    groups = [f"tenant {number}" for number in np.minimum(rng.geometric(0.001, values.size), 5_000).tolist()]
    found = calibrate_segments(values, groups, 0.02)
    order = rng.permutation(values.size)
    assert calibrate_segments(values[order], [groups[i] for i in order], 0.02) == found
    sizes = Counter(groups)
    assert found.pooled_segments == tuple(sorted(group for group, size in sizes.items() if size < 49))
    assert found.pooled is not None
    assert found.pooled.n == sum(size for size in sizes.values() if size <= 49)
    largest = sizes.most_common(1)[0][0]
    own = [value for value, group in zip(values, groups, strict=True) if group == largest]
    assert found.of(largest) == calibrate(own, 0.02)


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
