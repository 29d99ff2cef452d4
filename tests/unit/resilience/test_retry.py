"""When a failed call is made again, and when it is not."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace
from typing import Any
from unittest.mock import ANY

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
from cascade.resilience.event_loop import Deadline
from cascade.resilience.health import (
    CAPACITY,
    FAILURES,
    FIRST_PAUSE_S,
    LONGEST_PAUSE_S,
    MAX_RETRY_AFTER_S,
    SHARED_CAPACITY,
    SHARED_REFILL,
    Health,
    RetryPolicy,
)
from unit.builders import request

NEVER = Deadline()
DOWN = ProviderUnavailableError("down")


@pytest.fixture(autouse=True)
def _in_full(monkeypatch: pytest.MonkeyPatch) -> None:
    """Undo what makes the retries of all other tests come at once."""
    monkeypatch.setattr(RetryPolicy, "_backoff_s", RetryPolicy._backoff_s.__wrapped__)


SLOW = RateLimitedError("slow", retry_after_s=5.0)
HTML = BadResponseError("html")


@pytest.mark.parametrize(
    ("policy", "error", "done", "ends", "waits"),
    [
        *(({}, error, 0, NEVER, None) for error in (AuthenticationError("x"), ProviderTimeoutError("x"))),
        *(({}, DOWN, done, NEVER, ANY) for done in (0, 1)),
        *(({}, DOWN, done, NEVER, None) for done in (2, 3)),
        ({}, HTML, 0, NEVER, ANY),  # a bad response is tried once more
        ({}, HTML, 1, NEVER, None),
        ({"max_retries": 0}, DOWN, 0, NEVER, None),
        # a server's wish is obeyed up to a minute
        *(({}, RateLimitedError("x", retry_after_s=wish), 0, NEVER, wish) for wish in (0.0, 3.5, MAX_RETRY_AFTER_S)),
        ({}, RateLimitedError("x", retry_after_s=-1.0), 0, NEVER, 0.0),
        ({}, RateLimitedError("x", retry_after_s=60.1), 0, NEVER, None),
        # a wait past the deadline is not begun
        ({}, SLOW, 0, Deadline.after(4.0), None),
        ({}, SLOW, 0, SimpleNamespace(remaining_s=lambda: 5.0), None),  # nor one that ends with it
        ({}, SLOW, 0, Deadline.after(6_000.0), 5.0),
    ],
)
def test_what_is_tried_again_and_after_which_wait(policy, error, done, ends, waits):
    delay_s = RetryPolicy(**policy).delay_s(error, done, ends)
    assert (delay_s == waits, delay_s is None) == (True, waits is None)
    assert MAX_RETRY_AFTER_S == 60.0


@pytest.mark.parametrize(
    ("policy", "done", "most"),
    [({}, 0, 0.5), ({}, 1, 1.0), ({"first_wait_s": 100.0, "longest_wait_s": 0.25}, 0, 0.25)],
)
def test_the_wait_is_jittered_below_a_doubling_limit(policy, done, most):
    waits = [RetryPolicy(**policy).delay_s(DOWN, done, NEVER) for _ in range(300)]
    assert all(wait is not None and 0 <= wait <= most for wait in waits)
    assert len(set(waits)) > (250 if not policy else 0)
    assert max(wait or 0 for wait in waits) > most / 2


@pytest.mark.parametrize(
    ("shared", "capacity", "refill"), [(False, CAPACITY, 1.0), (True, SHARED_CAPACITY, SHARED_REFILL)]
)
def test_a_retry_takes_a_token_and_successes_give_them_back_up_to_the_capacity(shared, capacity, refill):
    health = Health(shared=shared)
    assert [health.allows(DOWN) for _ in range(capacity + 1)] == [*[True] * capacity, False]
    needed = round(1 / refill + 0.49)
    for _ in range(needed):
        assert not health.allows(DOWN)
        health.succeeded()
    assert [health.allows(DOWN), health.allows(DOWN)] == [True, False]
    for _ in range(10_000):
        health.succeeded()
    assert health.tokens == capacity


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (DOWN, False),
        (AuthenticationError("no"), True),  # which says nothing about the server
        (SLOW, True),  # a server that says when to come again is not down
    ],
)
def test_a_call_that_failed_on_every_try_empties_it(error, left):
    health = Health(shared=False)
    health.gave_up(error)
    assert health.allows(DOWN) is left
    health.gave_up(DOWN)
    assert health.allows(error) is (error is SLOW)
    assert not health.allows(RateLimitedError("slow down"))


def test_a_server_takes_a_token_for_a_retry_that_was_asked_for():
    health, error = Health(shared=True), RateLimitedError("slow down", retry_after_s=0.0)
    assert sum(health.allows(error) for _ in range(100)) == SHARED_CAPACITY
    health.gave_up(error)
    for _ in range(20):
        health.succeeded()
    assert health.allows(error)
    health.failed(error)
    assert not health.limited


def test_a_server_is_limited_until_the_time_that_it_named():
    clock = Clock()
    health = Health(shared=True, clock=clock)
    health.failed(SLOW)
    assert health.limited
    clock.now = 5.0
    assert not health.limited


DOWN_BREAKER = ProviderUnavailableError("gone")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def broken() -> tuple[Health, Clock]:
    clock = Clock()
    health = Health(shared=True, clock=clock)
    for _ in range(FAILURES):
        assert not health.open
        health.failed(DOWN_BREAKER)
    return health, clock


def test_it_opens_after_failures_in_a_row_and_one_success_closes_it():
    health, clock = broken()
    assert health.open
    assert health.rests
    assert health.pause_s() == FIRST_PAUSE_S
    clock.now = FIRST_PAUSE_S
    assert health.pause_s() is None
    assert health.rests  # while the probe is under way
    health.succeeded()
    assert not health.open
    assert not health.rests
    for _ in range(FAILURES - 1):
        health.failed(DOWN_BREAKER)
    assert not health.open


def test_each_probe_that_fails_doubles_the_pause_and_calls_from_before_do_not():
    health, clock = broken()
    for _ in range(20):
        health.failed(DOWN_BREAKER)
    pauses = []
    for _ in range(8):
        pauses.append(health.pause_s())
        clock.now += pauses[-1] or 0.0
        assert health.pause_s() is None
        assert health.pause_s() is not None  # one probe at a time
        health.failed(DOWN_BREAKER)
    assert pauses == [2.0, 4.0, 8.0, 16.0, 32.0, LONGEST_PAUSE_S, LONGEST_PAUSE_S, LONGEST_PAUSE_S]


def test_a_probe_whose_caller_left_is_followed_by_another():
    health, clock = broken()
    clock.now = FIRST_PAUSE_S
    assert health.pause_s() is None
    clock.now += FIRST_PAUSE_S
    assert health.pause_s() is None


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
def test_only_failures_of_the_server_open_it(error, opens):
    health = Health(shared=True)
    for _ in range(2 * FAILURES):
        health.failed(error)
    assert health.open is opens


async def _at_once(seconds: float) -> None:
    """Wait no time."""


def guarded(script: Any) -> tuple[Guard, FakeProvider]:
    fake = FakeProvider(script, keep=10_000)
    return Guard(fake, sleep=_at_once, shared=True), fake


@pytest.mark.parametrize(
    ("ways", "shared", "least", "most"),
    [
        ((False,), True, FAILURES, FAILURES),
        ((True, False), True, 1, FAILURES + 2),  # a stream passes the same circuit
        ((False,), False, 500, 10_000),
    ],
)
async def test_a_dead_server_gets_a_few_calls_and_not_one_for_each_request(ways, shared, least, most):
    guard, fake = guarded(lambda _: DOWN_BREAKER)
    guard.shared = shared
    for stream in ways * 500:
        with pytest.raises(ProviderUnavailableError):
            if stream:
                await anext(guard.stream(request(), Deadline()))
            else:
                await guard.complete(request(), Deadline())
    assert least <= len(fake.requests) <= most


async def test_one_failure_in_ten_costs_one_call_in_ten_and_opens_nothing():
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


async def test_an_outage_is_one_warning_at_its_first_failure_and_a_later_one_when_the_circuit_opens(caplog):
    down = [True] * 40 + [False] * 9 + [True, False] * 5 + [True] * 40
    now, script = [0.0], iter(down)
    guard, _ = guarded(lambda _: DOWN_BREAKER if next(script) else reply("yes"))
    guard.retry = RetryPolicy(max_retries=0)
    guard.health["small"] = Health(shared=True, clock=lambda: now[0])
    warned = []
    for _ in down:
        now[0] += 1_000.0
        with suppress(ProviderUnavailableError):
            await guard.complete(request(), Deadline())
        warned.append(len(caplog.records))
    opens = len(down) - 40 + FAILURES
    assert [warned.index(count) for count in (1, 2)] == [0, opens - 1]
    assert (warned[-1], caplog.records[0].levelname) == (2, "WARNING")
