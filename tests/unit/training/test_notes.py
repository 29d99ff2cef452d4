"""What is said of a fit beside its policy, and how many questions would do where nothing could be certified."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from simulated import WORLDS, simulate

from cascade.episodes.table import EpisodeTable
from cascade.errors import NotCertifiedError, UsageError
from cascade.guarantees.base import Guarantee
from cascade.training.dividing import logged_for
from cascade.training.fitting import Fitted, fit_policy
from unit.calibration.logs import log

COVERAGE = Guarantee("coverage", 0.1)


def fit(table: EpisodeTable, guarantee: Guarantee = COVERAGE, **more: Any) -> Fitted:
    return fit_policy([table], guarantee, **{"method": "threshold"} | more)


def simulated(n: int, seed: int) -> EpisodeTable:
    return simulate(WORLDS["mmlu/llama-2-7b"], n, seed=seed)


# --- how many would do


@pytest.mark.parametrize(
    ("guarantee", "few"),
    [
        (COVERAGE, 8),
        (Guarantee("coverage", 0.05), 12),
        (Guarantee("coverage", 0.1, 0.1), 15),
        (Guarantee("error", 0.55, 0.1), 30),
    ],
)
def test_the_number_that_would_do_does(guarantee: Guarantee, few: int) -> None:
    """A forecast: on nine of ten logs of as many questions as it says the same promise is certified, not everything."""
    failed, seed = NotCertifiedError("not tried yet"), 0
    while failed.needed_n is None:
        assert seed < 20
        try:
            fit(simulated(few, seed), guarantee)
        except NotCertifiedError as error:
            failed = error
        seed += 1
    assert f"About {failed.needed_n:,} logged questions would be enough" in str(failed)
    certified = 0
    for seed in range(100, 106):
        try:
            found = fit(simulated(failed.needed_n, seed), guarantee)
        except NotCertifiedError:
            continue
        certified += not found.artifact.certificates[0].keeps_everything
        assert found.sizes.training >= 10
    assert certified >= 5


def test_one_number_is_said_and_it_counts_logged_questions() -> None:
    with pytest.raises(NotCertifiedError) as told:
        fit(log(20), Guarantee("error", 0.05, 0.1))
    said = str(told.value)
    assert said.count("would be enough") <= 1
    assert "after ordering" not in said
    assert "set aside" not in said


def test_only_the_share_that_the_promise_speaks_of_counts() -> None:
    assert logged_for(9, COVERAGE, 0.3) == 29
    assert logged_for(9, COVERAGE, 0.3, spoken=0.5) == 38
    assert logged_for(30, COVERAGE, 0.3, spoken=0.5) == 200


# --- segments of one question


def test_segments_of_one_question_each_are_refused_with_what_to_do() -> None:
    table = replace(log(60), segments=tuple([f"s{row}" for row in range(60)]))
    with pytest.raises(UsageError, match="each of the 60 segments has one question: ask for one promise for all"):
        fit(table, Guarantee("coverage", 0.1, by_segment=True))
    two = replace(table, segments=tuple([f"g{row % 2}" for row in range(60)]))
    assert fit(two, Guarantee("coverage", 0.1, by_segment=True)).sizes.training > 0


def test_a_segment_of_few_questions_trains_and_is_not_certified() -> None:
    asked = Guarantee("coverage", 0.1, by_segment=True)
    found = fit(log(65, segments=["a"] * 60 + ["b"] * 5), asked)
    assert [(one.segment, one.n) for one in found.artifact.certificates] == [("a", 18)]
    assert [(one.segment, one.n, one.needed_n) for one in found.calibrated.too_small] == [("b", 2, 9)]
    assert any("b (2)" in note for note in found.calibrated.notes)
    with pytest.raises(
        NotCertifiedError, match=r"a \(2\), b \(2\)\. About \d+ logged questions of such a segment"
    ) as told:
        fit(log(12, segments=["a", "b"] * 6), asked)
    assert told.value.needed_n is not None
    assert told.value.needed_n > 9


def test_one_training_question_is_one() -> None:
    found = fit(log(20), Guarantee("coverage", 0.05), method="auto")
    assert "1 training question is too few to choose by: the policy reads nothing but the step" in found.notes
