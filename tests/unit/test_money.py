"""Money is exact, an unknown price is None, and a call's bound is never below its cost."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from importlib import resources
from pathlib import Path

import pytest
from cases import each

from cascade.config import load
from cascade.money import Price, PriceTable, nano_usd, price_from_entry, usd, usd_or_none
from cascade.types import Usage

sys.path.append(str(Path(__file__).parents[2] / "tools"))

from make_prices import compact_map

PLAIN = Price.per_million(input=3, output=15)


@pytest.mark.parametrize(
    ("amount", "nano"),
    [("0.02", 20_000_000), (0.1, 100_000_000), ("0.0000000019", 1), (Decimal("1e-10"), 0), (50, 50_000_000_000)],
)
def test_a_cap_in_usd_is_rounded_down_to_nano_dollars(amount, nano):
    assert nano_usd(amount) == nano


ALIKE = ("input", "output", "cached_input", "reasoning", "request")


@each(
    "given, rates",
    [
        ({"input": "0.15", "output": 0.6, "cached_input": "0.075", "reasoning": 1.2, "request": "0.005"},
         (150_000, 600_000, 75_000, 1_200_000, 5_000_000_000)),
        ({"input": "0.0000015", "output": "0.00000149"}, (2, 1, None, None, 0)),  # half up to whole pico-dollars
        ({"input": 1, "output": 1, "cached_input": 0, "reasoning": 0}, (10**6, 10**6, 0, 0, 0)),  # 0 is known
        (dict.fromkeys(ALIKE, 0), (0, 0, 0, 0, 0)),
        # 0.5.0: prices below 5e-7 USD per million tokens were 0
        (dict.fromkeys(ALIKE, 1e-7), (1, 1, 1, 1, 100_000)),
        (dict.fromkeys(ALIKE, "4.9e-7"), (1, 1, 1, 1, 490_000)),
        (dict.fromkeys(ALIKE, Decimal("1e-30")), (1, 1, 1, 1, 1)),
    ],
)  # fmt: skip
def test_per_million_keeps_pico_dollars_per_token(given, rates):
    price = Price.per_million(**given, note="n")
    assert tuple(getattr(price, name) for name in ALIKE) == rates
    assert (price.above, price.source, price.note) == ((), "config", "n")


FREE_PARTS = replace(PLAIN, cached_input=0, reasoning=0)
OWN_PARTS = replace(PLAIN, cached_input=300_000, reasoning=30_000_000)
TENTH_OF_A_NANO = Price(input=100, output=100)
TIERED = replace(PLAIN, above=((200, Price(6_000_000, 30_000_000)), (300, Price(9_000_000, 45_000_000))))


@pytest.mark.parametrize(
    ("price", "usage", "cost"),
    [
        (PLAIN, Usage(1000, 10), 1000 * 3_000 + 10 * 15_000),
        # rounded up once a call
        (TENTH_OF_A_NANO, Usage(1, 1), 1),
        (TENTH_OF_A_NANO, Usage(5, 5), 1),
        (TENTH_OF_A_NANO, Usage(6, 5), 2),
        (TENTH_OF_A_NANO, Usage(0, 0), 0),
        *((PLAIN, unknown, None) for unknown in (Usage(None, 1), Usage(1, None), Usage(None, None))),
        # cached and reasoning tokens are part of the counts, and without rates of their own cost the plain ones
        (OWN_PARTS, Usage(1000, 100, 400, 60), 600 * 3_000 + 400 * 300 + 40 * 15_000 + 60 * 30_000),
        (PLAIN, Usage(1000, 100, 400, 60), 1000 * 3_000 + 100 * 15_000),
        (FREE_PARTS, Usage(1, 1), 18_000),  # unknown parts are none
        (FREE_PARTS, Usage(10, 10, 99, 99), 0),  # more of them than tokens make no cost negative
        (Price.per_million(input=1, output=1, cached_input=0, reasoning=0), Usage(10, 10, 10, 10), 0),
        (replace(PLAIN, request=7_000), Usage(1, 0), 3_000 + 7),  # a fee is charged once
        # the tier of a long prompt prices the whole call
        (TIERED, Usage(200, 1), 200 * 3_000 + 15_000),
        (TIERED, Usage(201, 1), 201 * 6_000 + 30_000),
        (TIERED, Usage(300, 1), 300 * 6_000 + 30_000),
        (TIERED, Usage(301, 1), 301 * 9_000 + 45_000),
    ],
)
def test_what_a_call_costs(price, usage, cost):
    assert price.cost_nano_usd(usage) == cost


def test_an_unknown_amount_is_none_and_no_amount_is_zero():
    assert usd_or_none(None) is None
    assert [usd_or_none(nano) for nano in (0, 1)] == [0, Decimal("0.000000001")]
    assert usd(10**18 + 1) == Decimal("1000000000.000000001")


def test_the_bound_takes_the_dearest_rate_of_every_tier_and_is_rounded_up():
    tier = Price(input=5_000, output=1_000, cached_input=9_000, reasoning=8_000, request=3_000)
    price = Price(input=1_000, output=2_000, request=1_000, above=((10, tier),))
    assert price.bound_nano_usd(10, 10) == 10 * 9 + 10 * 8 + 3
    assert Price(input=1, output=0).bound_nano_usd(1, 1) == 1


def test_rates_are_shown_as_price_lists_print_them():
    shown = Price.per_million(input="0.15", output="0.60", cached_input=0, request="0.01").usd_per_million()
    assert shown == {
        "input": Decimal("0.15"),
        "cached_input": Decimal(0),
        "cache_write": None,
        "cache_write_1h": None,
        "output": Decimal("0.6"),
        "reasoning": None,
        "request": Decimal("0.01"),
    }


def test_the_bundled_table_carries_its_day_source_and_hash_and_prices_that_can_be_read():
    table = PriceTable.bundled()
    raw = resources.files("cascade").joinpath("data/prices.json").read_bytes()
    assert table.digest == hashlib.sha256(raw).hexdigest()
    assert table.as_of == date.fromisoformat(json.loads(raw)["as_of"])
    assert table.source
    assert replace(table, as_of=date(2026, 1, 1)).age_days(date(2026, 2, 1)) == 31
    prices = [table.price(name) for name in table.prices]
    assert len(prices) > 100
    assert all(price is not None and price.input >= 0 and price.output >= 0 for price in prices)


def test_a_name_is_found_with_its_makers_prefix_and_no_other_hosts():
    table = PriceTable.bundled()
    price = table.price("gpt-4o-mini")
    assert price is not None
    assert table.price("openai/gpt-4o-mini") == price
    assert price.source == f"{table.source}, {table.as_of}"
    assert [table.price(f"{host}/gpt-4o-mini") for host in ("nobody", "my-proxy")] == [None, None]
    assert table.price("nobody/knows-this") is None


def test_an_entry_with_tiers_keeps_them_and_its_source():
    entry = {"input": 1, "output": 2, "request": 0.5, "above": [{"tokens": 200_000, "input": 3, "output": 4}]}
    price = price_from_entry(entry, "here")
    assert price.above == ((200_000, Price.per_million(input=3, output=4, source="here")),)
    assert (price.input, price.request, price.source) == (1_000_000, 5 * 10**11, "here")


MAP = {
    "sample_spec": {"mode": "chat", "input_cost_per_token": 1, "output_cost_per_token": 1},
    "an-embedder": {"mode": "embedding", "input_cost_per_token": 1e-6, "output_cost_per_token": 0},
    "half-known": {"mode": "chat", "input_cost_per_token": 1e-6},
    "worded": {"mode": "chat", "input_cost_per_token": "dear", "output_cost_per_token": 1e-6},
    "decider": {"mode": "evaluation", "input_cost_per_token": 4.2e-8, "output_cost_per_token": 0.0},
    "hosted-by-oneself": {"mode": "evaluation", "input_cost_per_token": 0.0, "output_cost_per_token": 0.0},
    "plain": {
        "mode": "chat",
        "input_cost_per_token": 1.5e-7,
        "output_cost_per_token": 6e-7,
        "input_cost_per_token_decisions": 2e-7,
        "output_cost_per_token_decisions": 0.0,
        "cache_creation_input_token_cost_decisions": 2e-7,
    },
    "full": {
        "mode": "responses",
        "input_cost_per_token": 1e-6,
        "output_cost_per_token": 2e-6,
        "cache_read_input_token_cost": 1e-7,
        "output_cost_per_reasoning_token": 3e-6,
        "input_cost_per_request": 0.005,
        "input_cost_per_token_above_200k_tokens": 4e-6,
    },
}


def test_litellms_map_becomes_usd_per_million_and_a_tier_inherits_what_it_does_not_change():
    rates = {"input": 1.0, "output": 2.0, "cached_input": 0.1, "reasoning": 3.0, "request": 0.005}
    full = {**rates, "above": [{"tokens": 200_000, **rates, "input": 4.0}]}
    decider = {"input": 0.042, "output": 0.0}
    plain = {"input": 0.15, "output": 0.6, "decisions": {"input": 0.2, "output": 0.0, "cache_write": 0.2}}
    assert compact_map(MAP) == {"plain": plain, "full": full, "decider": decider}


@pytest.mark.parametrize(
    ("model", "cost"), [("openai/gpt-6-luna", 100_000), ("typesafe/jev-1.14.0", 42_000), ("openai/gpt-6.1-sol", None)]
)
def test_the_output_of_a_decision_is_free_and_a_model_that_sells_none_has_no_price(model, cost):
    models = {"base": "a", "guide": "b", "judge": {"model": model, "kind": "decision"}}
    price = load({"models": models, "provider": "fake"}).prices()[model]
    assert (price and price.cost_nano_usd(Usage(1_000, 1_000))) == cost
    assert price is None or price.cost_nano_usd(Usage(1_000, 1, cached_input_tokens=500)) == cost


def test_a_tiered_call_of_the_map_costs_what_the_map_says():
    price = price_from_entry(compact_map(MAP)["full"], "here")
    assert price.cost_nano_usd(Usage(200_001, 1)) == 200_001 * 4_000 + 2_000 + 5_000_000
