"""Limits in seconds that hold on a busy machine too: the time in which a thread waited for a core does not count."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_THREADS = Path("/proc/self/task")


@contextmanager
def within(limit_s: float) -> Iterator[None]:
    """Fail if the block takes longer than `limit_s`, less what threads of this process waited for a core meanwhile.

    A thread that hangs or sleeps waits for no core, so it is found on a busy machine as on a quiet one. A system that
    does not count the waiting (other than Linux) gets the plain limit.
    """
    waited_s, started = _waited_s(), time.monotonic()
    yield
    took_s = time.monotonic() - started
    assert took_s - max(_waited_s() - waited_s, 0.0) < limit_s, f"it took {took_s:.2f} s"


def _waited_s() -> float:
    """Return how long the threads that run now have waited for a core since they began."""
    waited_ns = 0
    for thread in _THREADS.glob("*/schedstat"):
        try:
            waited_ns += int(thread.read_text("ascii").split()[1])
        except OSError:  # a thread that ended meanwhile
            continue
    return waited_ns / 1e9
