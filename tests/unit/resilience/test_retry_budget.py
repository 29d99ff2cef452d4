"""The token bucket of one upstream."""

from __future__ import annotations

from cascade.errors import AuthenticationError, ProviderUnavailableError, RateLimitedError
from cascade.resilience.retry import SHARED_CAPACITY, RetryBudget

DOWN = ProviderUnavailableError("down")


def test_a_retry_takes_a_token_and_a_success_gives_one_back() -> None:
    budget = RetryBudget(2)
    assert [budget.allows(DOWN) for _ in range(3)] == [True, True, False]
    budget.succeeded()
    assert [budget.allows(DOWN), budget.allows(DOWN)] == [True, False]


def test_a_refill_below_one_bounds_the_share_of_retries() -> None:
    budget = RetryBudget(0, 0.25)
    for _ in range(8):
        budget.succeeded()
    assert not budget.allows(DOWN)  # no capacity: nothing is saved up
    budget = RetryBudget(1, 0.25)
    found = [budget.allows(DOWN)]
    for _ in range(8):
        budget.succeeded()
        found.append(budget.allows(DOWN))
    assert found == [True, False, False, False, True, False, False, False, True]


def test_it_never_holds_more_than_its_capacity() -> None:
    budget = RetryBudget(2)
    for _ in range(5):
        budget.succeeded()
    assert [budget.allows(DOWN) for _ in range(3)] == [True, True, False]


def test_a_call_that_failed_on_every_try_empties_it() -> None:
    budget = RetryBudget()
    budget.gave_up(DOWN)
    assert not budget.allows(DOWN)


def test_a_refusal_that_no_retry_helps_says_nothing_about_the_server() -> None:
    budget = RetryBudget()
    budget.gave_up(AuthenticationError("no"))
    assert budget.allows(DOWN)


def test_a_server_that_says_when_to_come_again_is_not_down() -> None:
    budget = RetryBudget(0)
    asked = RateLimitedError("slow down", retry_after_s=1.0)
    assert budget.allows(asked)
    full = RetryBudget()
    full.gave_up(asked)
    assert full.allows(DOWN)
    assert not budget.allows(RateLimitedError("slow down"))


def test_a_server_takes_a_token_for_a_retry_that_was_asked_for() -> None:
    budget, asked = RetryBudget.shared(), RateLimitedError("slow down", retry_after_s=0.0)
    assert sum(budget.allows(asked) for _ in range(100)) == SHARED_CAPACITY
    budget.gave_up(asked)
    for _ in range(20):
        budget.succeeded()
    assert budget.allows(asked)
