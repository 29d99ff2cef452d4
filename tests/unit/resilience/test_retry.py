"""When a failed call is made again, and when it is not."""

from __future__ import annotations

import pytest

from cascade.errors import (
    AuthenticationError,
    BadResponseError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    RateLimitedError,
)
from cascade.resilience.portal import Deadline
from cascade.resilience.retry import MAX_RETRY_AFTER_S, RetryPolicy

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
