"""What one call cost, and which of the kept answers is the best."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import pytest

from cascade.budget.charges import Budget, failed_call, most_nano_usd, paid_call
from cascade.engine import _by_answer, _served, _surest, decide, run, sure_of
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
from cascade.types import Answer, Candidate, Completion, Decision, Request, Step, Usage
from unit.certified import certificate
from unit.made import CHEAP, PRICES, RIVER, base_guide, caller, candidate, completion, drive, request, step, yes_no
from unit.scripted import FixedPolicy, ThresholdPolicy

# --- the record of one call ---


def rank(steps: Any, *, at_any_cost: bool = False) -> tuple[str, ...]:
    return tuple(map(_surest, _by_answer(steps, None, at_any_cost=at_any_cost)))


def test_an_answered_call_costs_what_its_usage_says() -> None:
    made = paid_call(request(), completion(usage=Usage(100, 10)), CHEAP)
    assert (made.cost_nano_usd, made.cost_bound_nano_usd, made.billed, made.error) == (14_000, 14_000, "yes", None)


def test_an_estimated_usage_gives_a_bound_and_no_cost() -> None:
    made = paid_call(request(), completion(usage=Usage(100, 10, estimated=True)), CHEAP)
    assert (made.cost_nano_usd, made.cost_bound_nano_usd) == (None, 14_000)


def test_an_earlier_try_that_may_be_billed_is_added_to_the_bound() -> None:
    asked_for = request()
    made = paid_call(asked_for, completion(usage=Usage(100, 10), maybe_billed=2), CHEAP)
    assert made.cost_nano_usd is None
    assert made.cost_bound_nano_usd == 14_000 + 2 * most_nano_usd(asked_for, CHEAP).nano_usd


def test_without_a_price_or_usage_nothing_is_known() -> None:
    for made in (
        paid_call(request(), completion(), None),
        paid_call(request(), completion(usage=Usage(None, 1)), CHEAP),
    ):
        assert (made.cost_nano_usd, made.cost_bound_nano_usd) == (None, None)


@pytest.mark.parametrize(
    ("error", "cost", "bounded"),
    [
        (ProviderUnavailableError("x"), 0, False),
        (EmptyCompletionError("x", usage=Usage(100, 0)), 10_000, False),
        (EmptyCompletionError("x", usage=Usage(100, 0, estimated=True)), None, True),
        (EmptyCompletionError("x"), None, True),
        (EmptyCompletionError("x", usage="odd"), None, True),
        (ProviderTimeoutError("x"), None, True),
    ],
)
def test_a_failed_call_is_free_charged_or_bounded(error: ProviderError, cost: int | None, bounded: bool) -> None:
    asked_for = request()
    made = failed_call(asked_for, error, CHEAP)
    assert made.completion is None
    assert made.cost_nano_usd == cost
    assert made.cost_bound_nano_usd == (most_nano_usd(asked_for, CHEAP).nano_usd if bounded else cost)
    assert made.billed == error.billed
    assert made.error == f"{type(error).__name__}: x"


def test_several_tries_that_may_be_billed_are_bounded_together() -> None:
    asked_for, error = request(), ProviderTimeoutError("x", usage=Usage(1, 1), maybe_billed=3)
    made = failed_call(asked_for, error, CHEAP)
    assert (made.cost_nano_usd, made.cost_bound_nano_usd) == (None, 3 * most_nano_usd(asked_for, CHEAP).nano_usd)


def test_a_failed_call_without_a_price_is_unknown_unless_it_was_free() -> None:
    assert failed_call(request(), ProviderTimeoutError("x"), None).cost_bound_nano_usd is None
    assert failed_call(request(), ProviderUnavailableError("x"), None).cost_nano_usd == 0


# --- which answer is the best ---


def test_the_highest_confidence_comes_first() -> None:
    steps = (
        step(1, candidate("Inn", confidence=0.4), keep=(0,)),
        step(2, candidate("Elbe", confidence=0.3), keep=(0,)),
    )
    assert rank(steps) == ("Inn", "Elbe")


def test_no_confidence_comes_after_any() -> None:
    steps = (step(1, candidate("Inn"), candidate("Elbe", confidence=0.0), keep=(0, 1)),)
    assert rank(steps) == ("Elbe", "Inn")


def test_of_equal_confidence_the_most_votes_win_then_the_later_step() -> None:
    twice = (step(1, candidate("Inn"), candidate("Elbe"), keep=(0, 1)), step(2, candidate("the inn"), keep=(0,)))
    assert rank(twice) == ("Inn", "Elbe")
    later = (step(1, candidate("Inn"), keep=(0,)), step(2, candidate("Elbe"), keep=(0,)))
    assert rank(later) == ("Elbe", "Inn")


def test_the_same_answer_is_listed_once_in_its_first_spelling() -> None:
    assert rank((step(1, candidate("The Danube."), candidate("danube", "guide"), keep=(0, 1)),)) == ("The Danube.",)


def test_only_what_was_kept_is_ranked_unless_nothing_was_and_any_will_do() -> None:
    steps = (step(1, candidate("Inn"), candidate("Elbe", "guide", 0.9), keep=()), step(2))
    assert rank(steps) == ()
    assert rank(steps, at_any_cost=True) == ("Elbe", "Inn")
    kept = (*steps, step(3, candidate("Oder"), keep=(0,)))
    assert rank(kept, at_any_cost=True) == ("Oder",)


# --- how sure one is of an answer ---


@pytest.mark.parametrize(
    ("made", "sure"),
    [
        (step(1, candidate("Inn", confidence=0.4), signals={"reply_mean_logprob": -0.1}), 0.4),
        (step(1, candidate("Inn"), signals={"reply_mean_logprob": math.log(0.25)}), 0.25),
        (step(1, candidate("Inn"), signals={"reply_mean_logprob": 1e-9}), 1.0),  # rounding of a provider
        (step(1, candidate("Inn"), signals={"reply_mean_logprob": None}), None),
        (step(1, candidate("Inn"), signals={"reply_mean_logprob": -0.1, "p_yes": None}), None),  # a judge said nothing
        (step(1, candidate("Inn"), candidate("Elbe", "guide"), signals={"reply_mean_logprob": -0.1}), None),
        (step(1, candidate("Inn")), None),
    ],
)
def test_where_nothing_judges_the_reply_says_how_sure_it_is(made: Step, sure: float | None) -> None:
    assert sure_of(made, 0) == (None if sure is None else pytest.approx(sure))


def test_how_sure_a_reply_is_ranks_no_answer() -> None:
    steps = (
        step(1, candidate("Inn"), keep=(0,), signals={"reply_mean_logprob": -0.01}),
        step(2, candidate("Elbe"), keep=(0,), signals={"reply_mean_logprob": -2.0}),
    )
    assert rank(steps) == ("Elbe", "Inn")  # the later model's
    assert _served(steps, "policy", 0.5) == ((), "abstained")
    assert _served(steps, "policy", 0.1) == (("Elbe", "Inn"), "policy")


# --- confidences of the policy's own ---


def judged(made: Step, *confidences: float | None) -> Step:
    """Return a step whose decision keeps everything, with the policy's confidences."""
    keep = tuple(range(len(made.candidates)))
    return made._replace(decision=Decision(keep, True, (), 0.0, 0.0, confidences))


