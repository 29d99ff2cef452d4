"""What one call cost, and which of the kept answers is the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest
from cases import each

from cascade.budget.charges import Budget, failed_call, most_nano_usd, paid_call
from cascade.engine import _by_answer, _surest, decide, run
from cascade.errors import (
    BudgetExceededError,
    EmptyCompletionError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
)
from cascade.plans.base import ModelUse
from cascade.plans.presets import ladder as ladder_of
from cascade.policies.base import Observation, Scorer, StepScores
from cascade.types import Answer, Completion, Decision, Request, Step, Usage
from unit.certified import certificate
from unit.made import CHEAP, PRICES, RIVER, base_guide, caller, candidate, completion, drive, request, step, yes_no
from unit.scripted import FixedPolicy, ThresholdPolicy

# --- the record of one call ---


def rank(steps: Any) -> tuple[str, ...]:
    return tuple(map(_surest, _by_answer(steps, None)))


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
    made = paid_call(request(), completion(usage=usage, maybe_billed=tries), price)
    assert (made.cost_nano_usd, made.cost_bound_nano_usd, made.billed, made.error) == (cost, bound, "yes", None)


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
    made = failed_call(request(), error, price)
    assert (made.completion, made.cost_nano_usd, made.cost_bound_nano_usd) == (None, cost, bound)
    assert (made.billed, made.error) == (error.billed, f"{type(error).__name__}: x")


# --- which answer is the best ---


def kept(number: int, *texts: str, sure: float | None = None, **fields: Any) -> Step:
    """Return a step that keeps all its answers, of one confidence."""
    return step(number, *(candidate(text, confidence=sure) for text in texts), keep=tuple(range(len(texts))), **fields)


def judged(made: Step, *confidences: float | None) -> Step:
    """Return a step whose decision keeps everything, with the policy's confidences."""
    keep = tuple(range(len(made.candidates)))
    return made._replace(decision=Decision(keep, True, (), 0.0, 0.0, confidences))


BOTH = step(1, candidate("Inn", confidence=0.9), candidate("Elbe", "guide", 0.1), keep=(0, 1))
UNKEPT = (step(1, candidate("Inn"), candidate("Elbe", "guide", 0.9), keep=()), step(2))


