"""Methods of answering, what a study counts of them, why they save or do not, and what the report says first."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from cascade.conformal.path import Scores, walks
from cascade.conformal.promise import Promise
from cascade.errors import NotCertifiedError, UsageError
from cascade.policies.networks import Networks, NetworkSettings
from cascade.policies.policy import Depth, Threshold, Uala
from cascade.reports.study import study_report
from cascade.studies import methods as rooms
from cascade.studies.diagnosis import auroc, diagnose, limited, needed, signals_of
from cascade.studies.methods import (
    NO_SIGNAL,
    ROUTER,
    Chosen,
    Fitted,
    Recorded,
    Router,
    Served,
    Uniform,
    drawn_uniform,
    fixed,
    methods,
    network_methods,
    tuned,
)
from cascade.studies.study import SERVED, Interval, interval, oracle_cost, study
from cascade.table import COST, Baseline, Log, Node, Reference
from unit.fitting.test_fit import drawn_log

REGRET, COVERAGE = Promise("regret", 0.05, 0.9), Promise("coverage", 0.1)


def rounds(n: int, seed: int = 0) -> Log:
    """Return a log of two rounds: the base's answer, the guide's beside its verdict; a step's cost lies on its last."""
    rng = np.random.default_rng([5, seed])
    right = (rng.random((n, 4)) < [0.5, 0.7, 0.6, 0.8]).astype(float)
    nodes = tuple([Node(f"{role} {step}", step) for step in (0, 1) for role in ("base", "guide")])
    names = tuple([f"q{row}" for row in range(n)])
    verdict = np.where([False, True, False, True], 0.2 + 0.6 * right[:, [0, 0, 2, 2]], np.nan)
    all_there = np.ones((n, 4), dtype=bool)
    cost = np.tile(np.array([0, 3, 0, 3]), (n, 1))
    walk = Baseline(
        rng.random(n) < 0.5, right[:, 3] == 1, right[:, 3], np.full(n, 5), np.full(n, 2), np.ones(n, dtype=np.int64)
    )
    return Log(
        "rounds", nodes, names, names, np.where(right == 1, 0, np.arange(1, 5)), right, cost, all_there,
        all_there[:, 0], np.full((n, 4), np.nan), {"p_yes": verdict},
        reference=Reference((rng.random(n) < 0.9).astype(float), np.full(n, 4), is_last=False),
        baselines={"LLM-exit, base": walk},
    )  # fmt: skip


def test_what_is_saved_is_counted_on_the_requests_that_have_all_costs():
    log = drawn_log(80, models=3)

    def without(rows: slice) -> Log:
        costs = log.cost_nano_usd.copy()
        costs[rows, 1] = -1
        return replace(log, cost_nano_usd=costs)

    done = study(without(slice(None)), REGRET, splits=2)
    assert (done.verdict, done.unpriced) == ("unknown", 80)
    dear = replace(without(slice(40)), reference=log.reference._replace(cost_nano_usd=np.repeat([10**9, 10**5], 40)))
    done = study(dear, REGRET, [fixed("every call", Depth())], splits=2)
    assert done.unpriced == 40
    assert 0.1 < done.row("every call").cost_share.mean < 1.5


# --- methods ---


@pytest.mark.parametrize(
    ("log", "names", "signals"),
    [
        (rounds(30), ["LLM-exit, base", "random", "UALA, tuned", "every call"], []),
        (drawn_log(30), ["model 0 alone", "random", "every call"], [NO_SIGNAL]),
        (
            drawn_log(30, models=3),
            ["model 0 alone", "model 1 alone", "random", "every call"],
            [NO_SIGNAL, "fit, self-check", "fit, second model"],
        ),
    ],
)
def test_a_log_has_the_ways_that_it_has_the_numbers_for(log, names, signals):
    actual = [method.name for method in methods(log, REGRET)]
    assert actual == [*names, "one threshold", "one threshold, ties broken", *signals, SERVED]