def test_a_policys_confidences_stand_in_the_place_of_the_strategys() -> None:
    both = step(1, candidate("Inn", confidence=0.9), candidate("Elbe", "guide", 0.1))
    assert rank((both._replace(decision=Decision((0, 1), True, (), 0.0, 0.0)),)) == ("Inn", "Elbe")
    assert rank((judged(both, 0.2, 0.8),)) == ("Elbe", "Inn")
    assert rank((judged(both, None, 0.0),)) == ("Elbe", "Inn")  # unknown comes last, whatever the strategy says
    assert _served((judged(both, 0.2, 0.8),), "policy", 0.7) == (("Elbe", "Inn"), "policy")
    assert _served((judged(both, 0.2, 0.6),), "policy", 0.7) == ((), "abstained")
    assert _served((judged(both, None, None),), "policy", 0.05) == ((), "abstained")


def test_a_reply_says_how_sure_it_is_where_the_policy_does_not_know() -> None:
    made = step(1, candidate("Inn", confidence=0.9), signals={"reply_mean_logprob": math.log(0.25)})
    assert sure_of(judged(made, 0.3), 0) == 0.3
    assert sure_of(judged(made, None), 0) == pytest.approx(0.25)  # as `EpisodeTable.sure` has it
    assert sure_of(made, 0) == 0.9


