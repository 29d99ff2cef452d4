"""The table: what a log of some of its nodes says."""

from dataclasses import replace

import numpy as np
import pytest

from cascade.matching import agreement
from cascade.policies.base import Observation
from cascade.policies.live import row_of
from cascade.policies.policy import Threshold
from cascade.table import AGREEMENT, Log, Node
from cascade.types import Candidate, Question, Step
from unit.fitting.random_logs import random_log


def agreements(answer: np.ndarray, nodes: tuple[int, ...]) -> np.ndarray:
    """Return what a ladder of these nodes records (`plans.ladder`), NaN for None."""
    shares = np.full((len(answer), len(nodes)), np.nan)
    for row, numbers in enumerate(answer[:, nodes].tolist()):
        for at, number in enumerate(numbers):
            share = agreement(str(number), [str(each) for each in numbers[:at] if each >= 0]) if number >= 0 else None
            shares[row, at] = np.nan if share is None else share
    return shares


def compared(seed: int) -> Log:
    log = replace(random_log(seed, n=80, whole=True), texts_known=None, complete=np.ones(80, dtype=bool))
    return replace(log, signals={**log.signals, AGREEMENT: agreements(log.answer, (0, 1, 2, 3))})


@pytest.mark.parametrize("nodes", [(0, 1, 2, 3), (0, 3), (1, 3), (1, 2, 3), (0, 2, 3)])
def test_answers_are_compared_with_those_that_the_policy_buys(nodes):
    log = compared(3)
    part = log.only(nodes)
    assert np.array_equal(part.signals[AGREEMENT], agreements(log.answer, nodes), equal_nan=True)
    policy = Threshold(AGREEMENT, -1.0, None, nodes)
    for row in range(20):  # a request in progress that buys these nodes says the same
        shares = part.signals[AGREEMENT][row]
        steps = [
            Step(
                at + 1,
                () if part.answer[row, at] < 0 else (Candidate(str(part.answer[row, at]), "a", "a"),),
                {AGREEMENT: None if np.isnan(shares[at]) else float(shares[at])},
            )
            for at in range(len(nodes))
        ]
        live = row_of(Observation(Question("?"), tuple(steps), last=len(steps) == len(nodes)), part.nodes)
        assert np.array_equal(policy.scores(live).doubt[0], policy.scores(part).doubt[row], equal_nan=True)


def test_what_cannot_be_compared_is_unknown():
    log = replace(compared(4), texts_known=np.arange(80) % 2 == 0)
    assert np.isnan(log.only((0, 2)).signals[AGREEMENT][1::2]).all()
    assert np.array_equal(log.only((0, 1)).signals[AGREEMENT], log.signals[AGREEMENT][:, :2], equal_nan=True)
    rounds = replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes]))
    assert np.isnan(rounds.only((1, 3)).signals[AGREEMENT]).all()
    order = np.broadcast_to(np.array([2, 0, 1, 3]), log.answer.shape)
    walked = replace(log, texts_known=None).in_order(order)
    assert np.array_equal(walked.signals[AGREEMENT], agreements(log.answer, (2, 0, 1, 3)), equal_nan=True)