@pytest.mark.parametrize(("promise", "tie"), [(REGRET, COST), (Promise("error", 0.3, 0.9), None)])
def test_costs_break_ties_only_where_going_on_loses_nothing(promise, tie):
    tests = {method.name: method for method in methods(drawn_log(30), promise)}
    method = tests["one threshold, ties broken"]
    assert isinstance(method, Chosen)
    policy, _ = method.choose(drawn_log(300), promise, 0)
    assert getattr(policy, "tie", "") == tie


def test_a_router_pays_one_call_a_request_and_keeps_its_promise():
    rng, n = np.random.default_rng(8), 11_000
    hard, cost = rng.random(n), np.broadcast_to(np.array([20, 100]), (n, 2))
    right = np.stack([rng.random(n) > hard**3, np.ones(n)], axis=1).astype(float)
    log = replace(
        drawn_log(n), right=right, cost_nano_usd=cost, features={"words": hard}, signals={},
        reference=Reference(right[:, 1], cost[:, 1], is_last=True),
    )  # fmt: skip
    fits, rest = log.take(np.arange(1_000)), log.take(np.arange(1_000, n))
    played = Router().prepare(fits, REGRET, 0)(rest)
    assert set(played.cost) == {20.0, 100.0}
    assert set(played.length) == set(played.size) == {1.0}
    np.testing.assert_array_equal(played.right, np.where(played.cost == 20, rest.right[:, 0], 1.0))
    assert played.loss.mean() < REGRET.risk
    assert hard[1_000:][played.cost == 20].max() <= hard[1_000:][played.cost == 100].min()
    walk = rooms.Fitted().prepare(fits, REGRET, 0)(rest)  # it must buy the first answer, which tells nothing here
    assert played.cost.mean() < walk.cost.mean()
    listed = [[method.name for method in methods(each, REGRET)] for each in (log, replace(log, features={}))]
    assert [ROUTER in names for names in listed] == [True, False]


class InOrder(Threshold):
    """A policy that buys in an order of its own: that of the plan."""

    def scores(self, log: Log) -> Scores:
        return super().scores(log)._replace(order=np.tile(np.arange(log.width), (log.n, 1)))


def test_a_record_that_lacks_a_call_is_known_where_the_policy_stops_before_it():
    log = drawn_log(200, models=3)
    audited = replace(log, bought=log.bought & (np.arange(3) != 1))  # as an audit asks them
    method = Served(InOrder("self_check", -1.0, tie=None), -0.5)
    whole, played = method.play(log, REGRET), method.play(audited, REGRET)
    stops = whole.length == 1
    assert 0.2 < stops.mean() < 0.8
    np.testing.assert_array_equal(played.loss, np.where(stops, whole.loss, np.nan))
    assert 0 < whole.loss[stops].mean() < 1
    sets = walks(replace(audited, complete=stops & False), Scores(*np.zeros((2, 200, 3))))
    assert not sets.ending(np.inf).log.complete.any()  # what is kept there depends on what would come


def test_a_recorded_walk_is_unknown_where_the_log_has_none():
    log = rounds(50)
    method, known = log.baselines["LLM-exit, base"], log.baselines["LLM-exit, base"].known
    assert log.reference is not None
    for promise, lost in (
        (REGRET, (1 - method.right) * log.reference.right),
        (COVERAGE, ~method.covered & (log.right == 1).any(axis=1)),
    ):
        played = Recorded("LLM-exit, base").prepare(log, promise, 0)(log)
        np.testing.assert_array_equal(played.loss[known], np.asarray(lost, dtype=float)[known])
        assert all(np.isnan(column[~known]).all() for column in played)
        assert (played.cost[known] == 5).all()


@pytest.mark.parametrize(("log", "shares"), [(rounds(3_000), (1 / 3, 1 / 3)), (drawn_log(3_000), (1 / 2, 0.0))])
def test_random_takes_each_action_as_often_and_the_same_again(log, shares):
    policy = Uniform(3)
    walked = policy.walks(log)
    stop, first = walked.stop(-np.inf), np.flatnonzero(log.decides)[0]
    served = walked.serve[np.arange(log.n), stop]
    ends = stop == first
    assert (ends & (served == 0)).mean() == pytest.approx(shares[0], abs=0.04)
    assert (ends & (served == 1)).mean() == pytest.approx(shares[1], abs=0.04)
    np.testing.assert_array_equal(policy.scores(log.take(np.array([7]))).doubt, policy.scores(log).doubt[[7]])
    drawn, other = (Chosen("random", drawn_uniform).prepare(log, REGRET, seed)(log).length for seed in (1, 2))
    assert (drawn != other).any()


