"""The promise of agreement: who may certify it, with which threshold, and what the certificate says and does not say."""

from __future__ import annotations

from datetime import date

import numpy as np
import pytest
from cases import each
from scipy.stats import binom

from cascade.calibration.calibrating import Calibrated, calibrate_policy
from cascade.calibration.verifying import verify_held
from cascade.conformal.arrays import StepArrays
from cascade.episodes.schema import LAST_ONLY
from cascade.episodes.table import EpisodeTable, Walk
from cascade.errors import NotCertifiedError, UsageError
from cascade.factory import HeldPolicy
from cascade.guarantees.base import Guarantee, get
from cascade.guarantees.certificate import from_document, statement, to_document
from cascade.guarantees.questions import Truth
from cascade.training.simple import plain_threshold, reference_alone

AGREEMENT = get("agreement")
TODAY = date(2026, 11, 23)


def table(score: np.ndarray, equal: np.ndarray, given: np.ndarray | None = None, first: int = 0) -> EpisodeTable:
    """Return a ladder of two models; `given` says where the reference has an output."""
    n = score.size
    given = np.ones(n, dtype=np.bool_) if given is None else given
    answer = np.stack([np.zeros(n), np.where(given, np.where(equal, 0, 1), -1)], axis=1).astype(np.int64)[:, :, None]
    correct = np.stack([equal & given, given], axis=1)[:, :, None]
    cost = np.tile(np.array([1, 10], dtype=np.int64), (n, 1))
    known, ones = np.ones(n, dtype=np.bool_), np.ones(n, dtype=np.int64)
    last = Walk(known, given, given, cost[:, 1].copy(), ones, given.astype(np.int64), given.astype(np.int64))
    names = tuple(f"q{first + number}" for number in range(n))
    return EpisodeTable(
        "log",
        names,
        names,
        ("answer",),
        StepArrays(answer, correct, cost, np.full(n, 2, dtype=np.int64), known),
        np.full((n, 2, 1), np.nan),
        {"doubt": np.stack([score, np.full(n, np.nan)], axis=1)},
        {LAST_ONLY: last},
        models={"small": ("small",), "large": ("large",)},
        step_models=("small", "large"),
        texts_known=known,
        truth=Truth("large", "json"),
    )


def certified(found: EpisodeTable, alpha: float, delta: float) -> Calibrated:
    policy = plain_threshold(found, "doubt", 1.0, AGREEMENT)
    return calibrate_policy([found], policy, {"kind": "learned"}, Guarantee("agreement", alpha, delta), today=TODAY)


def by_hand(score: np.ndarray, lost: np.ndarray, alpha: float, delta: float) -> int | None:
    """Return how many questions are served the cheap answer at the certified threshold; None where none passes.

    The questions are served from the surest on. Every distinct score is tested in this order by the exact binomial
    test, until a test fails.
    """
    served, order = None, np.argsort(score, kind="stable")
    for many in [0, *np.cumsum(np.unique(score, return_counts=True)[1]).tolist()]:
        if binom.cdf(int(lost[order[:many]].sum()), score.size, alpha) > delta:
            break
        served = many
    return served


@each("seed", range(40))
def test_the_threshold_is_the_last_that_passes_the_exact_test(seed: int) -> None:
    rng = np.random.default_rng(seed)
    n, alpha, delta = int(rng.integers(10, 400)), float(rng.choice([0.05, 0.1, 0.2])), float(rng.choice([0.1, 0.3]))
    score = np.round(rng.random(n), int(rng.integers(1, 4)))
    equal = rng.random(n) > 0.6 * score**2
    wanted = by_hand(score, ~equal, alpha, delta)
    try:
        done = certified(table(score, equal), alpha, delta)
    except NotCertifiedError:
        assert wanted is None
    else:
        assert wanted == round(n - (done.realised.cost_nano_usd - 1) / 10 * n)


def test_a_reference_that_gave_nothing_is_lost_wherever_another_answer_is_served() -> None:
    rng = np.random.default_rng(1)
    score, given = rng.random(300), np.arange(300) >= 6
    done = certified(table(score, np.ones(300, dtype=np.bool_), given), 0.05, 0.1)
    (one,) = done.artifact.certificates
    assert done.segments[0].found.misses == 6
    assert done.realised.cost_nano_usd == 1
    assert one.kappa == np.inf
    with pytest.raises(NotCertifiedError):
        certified(table(score, np.ones(300, dtype=np.bool_), np.arange(300) >= 30), 0.05, 0.1)


def test_the_reference_alone_needs_no_question() -> None:
    given = np.arange(20) >= 10
    found = table(np.zeros(20), np.zeros(20, dtype=np.bool_), given)
    policy = reference_alone(found)
    done = calibrate_policy([found], policy, {"kind": "learned"}, Guarantee("agreement", 0.05, 0.1), today=TODAY)
    assert done.segments[0].found.misses == 0


def test_the_certificate_names_reference_and_comparator_and_promises_nothing_of_being_right() -> None:
    done = certified(table(np.random.default_rng(3).random(200), np.ones(200, dtype=np.bool_)), 0.05, 0.1)
    (one,) = done.artifact.certificates
    assert (one.reference, one.comparator) == ("large", "json")
    said = statement(one)
    assert "by the comparator json" in said
    assert "large" in said
    assert "regret" not in said
    assert from_document(to_document(one)) == one


def test_fresh_questions_refute_a_promise_that_is_broken_and_no_other() -> None:
    rng = np.random.default_rng(4)
    made = table(rng.random(200), rng.random(200) > 0.01)
    done = certified(made, 0.05, 0.1)
    held = HeldPolicy(done.artifact, None, plain_threshold(made, "doubt", 1.0, AGREEMENT))  # type: ignore[arg-type]
    for share, ok in ((0.01, True), (0.2, False)):
        fresh = table(rng.random(200), rng.random(200) > share, first=1_000)
        checks = {check.name: check.ok for check in verify_held(held, [fresh]).checks}
        assert checks["fresh"] is ok


def test_other_promises_are_refused_where_right_means_equal_and_this_one_where_it_does_not() -> None:
    found = table(np.zeros(20), np.zeros(20, dtype=np.bool_))
    with pytest.raises(UsageError, match="--promise agreement"):
        get("regret").check_truth(found)
    labelled = table(np.zeros(20), np.zeros(20, dtype=np.bool_))
    object.__setattr__(labelled, "truth", None)
    with pytest.raises(UsageError, match="--reference guide"):
        AGREEMENT.check_truth(labelled)
