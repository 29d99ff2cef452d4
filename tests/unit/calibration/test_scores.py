"""A live policy shown a log: it sees what it would have seen, and its scores land in their places."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from cascade.calibration.scores import table_scores
from cascade.conformal.arrays import Bools, StepArrays
from cascade.policies.base import Observation, Policy, Scores
from cascade.policies.fixed import FixedPolicy
from cascade.types import Step
from unit.evaluation.plain import SOURCES, Asked, Shown, draw, table_of


@dataclass
class Numbering(Policy):
    """Scores the k-th observation k, k + 0.1, …, and remembers what it saw."""

    kappa: float = 0.0
    seen: list[Observation] = field(default_factory=list)

    def scores(self, observation: Observation) -> Scores:
        self.seen.append(observation)
        number = float(len(self.seen))
        return Scores(tuple(number + k / 10 for k in range(len(observation.step.candidates))), -number)


QUESTION = Asked(
    steps=((Shown(1, 3, True, 0.5),), (), (Shown(0, 2, False, None), Shown(1, 3, True, 0.25))),
    costs=(1, 2, 3),
    signals=({"p_yes": 0.5, "reply_mean_logprob": None},) * 3,
    complete=False,
)


def test_scores_stand_where_the_candidates_are() -> None:
    found = table_scores(Numbering(), table_of([QUESTION], 4, 2))
    low = -math.inf
    assert found.candidates[0].tolist() == [[low, 1.0], [low, low], [3.0, 3.1], [low, low]]
    assert found.next[0].tolist() == [-1.0, -2.0, -3.0, low]


def test_a_policy_sees_the_steps_so_far_as_they_were() -> None:
    policy = Numbering()
    table_scores(policy, table_of([QUESTION._replace(complete=True)], 4, 2))
    assert [len(one.steps) for one in policy.seen] == [1, 2, 3]
    assert [one.last for one in policy.seen] == [False, False, True]
    last: Step = policy.seen[2].step
    assert [(c.text, c.source, c.confidence) for c in last.candidates] == [
        ("answer 2", "base", None),
        ("answer 3", "guide", 0.25),
    ]
    assert last.signals == {"p_yes": 0.5, "reply_mean_logprob": None}
    assert policy.seen[2].steps[0].candidates[0].text == last.candidates[1].text  # the same answer is told to be so
    assert policy.seen[0].question.text == "q0"


def test_no_questions_have_no_scores() -> None:
    found = table_scores(Numbering(), table_of([], 2, 2))
    assert found.candidates.shape == (0, 2, 2)


def test_sources_are_those_of_the_table() -> None:
    assert table_of([QUESTION], 4, 2).sources == SOURCES[2]
    assert np.isinf(table_scores(FixedPolicy("guide"), table_of([QUESTION], 4, 2)).candidates[0, 0, 1])


def test_the_work_grows_with_the_questions_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    whole: list[int] = []

    def counted(arrays: StepArrays) -> Bools:
        whole.append(arrays.n)
        return arrays.answer >= 0

    monkeypatch.setattr(StepArrays, "present", property(counted))
    rng = np.random.default_rng(23)
    for many in (3, 30):
        whole.clear()
        table_scores(FixedPolicy(), table_of([draw(rng, 2, 2) for _ in range(many)], 2, 2))
        assert sum(whole) <= many  # what is as large as the table is made once, not once a question
