"""One question walks along its steps: who is paid, what is decided and audited, why it stops, which answer is the best."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from cases import each

from cascade import engine
from cascade.budget.charges import Budget, failed_call, most_nano_usd, paid_call
from cascade.engine import RunPlan, RunTerms, by_answer, decide, run, surest_text
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
from cascade.policies.base import Observation, Scorer, StepScores
from cascade.types import Answer, Completion, Decision, Request, Run, Step, Usage
from unit.builders import (
    CHEAP,
    DEAR,
    PRICES,
    RIVER,
    base_guide,
    caller,
    candidate,
    completion,
    drive,
    request,
    step,
    yes_no,
)
from unit.certified import certificate
from unit.scripted import FixedPolicy, ThresholdPolicy

SMALL, LARGE = ModelUse("small", 64), ModelUse("large", 64)
DOWN = ProviderUnavailableError("down")
RHINE, DANUBE, MUR = "Answer: Rhine", "Answer: Danube", "Answer: Mur"
THREE = base_guide(SMALL, LARGE, rounds=3)
Reply = str | Completion | BaseException


def walk(strategy: Any = THREE, policy: Any = None, budget: Budget | None = None, **settings: Any) -> Run:
    terms = {name: settings.pop(name) for name in RunTerms._fields if name in settings}
    plan = RunPlan(strategy, policy or ThresholdPolicy(), **settings)
    return run(RIVER, plan, RunTerms(**{"prices": PRICES, **terms}), budget=budget)


def ask(*replies: Reply, **settings: Any) -> Answer:
    return drive(walk(**settings), caller(replies))


SURE, TWO = (DANUBE, yes_no(0.97)), {"strategy": base_guide(SMALL, LARGE, rounds=2), "policy": ThresholdPolicy(0.0)}
ONE_ROUND = {"strategy": base_guide(SMALL, LARGE, rounds=1)}
NO_KEY = AuthenticationError("no key")
CERTIFICATE = certificate()
ALL_STEPS = (RHINE, yes_no(0.97), DANUBE, yes_no(0.9), MUR, yes_no(0.2, "No, Danube"))


@each(
    "replies, settings, text, stopped, steps, costs",
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
        ((":", ":"), ONE_ROUND, None, "horizon", 1, None),  # nothing that could be kept
    ],
)
def test_how_a_walk_ends(replies, settings, text, stopped, steps, costs):
    answer = ask(*replies, **settings)
    assert (answer.text, answer.answers, answer.stopped) == (text, () if text is None else (text,), stopped)
    assert (answer.question, len(answer.steps), len(answer.calls)) == (RIVER, steps, len(replies))
    assert [step.number for step in answer.steps] == list(range(1, steps + 1))
    assert answer.steps[-1].final == (replies[0] in {DOWN, ":"})  # no step can follow
    assert len(answer.loose_calls) == (2 if stopped == "provider error" else 0)
    assert len(answer.warnings) == (1 if DOWN in replies else 3 if text is None else 0)
    paid = [call.cost_nano_usd for call in answer.calls]
    assert (costs or paid, answer.cost_nano_usd) == (paid, None if costs and None in costs else sum(paid))
    assert 0 <= answer.latency_s < 60


def test_doubt_pays_another_step_and_every_call_is_recorded_in_its_step():
    answer = ask(RHINE, yes_no(0.5), *SURE)
    assert [step.decision.proceed for step in answer.steps if step.decision] == [True, False]
    assert [[call.request.purpose for call in step.calls] for step in answer.steps] == [["answer", "judge"]] * 2
    assert len(answer.explain().splitlines()) >= 2
    assert ask(*SURE, prices={}).cost_bound is None


def test_a_certificate_is_passed_through():
    issued = certificate()
    assert ask(DANUBE, yes_no(0.97), certificate=issued).certificate is issued
    assert ask(DANUBE, yes_no(0.97)).certificate is None


@each("replies, audited", [((RHINE, yes_no(0.5), *SURE), [False, False]), (ALL_STEPS, [False, True, True])])
def test_a_step_is_shown_as_it_is_made_before_the_next_call(replies, audited):
    going, call = walk(audit=any(audited)), caller(replies)
    shown, item = list[Any](), next(going)
    with pytest.raises(StopIteration):
        while True:
            shown.append(item)
            item = going.send(call(item) if isinstance(item, Request) else None)
    assert [type(event) for event in shown] == [Request, Request, Step] * len(audited)
    assert [event.audited for event in shown if isinstance(event, Step)] == audited


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
    ask(RHINE, yes_no(0.5), DANUBE, yes_no(0.97), policy=policy)
    assert [[step.number for step in seen.steps] for seen in policy.seen] == [[1], [1, 2]]
    assert [seen.steps[-1].decision for seen in policy.seen] == [None, None]
    assert {(seen.question, seen.last) for seen in policy.seen} == {(RIVER, False)}


# --- providers that fail ---


def test_a_base_that_fails_is_recorded_and_the_guide_answers():
    answer = ask(DOWN, DANUBE)
    assert (answer.text, answer.stopped) == ("Danube", "horizon")
    first, second = answer.calls
    assert (first.completion, first.cost_nano_usd, first.billed) == (None, 0, "no")
    assert first.error == "ProviderUnavailableError: down"
    assert second.request.purpose == "direct"


BILLED = EmptyCompletionError("empty", usage=Usage(100, 0))


FIRST: list[Request] = []
drive(walk(), caller(SURE, FIRST))
BASE_BOUND, GUIDE_BOUND = most_nano_usd(FIRST[0], CHEAP).nano_usd, most_nano_usd(FIRST[1], DEAR).nano_usd
"""The holds of the first two calls."""
AT_JUDGE = 14_000 + GUIDE_BOUND
"""The cap that lets the judge be asked, to the nano-dollar."""


@each(
    "replies, settings, cap, error, paid",
    [
        ((BILLED, NO_KEY), {}, None, AuthenticationError, [("base", 10_000), ("guide", 0)]),
        ((DOWN, DOWN), {"audit": True}, None, ProviderUnavailableError, [("base", 0), ("guide", 0)]),
        ((DOWN, DOWN), {"strategy": ladder_of((SMALL, LARGE))}, None, ProviderUnavailableError, [("small", 0), ("large", 0)]),
        ((), {}, BASE_BOUND - 1, BudgetExceededError, []),
        ((DANUBE,), {}, AT_JUDGE - 1, BudgetExceededError, [("base", 14_000)]),
        # refused even with an answer, and without one whatever is asked for
        ((RHINE, yes_no(0.5), RHINE), {}, AT_JUDGE, BudgetExceededError,
         [("base", 14_000), ("guide", 104_000), ("base", 14_000)]),
        ((), {"on_exhausted": "serve_best"}, 1, BudgetExceededError, []),
    ],
)  # fmt: skip
def test_an_error_holds_what_was_paid(replies, settings, cap, error, paid):
    with pytest.raises(error) as caught:
        ask(*replies, budget=Budget(cap), **settings)
    assert [(call.request.role, call.cost_nano_usd) for call in caught.value.calls] == paid


def test_another_exception_comes_out_as_it_is_and_ends_the_walk():
    going = walk()
    with pytest.raises(ZeroDivisionError):
        drive(going, caller([ZeroDivisionError()]))
    assert next(going, None) is None


# --- money ---


@each(
    "replies, cap, policy, text, stopped, costs",
    [
        (SURE, AT_JUDGE, ThresholdPolicy(), "Danube", "policy", [14_000, 104_000]),  # it fits to the nano-dollar
        ((RHINE, yes_no(0.4, "No, Danube"), RHINE), AT_JUDGE, ThresholdPolicy(0.0), "Danube", "budget",
         [14_000, 104_000, 14_000]),
        # money that ends before the judgement still brings the paid answer
        ((DANUBE,), AT_JUDGE - 1, ThresholdPolicy(), "Danube", "budget", [14_000]),
    ],
)  # fmt: skip
def test_where_the_money_ends_the_best_so_far_is_served(replies, cap, policy, text, stopped, costs):
    budget = Budget(cap)
    answer = ask(*replies, budget=budget, on_exhausted="serve_best", policy=policy)
    assert (answer.text, answer.stopped, bool(answer.warnings)) == (text, stopped, stopped == "budget")
    assert [call.cost_nano_usd for call in answer.calls] == costs
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
    answer = ask(first, second, budget=budget)
    assert (answer.calls[0].cost_nano_usd, answer.calls[0].cost_bound_nano_usd) == (cost, bound)
    assert budget.spent_nano_usd == booked + answer.calls[1].cost_nano_usd


def test_a_call_left_behind_is_booked_in_full():
    budget = Budget(10**9)
    going = walk(budget=budget)
    next(going)
    going.close()
    assert budget.spent_nano_usd == BASE_BOUND


# --- the two drivers ---


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


@pytest.mark.parametrize("reply", [DANUBE, DOWN])
def test_a_plan_that_ends_without_a_step_is_no_answer(reply):
    answer = ask(reply, strategy=EndsEarly(request()))
    assert (answer.text, answer.steps, answer.stopped) == (None, (), "horizon")
    assert len(answer.loose_calls) == 1


def test_a_plan_that_ends_before_its_horizon_ends_the_walk():
    only = Step(1, (candidate("Danube"),), {})
    answer = ask(strategy=EndsEarly(only), policy=ThresholdPolicy(keep="both"))
    assert (answer.text, answer.stopped) == ("Danube", "horizon")


# --- the record of one call ---


def rank(steps: Any) -> tuple[str, ...]:
    return tuple(map(surest_text, by_answer(steps, None)))


MOST = most_nano_usd(request(), CHEAP).nano_usd
GUESSED = Usage(100, 10, estimated=True)


@each(
    "usage, tries, price, cost, bound",
    [
        (Usage(100, 10), 0, CHEAP, 14_000, 14_000),
        (GUESSED, 0, CHEAP, None, 14_000),
        (Usage(100, 10), 2, CHEAP, None, 14_000 + 2 * MOST),  # earlier tries that may be billed
        (Usage(100, 10), 0, None, None, None),
        (Usage(None, 1), 0, CHEAP, None, None),
    ],
)
def test_an_answered_call_costs_what_its_usage_says(usage, tries, price, cost, bound):
    call = paid_call(request(), completion(usage=usage, maybe_billed=tries), price)
    assert (call.cost_nano_usd, call.cost_bound_nano_usd, call.billed, call.error) == (cost, bound, "yes", None)


@each(
    "error, price, cost, bound",
    [
        *((ProviderUnavailableError("x"), price, 0, 0) for price in (CHEAP, None)),
        (EmptyCompletionError("x", usage=Usage(100, 0)), CHEAP, 10_000, 10_000),
        *((EmptyCompletionError("x", usage=usage), CHEAP, None, MOST) for usage in (GUESSED, None, "odd")),
        (ProviderTimeoutError("x"), CHEAP, None, MOST),
        (ProviderTimeoutError("x", usage=Usage(1, 1), maybe_billed=3), CHEAP, None, 3 * MOST),
        (ProviderTimeoutError("x"), None, None, None),
    ],
)
def test_a_failed_call_is_free_charged_or_bounded(error, price, cost, bound):
    call = failed_call(request(), error, price)
    assert (call.completion, call.cost_nano_usd, call.cost_bound_nano_usd) == (None, cost, bound)
    assert (call.billed, call.error) == (error.billed, f"{type(error).__name__}: x")


# --- which answer is the best ---


def keeping(number: int, *texts: str, sure: float | None = None, **fields: Any) -> Step:
    """Return a step that keeps all its answers, of one confidence."""
    return step(number, *(candidate(text, confidence=sure) for text in texts), keep=tuple(range(len(texts))), **fields)


def judged(bare: Step, *confidences: float | None) -> Step:
    """Return a step whose decision keeps everything, with the policy's confidences."""
    keep = tuple(range(len(bare.candidates)))
    return bare._replace(decision=Decision(keep, True, (), 0.0, 0.0, confidences))