@each(
    "steps, ranked",
    [
        ((kept(1, "Inn", sure=0.4), kept(2, "Elbe", sure=0.3)), ("Inn", "Elbe")),
        ((step(1, candidate("Inn"), candidate("Elbe", confidence=0.0), keep=(0, 1)),), ("Elbe", "Inn")),
        # of equal confidence the most votes win, then the later step
        ((kept(1, "Inn", "Elbe"), kept(2, "the inn")), ("Inn", "Elbe")),
        ((kept(1, "Inn"), kept(2, "Elbe")), ("Elbe", "Inn")),
        ((kept(1, "The Danube.", "danube"),), ("The Danube.",)),  # once, in its first spelling
        # only what was kept, unless nothing was and any will do
        (UNKEPT, ("Elbe", "Inn")),
        ((*UNKEPT, kept(3, "Oder")), ("Oder",)),
        # how sure a reply is ranks no answer: the later model's comes first
        (
            tuple(
                kept(number, text, signals={"reply_mean_logprob": logprob})
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
                tuple(judged(kept(at, text), sure[at - 1]) for at, text in ((1, "The Danube"), (2, "Danube"))),
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

    found = decide(Sure(), Observation(RIVER, (step(1, candidate("Inn")),), False))
    assert (found.keep, found.confidences) == ((0,), (0.75,))


SMALL, LARGE = ModelUse("small", 64), ModelUse("large", 64)
THREE = base_guide(SMALL, LARGE, rounds=3)
RHINE, DANUBE, MUR = "Answer: Rhine", "Answer: Danube", "Answer: Mur"
DOWN = ProviderUnavailableError("down")
CERTIFICATE = certificate()
ALL_STEPS = (RHINE, yes_no(0.97), DANUBE, yes_no(0.9), MUR, yes_no(0.2, "No, Danube"))
Said = str | Completion | BaseException


def asked(*said: Said, **settings: Any) -> Answer:
    given: dict[str, Any] = {"strategy": THREE, "policy": ThresholdPolicy(), "prices": PRICES}
    return drive(run(RIVER, **(given | settings)), caller(said))


def served(answer: Answer) -> Any:
    """Return what a caller acts on."""
    kept = [step.decision.keep for step in answer.steps if step.decision and step.decision.keep]
    return answer.text, answer.answers, answer.stopped, kept, answer.certificate


# --- audits ---


def test_an_audit_runs_all_steps_and_serves_the_same():
    plain = asked(*ALL_STEPS[:2], certificate=CERTIFICATE)
    audited = asked(*ALL_STEPS, certificate=CERTIFICATE, audit=True)
    assert served(plain) == served(audited) == ("Rhine", ("Rhine",), "policy", [(0,)], CERTIFICATE)
    assert (plain.audited, audited.audited) == (False, True)
    assert [step.audited for step in audited.steps] == [False, True, True]
    assert [step.number for step in audited.steps] == [1, 2, 3]
    assert audited.warnings == ()


def test_audited_steps_keep_nothing_and_show_what_the_policy_would_have_said():
    answer = asked(*ALL_STEPS, audit=True)
    decisions = [step.decision for step in answer.steps]
    assert [made.keep for made in decisions if made] == [(0,), (), ()]
    assert [made.proceed for made in decisions if made] == [False, True, False]
    assert decisions[1] is not None
    assert decisions[1].next_score == pytest.approx(-math.log(0.9))
    assert answer.steps[1].reason == "run for an audit: nothing is kept"
    assert "step 2: base: 'Danube', guide: 'Danube' -> run for an audit" in answer.explain()


def test_an_audit_is_paid_for():
    plain, audited = asked(*ALL_STEPS[:2]), asked(*ALL_STEPS, audit=True)
    assert plain.cost_nano_usd is not None
    assert audited.cost_nano_usd is not None
    assert len(audited.calls) == 6
    assert audited.cost_nano_usd > 2 * plain.cost_nano_usd


def test_a_walk_that_reaches_the_horizon_is_an_audit_by_itself():
    settings: dict[str, Any] = {"policy": ThresholdPolicy(0.0, "both"), "strategy": THREE}
    plain, audited = asked(*ALL_STEPS, **settings), asked(*ALL_STEPS, audit=True, **settings)
    assert served(plain) == served(audited)
    assert audited.audited
    assert not any(step.audited for step in audited.steps)


@pytest.mark.parametrize("said", [(*ALL_STEPS[:2], DOWN, DOWN), (*ALL_STEPS[:3], DOWN, DOWN, DOWN, DOWN, DOWN)])
def test_a_provider_that_fails_in_an_audit_costs_the_answer_nothing(said):
    answer = asked(*said, audit=True, certificate=CERTIFICATE)
    assert (answer.text, answer.stopped, answer.certificate) == ("Rhine", "policy", CERTIFICATE)
    assert answer.audited
    assert answer.warnings[-1].startswith("the audit was cut short: ProviderUnavailableError") or answer.steps[-1].notes


def test_a_ladder_whose_last_model_fails_in_an_audit_has_no_step_more():
    ladder = ladder_of((SMALL, LARGE))
    answer = asked(RHINE, DOWN, strategy=ladder, policy=FixedPolicy("both", 1), audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == ("Rhine", "policy", 2)
    assert answer.steps[1].candidates == ()
    assert answer.steps[1].audited


@pytest.mark.parametrize("on_exhausted", ["serve_best", "refuse"])
def test_the_cap_holds_in_an_audit_and_cuts_it_short(on_exhausted):
    steps_of: set[int] = set()
    for cap in range(120_000, 1_500_000, 60_000):
        try:
            answer = asked(*ALL_STEPS, budget=Budget(cap), on_exhausted=on_exhausted, audit=True)
        except BudgetExceededError:
            continue  # what is served did not fit itself
        assert (answer.text, answer.audited) == ("Rhine", True)
        assert answer.cost_nano_usd is not None
        assert answer.cost_nano_usd <= cap
        if answer.stopped == "policy":
            steps_of.add(len(answer.steps))
            cut = any("the audit was cut short: BudgetExceededError" in said for said in answer.warnings)
            assert cut == (len(answer.steps) < 3)
    assert steps_of == {1, 2, 3}


def test_a_step_that_is_final_ends_an_audit():
    answer = asked(DOWN, DANUBE, audit=True)
    assert (len(answer.steps), answer.audited, answer.stopped) == (1, True, "horizon")


def test_an_audit_of_a_walk_that_was_broken_off_runs_no_further():
    def script() -> Iterable[Said]:
        return (RHINE, yes_no(0.5), DOWN, DOWN)

    ladder = ladder_of((SMALL, LARGE, ModelUse("third", 64)))
    broken = asked(RHINE, DOWN, MUR, strategy=ladder, policy=FixedPolicy("both", 3), audit=True)
    assert broken.stopped == "horizon"
    answer = asked(*script(), audit=True)
    assert answer.text is not None
    assert not any(step.audited for step in answer.steps)


def test_audited_steps_are_shown_as_they_are_made():
    walk, call = run(RIVER, strategy=THREE, policy=ThresholdPolicy(), prices=PRICES, audit=True), caller(ALL_STEPS)
    seen: list[Step] = []
    item = next(walk)
    with pytest.raises(StopIteration):
        while True:
            if isinstance(item, Step):
                seen.append(item)
            item = walk.send(call(item) if isinstance(item, Request) else None)
    assert [step.audited for step in seen] == [False, True, True]


# --- certificates ---


def test_no_certificate_speaks_of_a_walk_that_was_broken_off():
    broken = asked(RHINE, yes_no(0.5), budget=Budget(500_000), on_exhausted="serve_best", certificate=CERTIFICATE)
    assert (broken.stopped, broken.certificate) == ("budget", None)
    assert any(said.startswith("no certificate") for said in broken.warnings)
    assert not any("certificate" in said for said in asked(*ALL_STEPS[:2]).warnings)


def test_warnings_begin_with_those_that_are_given():
    assert asked(*ALL_STEPS[:2], warnings=["the certificate has expired"]).warnings == ("the certificate has expired",)


# --- audits ---


def test_what_fails_before_there_is_a_candidate_raises_in_an_audit_too():
    with pytest.raises(ProviderError):
        asked(DOWN, DOWN, audit=True)
