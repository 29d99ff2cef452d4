"""Which call to buy next: the best of all subsets, and the same walk live and on a log, to the nano-dollar."""

from __future__ import annotations

import itertools
import os
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cascade.calibration.fingerprint import outside, shown
from cascade.calibration.scores import play, sample_of
from cascade.conformal.arrays import Parents
from cascade.conformal.scope import Scope
from cascade.engine import drive, run
from cascade.episodes.schema import rows
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import ConfigError, UsageError
from cascade.evaluation.logs import open_log
from cascade.guarantees.base import Guarantee
from cascade.money import Price
from cascade.policies import model_file
from cascade.policies.artifact import CalibratedPolicy, Threshold
from cascade.policies.base import Policy, Takes
from cascade.policies.estimators import Best, Constant
from cascade.policies.fixed import FixedPolicy
from cascade.strategies.base import ModelUse, Strategy
from cascade.strategies.ladder import Ladder
from cascade.strategies.offers import Offer, Offers
from cascade.training import purchases
from cascade.training.estimators import Weights
from cascade.training.fitting import fit_policy
from cascade.training.stages import FitTarget
from cascade.training.stopping import build
from cascade.types import Completion, Question, Request, Usage
from unit.made import CHEAP, DEAR, completion, yes_no

CASES = int(os.environ.get("CASCADE_TREES", "400"))
"""Random trees that are held against the oracle; 5,000 were once (`design/fitting.md`)."""
ASKED = FitTarget("regret", 0.05)


# --- the best of all subsets ---


class Alike:
    """The regression of a saturated design: the mean of the rows that look alike."""

    def __init__(self, looks: list[tuple[int, ...]]) -> None:
        kinds = sorted(set(looks))
        self.columns = np.array([[float(look == kind) for kind in kinds] for look in looks])

    def solve(self, y: np.ndarray) -> Weights:
        return Weights(0.0, (self.columns * y[:, None]).sum(axis=0) / self.columns.sum(axis=0))


def drawn(rng: np.random.Generator) -> tuple[Parents, np.ndarray, np.ndarray, np.ndarray]:
    """Draw offers with parents, what a dozen requests see of each, what is lost by serving it, and prices."""
    calls, n = int(rng.integers(2, 6)), int(rng.integers(4, 14))
    parents = tuple([tuple([p for p in range(1, j + 1) if rng.random() < 0.25]) for j in range(calls - 1)])
    lost = np.where(np.arange(calls) == calls - 1, 0.0, rng.random((n, calls)).round(2))
    return (*parents, ()), rng.integers(0, 2, (n, calls)), lost, rng.integers(0, 60, (n, calls)) / 100


def best_of_all(
    state: tuple[int, ...], price: float, world: tuple[Parents, np.ndarray, np.ndarray, np.ndarray], rows: list[int]
) -> float:
    """Return the greatest value of requests that look alike: stop with what was bought, or buy any later offer."""
    parents, seen, lost, cost = world
    options = [-price * sum(min(lost[row, j - 1] for j in state) for row in rows)] if state else []
    later = range(max(state, default=0) + 1, len(parents) + 1)
    for j in () if state and state[-1] == len(parents) else later:
        if not {*parents[j - 1]} <= {*state}:
            continue
        paid = sum(cost[row, j - 1] for row in rows)
        looks: dict[int, list[int]] = {}
        for row in rows:
            looks.setdefault(int(seen[row, j - 1]), []).append(row)
        if j == len(parents):
            options.append(-paid)
            continue
        options.append(sum(best_of_all((*state, j), price, world, some) for some in looks.values()) - paid)
    return max(options)