@pytest.mark.parametrize("promise", [REGRET, COVERAGE])
def test_a_tuned_method_serves_one_answer_within_the_risk_where_it_can(promise):
    log = rounds(300)
    played = Chosen("UALA", partial(tuned, Uala()), single=True).prepare(log, promise, 0)(log)
    every = rooms.play(Uala(), -np.inf, log, promise, single=True)
    assert set(played.size) <= {0.0, 1.0}
    assert played.loss.mean() <= max(promise.risk, float(every.loss.mean()))
    assert played.cost.mean() <= every.cost.mean()


def test_networks_that_are_alike_are_trained_once(monkeypatch):
    pytest.importorskip("torch")
    trained, train = list[tuple[str, float]](), rooms.train

    def counted(log: Log, promise: Promise, method: str, settings: NetworkSettings, seed: int) -> Networks:
        trained.append((method, settings.lambda_set))
        return train(log, promise, method, settings, seed)

    monkeypatch.setattr(rooms, "train", counted)
    log, quick = rounds(120), NetworkSettings(steps=2, layers=(4,))
    played = {method.name: method.prepare(log, COVERAGE, 0)(log) for method in network_methods(COVERAGE, quick)}
    assert list(played) == ["CPO", "CPO batch", "CPO online", "CCPO", "CCPO, λ = 0.1"]
    assert trained == [("cpo_online", 0.0), ("ccpo", 0.0), ("ccpo", 0.1)]
    assert (played["CPO"].size == 1).all()
    assert (played["CPO batch"].size >= played["CPO"].size).all()
    alone = network_methods(REGRET, quick)  # of one answer served λ is no cost
    assert [method.name for method in alone] == ["CPO", "CPO batch", "CPO online", "CCPO"]


# --- the bound ---


def test_the_nodes_of_a_step_are_paid_together_in_the_bound():
    log = rounds(80)
    least, guide = oracle_cost(log, Promise("coverage", 0.01)), log.reference.right == 1
    solved = (log.right == 1)[:, :2].any(axis=1) | ~(log.right == 1).any(axis=1)
    assert least == pytest.approx(
        np.where(solved, 3, np.where(guide, 4, 6)).mean()
    )  # a risk of 1 % gives up none of 80


# --- why ---


@pytest.mark.parametrize(
    ("trust", "right", "wanted"),
    [
        ([0.1, 0.9], [False, True], 1.0),
        ([0.9, 0.1], [False, True], 0.0),
        ([0.5, 0.5, math.nan], [False, True, True], 0.5),
        ([0.5, 0.7], [True, True], None),
    ],
)
def test_auroc(trust, right, wanted):
    assert auroc(np.array(trust), np.array(right)) == wanted


@pytest.mark.parametrize("models", [2, 3])
def test_agreement_price_and_signal_are_the_logs(models):
    log = drawn_log(500, models=models)
    why = diagnose(log, REGRET)
    assert log.reference is not None
    assert why.first_right == pytest.approx(log.right[:, 0].mean())
    assert why.agree == pytest.approx((log.answer[:, 0] == log.answer[:, -1]).mean())
    assert why.asked_again == pytest.approx(log.cost_nano_usd[:, 0].sum() / log.reference.cost_nano_usd.sum())
    assert (why.signal, why.agrees_with) == ("self-check", "the reference")


def test_in_rounds_the_first_answer_is_compared_with_the_guide_s_beside_it_and_called_so():
    log = rounds(400)
    why = diagnose(log, REGRET)
    assert (why.agrees_with, why.agree) == ("guide 0", (log.answer[:, 0] == log.answer[:, 1]).mean())
    table = study_report(study(log, REGRET, [Fitted()], splits=1)).tables[-1]
    assert not [name for name, *_ in table.rows if "first answer" in name and "reference" in name]


