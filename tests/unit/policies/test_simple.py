"""Policies: those that learn nothing, against values worked out by hand, and the learned rule."""

from __future__ import annotations

import math
import random
import re
from dataclasses import replace

import numpy as np
import pytest
from cases import each

from cascade.conformal.path import reaches, walks
from cascade.conformal.promise import Promise
from cascade.engine import actions
from cascade.errors import UsageError
from cascade.matching import agreement
from cascade.policies.directory import PolicyDirectory
from cascade.policies.features import asked_numbers, offered, read
from cascade.policies.learned import Learned, further, learn
from cascade.policies.policy import POLICIES, Prompted, Random, Uala, known_score, tie_of
from cascade.policies.signals import answer_tokens, logprob_signals
from cascade.table import Floats, Log, Node, Reference
from cascade.types import Token, Usage
from unit.builders import completion
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


def test_uala_doubts_unsure_verdicts_and_serves_what_they_judge_right():
    log = rounds(p_yes=[0.5, 1.0, 0.1, 0.9, NAN, 0.2])
    scores = Uala().scores(log)
    assert scores.serve is not None
    doubts = [[math.log(2), 0.0], [-math.log(0.9), -math.log(0.9)], [NAN, -math.log(0.8)]]
    assert np.allclose(scores.doubt[:, 1::2], doubts, atol=2**-16, equal_nan=True)
    assert scores.serve[:, 1::2].tolist() == [[0, 2], [1, 2], [0, 3]]
    assert walks(log, scores).stop(0.5).tolist() == [3, 1, 3]
    # the newest is served where the judged answer is missing
    last = Uala().scores(rounds(p_yes=[0.9, 0.9, 0.9, 0.9, 0.1, 0.9]))
    assert last.serve[:, 1].tolist() == [0, 0, 0]


@pytest.mark.parametrize(
    ("actions", "stops", "served", "keeps"),
    [
        ([1, 3, 2, 3, 3, 3], [1, 1, 3], [0, 1, 3], [[0], [1], [3]]),
        ([3, 1, 3, 2, 2, 1], [3, 3, 3], [2, 3, 2], [[2], [3], [2]]),
        ([NAN] * 2 + [9, 3, 1, 3], [3, 3, 1], [3, 3, 0], [[3], [3], [0]]),
    ],
)
def test_a_model_that_decides_is_obeyed(actions, stops, served, keeps):
    log = rounds(decided_action=actions)
    walked = walks(log, Prompted().scores(log))
    for kappa in (-INF, 0.0, INF):
        assert walked.stop(kappa).tolist() == stops
        assert walked.serve[np.arange(3), stops].tolist() == served
        assert [np.flatnonzero(row).tolist() for row in reaches(walked.keep, kappa)] == keeps


def test_a_model_that_says_when_to_stop_is_obeyed_and_every_answer_kept():
    log = rounds(says_exit=[1, 0, 0, 1, NAN, 0])
    walked = walks(log, Prompted().scores(log))
    assert walked.stop(0.0).tolist() == [1, 3, 3]
    assert [np.flatnonzero(row).tolist() for row in reaches(walked.keep, 0.0)] == [[0, 1], [0, 1, 2, 3], [0, 2, 3]]


@pytest.mark.parametrize(
    ("share", "signal"), [(0.0, "reply_tokens"), (0.005, "reply_tokens"), (0.49, "reply_tokens"), (0.51, "p_yes")]
)
def test_a_few_odd_rows_do_not_change_what_a_policy_means(share, signal):
    log = random_log(1, n=400, whole=True)
    p_yes = np.where(np.arange(400)[:, None] < share * 400, 0.5, np.full((400, 4), NAN))
    score = known_score(replace(log, signals={"p_yes": p_yes, "reply_tokens": log.signals["reply_tokens"]}))
    assert score.signal == signal
    assert tie_of(replace(log, signals={"reply_tokens": p_yes})) == ("reply_tokens" if share > 0.5 else None)


def test_random_walks_go_on_with_the_probability_of_the_threshold():
    log = rounds()
    many = replace(log.take(np.zeros(4_000, dtype=np.int64)), ids=tuple(map(str, range(4_000))))
    walked = walks(many, Random(3).scores(many))
    assert abs(float((walked.stop(0.3) == 3).mean()) - 0.7) < 0.03
    assert (walked.stop(0.3) == walks(many, Random(4).scores(many)).stop(0.3)).mean() < 0.7


