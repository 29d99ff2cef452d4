"""Fresh questions against a promise: by which law, and of which questions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.calibration.scores import Sample, sample_of
from cascade.calibration.verifying import on_fresh
from cascade.conformal.arrays import ScoreArrays, StepArrays, levels
from cascade.guarantees import laws
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
    assert rates == [0.82, 0.9, 0.93]  # 1 - 0.18 is another float


@pytest.mark.parametrize("groups", [["a"] * 600, ["a", "b", "c"] * 200])
def test_a_pool_is_reported_and_not_tested_even_where_no_group_is_large(groups: list[str]) -> None:
    sample = sample_of(log(600, segments=groups), POLICY)
    fields: dict[str, Any] = {"kind": "coverage", "alpha": 0.1, "n": 600, "calibration_id": "", "k": 60}
    ((fine, said),) = on_fresh([Certificate(**fields, kappa=float("inf"), pool=True)], sample)
    assert fine
    assert said.endswith("small segments together, reported only")
    ((fine, said),) = on_fresh([Certificate(**fields, kappa=float("inf"))], sample)
    assert not fine
    assert "is refuted" in said


@pytest.mark.parametrize(("n", "words"), [(100, "too few calibration questions to tell"), (5_000, "is not refuted")])
def test_a_test_that_could_find_nothing_does_not_say_that_a_promise_stands(n: int, words: str) -> None:
    graded = replace(log(100), quality=log(100).arrays.correct.astype(np.float64))
    f1 = Certificate("f1", 0.1, n, "", kappa=0.3)
    (told,) = on_fresh([f1], sample_of(graded, POLICY))
    assert told.ok
    assert words in told.said


def test_what_no_certificate_speaks_of_is_not_held_against_any() -> None:
    sample = sample_of(log(60, segments=["a", "b", "c"] * 20), POLICY)
    one = Certificate("coverage", 0.1, 60, "", k=6, kappa=float("-inf"), segment="a")
    ((fine, said),) = on_fresh([one], sample)
    assert fine
    assert "of 20 fresh questions lost" in said


def test_only_what_is_surely_lost_is_held_against_a_promise() -> None:
    """Where the walk leaves an incomplete record the right answer may be kept as the last resort, or come later."""
    table = log(400)
    arrays = table.arrays
    first = np.ones(table.n, dtype=np.int64)
    on = np.arange(arrays.horizon) < 1
    cut = StepArrays(
        np.where(on[:, None], arrays.answer, -1),
        arrays.correct & on[:, None],
        np.where(on, arrays.cost, 0),
        first,
        np.zeros(table.n, dtype=np.bool_),
    )
    # Right answers of a score below every threshold, and "next" above: how the walk ends is not on record.
    scores = ScoreArrays(np.full(cut.answer.shape, 0.1), np.full(cut.cost.shape, 0.9))
    sample = Sample(replace(table, arrays=cut), scores, levels(cut, scores))
    ((fine, said),) = on_fresh([Certificate("coverage", 0.1, 50, "", k=5, kappa=0.5)], sample)
    assert fine
    assert f"0 of {table.n} fresh questions lost" in said