def judged(n: int, *, second: bool = False) -> Log:
    """Return a base, its judge at 40 nano-dollars, with `second` another model and its judge, and the guide."""
    log, rng = drawn_log(n), np.random.default_rng(8)
    at = [0, 0, 0, 0, 1] if second else [0, 0, 1]
    nodes = [Node("base", 0, reads=()), Node("judge", 1, reads=(0,))]
    nodes += [Node("mid", 2, reads=()), Node("judge", 3, reads=(2,))] * second
    nodes.append(Node("guide", len(nodes), reads=()))
    sure = np.where(log.right[:, :1] == 1, 0.6, 0.1) + 0.3 * rng.random((n, 1))
    cost = np.tile([50, 40, 60, 40, 1_000] if second else [50, 40, 1_000], (n, 1))
    reads = np.array([bool(node.reads) for node in nodes])
    return replace(
        log, nodes=tuple(nodes), answer=log.answer[:, at], right=log.right[:, at], cost_nano_usd=cost,
        bought=np.ones(cost.shape, bool), confidence=np.full(cost.shape, np.nan),
        signals={"p_yes": np.where(reads, sure, np.nan)}, reference=Reference(log.right[:, 1], cost[:, -1], is_last=True),
    )  # fmt: skip


def test_what_a_signal_saves_and_costs():
    log = judged(600)
    (judge,) = signals_of(log)
    assert (judge.name, judge.nodes, judge.cost_nano_usd, judge.break_even) == ("judge", (1,), 40.0, 0.09)
    proof = study(log, Promise("regret", 0.1, 0.9), splits=3)
    document = study_report(proof).document["signals"]
    assert [(signal["usd_per_1000"], signal["adds_usd"]) for signal in document] == [(4e-05, None)]
    dear = proof.row(NO_SIGNAL).cost_share
    assert document[0]["cost_share"] < dear.mean - 0.1
    assert max(map(len, study_report(proof).tables[0].text())) <= 80
    assert study_report(proof).text().count("\n") == 9


def test_a_log_without_a_signal_lacks_the_nodes_that_bring_it_and_those_that_read_them():
    log = judged(30, second=True)
    every = judge, second = signals_of(log)
    assert [(signal.name, signal.nodes) for signal in every] == [("judge", (1, 3)), ("second model", (2,))]
    left = [[node.name for node in limited(log, some, every).nodes] for some in ((), (judge,), (second,), every)]
    assert left == [
        ["base", "guide"],
        ["base", "judge", "guide"],
        ["base", "mid", "guide"],
        [node.name for node in log.nodes],
    ]
    assert not limited(log, (), every).signals


def test_numbers_of_requests_for_a_log_of_known_rates():
    """All right at a twentieth of the cost: 0 losses pass from 45 requests on, as ln .095 / ln .95 says."""
    log = drawn_log(400)
    sure = replace(log, right=np.ones_like(log.right), reference=log.reference._replace(right=np.ones(400)))  # type: ignore[union-attr]
    assert [many == pytest.approx(46, rel=0.06) for many in needed(sure, REGRET)] == [True, True]
    hopeless = replace(log, right=np.stack([np.zeros(400), np.ones(400)], axis=1))
    assert needed(replace(hopeless, signals={}), REGRET) == (None, None)
    proves, half = needed(log, REGRET)
    assert 45 <= proves <= half


# --- the study and its report ---


def behind(log: Log) -> Log:
    """Return a log of two models whose reference is always right."""
    right = np.stack([log.right[:, 0], np.ones(log.n)], axis=1)
    return replace(log, right=right, reference=Reference(right[:, 1], log.cost_nano_usd[:, 1], is_last=True))


