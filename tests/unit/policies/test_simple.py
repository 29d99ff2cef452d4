"""Policies that learn nothing, against values worked out by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.path import reaches, walks
from cascade.policies.policy import POLICIES, Policy, Prompted, Random, Uala, named, tie_of
from cascade.table import Log, Node
from unit.fitting.random_logs import random_log

NAN, INF = math.nan, math.inf


def rounds(**signals: list[float]) -> Log:
    """Return three requests of two rounds of base and guide; in the last, the first round's guide has no answer."""
    answer = np.array([[0, 1, 0, 1], [0, 1, 0, 1], [0, -1, 0, 1]])
    columns = {}
    for name, values in signals.items():
        columns[name] = np.full((3, 4), NAN)
        columns[name][:, 1::2] = np.array(values).reshape(3, 2)
    return Log(
        name="rounds",
        nodes=tuple([Node(f"{step}{place}", step) for step in range(2) for place in ("base", "guide")]),
        ids=("x", "y", "z"),
        groups=("x", "y", "z"),
        answer=answer,
        right=np.zeros((3, 4)),
        cost_nano_usd=np.ones((3, 4), dtype=np.int64),
        bought=np.ones((3, 4), dtype=bool),
        complete=np.ones(3, dtype=bool),
        confidence=np.full((3, 4), NAN),
        signals=columns,
    )


def test_uala_doubts_unsure_verdicts_and_serves_what_they_judge_right() -> None:
    log = rounds(p_yes=[0.5, 1.0, 0.1, 0.9, NAN, 0.2])
    scores = Uala().scores(log)
    assert scores.serve is not None
    doubts = [[math.log(2), 0.0], [-math.log(0.9), -math.log(0.9)], [NAN, -math.log(0.8)]]
    assert np.allclose(scores.doubt[:, 1::2], doubts, atol=2**-16, equal_nan=True)
    assert scores.serve[:, 1::2].tolist() == [[0, 2], [1, 2], [0, 3]]
    assert walks(log, scores).stop(0.5).tolist() == [3, 1, 3]


def test_uala_serves_the_newest_where_the_judged_answer_is_missing() -> None:
    scores = Uala().scores(rounds(p_yes=[0.9, 0.9, 0.9, 0.9, 0.1, 0.9]))
    assert scores.serve is not None
    assert scores.serve[:, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("actions", "stops", "served", "kept"),
    [
        ([1, 3, 2, 3, 3, 3], [1, 1, 3], [0, 1, 3], [[0], [1], [3]]),
        ([3, 1, 3, 2, 2, 1], [3, 3, 3], [2, 3, 2], [[2], [3], [2]]),
        ([NAN] * 2 + [9, 3, 1, 3], [3, 3, 1], [3, 3, 0], [[3], [3], [0]]),
    ],
)
def test_a_model_that_decides_is_obeyed(
    actions: list[float], stops: list[int], served: list[int], kept: list[list[int]]
) -> None:
    log = rounds(decided_action=actions)
    walked = walks(log, Prompted().scores(log))
    for kappa in (-INF, 0.0, INF):
        assert walked.stop(kappa).tolist() == stops
        assert walked.serve[np.arange(3), stops].tolist() == served
        assert [np.flatnonzero(row).tolist() for row in reaches(walked.keep, kappa)] == kept


def test_a_model_that_says_when_to_stop_is_obeyed_and_every_answer_kept() -> None:
    log = rounds(says_exit=[1, 0, 0, 1, NAN, 0])
    walked = walks(log, Prompted().scores(log))
    assert walked.stop(0.0).tolist() == [1, 3, 3]
    assert [np.flatnonzero(row).tolist() for row in reaches(walked.keep, 0.0)] == [[0, 1], [0, 1, 2, 3], [0, 2, 3]]


@pytest.mark.parametrize(
    ("share", "signal"), [(0.0, "reply_tokens"), (0.005, "reply_tokens"), (0.49, "reply_tokens"), (0.51, "p_yes")]
)
def test_a_few_odd_rows_do_not_change_what_a_policy_means(share: float, signal: str) -> None:
    log = random_log(1, n=400, whole=True)
    p_yes = np.where(np.arange(400)[:, None] < share * 400, 0.5, np.full((400, 4), NAN))
    found = named(replace(log, signals={"p_yes": p_yes, "reply_tokens": log.signals["reply_tokens"]}))
    assert found is not None
    assert found.signal == signal
    assert tie_of(replace(log, signals={"reply_tokens": p_yes})) == ("reply_tokens" if share > 0.5 else None)


def test_random_walks_go_on_with_the_probability_of_the_threshold() -> None:
    log = rounds()
    many = replace(log.take(np.zeros(4_000, dtype=np.int64)), ids=tuple(map(str, range(4_000))))
    walked = walks(many, Random(3).scores(many))
    assert abs(float((walked.stop(0.3) == 3).mean()) - 0.7) < 0.03
    assert (walked.stop(0.3) == walks(many, Random(4).scores(many)).stop(0.3)).mean() < 0.7


@pytest.mark.parametrize("policy", [Random(7), Uala(), Prompted()])
def test_a_request_alone_is_scored_as_in_the_log_and_the_file_gives_the_policy_back(policy: Policy) -> None:
    log = rounds(p_yes=[0.5, 1.0, 0.1, 0.9, NAN, 0.2], decided_action=[1, 3, 2, 3, NAN, 1])
    whole = policy.scores(log)
    for row in range(log.n):
        for ours, alone in zip(whole, policy.scores(log.take(np.array([row]))), strict=True):
            assert ours is alone is None or ours[row].tobytes() == alone[0].tobytes()
    assert POLICIES[policy.kind].read(policy.settings(), {}) == policy
