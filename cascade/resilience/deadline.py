"""One clock for a whole question: a monotonic instant after which nothing is waited for any more."""

from __future__ import annotations

import time
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant on the monotonic clock, so that a step of the wall clock changes nothing (F13)."""

    at_s: float = float("inf")

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """Return the deadline `seconds` from now; None means never."""
        return cls() if seconds is None else cls(time.monotonic() + seconds)

    def remaining_s(self) -> float:
        """Return the seconds left, 0 once it has passed."""
        return max(0.0, self.at_s - time.monotonic())

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at_s, time.monotonic() + seconds))
