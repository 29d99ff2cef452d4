"""A model that fails again and again is not asked for a while."""

from __future__ import annotations

from typing import Any

import pytest

from cascade import errors
from cascade.errors import ProviderUnavailableError, RateLimitedError
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.guard import Guard
from cascade.resilience.breaker import FAILURES, FIRST_PAUSE_S, LONGEST_PAUSE_S, Breaker
from cascade.resilience.portal import Deadline
from unit.made import request

DOWN = ProviderUnavailableError("gone")


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
        breaker.failed(DOWN)
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
        breaker.failed(DOWN)
    assert not breaker.open


def test_each_probe_that_fails_doubles_the_pause_and_calls_from_before_do_not() -> None:
    breaker, clock = broken()
    for _ in range(20):
        breaker.failed(DOWN)
    pauses = []
    for _ in range(8):
        pauses.append(breaker.pause_s())
        clock.now += pauses[-1] or 0.0
        assert breaker.pause_s() is None
        assert breaker.pause_s() is not None  # one probe at a time
        breaker.failed(DOWN)
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
        (DOWN, True),
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
    guard, fake = guarded(lambda _: DOWN)
    for _ in range(500):
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) == FAILURES


async def test_one_failure_in_ten_costs_one_call_in_ten_and_opens_nothing() -> None:
    fails = iter(number % 10 == 9 for number in range(10_000))
    guard, fake = guarded(lambda _: DOWN if next(fails) else reply("yes"))
    failed = 0
    for _ in range(900):
        try:
            await guard.complete(request(), Deadline())
        except ProviderUnavailableError:
            failed += 1
    assert 900 <= len(fake.requests) <= 1.1 * 900
    assert failed <= 0.05 * 900  # the shared budget of retries bounds the calls, not the answers


async def test_a_stream_passes_the_same_circuit() -> None:
    guard, fake = guarded(lambda _: DOWN)
    for _ in range(50):
        with pytest.raises(ProviderUnavailableError):
            async for _ in guard.stream(request(), Deadline()):
                pass
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) <= FAILURES + 2


async def test_without_breakers_a_model_is_asked_however_often_it_fails() -> None:
    guard, fake = guarded(lambda _: DOWN)
    guard.breakers = None
    for _ in range(50):
        with pytest.raises(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
    assert len(fake.requests) >= 50
