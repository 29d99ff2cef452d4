"""A call is held at its worst price before it is made and settled at its real one after."""

from __future__ import annotations

import pytest

from cascade.budget.charges import QuestionBudget, most_nano_usd
from cascade.errors import BudgetExceededError
from cascade.money import Price
from cascade.types import Message
from unit.made import CHEAP, request

ASKED = request(messages=(Message("user", "x" * 100),), max_tokens=10)
WORST = (100 + 16) * 100 + 10 * 400


def test_the_worst_price_counts_the_prompt_high_and_the_answer_full() -> None:
    assert most_nano_usd(ASKED, CHEAP).nano_usd == WORST


def test_without_a_cap_nothing_is_held_or_refused() -> None:
    budget = QuestionBudget()
    assert budget.hold(ASKED, None) == 0
    assert budget.hold(ASKED, Price(10**18, 10**18)) == 0


def test_a_call_fits_up_to_the_last_nano_dollar() -> None:
    assert QuestionBudget(WORST).hold(ASKED, CHEAP) == WORST
    with pytest.raises(BudgetExceededError):
        QuestionBudget(WORST - 1).hold(ASKED, CHEAP)


def test_what_is_spent_counts_against_the_next_call() -> None:
    budget = QuestionBudget(2 * WORST)
    budget.settle(budget.hold(ASKED, CHEAP), WORST + 1)
    with pytest.raises(BudgetExceededError):
        budget.hold(ASKED, CHEAP)


def test_a_settled_call_gives_back_what_it_did_not_cost() -> None:
    budget = QuestionBudget(WORST + 5)
    budget.settle(budget.hold(ASKED, CHEAP), 5)
    assert budget.spent_nano_usd == 5
    assert budget.hold(ASKED, CHEAP) == WORST


def test_an_unknown_cost_is_booked_at_the_full_hold() -> None:
    budget = QuestionBudget(WORST)
    budget.settle(budget.hold(ASKED, CHEAP), None)
    assert budget.spent_nano_usd == WORST


def test_under_a_cap_an_unknown_price_is_refused() -> None:
    with pytest.raises(BudgetExceededError, match="no known price"):
        QuestionBudget(10**18).hold(ASKED, None)


def test_the_refusal_says_the_amounts_in_dollars_and_what_to_do() -> None:
    with pytest.raises(BudgetExceededError) as caught:
        QuestionBudget(4_000, 1_000).hold(ASKED, CHEAP)
    said = str(caught.value)
    assert "$0.0000156" in said
    assert "$0.000001 of the cap of $0.000004 is spent" in said
    assert "budget.per_question" in said
