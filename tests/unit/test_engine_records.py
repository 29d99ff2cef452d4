"""What one call cost, and which of the kept answers is the best."""

from __future__ import annotations

import pytest

from cascade.budget.ledger import most_nano_usd
from cascade.engine import failed_call, paid_call, rank
from cascade.errors import EmptyCompletionError, ProviderError, ProviderTimeoutError, ProviderUnavailableError
from cascade.types import Usage
from unit.made import CHEAP, candidate, completion, request, step

# --- the record of one call ---


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
    assert made.cost_bound_nano_usd == 14_000 + 2 * most_nano_usd(asked_for, CHEAP)


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
    assert made.cost_bound_nano_usd == (most_nano_usd(asked_for, CHEAP) if bounded else cost)
    assert made.billed == error.billed
    assert made.error == f"{type(error).__name__}: x"


def test_several_tries_that_may_be_billed_are_bounded_together() -> None:
    asked_for, error = request(), ProviderTimeoutError("x", usage=Usage(1, 1), maybe_billed=3)
    made = failed_call(asked_for, error, CHEAP)
    assert (made.cost_nano_usd, made.cost_bound_nano_usd) == (None, 3 * most_nano_usd(asked_for, CHEAP))


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
