"""The learned rule: what it learns where the best rule is known, what it reads, and its file."""

import math
from dataclasses import replace

import numpy as np
import pytest

from cascade.conformal.path import walks
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.policies.directory import PolicyDirectory
from cascade.policies.learned import Learned, further, learn
from cascade.table import Floats, Log, Node, Reference
from unit.fitting.random_logs import random_log

REGRET = Promise("regret", confidence=0.9).rules
NODES = tuple([Node(name, at, reads=()) for at, name in enumerate("abcd")])


@pytest.fixture(scope="module")
def log() -> Log:
    return random_log(11, n=400, whole=True)


@pytest.fixture(scope="module")
def policy(log: Log) -> Learned:
    return learn(log, REGRET, 0.05)


def answered(right: Floats, cost: list[int], check: Floats) -> Log:
    """Return a log of right and wrong answers with a signal; the last node is the reference."""
    n, width = right.shape
    whole = np.ones(right.shape, dtype=bool)
    paid = np.broadcast_to(np.array(cost, dtype=np.int64), right.shape)
    return Log(
        name="made",
        nodes=NODES[:width],
        ids=tuple(map(str, range(n))),
        groups=tuple(map(str, range(n))),
        answer=np.where(right == 1, 0, np.arange(1, width + 1)),
        right=right,
        cost_nano_usd=paid,
        bought=whole,
        complete=whole[:, 0],
        confidence=np.full(right.shape, np.nan),
        signals={"self_check": check},
        reference=Reference(right[:, -1], paid[:, -1], is_last=True),
    )


def test_it_reads_the_signals_that_no_training_request_lacked(log, policy):
    known = [name for name, values in log.signals.items() if not np.isnan(values).any()]
    assert sorted(policy.reads) == sorted(known) == ["reply_mean_logprob", "reply_tokens"]
    assert any("self_check@" in name for rule in policy.rules for name in rule.features)


@pytest.mark.parametrize(("signal", "most"), [("self_check", 8), ("reply_tokens", 20), ("wisdom", 20)])
def test_it_reads_more_features_where_no_score_is_named(log, signal, most):
    draw = np.random.default_rng(8)
    many = {f"number {at}": draw.random(log.n) for at in range(25)}
    few = replace(log, signals={signal: log.signals["self_check"]}, features=many)
    assert max(len(rule.features) for rule in learn(few, REGRET, 0.05).rules) == most


def test_the_reference_is_bought_where_the_signal_tells_an_error():
    draw = np.random.default_rng(5)
    right = np.stack([draw.random(500) < 0.6, np.ones(500)], axis=1).astype(float)
    made = answered(right, [1, 10], np.where(right == 1, 0.9, 0.2))
    rule = learn(made, REGRET, 0.02)
    assert walks(made, rule.scores(made)).stop(0.0).tolist() == (1 - right[:, 0]).astype(int).tolist()


def test_a_node_that_is_never_right_is_never_bought():
    draw = np.random.default_rng(6)
    right = np.stack([draw.random(500) < 0.6, np.zeros(500), np.ones(500)], axis=1).astype(float)
    made = answered(right, [1, 2, 10], np.where(right == 1, 0.9, 0.2))
    scores = learn(made, REGRET, 0.02).scores(made)
    assert scores.order is not None
    assert {tuple(row) for row in scores.order[right[:, 0] == 0].tolist()} == {(0, 2, 1)}
    assert np.isneginf(scores.doubt[right[:, 0] == 0, 1]).all()


def test_the_rules_are_as_cheap_as_the_best_of_all_rules_on_a_signal_of_two_values():
    """With one signal of two values a regression has a value for each: no rule of such states is better."""
    for seed in range(6):
        draw = np.random.default_rng([7, seed])
        right = (draw.random((2_000, 2)) < draw.uniform(0.3, 0.9, 2)).astype(float)
        right = np.c_[right, np.ones(2_000)]
        check = np.where(draw.random(right.shape) < 0.8, right, 1 - right)
        made = answered(right, draw.integers(1, 30, 3).tolist(), check)
        rule = learn(made, REGRET, 0.1, signals=("self_check",))
        walked = walks(made, rule.scores(made))
        loss = REGRET.jumps(walked).at(0.0).mean() / (1 << 30)
        cost = walked.cost.at(0.0).mean()
        cheaper = []
        for stops in np.ndindex(2, 2, 2, 2):  # after node 0 with a low or high signal, after node 1 with a low or high
            first, second = np.array(stops[:2]), np.array(stops[2:])
            at = np.where(first[check[:, 0].astype(int)] == 1, 0, np.where(second[check[:, 1].astype(int)] == 1, 1, 2))
            lost = 1 - right[np.arange(2_000), at]
            paid = made.cost_nano_usd.cumsum(axis=1)[np.arange(2_000), at]
            cheaper.append(lost.mean() < loss - 1e-9 and paid.mean() < cost - 1e-9)
        assert not any(cheaper)