def test_the_rules_are_the_best_of_all_subsets() -> None:
    wrong = []
    for seed in range(CASES):
        rng = np.random.default_rng(seed)
        world = drawn(rng)
        parents, seen, lost, cost = world
        price, states = float(rng.choice([0.1, 0.5, 1, 3])), purchases.states_of(parents)
        stages, losses = {}, {}
        for state in states:
            alike = Alike([tuple(seen[row, [j - 1 for j in state]].tolist()) for row in range(len(seen))])
            ahead = purchases.further(state, parents)
            stages[state] = purchases._StateRows(None, None, None, alike.columns, alike, ahead)  # type: ignore[arg-type]
            losses[state] = lost[:, [j - 1 for j in state]].min(axis=1) if state else np.zeros(len(seen))
        outcome = purchases._at(stages, losses, cost, price).outcome
        found = -(price * outcome.loss + outcome.cost) * len(seen)
        wanted = best_of_all((), price, world, list(range(len(seen))))
        wrong += [] if abs(found - wanted) < 1e-9 else [(seed, found, wanted)]
    assert not wrong, (len(wrong), wrong[0])


def test_more_offers_than_six_are_followed_by_the_next_or_the_reference() -> None:
    parents: Parents = ((),) * 8
    assert purchases.further((), parents) == (1, 2, 3, 4, 5, 6, 7, 8)
    assert purchases.further((3,), parents) == (4, 8)
    assert len(purchases.states_of(parents)) == 1 + 7 * 8 / 2
    assert len(purchases.states_of(((),) * 6)) == 2**5


# --- the same walk live and on a log ---

MIDDLE = Price.per_million(input="0.6", output="2.4")
USES = {"tiny": CHEAP, "small": MIDDLE, "judge": MIDDLE, "large": DEAR}
LISTS: dict[str, Strategy] = {
    "a ladder": Ladder(tuple([ModelUse(name, 64) for name in ("tiny", "small", "large")])),
    "judged": Offers(
        (
            Offer("base", ModelUse("tiny", 64)),
            Offer("check", ModelUse("judge", 64), "judge", (1,)),
            Offer("again", ModelUse("small", 64), "answer", (1, 2)),
            Offer("guide", ModelUse("large", 64), "outright"),
        )
    ),
    "samples": Offers(
        (
            *[Offer(f"draw {n}", ModelUse("tiny", 64, 0.7, 1), "sample") for n in range(3)],
            Offer("guide", ModelUse("large", 64), "outright"),
        )
    ),
}


def question(number: int) -> Question:
    return Question(f"Which river is it? {'word ' * (number % 7)}{number}")


def said(request: Request) -> Completion:
    """Let the models be right by chance, longer where they are wrong, and the judge know it in most cases."""
    rng = np.random.default_rng([len(request.model), request.seed or 0, *request.question.text.encode()])
    chance = {"tiny": 0.6, "small": 0.75, "judge": 0.8, "large": 0.95}[request.model]
    right = bool(rng.random() < chance)
    usage = Usage(100 + int(rng.integers(0, 50)), 10 + 20 * (not right) + int(rng.integers(0, 20)))
    if request.purpose == "judge":
        return yes_no(0.9 if ("Danube" in request.messages[-1].content) == right else 0.2)
    return completion("Answer: Danube" if right else f"Answer: {rng.choice(['Inn', 'Rhine'])}", usage=usage)


def logged(strategy: Strategy, numbers: range, policy: Policy | None = None, *, audit: bool = False) -> EpisodeTable:
    """Return what a policy leaves on record of some questions; of none all steps."""
    found: list[dict[str, Any]] = []
    for number in numbers:
        walks = FixedPolicy("both", strategy.horizon) if policy is None else policy
        every = run(question(number), strategy=strategy, policy=walks, prices=USES, audit=audit)
        for row in rows(drive(every, said), horizon=strategy.horizon):
            right = None if row["answer"] is None else row["answer"] == "Danube"
            found.append(row | {"correct": right, "kept": None})
    (table,) = tables_from_rows(found)
    return table


@pytest.fixture(scope="module", params=LISTS)
def world(request: pytest.FixtureRequest) -> tuple[Strategy, EpisodeTable]:
    return LISTS[request.param], logged(LISTS[request.param], range(150))


