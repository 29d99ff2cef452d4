"""When a failed call is made again, and when it is not."""

from __future__ import annotations

from typing import Any

import pytest

from cascade import errors
from cascade.errors import (
    AuthenticationError,
    BadResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    RateLimitedError,
)
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.guard import Guard
from cascade.resilience.breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from cascade.resilience.portal import Deadline
from cascade.resilience.retry import MAX_RETRY_AFTER_S, SHARED_CAPACITY, RetryBudget, RetryPolicy
from unit.made import request

NEVER = Deadline()
DOWN = ProviderUnavailableError("down")


@pytest.fixture(autouse=True)
def _in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what makes the retries of all other tests come at once."""
    monkeypatch.setattr(RetryPolicy, "_backoff_s", RetryPolicy._backoff_s.__wrapped__)


@pytest.mark.parametrize("error", [AuthenticationError("x"), ProviderTimeoutError("x")])
def test_what_cannot_help_is_not_tried(error: Exception) -> None:
    assert RetryPolicy().delay_s(error, 0, NEVER) is None


def test_two_retries_then_no_more() -> None:
    delays = [RetryPolicy().delay_s(DOWN, done, NEVER) for done in range(4)]
    assert [delay is not None for delay in delays] == [True, True, False, False]


def test_a_bad_response_is_tried_once_more() -> None:
    error = BadResponseError("html")
    assert RetryPolicy().delay_s(error, 0, NEVER) is not None
    assert RetryPolicy().delay_s(error, 1, NEVER) is None


def test_no_retries_can_be_configured() -> None:
    assert RetryPolicy(max_retries=0).delay_s(DOWN, 0, NEVER) is None


@pytest.mark.parametrize(("done", "most"), [(0, 0.5), (1, 1.0)])
def test_the_wait_is_jittered_below_a_doubling_limit(done: int, most: float) -> None:
    waits = [RetryPolicy().delay_s(DOWN, done, NEVER) for _ in range(300)]
    assert all(wait is not None and 0 <= wait <= most for wait in waits)
    assert len(set(waits)) > 250
    assert max(wait or 0 for wait in waits) > most / 2


def test_the_wait_is_never_longer_than_configured() -> None:
    policy = RetryPolicy(first_wait_s=100.0, longest_wait_s=0.25)
    assert all((policy.delay_s(DOWN, 0, NEVER) or 0) <= 0.25 for _ in range(50))


@pytest.mark.parametrize(("told", "waits"), [(3.5, 3.5), (0.0, 0.0), (-1.0, 0.0), (60.0, 60.0), (60.1, None)])
def test_a_servers_retry_after_is_obeyed_up_to_a_minute(told: float, waits: float | None) -> None:
    assert MAX_RETRY_AFTER_S == 60.0
    assert RetryPolicy().delay_s(RateLimitedError("slow", retry_after_s=told), 0, NEVER) == waits


def test_a_wait_past_the_deadline_is_not_begun() -> None:
    error = RateLimitedError("slow", retry_after_s=5.0)
    assert RetryPolicy().delay_s(error, 0, Deadline.after(4.0)) is None
    assert RetryPolicy().delay_s(error, 0, Deadline.after(6.0)) == 5.0


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


DOWN_BREAKER = ProviderUnavailableError("gone")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def broken() -> tuple[Breaker, Clock]:
    clock = Clock()
    breaker = Breaker(clock)
    for _ in range(FAILURES):
        assert not breaker.open
        breaker.failed(DOWN_BREAKER)
    return breaker, clock


def test_it_opens_after_failures_in_a_row_and_one_success_closes_it() -> None:
    breaker, clock = broken()
    assert breaker.open
    with pytest.raises(ProviderUnavailableError) as caught:
        breaker.admit("small")
    assert (caught.value.billed, caught.value.retry_after_s) == ("no", FIRST_PAUSE_S)
    clock.now = FIRST_PAUSE_S
    breaker.admit("small")
    breaker.succeeded()
    assert not breaker.open
    for _ in range(FAILURES - 1):
        breaker.failed(DOWN_BREAKER)
    assert not breaker.open


def test_each_probe_that_fails_doubles_the_pause_and_calls_from_before_do_not() -> None:
    breaker, clock = broken()
    for _ in range(20):
        breaker.failed(DOWN_BREAKER)
    pauses = []
    for _ in range(8):
        pauses.append(breaker.pause_s())
        clock.now += pauses[-1] or 0.0
        assert breaker.pause_s() is None
        assert breaker.pause_s() is not None  # one probe at a time
        breaker.failed(DOWN_BREAKER)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_probe_whose_caller_left_is_followed_by_another() -> None:
    breaker, clock = broken()
    clock.now = FIRST_PAUSE_S
    assert breaker.pause_s() is None
    clock.now += FIRST_PAUSE_S
    assert breaker.pause_s() is None


@pytest.mark.parametrize(
    ("error", "opens"),
    [
        (DOWN_BREAKER, True),
        (errors.ProviderTimeoutError("slow"), True),
        (RateLimitedError("slow down"), True),
        (RateLimitedError("slow down", retry_after_s=1), False),
        (errors.BadRequestError("no"), False),
        (errors.RefusedError("no"), False),
    ],
)
def test_only_failures_of_the_server_open_it(error: errors.ProviderError, opens: bool) -> None:
    breaker = Breaker()
    for _ in range(2 * FAILURES):
        breaker.failed(error)
    assert breaker.open is opens


async def _at_once(seconds: float) -> None:
    """Wait no time."""


def guarded(script: Any) -> tuple[Guard, FakeProvider]:
    fake = FakeProvider(script, keep=10_000)
    return Guard(fake, sleep=_at_once, breakers={}), fake


async def test_a_dead_server_gets_a_few_calls_and_not_one_for_each_request() -> None:
    guard, fake = guarded(lambda _: DOWN_BREAKER)
    for _ in range(500):
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) == FAILURES


async def test_one_failure_in_ten_costs_one_call_in_ten_and_opens_nothing() -> None:
    fails = iter(number % 10 == 9 for number in range(10_000))
    guard, fake = guarded(lambda _: DOWN_BREAKER if next(fails) else reply("yes"))
    failed = 0
    for _ in range(900):
        try:
            await guard.complete(request(), Deadline())
        except ProviderUnavailableError:
            failed += 1
    assert 900 <= len(fake.requests) <= 1.1 * 900
    assert failed <= 0.05 * 900  # the shared budget of retries bounds the calls, not the answers


async def test_a_stream_passes_the_same_circuit() -> None:
    guard, fake = guarded(lambda _: DOWN_BREAKER)
    for _ in range(50):
        with pytest.raises(ProviderUnavailableError):
            async for _ in guard.stream(request(), Deadline()):
                pass
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) <= FAILURES + 2


async def test_without_breakers_a_model_is_asked_however_often_it_fails() -> None:
    guard, fake = guarded(lambda _: DOWN_BREAKER)
    guard.breakers = None
    for _ in range(50):
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) >= 50