BOTH = step(1, candidate("Inn", confidence=0.9), candidate("Elbe", "guide", 0.1), keep=(0, 1))
UNKEPT = (step(1, candidate("Inn"), candidate("Elbe", "guide", 0.9), keep=()), step(2))


@each(
    "steps, ranked",
    [
        ((keeping(1, "Inn", sure=0.4), keeping(2, "Elbe", sure=0.3)), ("Inn", "Elbe")),
        ((step(1, candidate("Inn"), candidate("Elbe", confidence=0.0), keep=(0, 1)),), ("Elbe", "Inn")),
        # of equal confidence the most votes win, then the later step
        ((keeping(1, "Inn", "Elbe"), keeping(2, "the inn")), ("Inn", "Elbe")),
        ((keeping(1, "Inn"), keeping(2, "Elbe")), ("Elbe", "Inn")),
        ((keeping(1, "The Danube.", "danube"),), ("The Danube.",)),  # once, in its first spelling
        # only what was kept, unless nothing was and any will do
        (UNKEPT, ("Elbe", "Inn")),
        ((*UNKEPT, keeping(3, "Oder")), ("Oder",)),
        # how sure a reply is ranks no answer: the later model's comes first
        (
            tuple(
                keeping(number, text, signals={"reply_mean_logprob": logprob})
                for number, text, logprob in ((1, "Inn", -0.01), (2, "Elbe", -2.0))
            ),
            ("Elbe", "Inn"),
        ),
        # a policy's confidences stand in the place of the strategy's
        ((BOTH,), ("Inn", "Elbe")),
        ((judged(BOTH, 0.2, 0.8),), ("Elbe", "Inn")),
        ((judged(BOTH, None, 0.0),), ("Elbe", "Inn")),  # unknown comes last, whatever the strategy says
        # 0.5.0 served the first text: the base's "The Danube", where the guide's "Danube" was the certified one
        *(
            (
                tuple(judged(keeping(at, text), sure[at - 1]) for at, text in ((1, "The Danube"), (2, "Danube"))),
                (first,),
            )
            for sure, first in (((0.5, 1.0), "Danube"), ((None, None), "The Danube"), ((1.0, 0.5), "The Danube"))
        ),
    ],
)
def test_which_answer_is_the_best(steps, ranked):
    assert rank(steps) == ranked


