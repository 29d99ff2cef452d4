"""Time-ordered ids: UUIDs of version 7.

Reference: RFC 9562, section 5.7, with the monotonic random tail of its section 6.2, method 2.
"""

from __future__ import annotations

import os
import threading
import time

from cascade.forks import after_fork

_TAIL_BITS = 74
"""rand_a (12 bits) and rand_b (62 bits) are incremented as one number."""
_STEP_BITS = 32


def _joined(milliseconds: int, tail: int) -> str:
    """Return the UUID of a Unix time and 74 bits, in its usual spelling."""
    value = milliseconds << 80 | 0x7 << 76 | tail >> 62 << 64 | 0b10 << 62 | tail & (1 << 62) - 1
    digits = f"{value:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


class _Source:
    """Makes ids that ascend within a process, also within a millisecond and when the clock is set back."""

    def __init__(self) -> None:
        self._milliseconds = 0
        self._tail = 0
        self._renew()
        after_fork(self._renew)  # another thread may have held the lock at the fork

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> str:
        drawn = int.from_bytes(os.urandom(10))
        with self._lock:
            now = time.time_ns() // 1_000_000  # a label: no duration is computed from it
            if now > self._milliseconds:
                self._milliseconds, self._tail = now, drawn >> (80 - _TAIL_BITS) & (1 << _TAIL_BITS - 1) - 1
            else:
                self._tail += 1 + (drawn & (1 << _STEP_BITS) - 1)
                if self._tail >> _TAIL_BITS:
                    self._milliseconds, self._tail = self._milliseconds + 1, drawn & (1 << _STEP_BITS) - 1
            return _joined(self._milliseconds, self._tail)


uuid7 = _Source()
"""Return a new UUID of version 7 as text: unique, and greater than every one that this process made before."""


def content_id(milliseconds: int, digest: bytes) -> str:
    """Return the UUID of version 7 of some content: its time, and the start of its digest instead of random bits.

    The same content has the same id, so a repeated row is recognised.
    """
    return _joined(milliseconds & (1 << 48) - 1, int.from_bytes(digest[:10]) >> (80 - _TAIL_BITS))
