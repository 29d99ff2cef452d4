"""UALA: go on while there is doubt, at least kappa of it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cascade.policies.base import Observation, actions
from cascade.policies.threshold import ThresholdPolicy, uncertainty
from cascade.types import Candidate
from unit.made import RIVER, candidate, step

PAIR = (candidate("Rhine"), candidate("Danube", "guide"))
LAST, RUNG = {"number": 4}, {"candidates": (candidate("Rhine", "small"),)}


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
    ("policy", "p_yes", "place", "taken"),
    [
        (ThresholdPolicy(0.3), 0.99, {}, ((0,), False)),
        (ThresholdPolicy(0.3), 0.01, {}, ((1,), False)),
        (ThresholdPolicy(0.3), 0.5, {}, ((), True)),
        (ThresholdPolicy(0.3), 0.7, {}, ((), True)),
        (ThresholdPolicy(0.3), 0.75, {}, ((0,), False)),
        (ThresholdPolicy(0.3), None, {}, ((), True)),
        # the last step keeps what was judged right, whatever the doubt
        (ThresholdPolicy(0.1), 0.6, LAST, ((0,), False)),
        (ThresholdPolicy(0.1), 0.4, LAST, ((1,), False)),
        (ThresholdPolicy(0.1), 0.5, LAST, ((0,), False)),
        (ThresholdPolicy(0.1), None, LAST, ((0,), False)),
        # 0 never stops before the last step; above ln 2 any verdict stops, but not the lack of one
        (ThresholdPolicy(0.0), 1.0, {}, ((), True)),
        (ThresholdPolicy(0.0), 1.0, LAST, ((0,), False)),
        (ThresholdPolicy(0.7), 0.5, {}, ((0,), False)),
        (ThresholdPolicy(0.7), None, {}, ((), True)),
        # both: every answer paid for
        (ThresholdPolicy(0.3, "both"), 0.9, {}, ((0, 1), False)),
        (ThresholdPolicy(0.3, "both"), 0.5, {}, ((0, 1), True)),
        (ThresholdPolicy(0.3, "both"), None, {}, ((0, 1), True)),
        # when p_yes: a sure no is not enough
        (ThresholdPolicy(0.3, when="p_yes"), 0.9, {}, ((0,), False)),
        (ThresholdPolicy(0.3, when="p_yes"), 0.6, {}, ((), True)),
        (ThresholdPolicy(0.3, when="p_yes"), 0.01, {}, ((), True)),
        (ThresholdPolicy(0.3, when="p_yes"), None, {}, ((), True)),
        (ThresholdPolicy(0.3, when="p_yes"), 0.01, LAST, ((1,), False)),
        # when reply_logprob: nobody is asked
        (ThresholdPolicy(0.3, when="reply_logprob"), None, RUNG | {"reply_mean_logprob": -0.1}, ((0,), False)),
        (ThresholdPolicy(0.3, when="reply_logprob"), None, RUNG | {"reply_mean_logprob": -0.5}, ((), True)),
        (ThresholdPolicy(0.3, when="reply_logprob"), None, RUNG, ((), True)),
        # where only one answer was made, or none
        *((ThresholdPolicy(), p_yes, {"candidates": PAIR[:1]}, ((0,), False)) for p_yes in (0.99, 0.01)),
        *((ThresholdPolicy(), p_yes, {"candidates": PAIR[1:]}, ((0,), False)) for p_yes in (0.99, 0.01)),
        (ThresholdPolicy(), 0.0, {"candidates": ()}, ((), True)),
        (ThresholdPolicy(), None, LAST | {"candidates": ()}, ((), False)),
    ],
)
def test_what_is_kept_and_whether_it_goes_on(
    policy: ThresholdPolicy, p_yes: float | None, place: dict[str, Any], taken: Any
) -> None:
    assert done(policy, p_yes, **place) == taken