# --- confidences of the policy's own ---


def test_a_decision_holds_what_the_policy_said():
    class Sure(Scorer):
        kappa = 0.5

        def scores(self, observation: Observation) -> StepScores:
            return StepScores((1.0,), 0.0, (0.75,))

    decision = decide(Sure(), Observation(RIVER, (step(1, candidate("Inn")),), False))
    assert (decision.keep, decision.confidences) == ((0,), (0.75,))


def served(answer: Answer) -> Any:
    """Return what a caller acts on."""
    keeps = [step.decision.keep for step in answer.steps if step.decision and step.decision.keep]
    return answer.text, answer.answers, answer.stopped, keeps, answer.certificate


# --- audits ---


def test_an_audit_runs_all_steps_and_serves_the_same():
    plain = ask(*ALL_STEPS[:2], certificate=CERTIFICATE)
    audited = ask(*ALL_STEPS, certificate=CERTIFICATE, audit=True)
    assert served(plain) == served(audited) == ("Rhine", ("Rhine",), "policy", [(0,)], CERTIFICATE)
    assert (plain.audited, audited.audited) == (False, True)
    assert [step.audited for step in audited.steps] == [False, True, True]
    assert [step.number for step in audited.steps] == [1, 2, 3]
    assert audited.warnings == ()


