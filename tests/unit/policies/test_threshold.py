"""UALA: go on while there is doubt, at least kappa of it."""

from __future__ import annotations

import math

import pytest

from cascade.policies.base import Observation, actions
from cascade.policies.threshold import ThresholdPolicy, uncertainty
from cascade.types import Candidate
from unit.made import RIVER, candidate, step

PAIR = (candidate("Rhine"), candidate("Danube", "guide"))


def done(
    policy: ThresholdPolicy,
    p_yes: float | None,
    *,
    number: int = 1,
    candidates: tuple[Candidate, ...] = PAIR,
    **more: float,
) -> tuple[tuple[int, ...], bool]:
    observation = Observation(RIVER, (step(number, *candidates, signals={"p_yes": p_yes, **more}),), 4)
    scores = policy.scores(observation)
    return tuple(actions(scores.candidates, scores.next, policy.kappa, last=observation.last))


@pytest.mark.parametrize(
    ("p_yes", "nats"), [(0.5, math.log(2)), (1.0, 0.0), (0.0, 0.0), (0.9, -math.log(0.9)), (None, math.inf)]
)
def test_uncertainty_is_that_of_the_verdict(p_yes: float | None, nats: float) -> None:
    assert uncertainty(p_yes) == pytest.approx(nats)


def test_uncertainty_does_not_care_which_way() -> None:
    assert uncertainty(0.2) == pytest.approx(uncertainty(0.8))


@pytest.mark.parametrize(
    ("p_yes", "taken"),
    [
        (0.99, ((0,), False)),
        (0.01, ((1,), False)),
        (0.5, ((), True)),
        (0.7, ((), True)),
        (0.75, ((0,), False)),
        (None, ((), True)),
    ],
)
def test_a_sure_verdict_stops_with_what_was_judged_right(
    p_yes: float | None, taken: tuple[tuple[int, ...], bool]
) -> None:
    assert done(ThresholdPolicy(0.3), p_yes) == taken


@pytest.mark.parametrize(("p_yes", "kept"), [(0.6, (0,)), (0.4, (1,)), (0.5, (0,)), (None, (0,))])
def test_the_last_step_keeps_what_was_judged_right_whatever_the_doubt(
    p_yes: float | None, kept: tuple[int, ...]
) -> None:
    assert done(ThresholdPolicy(0.1), p_yes, number=4) == (kept, False)


def test_a_threshold_of_zero_never_stops_before_the_last_step() -> None:
    assert done(ThresholdPolicy(0.0), 1.0) == ((), True)
    assert done(ThresholdPolicy(0.0), 1.0, number=4) == ((0,), False)


def test_a_threshold_above_ln_2_stops_on_any_verdict_but_not_without_one() -> None:
    assert done(ThresholdPolicy(0.7), 0.5) == ((0,), False)
    assert done(ThresholdPolicy(0.7), None) == ((), True)


@pytest.mark.parametrize(("p_yes", "taken"), [(0.9, ((0, 1), False)), (0.5, ((0, 1), True)), (None, ((0, 1), True))])
def test_keep_both_keeps_every_answer_paid_for(p_yes: float | None, taken: tuple[tuple[int, ...], bool]) -> None:
    assert done(ThresholdPolicy(0.3, "both"), p_yes) == taken


@pytest.mark.parametrize(("p_yes", "proceed"), [(0.9, False), (0.6, True), (0.01, True), (None, True)])
def test_when_p_yes_a_sure_no_is_not_enough(p_yes: float | None, proceed: bool) -> None:
    assert done(ThresholdPolicy(0.3, when="p_yes"), p_yes)[1] is proceed


def test_when_p_yes_the_last_step_keeps_the_guides_answer_after_a_no() -> None:
    assert done(ThresholdPolicy(0.3, when="p_yes"), 0.01, number=4) == ((1,), False)


def test_when_reply_logprob_nobody_is_asked() -> None:
    policy = ThresholdPolicy(0.3, when="reply_logprob")
    rung = (candidate("Rhine", "small"),)
    assert done(policy, None, candidates=rung, reply_mean_logprob=-0.1) == ((0,), False)
    assert done(policy, None, candidates=rung, reply_mean_logprob=-0.5) == ((), True)
    assert done(policy, None, candidates=rung) == ((), True)


@pytest.mark.parametrize("p_yes", [0.99, 0.01])
def test_an_answer_comes_where_only_one_was_made(p_yes: float) -> None:
    assert done(ThresholdPolicy(), p_yes, candidates=PAIR[:1]) == ((0,), False)
    assert done(ThresholdPolicy(), p_yes, candidates=PAIR[1:]) == ((0,), False)


def test_without_a_candidate_there_is_nothing_to_keep() -> None:
    assert done(ThresholdPolicy(), 0.0, candidates=()) == ((), True)
    assert done(ThresholdPolicy(), None, candidates=(), number=4) == ((), False)