def test_a_walk_live_is_the_walk_on_the_log(world: tuple[Strategy, EpisodeTable]) -> None:
    strategy, table = world
    policy = purchases.fit_purchases(build(table, ASKED))
    sample = sample_of(table, policy)
    assert sample.table.bought is not None
    assert not sample.table.bought.all()
    buying, kinds = strategy.only(Takes(calls=True)), set[tuple[int, ...]]()
    for kappa in (-0.5, 0.0, 0.4, 3.0):
        done = play(sample.table, sample.scores, Threshold(kappa))
        served = CalibratedPolicy(policy, Threshold(kappa))
        for row in range(0, table.n, 6):
            number = int(table_number(table, row))
            answer = drive(run(question(number), strategy=buying, policy=served, prices=USES), said)
            assert answer.cost is not None
            assert round(float(answer.cost) * 1e9) == done.cost[row]
            assert len(answer.steps) == done.length[row]
            assert (answer.text == "Danube") == bool(done.right[row])
            kinds.add(tuple([step.number for step in answer.steps]))
    assert len(kinds) > 2, kinds


def table_number(table: EpisodeTable, row: int) -> int:
    """Return which question a row is, by the number that its text ends with."""
    texts = {identity_of(number): number for number in range(150)}
    return texts[table.questions[row]]


def identity_of(number: int) -> str:
    from cascade.episodes.schema import identity

    return identity(question(number).text, None)


def test_an_audit_buys_the_reference_and_changes_no_answer(world: tuple[Strategy, EpisodeTable]) -> None:
    strategy, table = world
    served = CalibratedPolicy(
        purchases.fit_purchases(build(table, ASKED)), Threshold(1e6)
    )  # it goes on where it has to
    buying = strategy.only(Takes(calls=True))
    for number in range(5):
        plain, audited = (
            drive(run(question(number), strategy=buying, policy=served, prices=USES, audit=audit), said)
            for audit in (False, True)
        )
        assert audited.text == plain.text
        assert audited.steps[-1].number == strategy.horizon
        assert [step.number for step in audited.steps if not step.audited] == [step.number for step in plain.steps]
        for before, after in zip(plain.steps, plain.steps[1:], strict=False):
            assert before.decision is not None
            assert before.decision.buy_name == strategy.step_names[after.number - 1]
            assert f": buy {before.decision.buy_name}" in plain.explain()


@pytest.mark.parametrize("audit", [False, True])
def test_a_log_of_its_own_walks_is_read_as_the_log_of_all_offers(
    world: tuple[Strategy, EpisodeTable], audit: bool
) -> None:
    strategy, table = world
    policy = purchases.fit_purchases(build(table, ASKED))
    served = CalibratedPolicy(policy, Threshold(0.0))
    own = logged(strategy.only(Takes(calls=True)), range(150), served, audit=audit)
    assert own.n == table.n
    assert own.bought is not None
    samples = sample_of(table, policy), sample_of(own, policy)
    whole, part = (play(one.table, one.scores, served.threshold) for one in samples)
    for name in ("right", "cost", "length"):
        assert np.array_equal(getattr(part, name), getattr(whole, name)), name
    if audit:  # the reference is on record
        lost, known = (Guarantee("regret", 0.1, 0.1).rules.losses(one).at(0.0) for one in samples)
        assert np.array_equal(lost, known)
        assert not outside(
            own, Scope(shown=tuple(shown(table)))
        ).any()  # what was left out is no step of a strange kind


