"""A price of one's own: tiers, audio, long prompts and searches, in price lists' units or in LiteLLM's fields."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.config import load
from cascade.errors import ConfigError
from cascade.money import Price, compact_map, price_from_entry

LITELLM: dict[str, Any] = {
    "input_cost_per_token": 2e-6,
    "output_cost_per_token": "8e-06",  # what YAML makes of 8e-06
    "cache_read_input_token_cost": 5e-7,
    "cache_creation_input_token_cost": 2.5e-6,
    "output_cost_per_reasoning_token": 9e-6,
    "input_cost_per_audio_token": 1e-5,
    "output_cost_per_audio_token": 2e-5,
    "input_cost_per_token_above_200k_tokens": 4e-6,
    "input_cost_per_token_flex": 1e-6,
    "output_cost_per_token_flex": 4e-6,
    "input_cost_per_request": 0.001,
    "search_context_cost_per_query": {"search_context_size_low": 0.01, "search_context_size_medium": 0.02},
}
SHORT: dict[str, Any] = {
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


def test_litellm_s_fields_say_the_same_as_those_of_price_lists() -> None:
    found = price(LITELLM)
    assert found is not None
    assert found == price(SHORT)
    assert (found.audio_input, found.audio_output) == (10_000_000, 20_000_000)
    assert dict(found.tiers)["flex"].output == 4_000_000
    assert found.for_input(300_000).input == 4_000_000
    assert dict(found.search) == {"low": 10**10, "medium": 2 * 10**10}


def test_a_price_is_read_as_the_bundled_table_reads_it() -> None:
    named = {name: value for name, value in LITELLM.items() if "request" not in name and "search" not in name}
    table = compact_map({"m": {**named, "output_cost_per_token": 8e-6, "mode": "chat"}})["m"]
    given = price(named)
    assert given is not None
    from_table = price_from_entry(table, "config")
    assert (given.input, given.output, given.audio_input, given.cache_write) == (
        from_table.input, from_table.output, from_table.audio_input, from_table.cache_write
    )  # fmt: skip


def test_long_prompts_may_stand_in_any_order() -> None:
    above = [{"tokens": tokens, "input": tokens / 1e5, "output": 8} for tokens in (300_000, 200_000)]
    found = price({"input": 1, "output": 8, "above": above})
    assert found is not None
    assert (found.for_input(250_000).input, found.for_input(400_000).input) == (2_000_000, 3_000_000)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"input_cost_per_token": 1e-6}, "models.base.price.output: is missing"),
        ({"input": 1, "output": 1, "tiers": {"flex": {"input": 1}}}, "models.base.price.tiers.flex.output: is missing"),
        (
            {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6, "input_cost_per_charakter": 1e-6},
            "models.base.price.input_cost_per_charakter: there is no such setting",
        ),
        ({"input": 1, "output": 1, "search": {"huge": 1}}, "models.base.price.search.huge"),
    ],
)
def test_what_a_price_lacks_is_named(given: dict[str, Any], said: str) -> None:
    assert any(one.startswith(said) for one in problems(given)), problems(given)
