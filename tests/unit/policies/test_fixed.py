"""The baselines: a fixed depth, and chance."""

from __future__ import annotations

from collections import Counter

import pytest

from cascade.policies.base import Observation, actions
from cascade.policies.fixed import FixedPolicy, RandomPolicy
from cascade.types import Question, Step
from unit.made import RIVER, candidate, step

PAIR = (candidate("Rhine"), candidate("Danube", "guide"))


def seen(number: int = 1, horizon: int = 4, *candidates: object, question: Question = RIVER) -> Observation:
    steps = tuple(step(n, *(candidates or PAIR)) for n in range(1, number + 1))
    return Observation(question, steps, horizon)


def done(policy: FixedPolicy | RandomPolicy, observation: Observation) -> tuple[tuple[int, ...], bool]:
    scores = policy.scores(observation)
    return tuple(actions(scores.candidates, scores.next, policy.kappa, last=observation.last))


@pytest.mark.parametrize(("keep", "kept"), [("base", (0,)), ("guide", (1,)), ("both", (0, 1))])
def test_at_its_depth_it_stops_and_keeps_what_it_is_told(keep: str, kept: tuple[int, ...]) -> None:
    assert done(FixedPolicy(keep, 2), seen(2)) == (kept, False)


@pytest.mark.parametrize(("keep", "kept"), [("base", ()), ("guide", ()), ("both", (0, 1))])
def test_before_its_depth_it_goes_on(keep: str, kept: tuple[int, ...]) -> None:
    assert done(FixedPolicy(keep, 3), seen(2)) == (kept, True)


def test_an_end_before_its_depth_still_keeps_an_answer() -> None:
    final = Step(1, PAIR, {}, final=True)
    assert done(FixedPolicy("guide", 3), Observation(RIVER, (final,), 4)) == ((1,), False)
    assert done(FixedPolicy("guide", 9), seen(4)) == ((1,), False)


def test_without_the_candidate_that_it_keeps_an_answer_comes_all_the_same() -> None:
    assert done(FixedPolicy("guide"), seen(1, 4, candidate("Rhine"))) == ((0,), False)


def test_chance_is_the_same_for_the_same_seed_question_and_step() -> None:
    questions = [Question(f"question {n}") for n in range(50)]
    runs = [[RandomPolicy(7).scores(seen(question=one)) for one in questions] for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0] != [RandomPolicy(8).scores(seen(question=one)) for one in questions]


def test_chance_takes_every_action_about_equally_often() -> None:
    taken = Counter(done(RandomPolicy(), seen(question=Question(f"question {n}"))) for n in range(3_000))
    assert taken.keys() == {((0,), False), ((1,), False), ((), True)}
    assert min(taken.values()) > 900


def test_chance_never_goes_on_from_the_last_step() -> None:
    taken = {done(RandomPolicy(), seen(4, question=Question(f"question {n}"))) for n in range(200)}
    assert taken == {((0,), False), ((1,), False)}


def test_chance_without_a_candidate_goes_on_while_it_can() -> None:
    empty = Observation(RIVER, (step(1),), 2)
    assert done(RandomPolicy(), empty) == ((), True)
    assert done(RandomPolicy(), Observation(RIVER, (step(2),), 2)) == ((), False)


def test_chance_looks_at_the_context_too() -> None:
    drawn = {RandomPolicy().scores(seen(question=Question("same", f"context {n}"))) for n in range(50)}
    assert len(drawn) == 3
