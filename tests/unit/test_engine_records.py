"""What one call cost, and which of the kept answers is the best."""

from __future__ import annotations

import math
from typing import Any

import pytest

from cascade.budget.charges import failed_call, most_nano_usd, paid_call
from cascade.engine import _by_answer, _served, _surest, decide, sure_of
from cascade.errors import EmptyCompletionError, ProviderError, ProviderTimeoutError, ProviderUnavailableError
from cascade.policies.base import Observation, Scorer, StepScores
from cascade.types import Decision, Step, Usage
from unit.made import CHEAP, RIVER, candidate, completion, request, step

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