def test_audited_steps_keep_nothing_and_show_what_the_policy_would_have_said():
    answer = ask(*ALL_STEPS, audit=True)
    decisions = [step.decision for step in answer.steps]
    assert [decision.keep for decision in decisions if decision] == [(0,), (), ()]
    assert [decision.proceed for decision in decisions if decision] == [False, True, False]
    assert decisions[1] is not None
    assert decisions[1].next_score == pytest.approx(-math.log(0.9))


def test_an_audit_is_paid_for():
    plain, audited = ask(*ALL_STEPS[:2]), ask(*ALL_STEPS, audit=True)
    assert plain.cost_nano_usd is not None
    assert audited.cost_nano_usd is not None
    assert len(audited.calls) == 6
    assert audited.cost_nano_usd > 2 * plain.cost_nano_usd


def test_a_walk_that_reaches_the_horizon_is_an_audit_by_itself():
    settings: dict[str, Any] = {"policy": ThresholdPolicy(0.0, "both")}
    plain, audited = ask(*ALL_STEPS, **settings), ask(*ALL_STEPS, audit=True, **settings)
    assert served(plain) == served(audited)
    assert audited.audited
    assert not any(step.audited for step in audited.steps)


@pytest.mark.parametrize("replies", [(*ALL_STEPS[:2], DOWN, DOWN), (*ALL_STEPS[:3], DOWN, DOWN, DOWN, DOWN, DOWN)])
def test_a_provider_that_fails_in_an_audit_costs_the_answer_nothing(replies):
    answer = ask(*replies, audit=True, certificate=CERTIFICATE)
    assert (answer.text, answer.stopped, answer.certificate) == ("Rhine", "policy", CERTIFICATE)
    assert answer.audited
    assert answer.warnings[-1].startswith("the audit was cut short: ProviderUnavailableError") or answer.steps[-1].notes


