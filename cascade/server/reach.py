"""Tracks whether the modes' store is reachable. While it is not, the guide serves, and single requests retry."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cascade.errors import CascadeError
from cascade.safety import redact

logger = logging.getLogger("cascade")


class Reach:
    """Tracks whether a store can be reached.

    Args:
        again_s: seconds after a failure during which the store is not used.
        clock: a monotonic clock, in seconds.
    """

    def __init__(self, again_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s, self._clock = again_s, clock
        self._failed_s: float | None = None

    @property
    def is_lost(self) -> bool:
        """Whether its latest use failed."""
        return self._failed_s is not None

    def may_ask(self) -> bool:
        """Whether a request may ask the store now. While it is lost, one request at a time may."""
        if self._failed_s is None:
            return True
        now_s = self._clock()
        if now_s - self._failed_s < self._again_s:
            return False
        self._failed_s = now_s
        return True

    def lost(self, error: CascadeError) -> None:
        """Record a failure."""
        if self._failed_s is None:
            logger.error("modes: the guide serves until the store of the modes answers again. %s", redact(str(error)))
        self._failed_s = self._clock()

    def found(self) -> None:
        """Record a success."""
        if self._failed_s is not None:
            logger.warning("modes: the store of the modes answers again")
        self._failed_s = None