@pytest.mark.parametrize("policy", [Random(7), Uala(), Prompted()])
def test_a_request_alone_is_scored_as_in_the_log_and_the_file_gives_the_policy_back(policy):
    log = rounds(p_yes=[0.5, 1.0, 0.1, 0.9, NAN, 0.2], decided_action=[1, 3, 2, 4, NAN, NAN])
    whole = policy.scores(log)
    for row in range(log.n):
        for ours, alone in zip(whole, policy.scores(log.take(np.array([row]))), strict=True):
            assert ours is alone is None or ours[row].tobytes() == alone[0].tobytes()
    assert POLICIES[policy.kind].read(policy.settings(), {}) == policy


@each(
    "scores, onward, kappa, last, keep, proceed",
    [
        ([0.7, 0.2], 0.1, 0.15, False, (0, 1), False),  # the set is what reaches kappa
        ([0.7, 0.2], 0.2, 0.2, False, (0, 1), True),  # reaching is enough
        ([0.7, 0.2], 0.1, 0.9, False, (0,), False),  # nothing reaches: the argmax
        ([0.1, 0.2], 0.7, 0.9, False, (), True),  # the argmax is next
        ([0.5, 0.5], 0.5, 0.9, False, (0,), False),  # a tie: the lowest index, candidates before next
        ([0.5], 0.6, 0.9, True, (0,), False),  # no next at the last step
        ([0.5], 0.6, 0.1, True, (0,), False),
        ([], 0.0, 0.5, False, (), True),  # no candidate: on, while that is possible
        ([], 0.0, 0.5, True, (), False),
        ([], -INF, 0.5, False, (), True),
        ([-INF, -INF], -INF, -INF, False, (0,), False),  # never, but as the last resort
        ([-INF, 0.1], -INF, -INF, False, (1,), False),
        ([INF, INF], INF, INF, False, (0, 1), True),  # always
        ([NAN, 0.1], 0.0, -1.0, False, (1,), True),  # no number: a candidate out
        ([0.1], NAN, 5.0, False, (), True),  # no number: next in
        ([NAN], NAN, 0.0, False, (), True),
        ([NAN, NAN], 0.0, 0.5, True, (0,), False),
        ([INF], NAN, 0.0, False, (0,), True),
    ],
)
def test_the_set_of_actions(scores, onward, kappa, last, keep, proceed):
    assert actions(scores, onward, kappa, last=last) == (keep, proceed)


def spelled(*pairs: tuple[str, float | None]) -> tuple[Token, ...]:
    return tuple(Token(text, logprob) for text, logprob in pairs)


REPLY = spelled(("Answer", -0.1), (":", -0.2), (" Dan", -0.3), ("ube", -0.5), (".", -0.9))
TWICE = spelled(("Danube", -5.0), ("? ", -0.1), ("Danube", -0.2))


@each(
    "tokens, answer, own",
    [
        (REPLY, "Danube", [-0.5, -0.3]),
        (TWICE, "Danube", [-0.2]),  # its last occurrence counts
        *((tokens, answer, []) for tokens, answer in [((), "Danube"), (REPLY, ""), (REPLY, "Rhine")]),
    ],
)
def test_the_answers_own_tokens_are_told_from_the_rest(tokens, answer, own):
    assert sorted(token.logprob for token in answer_tokens(tokens, answer)) == own


MEANS = {
    "reply_tokens": 5.0,
    "reply_mean_logprob": pytest.approx(-0.4),
    "reply_min_logprob": -0.9,
    "answer_mean_logprob": pytest.approx(-0.4),
    "answer_min_logprob": -0.5,
}


@each(
    "tokens, usage, signals",
    [
        (REPLY, Usage(10, 5), MEANS),  # in nats per token
        *((spelled(("Dan", -0.1), ("ube", hole)), Usage(10, 2), {"reply_tokens": 2.0}) for hole in (None, -INF)),
        (None, Usage(None, None), {}),
    ],
)
def test_one_number_that_is_not_known_makes_the_mean_unknown(tokens, usage, signals):
    actual = logprob_signals(completion(tokens=tokens, usage=usage), "Danube")
    assert actual == dict.fromkeys(MEANS) | signals


def test_agreement_is_the_share_of_earlier_answers_that_are_the_same():
    assert agreement("Danube", [], None) is None
    assert agreement("the danube.", ["Danube", "Rhine", "Inn", "Danube"], None) == 0.5
    assert agreement("Elbe", ["Danube"], None) == 0.0


