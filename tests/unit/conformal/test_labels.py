"""The draw of the requests that people judge."""

from __future__ import annotations

import pytest

from cascade.conformal.labels import is_drawn
from cascade.errors import UsageError


def test_the_share_that_is_drawn_is_the_rate_and_nested() -> None:
    names = [f"request {number}" for number in range(20_000)]
    lower: set[str] = set()
    for rate in (0.2, 0.5, 1.0):
        drawn = {name for name in names if is_drawn("key", name, rate)}
        assert abs(len(drawn) - rate * len(names)) <= 4 * (len(names) * rate * (1 - rate)) ** 0.5
        assert lower <= drawn
        lower = drawn
    assert {name for name in names if is_drawn("other", name, 0.5)} != {n for n in names if is_drawn("key", n, 0.5)}


def test_a_rate_that_draws_nothing_is_refused() -> None:
    for rate in (0.0, -0.1, 1.5):
        with pytest.raises(UsageError):
            is_drawn("key", "q", rate)