def test_a_ladder_whose_last_model_fails_in_an_audit_has_no_step_more():
    ladder = ladder_of((SMALL, LARGE))
    answer = ask(RHINE, DOWN, strategy=ladder, policy=FixedPolicy("both", 1), audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == ("Rhine", "policy", 2)
    assert answer.steps[1].candidates == ()
    assert answer.steps[1].audited


@pytest.mark.parametrize("on_exhausted", ["serve_best", "refuse"])
def test_the_cap_holds_in_an_audit_and_cuts_it_short(on_exhausted):
    steps_of: set[int] = set()
    for cap in range(120_000, 1_500_000, 60_000):
        try:
            answer = ask(*ALL_STEPS, budget=Budget(cap), on_exhausted=on_exhausted, audit=True)
        except BudgetExceededError:
            continue  # what is served did not fit itself
        assert (answer.text, answer.audited) == ("Rhine", True)
        assert answer.cost_nano_usd is not None
        assert answer.cost_nano_usd <= cap
        if answer.stopped == "policy":
            steps_of.add(len(answer.steps))
            cut = any("the audit was cut short: BudgetExceededError" in warning for warning in answer.warnings)
            assert cut == (len(answer.steps) < 3)
    assert steps_of == {1, 2, 3}


def test_a_step_that_is_final_ends_an_audit():
    answer = ask(DOWN, DANUBE, audit=True)
    assert (len(answer.steps), answer.audited, answer.stopped) == (1, True, "horizon")


def test_an_audit_of_a_walk_that_was_broken_off_runs_no_further():
    ladder = ladder_of((SMALL, LARGE, ModelUse("third", 64)))
    broken = ask(RHINE, DOWN, MUR, strategy=ladder, policy=FixedPolicy("both", 3), audit=True)
    assert broken.stopped == "horizon"
    answer = ask(RHINE, yes_no(0.5), DOWN, DOWN, audit=True)
    assert answer.text is not None
    assert not any(step.audited for step in answer.steps)


# --- certificates ---


def test_no_certificate_speaks_of_a_walk_that_was_broken_off():
    broken = ask(RHINE, yes_no(0.5), budget=Budget(500_000), on_exhausted="serve_best", certificate=CERTIFICATE)
    assert (broken.stopped, broken.certificate) == ("budget", None)
    assert any(warning.startswith("no certificate") for warning in broken.warnings)
    assert not any("certificate" in warning for warning in ask(*ALL_STEPS[:2]).warnings)


def test_warnings_begin_with_those_that_are_given():
    assert ask(*ALL_STEPS[:2], warnings=["the certificate has expired"]).warnings == ("the certificate has expired",)
