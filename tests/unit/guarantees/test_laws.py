"""Fresh questions against a promise: by which law, and of which questions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from cascade.calibration.verifying import on_fresh

from cascade.calibration.scores import Sample, sample_of
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels
from cascade.episodes.table import EpisodeTable
from cascade.guarantees import laws
from cascade.guarantees.questions import Misses
from cascade.types import Certificate
from unit.calibration.logs import POLICY, log


def test_the_rate_of_what_is_kept_is_the_decimal_beside_alpha(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = []

    def spied(count: int, n: int, p: float) -> float:
        rates.append(p)
        return 1.0

    monkeypatch.setattr(laws, "lower_tail", spied)
    for alpha in (0.18, 0.1, 0.07):
        list(on_fresh([Certificate("coverage", alpha, 50, "", delta=0.1, k=2, kappa=0.5)], sample_of(log(20), POLICY)))
    assert list(dict.fromkeys(rates)) == [0.82, 0.9, 0.93]  # 1 - 0.18 is another float


def test_what_no_certificate_speaks_of_is_not_held_against_any() -> None:
    sample = sample_of(log(60, segments=["a", "b", "c"] * 20), POLICY)
    one = Certificate("coverage", 0.1, 60, "", k=6, kappa=float("-inf"), segment="a")
    ((fine, said),) = on_fresh([one], sample)
    assert fine
    assert "of 20 fresh questions lost" in said


def ended_early(table: EpisodeTable, rows: slice) -> Sample:
    """Return a sample in which the records of some questions end, incomplete, after the first step."""
    ends = np.zeros(table.n, dtype=np.bool_)
    ends[rows] = True
    arrays = table.arrays
    on = ~ends[:, None] | (np.arange(arrays.horizon) < 1)
    cut = StepArrays(
        np.where(on[:, :, None], arrays.answer, -1),
        arrays.correct & on[:, :, None],
        np.where(on, arrays.cost, 0),
        np.where(ends, 1, arrays.steps),
        arrays.complete & ~ends,
    )
    # Right answers of a score below every threshold, and "next" above: how the walk ends is not on record.
    scores = ScoreArrays(np.full(cut.answer.shape, 0.1), np.full(cut.cost.shape, 0.9))
    return Sample(replace(table, arrays=cut), scores, levels(cut, scores))


@pytest.mark.parametrize("promise", [{}, {"delta": 0.1}])
def test_a_question_whose_record_ends_early_counts_neither_for_a_promise_nor_against_it(
    promise: dict[str, float],
) -> None:
    """Where the walk leaves an incomplete record, the right answer may be kept as the last resort, or come later."""
    one = Certificate("coverage", 0.1, 50, "", k=5, kappa=0.5, **promise)
    table = log(400)
    ((holds, said),) = on_fresh([one], ended_early(table, slice(0, 400)))
    assert not holds
    assert "0 of 400 fresh questions lost, and of 400 more it is unknown, since the log lacks a call" in said
    assert "a rate above 0.0000 and below 1.0000" in said
    assert "alpha 0.1 is refuted if what is unknown counts against it, and is not if nothing unknown does" in said


def test_questions_of_which_it_is_unknown_whether_they_are_lost_decide_nothing_if_they_are_few() -> None:
    one, rows = Certificate("regret", 0.1, 50, "", delta=0.1, k=2, kappa=0.5), np.arange(400)
    every = np.ones(400, dtype=np.bool_)
    for sure, more, holds in ((0, 4, True), (30, 0, True), (30, 10, True), (30, 30, False), (90, 0, False)):
        found = laws.on_share(one, Misses(rows < sure + more, rows < sure, every))
        assert found.ok is holds
        assert ("it is unknown" in found.said) is (more > 0)
        assert ("if what is unknown counts against it" in found.said) is (not holds and more > 0)
