"""A price of one's own: tiers, audio, long prompts and searches, in price lists' units."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.config import load
from cascade.errors import ConfigError
from cascade.money import Price

OWN: dict[str, Any] = {
    "input": 2,
    "output": 8,
    "cached_input": 0.5,
    "cache_write": 2.5,
    "reasoning": 9,
    "audio_input": 10,
    "audio_output": 20,
    "above": [{"tokens": 200_000, "input": 4, "output": 8, "cached_input": 0.5, "cache_write": 2.5, "reasoning": 9,
               "audio_input": 10, "audio_output": 20, "request": 0.001}],
    "tiers": {"flex": {"input": 1, "output": 4}},
    "request": 0.001,
    "search": {"low": 0.01, "medium": 0.02},
}  # fmt: skip


def price(given: dict[str, Any]) -> Price | None:
    return load({"models": {"base": {"model": "m", "price": given}, "guide": "g"}}).prices()["m"]


def problems(given: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        price(given)
    return [str(one) for one in caught.value.problems]


def test_a_price_has_tiers_audio_long_prompts_and_searches() -> None:
    found = price(OWN)
    assert found is not None
    assert (found.audio_input, found.audio_output) == (10_000_000, 20_000_000)
    assert dict(found.tiers)["flex"].output == 4_000_000
    assert found.for_input(300_000).input == 4_000_000
    assert dict(found.search) == {"low": 10**10, "medium": 2 * 10**10}


def test_long_prompts_may_stand_in_any_order() -> None:
    above = [{"tokens": tokens, "input": tokens / 1e5, "output": 8} for tokens in (300_000, 200_000)]
    found = price({"input": 1, "output": 8, "above": above})
    assert found is not None
    assert (found.for_input(250_000).input, found.for_input(400_000).input) == (2_000_000, 3_000_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"input": 1}, "models.base.price.output: is missing"),
        ({"input": 1, "output": 1, "tiers": {"flex": {"input": 1}}}, "models.base.price.tiers.flex.output: is missing"),
        ({"input": 1, "output": 1, "inptu": 1}, "models.base.price.inptu: there is no such setting"),
        ({"input": 1, "output": 1, "search": {"huge": 1}}, "models.base.price.search.huge"),
    ],
)
def test_what_a_price_lacks_is_named(given: dict[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in problems(given)), problems(given)