def test_a_step_that_was_left_out_is_unknown_to_what_buys_in_the_listed_order(
    world: tuple[Strategy, EpisodeTable],
) -> None:
    strategy, table = world
    served = CalibratedPolicy(purchases.fit_purchases(build(table, ASKED)), Threshold(0.0))
    own = logged(strategy.only(Takes(calls=True)), range(150), served, audit=True)
    assert own.bought is not None
    gaps = ~own.bought.all(axis=1)
    listed = own.as_listed()
    assert gaps.any()
    assert listed.bought is None
    assert not listed.arrays.complete[gaps].any()
    assert np.array_equal(listed.arrays.complete[~gaps], own.arrays.complete[~gaps])
    assert (listed.arrays.steps[gaps] < own.arrays.steps[gaps]).all()
    both = [table, replace(own, dataset="own")]
    assert fit_policy(both, Guarantee("regret", 0.2, delta=0.1), calibration_share=0.4).sizes.questions == table.n


def test_what_was_not_bought_costs_nothing_and_solves_nothing_less(world: tuple[Strategy, EpisodeTable]) -> None:
    strategy, table = world
    some = np.zeros(table.paid.shape, dtype=np.bool_)
    some[:, -1] = True
    bought = table.as_bought(some)
    assert bought.arrays.cost.sum() == table.arrays.cost[:, -1].sum()
    assert (bought.arrays.solvable == table.arrays.solvable).all()
    assert strategy.only(Takes(calls=True)).horizon == strategy.horizon


def test_its_file_gives_the_same_policy(world: tuple[Strategy, EpisodeTable]) -> None:
    _, table = world
    policy = purchases.fit_purchases(build(table, ASKED))
    data = model_file.dumps(policy)
    settings = model_file.settings(policy, data)
    again = model_file.loads(data, settings)
    one, other = (sample_of(table, each) for each in (policy, again))
    assert np.array_equal(one.scores.next, other.scores.next)
    assert np.array_equal(one.table.bought, other.table.bought)
    with pytest.raises(ConfigError, match="one rule for each set of offers"):
        model_file.loads(data, {**settings, "states": [*settings["states"][:-2], [], settings["states"][-1]]})


def test_it_is_chosen_and_certified_like_any_other(world: tuple[Strategy, EpisodeTable]) -> None:
    _, table = world
    fitted = fit_policy([table], Guarantee("regret", 0.2, delta=0.1), method="purchases", calibration_share=0.4)
    assert fitted.policy.method in {"purchases", "reference"}
    assert {one.method for one in fitted.choice.judged} >= {"purchases"}


def test_what_cannot_be_bought_from_is_refused() -> None:
    with pytest.raises(UsageError, match="no rule follows"):
        best = Best(np.array([9]), np.array([1.0]), (Constant(1.0),))
        policy = purchases.fit_purchases(build(logged(LISTS["a ladder"], range(40)), ASKED))
        broken = (policy.rules[0].__class__(policy.rules[0].features, best, (None,), (None,)), *policy.rules[1:])
        type(policy)("purchases", broken[: len(policy.states)], takes=Takes(calls=True), states=policy.states)


def test_every_set_that_can_be_come_to_is_a_state() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        parents = drawn(rng)[0]
        cheap = range(1, len(parents))
        closed = [
            some
            for many in range(len(parents))
            for some in itertools.combinations(cheap, many)
            if all({*parents[j - 1]} <= {*some} for j in some)
        ]
        assert sorted(purchases.states_of(parents)) == sorted(closed)


# --- rounds of base and guide, call by call ---


def test_rounds_read_call_by_call_cost_what_they_cost() -> None:
    (calls,), (rounds,) = open_log("offers:demo").tables, open_log("demo").tables
    assert calls.parents == ((), (1,), ())
    assert calls.n == rounds.n
    assert (calls.arrays.cost[:, :2].sum(axis=1) == rounds.arrays.cost[:, 0]).all()
    assert (calls.arrays.cost[:, 2] == rounds.walks["guide only"].cost).all()
    assert (calls.arrays.correct[:, 2, 0] == rounds.walks["guide only"].right).all()
    fitted = purchases.fit_purchases(build(calls, ASKED))
    assert fitted.states == ((), (1,), (1, 2), (3,))
