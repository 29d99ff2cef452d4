"""What the tests' own clock counts: sleeping, and not what waits for a core."""

from __future__ import annotations

import time

import clock
import pytest
from clock import within


def test_a_block_that_sleeps_past_its_limit_fails() -> None:
    with pytest.raises(AssertionError, match=r"it took 0\.\d\d s"), within(0.01):
        time.sleep(0.05)


def test_the_time_that_threads_waited_for_a_core_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = iter([3.0, 3.05])
    monkeypatch.setattr(clock, "_waited_s", lambda: next(waited))
    with within(0.04):
        time.sleep(0.05)