def test_five_lines_then_tables_and_one_document():
    proof = study(behind(drawn_log(600)), Promise("regret", 0.1, 0.9), splits=4)
    report = study_report(proof, "cascade fit LOG")
    assert (proof.verdict, len(report.lines), report.lines[-1]) == ("saves", 5, "Next: cascade fit LOG")
    assert report.text().startswith("\n".join(report.lines))
    assert len(report.text(details=True).splitlines()) > len(proof.rows) + 10
    document = json.loads(json.dumps(report.document, allow_nan=False))
    assert [method["name"] for method in document["methods"]] == [row.name for row in proof.rows]
    assert document["methods"][-1]["saving"]["mean"] == pytest.approx(1 - document["methods"][-1]["cost_share"]["mean"])
    assert document["why"]["proves"] <= document["why"]["saves_half"]


@pytest.mark.parametrize(
    ("saving", "refused", "verdict"),
    [
        (Interval(0.3, 0.2, 0.4), 0, "saves"),
        (Interval(0.3, -0.2, 0.8), 0, "unsure"),
        (Interval(-0.3, -0.4, -0.2), 1, "costs"),
        (Interval(0.3, 0.2, 0.4), 2, "refused"),
        (Interval(0.3, None, None), 0, "unsure"),
        (None, 0, "unknown"),
    ],
)
def test_the_verdict_is_that_of_the_interval(saving, refused, verdict):
    assert interval([0.0, 0.0, 0.03], 40, 20).low == 0.0  # no cost lies below
    proof = study(drawn_log(60), REGRET, [fixed(SERVED, Uniform())], splits=4)
    row = replace(proof.row(SERVED), saving=saving, refused=refused)
    assert replace(proof, rows=(proof.rows[0], row)).verdict == verdict
    assert len(study_report(replace(proof, rows=(proof.rows[0], row))).lines) == 5


@pytest.mark.parametrize(
    ("log", "promise", "name"),
    [
        (drawn_log(600), REGRET, "model 0 alone"),
        (behind(drawn_log(600)), REGRET, None),
        (drawn_log(600), Promise("agreement", 0.1, 0.9), None),  # there right means the same as the reference
    ],
)
def test_a_model_as_right_as_the_reference_for_less_is_what_to_ask(log, promise, name):
    """Before, `prove` said to fit a cascade that is right less often than its first model, for many times the cost."""
    proof = study(log, promise, [fixed("model 0 alone", Depth((0,))), fixed(SERVED, Depth())], splits=2)
    assert (proof.as_right and proof.as_right.name) == name
    assert ("ask model 0 alone" in study_report(proof).lines[-1]) is (name is not None)


def test_broken_are_those_splits_in_which_something_was_proven():
    """Before: "more than 15 % in 18 of 3 splits"."""

    class Sometimes:
        name = SERVED

        def prepare(self, log, promise, seed):
            if seed % 2:
                raise NotCertifiedError("nothing is proven")
            return fixed("", Depth((0,))).prepare(log, promise, seed)

    row = study(drawn_log(60), Promise("error", 0.01, 0.9), [Sometimes()], splits=4).row(SERVED)
    assert (row.broken, row.refused) == (2, 2)


def test_a_missing_signal_is_named_with_its_price():
    """No log-probs: 0.6 said "log more questions"."""
    proof = study(replace(behind(drawn_log(300)), signals={}), REGRET, splits=3)
    price = proof.why.asked_again
    assert price is not None
    assert (proof.verdict, proof.why.signal) != ("saves", "self-check")
    assert f"{100 * price:.1f} %" in study_report(proof).lines[-1]
    assert "cascade collect LOG --judge" in study_report(proof).lines[-1]
    assert "--only 'model 0'" in study_report(proof).lines[-1]


def test_unknown_costs_are_no_share():
    log = drawn_log(200)
    assert log.reference is not None
    unknown = np.full_like(log.cost_nano_usd, -1)
    blind = replace(log, cost_nano_usd=unknown, reference=log.reference._replace(cost_nano_usd=unknown[:, 0]))
    proof = study(blind, REGRET, splits=2)
    assert (proof.verdict, proof.bound, proof.row(SERVED).cost_share) == ("unknown", None, None)
    json.dumps(study_report(proof).document, allow_nan=False)


@pytest.mark.parametrize(("n", "splits"), [(1, 2), (30, 0)])
def test_what_cannot_be_split_is_refused(n, splits):
    with pytest.raises(UsageError):
        study(drawn_log(n), REGRET, splits=splits)