def test_the_same_log_gives_the_same_bytes(log, policy):
    again = learn(log, REGRET, 0.05)
    assert {name: part.tobytes() for name, part in again.tensors().items()} == {
        name: part.tobytes() for name, part in policy.tensors().items()
    }


def test_a_request_in_progress_is_decided_as_in_the_log(log, policy):
    other = random_log(12, n=80, whole=True)
    whole = policy.scores(other)
    assert whole.order is not None
    for row in range(other.n):
        order = whole.order[row]
        for many in range(other.width):
            live = policy.scores(cut(other, row, order[:many].tolist()))
            assert live.order is not None
            going_on = many == 0 or whole.doubt[row, many - 1] > -math.inf
            assert live.order[0, : many + going_on].tolist() == order[: many + going_on].tolist()
            assert live.doubt[0, :many].tobytes() == whole.doubt[row, :many].tobytes()
            if not going_on:
                break


def cut(log: Log, row: int, bought: list[int]) -> Log:
    """Return a request as it is served: its bought nodes alone are known."""
    part = log.take(np.array([row]))
    there = np.isin(np.arange(log.width), bought)[None, :]
    return replace(
        part,
        answer=np.where(there, part.answer, -1),
        right=np.full(part.right.shape, np.nan),
        cost_nano_usd=np.where(there, part.cost_nano_usd, 0),
        bought=there,
        complete=np.zeros(1, dtype=bool),
        confidence=np.where(there, part.confidence, np.nan),
        signals={name: np.where(there, values, np.nan) for name, values in part.signals.items()},
        reference=None,
    )


def test_a_feature_that_was_never_missing_sends_the_request_to_the_reference(log, policy):
    silent = replace(log, signals={name: values * np.nan for name, values in log.signals.items()})
    scores = policy.scores(silent)
    assert scores.order is not None
    assert (scores.order[:, 1] == log.width - 1).all()
    assert (scores.doubt[:, 0] > 1000).all()


def test_one_signal_gives_one_threshold_per_rung(log):
    rule = learn(log, REGRET, 0.05, signals=("reply_mean_logprob",))
    assert [part.features for part in rule.rules] == [(), *((f"reply_mean_logprob@{at}",) for at in range(3))]
    scores = rule.scores(log)
    assert scores.order is not None
    assert (scores.order == np.arange(log.width)).all()
    for at in range(3):
        by_signal = np.argsort(log.signals["reply_mean_logprob"][:, at])
        steps = np.diff(scores.doubt[by_signal, at])
        assert (steps <= 0).all() or (steps >= 0).all()


@pytest.mark.parametrize(
    ("state", "reads", "expected"),
    [
        ((), [(), (), (), ()], (0, 1, 2)),
        ((1,), [(), (), (), ()], (2, 3)),
        ((), [(), None, None, None], (0,)),
        ((0, 1), [(), None, None, None], (2,)),
        ((0,), [(), (0,), (1,), ()], (1, 3)),
        ((0,), [(), (), (), (1,)], (1,)),
        ((), [()] * 8, (0, 1, 2, 3, 4, 5, 6)),
        ((2,), [()] * 8, (3, 7)),
    ],
)
def test_what_may_follow(state, reads, expected):
    assert further(state, [Node(str(at), at, reads=each) for at, each in enumerate(reads)]) == expected


@pytest.mark.parametrize(
    "spoil",
    [
        lambda log: log.only((0,)),
        lambda log: replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes])),
        lambda log: replace(log, bought=log.bought & (np.arange(log.width) < 3)),
    ],
)
def test_a_log_without_anything_to_learn_is_refused(log, spoil):
    with pytest.raises(UsageError):
        learn(spoil(log), REGRET, 0.05)


def test_a_directory_gives_the_policy_back(log, policy, tmp_path):
    PolicyDirectory(log.nodes, policy).write(tmp_path)
    again = PolicyDirectory.read(tmp_path).policy
    for ours, theirs in zip(policy.scores(log), again.scores(log), strict=True):
        assert ours is theirs is None or np.array_equal(ours, theirs)
