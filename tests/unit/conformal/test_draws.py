"""Draws by a keyed hash: their rate, no pattern, nested rates, and another key draws others."""

from __future__ import annotations

import itertools
import math

import pytest

from cascade.conformal.monitor import is_drawn, uniform


@pytest.mark.parametrize("rate", [0.03, 0.5, 0.9])
def test_draws_have_their_rate_and_no_pattern(rate: float) -> None:
    draws = [is_drawn("key", rate, str(number)) for number in range(20_000)]
    assert abs(sum(draws) / 20_000 - rate) < 4 * math.sqrt(rate * (1 - rate) / 20_000)
    both = sum(one and other for one, other in itertools.pairwise(draws)) / 19_999
    assert abs(both - rate**2) < 4 * math.sqrt(rate**2 / 20_000)


def test_what_a_lower_rate_draws_a_higher_one_draws_too_and_another_key_draws_others() -> None:
    few, many = ({n for n in range(2_000) if is_drawn("key", rate, str(n))} for rate in (0.1, 0.4))
    assert few < many
    assert few != {n for n in range(2_000) if is_drawn(b"other", 0.1, str(n))}


def test_names_are_kept_apart_and_a_key_is_its_bytes() -> None:
    assert uniform("key", "ab", "c") != uniform("key", "a", "bc")
    assert uniform("key", "a\ud800") == uniform(b"key", "a\ud800")