def test_a_decision_holds_what_the_policy_said() -> None:
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


def test_an_audit_runs_all_steps_and_serves_the_same() -> None:
    plain = asked(*ALL_STEPS[:2], certificate=CERTIFICATE)
    audited = asked(*ALL_STEPS, certificate=CERTIFICATE, audit=True)
    assert served(plain) == served(audited) == ("Rhine", ("Rhine",), "policy", [(0,)], CERTIFICATE)
    assert (plain.audited, audited.audited) == (False, True)
    assert [step.audited for step in audited.steps] == [False, True, True]
    assert [step.number for step in audited.steps] == [1, 2, 3]
    assert audited.warnings == ()


def test_audited_steps_keep_nothing_and_show_what_the_policy_would_have_said() -> None:
    answer = asked(*ALL_STEPS, audit=True)
    decisions = [step.decision for step in answer.steps]
    assert [made.keep for made in decisions if made] == [(0,), (), ()]
    assert [made.proceed for made in decisions if made] == [False, True, False]
    assert decisions[1] is not None
    assert decisions[1].next_score == pytest.approx(-math.log(0.9))
    assert answer.steps[1].reason == "run for an audit: nothing is kept"
    assert "step 2: base: 'Danube', guide: 'Danube' -> run for an audit" in answer.explain()


def test_an_audit_is_paid_for() -> None:
    plain, audited = asked(*ALL_STEPS[:2]), asked(*ALL_STEPS, audit=True)
    assert plain.cost_nano_usd is not None
    assert audited.cost_nano_usd is not None
    assert len(audited.calls) == 6
    assert audited.cost_nano_usd > 2 * plain.cost_nano_usd


def test_a_walk_that_reaches_the_horizon_is_an_audit_by_itself() -> None:
    settings: dict[str, Any] = {"policy": ThresholdPolicy(0.0, "both"), "strategy": THREE}
    plain, audited = asked(*ALL_STEPS, **settings), asked(*ALL_STEPS, audit=True, **settings)
    assert served(plain) == served(audited)
    assert audited.audited
    assert not any(step.audited for step in audited.steps)


@pytest.mark.parametrize("said", [(*ALL_STEPS[:2], DOWN, DOWN), (*ALL_STEPS[:3], DOWN, DOWN, DOWN, DOWN, DOWN)])
def test_a_provider_that_fails_in_an_audit_costs_the_answer_nothing(said: tuple[Said, ...]) -> None:
    answer = asked(*said, audit=True, certificate=CERTIFICATE)
    assert (answer.text, answer.stopped, answer.certificate) == ("Rhine", "policy", CERTIFICATE)
    assert answer.audited
    assert answer.warnings[-1].startswith("the audit was cut short: ProviderUnavailableError") or answer.steps[-1].notes


