"""A model decides: the policy does what it said."""

from __future__ import annotations

import math
from typing import Any

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
    ("signals", "candidates", "place", "taken"),
    [
        ({"decided_action": 1.0}, PAIR, {}, ((0,), False)),
        ({"decided_action": 2.0}, PAIR, {}, ((1,), False)),
        ({"decided_action": 3.0}, PAIR, {}, ((), True)),
        ({"decided_action": None}, PAIR, {}, ((), True)),
        ({"decided_action": math.nan}, PAIR, {}, ((), True)),
        ({}, PAIR, {}, ((), True)),  # nothing was said
        ({"decided_action": 2.0}, (BASE,), {}, ((), True)),  # the answer that was chosen is not there
        ({"decided_action": 1.0}, (GUIDE,), {}, ((), True)),
        # at the last step a choice is still a choice; without one the guide's answer is kept
        ({"decided_action": 1.0}, PAIR, {"number": 3}, ((0,), False)),
        ({"decided_action": 3.0}, PAIR, {"number": 3}, ((1,), False)),
        ({"decided_action": None}, PAIR, {"number": 3}, ((1,), False)),
        ({"decided_action": 3.0}, (BASE,), {"number": 3}, ((0,), False)),
        ({"decided_action": None}, (BASE,), {"number": 3}, ((0,), False)),
        ({"decided_action": 3.0}, PAIR, {"final": True}, ((1,), False)),
        ({"decided_action": None}, PAIR, {"final": True}, ((1,), False)),
        ({"decided_action": None}, (), {"number": 3}, ((), False)),
        # an exit stops, and every answer on the way is kept
        ({"says_exit": 1.0}, (BASE,), {}, ((0,), False)),
        ({"says_exit": 0.0}, (BASE,), {}, ((0,), True)),
        ({"says_exit": None}, (BASE,), {}, ((0,), True)),
        ({"says_exit": math.nan}, (BASE,), {}, ((0,), True)),
        ({"says_exit": 0.0}, (BASE,), {"number": 3}, ((0,), False)),
        ({"says_exit": None}, (), {}, ((), True)),
        ({"says_exit": None}, (), {"number": 3}, ((), False)),
    ],
)
def test_what_was_said_is_done(
    signals: dict[str, float | None], candidates: tuple[Candidate, ...], place: dict[str, Any], taken: Any
) -> None:
    assert done(signals, candidates, **place) == taken
