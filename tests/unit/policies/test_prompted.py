"""A model decides: the policy does what it said."""

from __future__ import annotations

import math

import pytest

from cascade.policies.base import Observation, actions
from cascade.policies.prompted import PromptedPolicy
from cascade.types import Candidate
from unit.made import RIVER, candidate, step

BASE, GUIDE = candidate("Rhine"), candidate("Danube", "guide")
PAIR = (BASE, GUIDE)


def done(
    signals: dict[str, float | None], candidates: tuple[Candidate, ...] = PAIR, *, number: int = 1, final: bool = False
) -> tuple[tuple[int, ...], bool]:
    policy = PromptedPolicy()
    observation = Observation(RIVER, (step(number, *candidates, signals=signals, final=final),), 3)
    scores = policy.scores(observation)
    return tuple(actions(scores.candidates, scores.next, policy.kappa, last=observation.last))


@pytest.mark.parametrize(
    ("action", "taken"),
    [(1.0, ((0,), False)), (2.0, ((1,), False)), (3.0, ((), True)), (None, ((), True)), (math.nan, ((), True))],
)
def test_an_action_is_taken(action: float | None, taken: tuple[tuple[int, ...], bool]) -> None:
    assert done({"decided_action": action}) == taken


def test_a_step_on_which_nothing_was_said_goes_on() -> None:
    assert done({}) == ((), True)


@pytest.mark.parametrize(("action", "only"), [(2.0, (BASE,)), (1.0, (GUIDE,))])
def test_a_choice_of_an_answer_that_is_not_there_goes_on(action: float, only: tuple[Candidate, ...]) -> None:
    assert done({"decided_action": action}, only) == ((), True)


@pytest.mark.parametrize("action", [3.0, None])
def test_at_the_last_step_the_guides_answer_is_kept_where_none_was_chosen(action: float | None) -> None:
    assert done({"decided_action": action}, number=3) == ((1,), False)
    assert done({"decided_action": action}, (BASE,), number=3) == ((0,), False)
    assert done({"decided_action": action}, final=True) == ((1,), False)


def test_at_the_last_step_a_choice_is_still_a_choice() -> None:
    assert done({"decided_action": 1.0}, number=3) == ((0,), False)


def test_a_last_step_without_an_answer_keeps_nothing() -> None:
    assert done({"decided_action": None}, (), number=3) == ((), False)
    assert done({"says_exit": None}, (), number=3) == ((), False)


@pytest.mark.parametrize(("says", "proceeds"), [(1.0, False), (0.0, True), (None, True), (math.nan, True)])
def test_exit_stops_and_every_answer_on_the_way_is_kept(says: float | None, proceeds: bool) -> None:
    assert done({"says_exit": says}, (BASE,)) == ((0,), proceeds)
    assert done({"says_exit": says}, (BASE,), number=3) == ((0,), False)


def test_a_reply_without_an_answer_goes_on() -> None:
    assert done({"says_exit": None}, ()) == ((), True)
