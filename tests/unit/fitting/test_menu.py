"""When what learns is a member of the menu, with which part of the level, and that no request learns and certifies."""

from dataclasses import replace
from datetime import date

import numpy as np
import pytest

from cascade.conformal.promise import Promise
from cascade.fitting.certificates import policy_directory
from cascade.fitting.divide import divided
from cascade.fitting.fit import FitSettings, fit
from cascade.fitting.menu import cheapest, menu, run_tests
from cascade.policies.directory import PolicyDirectory
from cascade.policies.learned import Learned
from cascade.policies.policy import Random, Threshold
from cascade.table import Log, Node, Reference
from unit.fitting.random_logs import random_log

PROMISE = Promise("regret", 0.1, 0.9)


def nameless(log: Log) -> Log:
    return replace(log, signals={"wisdom": log.signals["self_check"]})


def lengths(log: Log) -> Log:
    return replace(log, signals={"reply_tokens": log.signals["reply_tokens"]})


def together(log: Log) -> Log:
    return replace(log, nodes=tuple([Node(node.name, node.step // 2) for node in log.nodes]))


@pytest.mark.parametrize(
    ("n", "width", "change", "shares"),
    [
        (400, 2, None, [0.95, 0.05]),
        (400, 4, None, [0.2375] * 4 + [0.05]),
        (400, 3, lengths, [0.25 / 3] * 3 + [0.75]),
        (300, 2, lengths, [0.5, 0.5]),
        (400, 2, lambda log: replace(log, signals={"reply_tokens": np.ones((400, 2))}), [0.1, 0.1, 0.8]),
        (400, 2, nameless, [0.2, 0.8]),
        (300, 2, None, [1.0]),
        (300, 3, nameless, [0.5, 0.5]),
        (400, 4, together, [0.25] * 4),
    ],
)
def test_the_members_of_a_menu(n, width, change, shares):
    log = random_log(21, n=n, width=width, whole=True)
    log = change(log) if callable(change) else log
    members = menu(log, divided(log, 0.3, 0).training, PROMISE, 0.1)
    assert [member.share for member in members] == pytest.approx(shares)
    hidden = replace(log, right=np.full(log.right.shape, np.nan))
    again = menu(hidden, divided(hidden, 0.3, 0).training, PROMISE, 0.1)
    assert [member.name for member in again] == [member.name for member in members]


def test_no_request_learns_and_certifies_and_the_level_is_not_exceeded():
    log = random_log(22, n=400, width=3, whole=True)
    log = replace(log, groups=tuple([f"g{at // 2}" for at in range(log.n)]))
    training = divided(log, 0.3, 0).training
    *_, learned = menu(log, training, PROMISE, 0.1)
    assert learned.rows is not None
    assert not {*log.take(learned.rows).groups} & {*training.groups}
    tested = run_tests(log, log, menu(log, training, PROMISE, 0.1), PROMISE, 0.1)
    assert isinstance(tested[-1].policy, Learned)
    assert tested[-1].n == learned.rows.size
    assert tested[-1].level <= 0.1


def test_where_the_length_misleads_a_random_choice_saves_and_what_costs_nothing_is_the_cheapest(tmp_path):
    log, rank = random_log(25, n=300, width=2, whole=True), np.random.default_rng(25).permutation(300)
    right = np.stack([rank >= 36, np.ones(300)], axis=1).astype(np.float64)  # the shortest twelfth part of ten is wrong
    cost = np.full((300, 2), [1, 100])
    log = replace(log, answer=np.zeros((300, 2), np.int64), right=right, cost_nano_usd=cost)
    log = replace(log, reference=Reference(right[:, 1], cost[:, 1], is_last=True))
    tokens = np.stack([1.0 + rank, np.ones(300)], axis=1)
    done = fit(replace(log, signals={"reply_tokens": tokens}), PROMISE)
    assert isinstance(done.policy, Random)
    alone = next(member for member in done.tested if isinstance(member.policy, Threshold))
    assert (done.saving.cost_share or 1.0) < (alone.cost or 0.0) - 0.2
    assert cheapest([alone, alone._replace(cost=0.0)]) == alone._replace(cost=0.0)
    policy_directory(done, done.log.nodes, date(2026, 1, 1)).write(tmp_path / "policy")
    assert PolicyDirectory.read(tmp_path / "policy").policy == done.policy


def test_fit_serves_what_learned_if_it_is_asked_for():
    log = random_log(23, n=500, width=3, whole=True)
    done = fit(log, Promise("regret", 0.2, 0.9), FitSettings(policy="learned"))
    assert isinstance(done.tested[0].policy, Learned)
    assert done.learned_from == 150
    assert fit(log, Promise("regret", 0.2, 0.9)).learned_from == 0  # a simple test was cheaper
    assert fit(log, Promise("regret", 0.2, 0.9), FitSettings(policy="threshold")).learned_from == 0


@pytest.mark.parametrize(
    ("promise", "by_segment"),
    [(Promise("error", 0.75, 0.9), False), (Promise("coverage", 0.2), False), (Promise("regret", 0.2, 0.9), True)],
)
def test_what_learned_is_certified_for_any_promise_on_requests_that_did_not_learn(promise, by_segment):
    log = random_log(24, n=600, width=3, whole=True)
    log = replace(log, segments=tuple(["law" if at % 2 else "art" for at in range(log.n)]))
    done = fit(log, promise, FitSettings(policy="learned", by_segment=by_segment))
    assert isinstance(done.policy, Learned)
    assert done.learned_from == 180
    assert sum(certified.n for certified in done.certified.values()) == done.log.n == 420