LOG = Log(
    name="three",
    nodes=(Node("a", 0), Node("b", 1), Node("c", 2)),
    ids=("x", "y"),
    groups=("x", "y"),
    answer=np.array([[4, 4, 7], [2, -1, 2]]),
    right=np.zeros((2, 3)),
    cost_nano_usd=np.array([[5, 10, 20], [5, -1, 20]]),
    bought=np.ones((2, 3), dtype=bool),
    complete=np.ones(2, dtype=bool),
    confidence=np.array([[0.1, 0.2, NAN], [0.4, 0.5, 0.6]]),
    signals={"gate": np.array([[1.0, 0.0, NAN], [0.0, 1.0, 1.0]]), "reply_tokens": np.full((2, 3), 3.0)},
    features={"words": np.array([9.0, NAN])},
)


@pytest.mark.parametrize(
    ("name", "nodes", "expected"),
    [
        ("gate@2", (0, 2), [NAN, 1.0]),
        ("nothing@0", (0,), [NAN, NAN]),
        ("confidence@1", (1,), [0.2, 0.5]),
        ("same@0,1", (0, 1), [1.0, NAN]),
        ("same@0,2", (0, 2), [0.0, 1.0]),
        ("votes", (0, 1, 2), [2 / 3, 1.0]),
        ("votes", (1,), [1.0, NAN]),
        ("different", (0, 1, 2), [2.0, 1.0]),
        ("tokens", (0, 2), [6.0, 6.0]),
        ("cost", (0, 1), [15.0, NAN]),
        ("request:words", (), [9.0, NAN]),
        ("request:nothing", (), [NAN, NAN]),
    ],
)
def test_values(name, nodes, expected):
    assert np.array_equal(read(LOG, nodes, (name,))[:, 0], expected, equal_nan=True)


def test_answers_without_texts_are_not_compared():
    unknown = replace(LOG, texts_known=np.array([True, False]))
    values = read(unknown, (0, 2), ("same@0,2", "votes", "different"))
    assert np.isnan(values).tolist() == [[False] * 3, [True] * 3]


def test_a_name_that_means_nothing_is_refused():
    with pytest.raises(ValueError, match="no feature"):
        read(LOG, (0,), ("wisdom",))


def test_no_outcome_and_no_other_node_is_read():
    log = random_log(3, n=400, whole=True)
    hidden = replace(log.only((0, 1)), right=np.full((400, 2), NAN), reference=None)
    names = offered(log, (0, 1))
    assert names == offered(hidden, (0, 1))
    assert {"reply_mean_logprob@1", "same@0,1", "votes", "request:words"} <= {*names}
    assert len(offered(log, (0, 1), limit=3)) == 3
    assert np.array_equal(read(log, (0, 1), names), read(hidden, (0, 1), names), equal_nan=True)


def test_a_request_alone_has_the_bits_that_it_has_in_the_log():
    log = random_log(4, n=60)
    names = offered(log, (0, 1, 3))
    raw = read(log, (0, 1, 3), names)
    for row in range(log.n):
        alone = read(log.take(np.array([row])), (0, 1, 3), names)
        assert alone.tobytes() == raw[row].tobytes()


def test_what_says_nothing_is_not_offered():
    log = random_log(5, n=300, whole=True)
    twin = 2 * log.signals["self_check"]
    seldom = np.where(np.arange(300)[:, None] < 20, log.confidence, NAN)
    more = {"twin": twin, "seldom": seldom, "flat": np.ones((300, 4)), "agrees_with_earlier": log.confidence}
    named = {name.split("@")[0] for name in offered(replace(log, signals={**log.signals, **more}), (0, 1))}
    assert not named & {*more}
    assert "self_check" in named


PIECES = (
    "how many", "How much ", "1how long", "how old_", "why", "WHOSE", "is", "Do", "\u0130", "\u0391\u03a3", "A) ", "(B. ",
    "c: ", "((a) ", "1.5", "2,000.3", "\u00bd", "\u0663", "_x_", "\n", "\x1c", "\u00a0", "na\u00efve", "\u00df", "[]{}",
    "without", "intergovernmental", "\ud800", "\U0001f600", "e\u0301", "\u65e5\u672c", " ", ".", "?", "x" * 1_999,
)  # fmt: skip


