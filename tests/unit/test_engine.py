"""One question walks along its steps: who is paid, what is decided, why it stops, what the answer is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from cases import each

from cascade import engine
from cascade.budget.charges import Budget, most_nano_usd
from cascade.engine import Run, run
from cascade.errors import (
    AuthenticationError,
    BudgetExceededError,
    EmptyCompletionError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from cascade.plans.base import ModelUse, Walk
from cascade.plans.presets import ladder as ladder_of
from cascade.types import Answer, Completion, Request, Step, Usage
from unit.certified import certificate
from unit.made import CHEAP, DEAR, PRICES, RIVER, base_guide, caller, candidate, completion, drive, request, yes_no
from unit.scripted import FixedPolicy, ThresholdPolicy

SMALL, LARGE = ModelUse("small", 64), ModelUse("large", 64)
DOWN = ProviderUnavailableError("down")
RHINE, DANUBE = "Answer: Rhine", "Answer: Danube"
Said = str | Completion | BaseException


def walk(strategy: Any = None, policy: Any = None, **settings: Any) -> Run:
    given = {"prices": PRICES} | settings
    return run(RIVER, strategy=strategy or base_guide(SMALL, LARGE), policy=policy or ThresholdPolicy(), **given)


def asked(*said: Said, **settings: Any) -> Answer:
    return drive(walk(**settings), caller(said))


SURE, TWO = (DANUBE, yes_no(0.97)), {"strategy": base_guide(SMALL, LARGE, rounds=2), "policy": ThresholdPolicy(0.0)}
ONE = {"strategy": base_guide(SMALL, LARGE, rounds=1)}
NO_KEY = AuthenticationError("no key")


@each(
    "said, settings, text, stopped, steps, costs",
    [
        (SURE, {}, "Danube", "policy", 1, [14_000, 104_000]),
        ((RHINE, yes_no(0.02, "No, Danube")), {}, "Danube", "policy", 1, [14_000, 104_000]),
        ((RHINE, yes_no(0.5), *SURE), {}, "Danube", "policy", 2, [14_000, 104_000] * 2),
        # the horizon ends a walk that the policy would not
        ((DANUBE, yes_no(0.6)) * 2, TWO, "Danube", "horizon", 2, None),
        # without a price a cost is unknown
        (SURE, {"prices": {"small": CHEAP, "large": None}}, "Danube", "policy", 1, [14_000, None]),
        # a base that fails; a guide that fails escalates
        ((DOWN, DANUBE), {}, "Danube", "horizon", 1, None),
        ((DANUBE, DOWN, *SURE), {}, "Danube", "policy", 2, None),
        # an error after an answer was made
        ((DANUBE, yes_no(0.5), DOWN, NO_KEY), {}, "Danube", "provider error", 1, [14_000, 104_000, 0, 0]),
        ((":", ":"), ONE, None, "horizon", 1, None),  # nothing that could be kept
    ],
)
def test_how_a_walk_ends(said, settings, text, stopped, steps, costs):
    answer = asked(*said, **settings)
    assert (answer.text, answer.answers, answer.stopped) == (text, () if text is None else (text,), stopped)
    assert (answer.question, len(answer.steps), len(answer.calls)) == (RIVER, steps, len(said))
    assert [made.number for made in answer.steps] == list(range(1, steps + 1))
    assert answer.steps[-1].final == (said[0] in {DOWN, ":"})  # no step can follow
    assert len(answer.loose_calls) == (2 if stopped == "provider error" else 0)
    assert len(answer.warnings) == (1 if DOWN in said else 3 if text is None else 0)
    assert costs is None or [made.cost_nano_usd for made in answer.calls] == costs
    assert answer.cost_nano_usd == (None if costs and None in costs else sum(one.cost_nano_usd for one in answer.calls))
    assert 0 <= answer.latency_s < 60


def test_doubt_pays_another_step_and_every_call_is_recorded_in_its_step():
    answer = asked(RHINE, yes_no(0.5), *SURE)
    assert [made.decision.proceed for made in answer.steps if made.decision] == [True, False]
    assert [[made.request.purpose for made in one.calls] for one in answer.steps] == [["answer", "judge"]] * 2
    assert len(answer.explain().splitlines()) >= 2
    assert asked(*SURE, prices={}).cost_bound is None


def test_a_certificate_is_passed_through():
    held = certificate()
    assert asked(DANUBE, yes_no(0.97), certificate=held).certificate is held
    assert asked(DANUBE, yes_no(0.97)).certificate is None


def test_a_step_is_shown_with_its_decision_before_the_next_call():
    going, call = walk(), caller([RHINE, yes_no(0.5), DANUBE, yes_no(0.97)])
    seen: list[str] = []
    item = next(going)
    with pytest.raises(StopIteration):
        while True:
            seen.append(type(item).__name__)
            item = going.send(call(item) if isinstance(item, Request) else None)
    assert seen == ["Request", "Request", "Step", "Request", "Request", "Step"]


# --- what a policy is shown ---


class Watching:
    kappa = 0.5
    reads = ()

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def scores(self, observation: Any) -> Any:
        self.seen.append(observation)
        return FixedPolicy("both", 2).scores(observation)


def test_a_policy_sees_every_step_so_far_and_the_latest_undecided():
    policy = Watching()
    asked(RHINE, yes_no(0.5), DANUBE, yes_no(0.97), policy=policy)
    assert [[made.number for made in seen.steps] for seen in policy.seen] == [[1], [1, 2]]
    assert [seen.steps[-1].decision for seen in policy.seen] == [None, None]
    assert {(seen.question, seen.last) for seen in policy.seen} == {(RIVER, False)}


# --- providers that fail ---


def test_a_base_that_fails_is_recorded_and_the_guide_answers():
    answer = asked(DOWN, DANUBE)
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
    first, second = answer.calls
    assert (first.completion, first.cost_nano_usd, first.billed) == (None, 0, "no")
    assert first.error == "ProviderUnavailableError: down"
    assert second.request.purpose == "direct"


BILLED = EmptyCompletionError("empty", usage=Usage(100, 0))


def first_bounds() -> tuple[int, int]:
    """Return the holds of the first two calls."""
    seen: list[Request] = []
    drive(walk(), caller(SURE, seen))
    return most_nano_usd(seen[0], CHEAP).nano_usd, most_nano_usd(seen[1], DEAR).nano_usd


BASE_BOUND, GUIDE_BOUND = first_bounds()
AT_JUDGE = 14_000 + GUIDE_BOUND
"""The cap that lets the judge be asked, to the nano-dollar."""


@each(
    "said, settings, cap, error, paid",
    [
        ((BILLED, NO_KEY), {}, None, AuthenticationError, [("base", 10_000), ("guide", 0)]),
        ((DOWN, DOWN), {"strategy": ladder_of((SMALL, LARGE))}, None, ProviderUnavailableError, [("small", 0), ("large", 0)]),
        ((), {}, BASE_BOUND - 1, BudgetExceededError, []),
        ((DANUBE,), {}, AT_JUDGE - 1, BudgetExceededError, [("base", 14_000)]),
        # refused even with an answer, and without one whatever is asked for
        ((RHINE, yes_no(0.5), RHINE), {}, AT_JUDGE, BudgetExceededError,
         [("base", 14_000), ("guide", 104_000), ("base", 14_000)]),
        ((), {"on_exhausted": "serve_best"}, 1, BudgetExceededError, []),
    ],
)  # fmt: skip
def test_an_error_holds_what_was_paid(said, settings, cap, error, paid):
    with pytest.raises(error) as caught:
        asked(*said, budget=Budget(cap), **settings)
    assert [(made.request.role, made.cost_nano_usd) for made in caught.value.calls] == paid


def test_another_exception_comes_out_as_it_is_and_ends_the_walk():
    going = walk()
    with pytest.raises(ZeroDivisionError):
        drive(going, caller([ZeroDivisionError()]))
    assert next(going, None) is None


# --- money ---


@each(
    "said, cap, policy, text, stopped, costs",
    [
        (SURE, AT_JUDGE, ThresholdPolicy(), "Danube", "policy", [14_000, 104_000]),  # it fits to the nano-dollar
        ((RHINE, yes_no(0.4, "No, Danube"), RHINE), AT_JUDGE, ThresholdPolicy(0.0), "Danube", "budget",
         [14_000, 104_000, 14_000]),
        # money that ends before the judgement still brings the paid answer
        ((DANUBE,), AT_JUDGE - 1, ThresholdPolicy(), "Danube", "budget", [14_000]),
    ],
)  # fmt: skip
def test_where_the_money_ends_the_best_so_far_is_served(said, cap, policy, text, stopped, costs):
    budget = Budget(cap)
    answer = asked(*said, budget=budget, on_exhausted="serve_best", policy=policy)
    assert (answer.text, answer.stopped, bool(answer.warnings)) == (text, stopped, stopped == "budget")
    assert [made.cost_nano_usd for made in answer.calls] == costs
    assert bool(answer.steps[-1].notes) == (stopped == "budget")
    assert budget.spent_nano_usd == answer.cost_nano_usd == sum(costs)


@each(
    "first, second, cost, bound, booked",
    [
        (ProviderTimeoutError("late"), DANUBE, None, BASE_BOUND, BASE_BOUND),  # perhaps it was billed
        (completion(DANUBE, usage=Usage(1, 1, estimated=True)), yes_no(0.97), None, 500, BASE_BOUND),
        (BILLED, DANUBE, 10_000, 10_000, 10_000),
    ],
)
def test_what_is_not_known_is_booked_in_full(first, second, cost, bound, booked):
    budget = Budget(10**9)
    answer = asked(first, second, budget=budget)
    assert (answer.calls[0].cost_nano_usd, answer.calls[0].cost_bound_nano_usd) == (cost, bound)
    assert budget.spent_nano_usd == booked + answer.calls[1].cost_nano_usd


def test_a_call_left_behind_is_booked_in_full():
    budget = Budget(10**9)
    going = walk(budget=budget)
    next(going)
    going.close()
    assert budget.spent_nano_usd == BASE_BOUND


def test_no_walk_spends_more_than_its_cap():
    for cap in range(0, 1_000_000, 7_919):
        budget = Budget(cap)
        going = walk(budget=budget, on_exhausted="serve_best", policy=ThresholdPolicy(0.0))
        try:
            answer = drive(going, caller([RHINE, yes_no(0.5)] * 4))
        except BudgetExceededError as error:
            spent = sum(made.cost_nano_usd or 0 for made in error.calls)
        else:
            spent = answer.cost_nano_usd or 0
        assert spent == budget.spent_nano_usd <= cap


@pytest.mark.parametrize("cap", [None, 10**9])
def test_under_a_cap_no_call_that_may_be_billed_is_repeated(cap):
    seen: list[Request] = []
    drive(walk(budget=Budget(cap)), caller([DANUBE, yes_no(0.97)], seen))
    assert {one.at_most_once for one in seen} == {cap is not None}


# --- the two drivers ---


async def later(call: Any, one: Request) -> Completion:
    await asyncio.sleep(0)
    made: Completion = call(one)
    return made


async def test_cancelling_closes_the_walk_and_books_the_call():
    budget, reached = Budget(10**9), asyncio.Event()

    async def never(_: Request) -> Completion:
        reached.set()
        await asyncio.Event().wait()
        raise AssertionError

    going = walk(budget=budget)
    task = asyncio.create_task(engine.drive(going, never))
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert next(going, None) is None
    assert budget.spent_nano_usd > 0


class EndsEarly:
    """A strategy whose plan has no step at all, or ends in answer to a call."""

    horizon, models, step_names = 4, ("small",), ()

    def __init__(self, *items: Any) -> None:
        self.items = items

    def plan(self, question: Any) -> Walk:
        for item in self.items:
            try:
                yield item
            except ProviderError:
                return


@pytest.mark.parametrize("said", [DANUBE, DOWN])
def test_a_plan_that_ends_without_a_step_is_no_answer(said):
    answer = asked(said, strategy=EndsEarly(request()))
    assert (answer.text, answer.steps, answer.stopped) == (None, (), "horizon")
    assert len(answer.loose_calls) == 1


def test_a_plan_that_ends_before_its_horizon_ends_the_walk():
    only = Step(1, (candidate("Danube"),), {})
    answer = asked(strategy=EndsEarly(only), policy=ThresholdPolicy(keep="both"))
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
