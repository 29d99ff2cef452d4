"""How a log is divided: whole groups, whole questions, enough to certify, and nothing depends on the order."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cascade.calibration.samples import rows_a_group
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.training.dividing import (
    allowed_by,
    allowed_loss,
    divided,
    needed_of,
    questions_of,
)
from unit.calibration.logs import log, some

COVERAGE = Guarantee("coverage", 0.1)


def test_a_share_of_the_questions_is_set_aside() -> None:
    parts = divided([log(400)], COVERAGE, share=0.3)
    assert (parts.training.n, parts.calibration.n, parts.questions, parts.repeated) == (280, 120, 400, 0)
    assert not set(parts.training.questions) & set(parts.calibration.questions)


def test_groups_fall_into_one_part_whole() -> None:
    table = log(300, groups=[f"g{row // 7}" for row in range(300)])
    for seed in range(5):
        parts = divided([table], COVERAGE, seed=seed)
        assert not set(parts.training.groups) & set(parts.calibration.groups)
        assert parts.questions == 300


def test_a_question_ties_its_groups_together_and_counts_once() -> None:
    table = log(60, groups=[f"g{row // 2}" for row in range(60)])
    repeated = replace(
        some(table, *range(60), 0, 2, 2),
        ids=tuple([f"e{row}" for row in range(63)]),
        groups=(*table.groups, "g10", "g20", "g25"),
        questions=(*table.questions, table.questions[0], table.questions[2], table.questions[2]),
    )
    parts = divided([repeated], COVERAGE)
    assert (parts.questions, parts.repeated) == (60, 3)
    assert not set(parts.training.questions) & set(parts.calibration.questions)


def test_the_order_of_the_log_changes_nothing() -> None:
    table = log(200, groups=[f"g{row // 3}" for row in range(200)])
    shuffled = table.take(np.random.default_rng(0).permutation(200))
    one, other = divided([table], COVERAGE, seed=4), divided([shuffled], COVERAGE, seed=4)
    assert one.training.questions == other.training.questions
    assert one.calibration.questions == other.calibration.questions
    assert one.training.arrays.cost.tolist() == other.training.arrays.cost.tolist()
    assert divided([table], COVERAGE, seed=5).calibration.questions != one.calibration.questions


@pytest.mark.parametrize(("alpha", "delta", "needed"), [(0.1, None, 9), (0.05, None, 19), (0.1, 0.1, 22)])
def test_there_are_enough_to_certify_if_the_log_has_them(alpha: float, delta: float | None, needed: int) -> None:
    asked = Guarantee("coverage", alpha, delta)
    assert needed_of(asked) == needed
    assert divided([log(needed + 5)], asked, share=0.1).calibration.n == needed
    everything = divided([log(needed)], asked, share=0.1)
    assert (everything.training.n, everything.calibration.n) == (0, needed)
    assert divided([log(needed - 1)], asked, share=0.1).calibration.n == needed - 1


def test_a_promise_for_each_group_divides_every_group() -> None:
    segments = [f"g{row % 4}" for row in range(399)]
    parts = divided([log(399, segments=segments)], Guarantee("coverage", 0.1, by_segment=True), share=0.3)
    for name in set(segments):
        assert parts.calibration.segments.count(name) == 30
        assert parts.training.segments.count(name) in {69, 70}
    assert not set(parts.training.questions) & set(parts.calibration.questions)


def test_a_group_gets_what_its_own_threshold_needs_if_that_leaves_something_to_learn_from() -> None:
    groups = [*["many"] * 200, *["enough"] * 15, *["few"] * 8, "one"]
    parts = divided([log(224, segments=groups)], Guarantee("coverage", 0.1, by_segment=True), share=0.3)
    counts = {name: parts.calibration.segments.count(name) for name in set(groups)}
    assert counts == {"many": 60, "enough": 9, "few": 2, "one": 1}


def test_a_question_of_two_groups_stays_whole() -> None:
    table = log(80)
    both = replace(
        some(table, *range(80), *range(80)),
        ids=tuple([f"e{row}" for row in range(160)]),
        segments=("a",) * 80 + ("b",) * 80,
        groups=table.groups * 2,
        questions=table.questions * 2,
    )
    parts = divided([both], Guarantee("coverage", 0.1, by_segment=True))
    assert not set(parts.training.questions) & set(parts.calibration.questions)
    assert parts.questions == 160


# --- whole groups, and enough of them


def clumped(rng: np.random.Generator, n: int) -> EpisodeTable:
    """Return a log in groups of very different sizes, some questions of which stand in it again, in other groups."""
    groups = [f"g{int(number)}" for number in rng.integers(0, 1 + rng.integers(1, n), size=n) ** 2 // n]
    table, again = log(n, int(rng.integers(100))), rng.integers(0, n, size=int(rng.integers(0, 6)))
    return replace(
        some(table, *range(n), *again.tolist()),
        ids=tuple([f"e{row}" for row in range(n + again.size)]),
        groups=(*groups, *[f"g{int(number)}" for number in rng.integers(0, n, size=again.size)]),
        questions=(*table.questions, *[table.questions[row] for row in again.tolist()]),
    )


@pytest.mark.parametrize("kind", ["coverage"])
def test_there_are_never_too_few_to_certify_where_the_log_has_enough(kind: str) -> None:
    rng, short, tight = np.random.default_rng(11), 0, 0
    for trial in range(120):
        table = clumped(rng, int(rng.integers(10, 90)))
        share, asked = float(rng.uniform(0.05, 0.6)), Guarantee(kind, float(rng.choice([0.05, 0.1, 0.2])))
        parts = divided([table], asked, share=share, seed=trial)
        whole = questions_of([table], asked).table
        certain, needed = int(asked.rules.counted(parts.calibration).sum()), needed_of(asked)
        has = int(asked.rules.counted(whole.take(rows_a_group(whole, seed=trial))).sum())  # one of each group
        assert certain >= min(needed, has)
        left = set(whole.groups) - set(parts.calibration.groups)
        assert parts.calibration.n + parts.beside >= round(share * whole.n) or len(left) <= 1
        assert len(set(parts.calibration.groups)) == parts.calibration.n
        assert left or certain < needed or len(set(whole.groups)) < 2 or has - certain == 0
        assert not set(parts.calibration.groups) & set(parts.training.groups)
        short, tight = short + (has < needed), tight + (needed <= certain < needed + 3)
    assert min(short, tight) > 5


def test_the_order_of_a_log_in_groups_changes_nothing() -> None:
    rng = np.random.default_rng(5)
    for trial in range(20):
        table = clumped(rng, 60)
        shuffled = table.take(rng.permutation(table.n))
        for asked in (COVERAGE, Guarantee("coverage", 0.1, by_segment=True)):
            one, other = (divided([each], asked, seed=trial) for each in (table, shuffled))
            for mine, yours in ((one.training, other.training), (one.calibration, other.calibration)):
                assert (mine.ids, mine.groups) == (yours.ids, yours.groups)


def test_no_more_groups_are_set_aside_than_it_takes() -> None:
    table = log(100, groups=[f"g{row // 10}" for row in range(100)])
    loose = Guarantee("coverage", 0.4)
    assert divided([table], loose, share=0.3).calibration.n == 3
    assert divided([table], loose, share=0.31).calibration.n == 4
    assert divided([table], loose, share=0.95).calibration.n == 9  # one group is left to learn from
    assert divided([table], COVERAGE, share=0.3).calibration.n == 9  # so many groups are needed
    assert divided([table], Guarantee("coverage", 0.01), share=0.3).calibration.n == 10  # 99 are needed


def tied() -> EpisodeTable:
    """Return a log in which a question stands twice, the second time in another group: that ties the two together."""
    table = log(40, groups=[f"g{row // 2}" for row in range(40)])
    groups = (*table.groups, "g9")
    return replace(
        some(table, *range(40), 0),
        ids=tuple([f"e{row}" for row in range(41)]),
        groups=groups,
        questions=(*table.questions, table.questions[0]),
    )


def test_groups_are_tied_by_an_episode_that_is_left_out() -> None:
    table = tied()
    for seed in range(20):
        parts = divided([table], COVERAGE, seed=seed)
        where = {question: part for part in parts[:2] for question in part.questions}
        # of a group that certifies all questions but one are in no part
        assert len({id(where.get(table.questions[row])) for row in (0, 1, 18, 19)} - {id(None)}) == 1


def test_regret_looks_at_the_questions_of_which_the_reference_is_known() -> None:
    table = log(100)
    walk = replace(table.walks["guide only"], known=np.arange(100) < 70)
    parts = divided([replace(table, walks={**table.walks, "guide only": walk})], Guarantee("regret", 0.1, 0.1))
    assert parts.questions == 70


@pytest.mark.parametrize("share", [0.0, 1.0, -0.1])
def test_a_share_is_a_share(share: float) -> None:
    with pytest.raises(UsageError, match="between 0 and 1"):
        divided([log(20)], COVERAGE, share=share)


def test_no_question_is_no_log() -> None:
    with pytest.raises(UsageError, match="no question"):
        divided([log(5).take(np.zeros(0, dtype=np.int64))], COVERAGE)


@pytest.mark.parametrize(
    ("asked", "n", "allowed"),
    [
        (COVERAGE, 200, 20 / 201),
        (Guarantee("coverage", 0.1, 0.1), 200, 15 / 201),
        (COVERAGE, 5, 0.1),  # too few for any threshold: what was asked for stays the aim
        (Guarantee("error", 0.1, 0.1), 200, 14 / 200),
        (Guarantee("error", 0.1, 0.1), 10, 0.1),
        (Guarantee("error", 0.1, 0.1), 30, 1 / 30),  # enough for a threshold, if no question is lost
    ],
)
def test_what_so_many_questions_will_allow(asked: Guarantee, n: int, allowed: float | None) -> None:
    assert allowed_loss(asked, n) == (None if allowed is None else pytest.approx(allowed))


def test_what_is_allowed_by_groups_is_the_mean_over_their_thresholds() -> None:
    groups = [*["a"] * 100, *["b"] * 60, *["c"] * 20, *["d"] * 10]
    parts = divided([log(190, segments=groups)], Guarantee("coverage", 0.1, by_segment=True), share=0.3)
    sizes = {name: parts.calibration.segments.count(name) for name in "abcd"}
    assert sizes == {"a": 30, "b": 18, "c": 9, "d": 3}
    average = Guarantee("coverage", 0.1, by_segment=True)
    assert allowed_by(parts, average) == pytest.approx((30 * 3 / 31 + 18 * 1 / 19 + 9 * 1 / 10) / 57)
    certain = Guarantee("coverage", 0.1, 0.1, by_segment=True)
    assert allowed_by(parts, certain) == pytest.approx(1 / 31)
    assert allowed_by(parts, replace(certain, alpha=0.01)) == 0.01