def test_numbers_of_many_requests_are_those_of_each_text():
    chance = random.Random(5)
    texts = ["", *("".join(chance.choices((*PIECES, " "), k=chance.randrange(12))) for _ in range(400))]
    many = asked_numbers(texts, [None] * len(texts), [None] * len(texts))
    for row, text in enumerate(texts):
        head = text[:2_000].strip()
        words = re.findall(r"[^\W\d_]+", head.lower())
        choices = re.findall(r"(?:(?<=\s)|^)\(?[A-Ja-j1-9][).:]\s", head)
        amount = re.search(r"\bhow (?:many|much|long|old|far|often|tall|large|big)\b", head.lower())
        expected = {
            "words": len(text.split()),
            "mean_word": sum(map(len, words)) / (len(words) or 1),
            "digits": len(re.findall(r"\d", head)) / (len(head) or 1),
            "numbers": len(re.findall(r"\d+(?:[.,]\d+)*", head)),
            "choices": len(choices),
            "amount": amount is not None,
            "why_how": amount is None and not {"why", "how"}.isdisjoint(words),
            "yes_no": words[:1] in (["is"], ["do"]),
        }
        assert {name: many[name][row] for name in expected} == expected
        assert {name: values[row] for name, values in many.items()} == {
            name: values[0] for name, values in asked_numbers([text], [None], [None]).items()
        }


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


@pytest.mark.parametrize(("signal", "most"), [("self_check", 8), ("reply_tokens", 40), ("wisdom", 40)])
def test_it_reads_more_features_where_no_score_is_named(log, signal, most):
    draw = np.random.default_rng(8)
    many = {f"number {at}": draw.random(log.n) for at in range(45)}
    few = replace(log, signals={signal: log.signals["self_check"]}, features=many)
    assert max(len(rule.features) for rule in learn(few, REGRET, 0.05).rules) == most


def test_the_reference_is_bought_where_the_signal_tells_an_error():
    draw = np.random.default_rng(5)
    right = np.stack([draw.random(500) < 0.6, np.ones(500)], axis=1).astype(float)
    log = answered(right, [1, 10], np.where(right == 1, 0.9, 0.2))
    rule = learn(log, REGRET, 0.02)
    assert walks(log, rule.scores(log)).stop(0.0).tolist() == (1 - right[:, 0]).astype(int).tolist()


def test_a_node_that_is_never_right_is_never_bought():
    draw = np.random.default_rng(6)
    right = np.stack([draw.random(500) < 0.6, np.zeros(500), np.ones(500)], axis=1).astype(float)
    log = answered(right, [1, 2, 10], np.where(right == 1, 0.9, 0.2))
    scores = learn(log, REGRET, 0.02).scores(log)
    assert {tuple(row) for row in scores.order[right[:, 0] == 0].tolist()} == {(0, 2, 1)}
    assert np.isneginf(scores.doubt[right[:, 0] == 0, 1]).all()


def test_the_rules_are_as_cheap_as_the_best_of_all_rules_on_a_signal_of_two_values():
    """With one signal of two values a regression has a value for each: no rule of such states is better."""
    for seed in range(6):
        draw = np.random.default_rng([7, seed])
        right = (draw.random((2_000, 2)) < draw.uniform(0.3, 0.9, 2)).astype(float)
        right = np.c_[right, np.ones(2_000)]
        check = np.where(draw.random(right.shape) < 0.8, right, 1 - right)
        log = answered(right, draw.integers(1, 30, 3).tolist(), check)
        rule = learn(log, REGRET, 0.1, signals=("self_check",))
        walked = walks(log, rule.scores(log))
        loss = REGRET.jumps(walked).at(0.0).mean() / (1 << 30)
        cost = walked.cost.at(0.0).mean()
        cheaper = []
        for stops in np.ndindex(2, 2, 2, 2):  # after node 0 with a low or high signal, after node 1 with a low or high
            first, second = np.array(stops[:2]), np.array(stops[2:])
            at = np.where(first[check[:, 0].astype(int)] == 1, 0, np.where(second[check[:, 1].astype(int)] == 1, 1, 2))
            lost = 1 - right[np.arange(2_000), at]
            paid = log.cost_nano_usd.cumsum(axis=1)[np.arange(2_000), at]
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
    assert (scores.order[:, 1] == log.width - 1).all()
    assert (scores.doubt[:, 0] > 1000).all()


def test_one_signal_gives_one_threshold_per_rung(log):
    rule = learn(log, REGRET, 0.05, signals=("reply_mean_logprob",))
    assert [part.features for part in rule.rules] == [(), *((f"reply_mean_logprob@{at}",) for at in range(3))]
    scores = rule.scores(log)
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
def test_a_log_without_anything_to_learn_is_refused_with_what_to_do(log, spoil):
    with pytest.raises(UsageError, match=r"fit auto|cascade collect"):
        learn(spoil(log), REGRET, 0.05)


def test_a_directory_gives_the_policy_back(log, policy, tmp_path):
    PolicyDirectory(log.nodes, policy).write(tmp_path)
    again = PolicyDirectory.read(tmp_path).policy
    for ours, theirs in zip(policy.scores(log), again.scores(log), strict=True):
        assert ours is theirs is None or np.array_equal(ours, theirs)
