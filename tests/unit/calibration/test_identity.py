"""A promise on the one answer, of a log that does not say which answers are the same: the truth must not vote."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.calibration.scores import sample_of
from cascade.config import policy_section
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import policy_of
from cascade.guarantees.base import Guarantee
from cascade.guarantees.questions import at_every_depth, check_identity, reference_right
from unit.calibration.logs import POLICY, log
from unit.evaluation.plain import row

DEEP = policy_section({"kind": "fixed", "depth": 5})


def chance(*, texts: bool, n: int = 400, steps: int = 5) -> EpisodeTable:
    """Return a ladder of which each step is right by the toss of a coin, and no two of its answers are the same."""
    rng = np.random.default_rng(3)
    rows: list[dict[str, Any]] = []
    for question in range(n):
        for step in range(1, steps + 1):
            text = f"my own words, {step}" if texts else None
            right = bool(rng.random() < 0.5)
            rows.append(row(str(question), step, answer=text, correct=right, confidence=None, horizon=steps))
    (table,) = tables_from_rows(rows)
    return table


def stopping(*, texts: bool) -> EpisodeTable:
    """Return the same ladder, logged until a step was right: what would have come after it nobody knows."""
    table = chance(texts=texts)
    right = table.arrays.correct[:, :, 0]
    first = np.where(right.any(axis=1), right.argmax(axis=1), right.shape[1] - 1)
    beyond = np.arange(right.shape[1]) > first[:, None]
    answer = np.where(beyond[:, :, None], -1, table.arrays.answer)
    arrays = replace(table.arrays, answer=answer, correct=table.arrays.correct & (answer >= 0), steps=first + 1)
    arrays = replace(arrays, cost=np.where(beyond, 0, arrays.cost), complete=first == right.shape[1] - 1)
    return replace(table, arrays=arrays, confidence=np.where(answer < 0, np.nan, table.confidence))


def certify(table: EpisodeTable, kind: str = "error", **more: Any) -> Calibrated:
    return calibrate_policy([table], policy_of(DEEP), DEEP, Guarantee(kind, 0.25, 0.1, **more))


def test_answers_that_are_right_by_chance_are_not_made_right_by_their_votes() -> None:
    """Half of what is served is wrong. Right answers that are taken for one would be served on 27 of 32 questions."""
    with pytest.raises(NotCertifiedError):
        certify(chance(texts=True))
    with pytest.raises(
        UsageError, match=r"Votes decide which answer is served on 120 of 120 questions .* promise coverage"
    ) as told:
        certify(chance(texts=False))
    assert "full" in str(told.value)


def test_coverage_needs_no_texts() -> None:
    done = certify(chance(texts=False), "coverage")
    assert done.artifact.certificates
    assert any("is a guess" in one for one in done.notes)
    assert not any("is a guess" in one for one in certify(chance(texts=True), "coverage").notes)


def test_two_answers_need_no_texts() -> None:
    """The latest is served, or what equals it."""
    wide = policy_section({"kind": "fixed", "depth": 2})
    for texts in (True, False):
        with pytest.raises(NotCertifiedError):
            calibrate_policy([chance(texts=texts)], policy_of(wide), wide, Guarantee("error", 0.25, 0.1))
    some = chance(texts=False)
    right = replace(some, arrays=replace(some.arrays, correct=some.arrays.present))
    assert calibrate_policy([right], policy_of(wide), wide, Guarantee("error", 0.25, 0.1)).artifact.certificates


def test_records_that_end_early_are_named_as_the_reason() -> None:
    """More questions would not help, nor a higher alpha: the log has to go on, and without texts that is not all."""
    wide = policy_section({"kind": "fixed", "depth": 2})  # two answers need no texts
    asked = Guarantee("error", 0.4, 0.1)
    with pytest.raises(NotCertifiedError, match=r"because their record ends before the last step, .* to its last step"):
        calibrate_policy([stopping(texts=True)], policy_of(wide), wide, asked)
    with pytest.raises(UsageError, match=r"Votes decide .* The records of \d+ questions end early: log each"):
        calibrate_policy([stopping(texts=False)], policy_of(wide), wide, asked)


def test_confidences_that_tell_answers_apart_need_no_texts() -> None:
    table = log(200)
    apart = np.linspace(0.1, 0.9, table.confidence.size).reshape(table.confidence.shape)
    without = replace(table, texts_known=np.zeros(table.n, dtype=np.bool_), confidence=apart)
    check_identity(sample_of(without, POLICY), abstain=True)
    with pytest.raises(UsageError, match="Votes decide"):
        check_identity(sample_of(replace(without, confidence=np.full(apart.shape, np.nan)), POLICY))
    tied = without.confidence.copy()
    tied[7] = 0.5
    with pytest.raises(UsageError, match="Votes decide which answer is served on 1 of 200"):
        check_identity(sample_of(replace(without, confidence=tied), POLICY))


def test_abstaining_needs_texts_where_an_equal_answer_would_be_surer() -> None:
    table = log(60)
    shape = (60, 2, 1)
    arrays = replace(
        table.arrays.take(np.arange(60)),
        answer=np.tile(np.array([0, 1]).reshape(1, 2, 1), (60, 1, 1)),
        correct=np.zeros(shape, dtype=np.bool_),
        cost=np.ones(shape[:2], dtype=np.int64),
        steps=np.full(60, 2),
    )
    names, unknown = tuple(f"q{row}" for row in range(60)), np.full(shape, np.nan)
    for first, refused in ((-0.5, True), (-2.0, False)):
        sure = {"reply_mean_logprob": np.tile([first, -1.0], (60, 1))}
        sample = at_every_depth(EpisodeTable("two", names, names, ("answer",), arrays, unknown, sure, {}))
        check_identity(sample)
        check_identity(sample, abstain=True, kappa=0.0)  # one answer is kept
        if refused:
            with pytest.raises(UsageError, match=r"The confidence .* on 60 of 60 questions of two, .* do not abstain"):
                check_identity(sample, abstain=True)
        else:
            check_identity(sample, abstain=True)


def test_questions_whose_texts_are_known_do_not_matter() -> None:
    table = replace(log(50), confidence=np.full(log(50).confidence.shape, np.nan))
    check_identity(sample_of(table, POLICY), abstain=True)
    half = replace(table, texts_known=np.arange(50) < 25)
    with pytest.raises(UsageError, match="Votes decide which answer is served on 25 of 50"):
        check_identity(sample_of(half, POLICY))


def test_a_reference_that_kept_three_answers_counts_as_right_where_votes_chose_among_them() -> None:
    table = log(20)
    walk = replace(table.walks["guide only"], right=np.zeros(20, dtype=np.bool_), leaves=np.arange(20) % 5)
    many = walk.leaves > 2
    held = replace(table, walks={**table.walks, "guide only": walk})
    assert not reference_right(held).any()
    assert reference_right(replace(held, texts_known=np.zeros(20, dtype=np.bool_))).tolist() == many.tolist()
