"""When a failed call is made again: decided here, acted on in `providers.guard`, and nowhere else.

Exactly one layer retries: the libraries below are told not to (F08). The wait is tenacity's full-jitter exponential
backoff; a server's Retry-After is obeyed up to a minute (F02).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import tenacity

from cascade.errors import ProviderError
from cascade.resilience.deadline import Deadline

MAX_RETRY_AFTER_S = 60.0
"""A longer Retry-After is not waited for (as the Anthropic and Portkey clients do)."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How often and how long after a failure the same call is made again."""

    max_retries: int = 2
    first_wait_s: float = 0.5
    longest_wait_s: float = 8.0

    def delay_s(self, error: ProviderError, retries_done: int, deadline: Deadline) -> float | None:
        """Return how long to wait before the next try, or None to give up.

        Args:
            error: what went wrong; its class says whether a retry can help and how many make sense.
            retries_done: how many retries this call has had.
            deadline: the question's; a wait that would pass it is not begun.
        """
        if not error.retryable or retries_done >= min(self.max_retries, error.max_retries):
            return None
        wait = self._backoff_s(retries_done) if error.retry_after_s is None else error.retry_after_s
        if wait > MAX_RETRY_AFTER_S or wait >= deadline.remaining_s():
            return None
        return max(0.0, wait)

    def _backoff_s(self, retries_done: int) -> float:
        jitter = tenacity.wait_random_exponential(multiplier=self.first_wait_s, max=self.longest_wait_s)
        state = tenacity.RetryCallState(retry_object=cast("tenacity.Retrying", None), fn=None, args=(), kwargs={})
        state.attempt_number = retries_done + 1
        return jitter(state)
