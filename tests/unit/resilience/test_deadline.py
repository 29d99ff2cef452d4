"""One monotonic instant after which nothing is waited for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from cascade.resilience import halting as deadline
from cascade.resilience.halting import Deadline


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    now = [1_000.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])

    def advance(seconds: float) -> None:
        now[0] += seconds

    return advance


def test_the_time_left_falls_to_0_and_not_below(clock: Callable[[float], None]) -> None:
    ends = Deadline.after(5.0)
    clock(2.0)
    assert ends.remaining_s() == 3.0
    clock(10.0)
    assert ends.remaining_s() == 0.0


def test_none_is_never(clock: Callable[[float], None]) -> None:
    clock(1e12)
    assert Deadline().remaining_s() == math.inf


def test_no_time_at_all_is_over_at_once(clock: Callable[[float], None]) -> None:
    assert Deadline.after(0.0).remaining_s() == 0.0