def test_a_ladder_whose_last_model_fails_in_an_audit_has_no_step_more() -> None:
    ladder = ladder_of((SMALL, LARGE))
    answer = asked(RHINE, DOWN, strategy=ladder, policy=FixedPolicy("both", 1), audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == ("Rhine", "policy", 2)
    assert answer.steps[1].candidates == ()
    assert answer.steps[1].audited


@pytest.mark.parametrize("on_exhausted", ["serve_best", "refuse"])
def test_the_cap_holds_in_an_audit_and_cuts_it_short(on_exhausted: str) -> None:
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


def test_a_step_that_is_final_ends_an_audit() -> None:
    answer = asked(DOWN, DANUBE, audit=True)
    assert (len(answer.steps), answer.audited, answer.stopped) == (1, True, "horizon")


def test_an_audit_of_a_walk_that_was_broken_off_runs_no_further() -> None:
    def script() -> Iterable[Said]:
        return (RHINE, yes_no(0.5), DOWN, DOWN)

    ladder = ladder_of((SMALL, LARGE, ModelUse("third", 64)))
    broken = asked(RHINE, DOWN, MUR, strategy=ladder, policy=FixedPolicy("both", 3), audit=True)
    assert broken.stopped == "horizon"
    answer = asked(*script(), audit=True)
    assert answer.text is not None
    assert not any(step.audited for step in answer.steps)


def test_audited_steps_are_shown_as_they_are_made() -> None:
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


def test_no_certificate_speaks_of_a_walk_that_was_broken_off() -> None:
    broken = asked(RHINE, yes_no(0.5), budget=Budget(500_000), on_exhausted="serve_best", certificate=CERTIFICATE)
    assert (broken.stopped, broken.certificate) == ("budget", None)
    assert any(said.startswith("no certificate") for said in broken.warnings)
    assert not any("certificate" in said for said in asked(*ALL_STEPS[:2]).warnings)


def test_warnings_begin_with_those_that_are_given() -> None:
    assert asked(*ALL_STEPS[:2], warnings=["the certificate has expired"]).warnings == ("the certificate has expired",)


# --- abstention ---


@pytest.mark.parametrize(
    ("abstain_below", "text"),
    [(None, "Rhine"), (-math.inf, "Rhine"), (0.9, "Rhine"), (0.97, "Rhine"), (0.98, None), (math.inf, None)],
)
def test_an_answer_below_the_bound_is_not_served(abstain_below: float | None, text: str | None) -> None:
    answer = asked(*ALL_STEPS[:2], abstain_below=abstain_below, certificate=CERTIFICATE)
    assert answer.text == text
    assert answer.answers == (() if text is None else ("Rhine",))
    assert answer.stopped == ("policy" if text else "abstained")
    assert answer.certificate is CERTIFICATE
    assert answer.steps[0].decision is not None
    assert answer.steps[0].decision.keep == (0,)


@pytest.mark.parametrize(("abstain_below", "text"), [(None, "Rhine"), (-math.inf, "Rhine"), (-5.0, None), (0.0, None)])
def test_an_unknown_confidence_is_below_every_bound_there_is(abstain_below: float | None, text: str | None) -> None:
    ladder = ladder_of((SMALL,))
    answer = asked(RHINE, strategy=ladder, policy=FixedPolicy(), abstain_below=abstain_below)
    assert answer.steps[0].candidates[0].confidence is None
    assert answer.text == text


def test_the_best_answers_confidence_is_the_highest_that_any_step_had_in_it() -> None:
    said = (RHINE, yes_no(0.6), "Answer: the Rhine", yes_no(0.8), DANUBE, yes_no(0.7))
    policy = ThresholdPolicy(0.0, "both")
    assert asked(*said, policy=policy, abstain_below=0.8).text == "the Rhine"  # the surest text of the answer
    assert asked(*said, policy=policy, abstain_below=0.81).text is None


def test_an_abstention_is_audited_like_any_answer() -> None:
    answer = asked(*ALL_STEPS, abstain_below=0.99, audit=True)
    assert (answer.text, answer.stopped, len(answer.steps)) == (None, "abstained", 3)


def test_what_fails_before_there_is_a_candidate_raises_in_an_audit_too() -> None:
    with pytest.raises(ProviderError):
        asked(DOWN, DOWN, audit=True)


def step_of_engine_surest(number: int, text: str, sure: float | None) -> Step:
    decision = Decision((0,), proceed=True, scores=(0.0,), next_score=0.0, kappa=0.0, confidences=(sure,))
    return Step(number, (Candidate(text, "m", "m"),), {}, decision=decision)


def test_the_surest_text_of_an_answer_is_served_and_the_first_where_none_is_surer() -> None:
    """0.5.0 served the first: the base's "The Danube", where the guide's "Danube" was the certified one."""
    assert rank([step_of_engine_surest(1, "The Danube", 0.5), step_of_engine_surest(2, "Danube", 1.0)]) == ("Danube",)
    assert rank([step_of_engine_surest(1, "The Danube", None), step_of_engine_surest(2, "Danube", None)]) == (
        "The Danube",
    )
    assert rank([step_of_engine_surest(1, "The Danube", 1.0), step_of_engine_surest(2, "Danube", 0.5)]) == (
        "The Danube",
    )
