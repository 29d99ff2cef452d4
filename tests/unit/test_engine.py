"""One question walks along its steps: who is paid, what is decided, why it stops, what the answer is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

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


def test_a_sure_yes_stops_after_the_first_step() -> None:
    answer = asked(DANUBE, yes_no(0.97))
    assert (answer.text, answer.answers, answer.stopped) == ("Danube", ("Danube",), "policy")
    assert answer.question == RIVER
    assert answer.steps[0].reason == "doubt 0.0305, below 0.3: served base"
    assert 0 <= answer.latency_s < 60


def test_a_sure_no_serves_the_guides_correction() -> None:
    assert asked(RHINE, yes_no(0.02, "No, Danube")).text == "Danube"


def test_doubt_pays_another_step_and_the_walk_says_so() -> None:
    answer = asked(RHINE, yes_no(0.5), DANUBE, yes_no(0.97))
    assert [made.number for made in answer.steps] == [1, 2]
    assert [made.decision.proceed for made in answer.steps if made.decision] == [True, False]
    assert answer.explain().splitlines()[0].endswith("asked on")
    assert answer.text == "Danube"


def test_the_horizon_ends_a_walk_that_the_policy_would_not() -> None:
    answer = asked(*[DANUBE, yes_no(0.6)] * 2, strategy=base_guide(SMALL, LARGE, rounds=2), policy=ThresholdPolicy(0.0))
    assert (answer.stopped, answer.text, len(answer.steps)) == ("horizon", "Danube", 2)
    assert "last step" in answer.steps[1].reason


def test_every_call_is_recorded_in_its_step_with_its_cost() -> None:
    answer = asked(RHINE, yes_no(0.5), DANUBE, yes_no(0.97))
    assert [[made.request.purpose for made in one.calls] for one in answer.steps] == [["answer", "judge"]] * 2
    assert [made.cost_nano_usd for made in answer.calls] == [100 * 100 + 10 * 400, 100 * 1_000 + 4_000] * 2
    assert answer.cost_nano_usd == 2 * (14_000 + 104_000)
    assert answer.loose_calls == ()


def test_a_certificate_is_passed_through() -> None:
    held = certificate()
    assert asked(DANUBE, yes_no(0.97), certificate=held).certificate is held
    assert asked(DANUBE, yes_no(0.97)).certificate is None


def test_without_a_price_the_cost_is_unknown() -> None:
    answer = asked(DANUBE, yes_no(0.97), prices={"small": CHEAP, "large": None})
    assert answer.cost is None
    assert answer.cost_by_model["small"] is not None
    assert asked(DANUBE, yes_no(0.97), prices={}).cost_bound is None


def test_a_step_is_shown_with_its_decision_before_the_next_call() -> None:
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


def test_a_policy_sees_every_step_so_far_and_the_latest_undecided() -> None:
    policy = Watching()
    asked(RHINE, yes_no(0.5), DANUBE, yes_no(0.97), policy=policy)
    assert [[made.number for made in seen.steps] for seen in policy.seen] == [[1], [1, 2]]
    assert [seen.steps[-1].decision for seen in policy.seen] == [None, None]
    assert {(seen.question, seen.last) for seen in policy.seen} == {(RIVER, False)}


# --- providers that fail ---


def test_a_base_that_fails_is_recorded_and_the_guide_answers() -> None:
    answer = asked(DOWN, DANUBE)
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
    first, second = answer.calls
    assert (first.completion, first.cost_nano_usd, first.billed) == (None, 0, "no")
    assert first.error == "ProviderUnavailableError: down"
    assert second.request.purpose == "direct"


def test_a_step_that_none_can_follow_says_so_in_the_answer() -> None:
    assert asked(DOWN, DANUBE).steps[0].final


def test_if_all_fail_the_error_holds_what_was_paid() -> None:
    billed = EmptyCompletionError("empty", usage=Usage(100, 0))
    with pytest.raises(AuthenticationError) as caught:
        asked(billed, AuthenticationError("no key"))
    assert [made.cost_nano_usd for made in caught.value.calls] == [10_000, 0]
    assert [made.request.role for made in caught.value.calls] == ["base", "guide"]


def test_an_error_after_an_answer_was_made_returns_the_answer_with_a_warning() -> None:
    answer = asked(DANUBE, yes_no(0.5), DOWN, AuthenticationError("no key"))
    assert (answer.text, answer.stopped) == ("Danube", "provider error")
    assert answer.warnings == ("AuthenticationError: no key",)
    assert [made.error is None for made in answer.loose_calls] == [False, False]
    assert len(answer.calls) == 4


def test_a_guide_that_fails_escalates_by_default() -> None:
    answer = asked(DANUBE, DOWN, DANUBE, yes_no(0.97))
    assert (len(answer.steps), answer.stopped) == (2, "policy")


def test_a_ladder_whose_every_rung_fails_raises_with_its_calls() -> None:
    with pytest.raises(ProviderUnavailableError) as caught:
        asked(DOWN, DOWN, strategy=ladder_of((SMALL, LARGE)))
    assert len(caught.value.calls) == 2


def test_nothing_that_could_be_kept_is_no_answer() -> None:
    answer = asked(":", ":", strategy=base_guide(SMALL, LARGE, rounds=1))
    assert (answer.text, answer.answers, answer.stopped) == (None, (), "horizon")


def test_another_exception_comes_out_as_it_is_and_ends_the_walk() -> None:
    going = walk()
    with pytest.raises(ZeroDivisionError):
        drive(going, caller([ZeroDivisionError()]))
    assert next(going, None) is None


# --- money ---


def first_bounds() -> tuple[int, int]:
    """Return the holds of the first two calls."""
    seen: list[Request] = []
    drive(walk(), caller([DANUBE, yes_no(0.97)], seen))
    return most_nano_usd(seen[0], CHEAP).nano_usd, most_nano_usd(seen[1], DEAR).nano_usd


def test_a_call_that_might_pass_the_cap_is_not_made() -> None:
    bound, _ = first_bounds()
    with pytest.raises(BudgetExceededError) as caught:
        asked(budget=Budget(bound - 1))
    assert caught.value.calls == ()


def test_a_call_that_fits_the_cap_to_the_nano_dollar_is_made() -> None:
    base, guide = first_bounds()
    budget = Budget(14_000 + guide)
    assert base <= 14_000 + guide
    assert asked(DANUBE, yes_no(0.97), budget=budget).text == "Danube"
    assert budget.spent_nano_usd == 14_000 + 104_000


def test_what_was_paid_before_the_cap_is_in_the_error() -> None:
    _, guide = first_bounds()
    with pytest.raises(BudgetExceededError) as caught:
        asked(DANUBE, budget=Budget(14_000 + guide - 1))
    assert [made.cost_nano_usd for made in caught.value.calls] == [14_000]


def test_on_exhausted_serve_best_returns_the_best_so_far() -> None:
    _, guide = first_bounds()
    said = (RHINE, yes_no(0.4, "No, Danube"), RHINE)
    budget = Budget(14_000 + guide)
    answer = asked(*said, budget=budget, on_exhausted="serve_best", policy=ThresholdPolicy(0.0))
    assert (answer.stopped, answer.text, len(answer.steps)) == ("budget", "Danube", 2)
    assert "cap" in answer.warnings[0]
    assert "not asked" in answer.steps[1].notes[0]
    assert answer.cost_nano_usd == 14_000 + 104_000 + 14_000 == budget.spent_nano_usd


def test_on_exhausted_refuse_raises_even_with_an_answer() -> None:
    _, guide = first_bounds()
    with pytest.raises(BudgetExceededError) as caught:
        asked(RHINE, yes_no(0.5), RHINE, budget=Budget(14_000 + guide))
    assert len(caught.value.calls) == 3


def test_on_exhausted_serve_best_without_an_answer_raises() -> None:
    with pytest.raises(BudgetExceededError):
        asked(budget=Budget(1), on_exhausted="serve_best")


def test_a_call_that_perhaps_was_billed_is_booked_in_full() -> None:
    base, _ = first_bounds()
    budget = Budget(10**9)
    answer = asked(ProviderTimeoutError("late"), DANUBE, budget=budget)
    assert answer.calls[0].cost_nano_usd is None
    assert answer.calls[0].cost_bound_nano_usd == base
    assert budget.spent_nano_usd == base + (answer.calls[1].cost_nano_usd or 0)


def test_a_call_left_behind_is_booked_in_full() -> None:
    base, _ = first_bounds()
    budget = Budget(10**9)
    going = walk(budget=budget)
    next(going)
    going.close()
    assert budget.spent_nano_usd == base


def test_no_walk_spends_more_than_its_cap() -> None:
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


def test_a_failed_call_that_was_charged_is_booked_at_what_it_cost() -> None:
    budget = Budget(10**9)
    answer = asked(EmptyCompletionError("x", usage=Usage(100, 0)), DANUBE, budget=budget)
    assert answer.calls[0].cost_nano_usd == 10_000
    assert budget.spent_nano_usd == answer.cost_nano_usd


def test_an_estimated_usage_is_booked_in_full() -> None:
    base, _ = first_bounds()
    budget = Budget(10**9)
    estimated = completion(DANUBE, usage=Usage(1, 1, estimated=True))
    answer = asked(estimated, yes_no(0.97), budget=budget)
    assert budget.spent_nano_usd == base + (answer.calls[1].cost_nano_usd or 0)


@pytest.mark.parametrize("cap", [None, 10**9])
def test_under_a_cap_no_call_that_may_be_billed_is_repeated(cap: int | None) -> None:
    seen: list[Request] = []
    drive(walk(budget=Budget(cap)), caller([DANUBE, yes_no(0.97)], seen))
    assert {one.at_most_once for one in seen} == {cap is not None}


def test_money_that_ends_before_the_judgement_still_brings_the_paid_answer() -> None:
    budget = Budget(14_000 + first_bounds()[1] - 1)
    answer = asked(DANUBE, budget=budget, on_exhausted="serve_best")
    assert (answer.text, answer.stopped) == ("Danube", "budget")
    assert [made.request.role for made in answer.calls] == ["base"]
    assert "cap" in answer.warnings[0]


# --- the two drivers ---


async def later(call: Any, one: Request) -> Completion:
    await asyncio.sleep(0)
    made: Completion = call(one)
    return made


async def test_cancelling_closes_the_walk_and_books_the_call() -> None:
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
def test_a_plan_that_ends_without_a_step_is_no_answer(said: Said) -> None:
    answer = asked(said, strategy=EndsEarly(request()))
    assert (answer.text, answer.steps, answer.stopped) == (None, (), "horizon")
    assert len(answer.loose_calls) == 1


def test_a_plan_that_ends_before_its_horizon_ends_the_walk() -> None:
    only = Step(1, (candidate("Danube"),), {})
    answer = asked(strategy=EndsEarly(only), policy=ThresholdPolicy(keep="both"))
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
