"""Sums are exact, rounding is up and once, and a bound is never below its cost."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from cascade.money import Price, nano_usd, total_nano_usd, usd
from cascade.types import Usage

RATE = st.integers(0, 10**9)
COUNT = st.integers(0, 10**7)


@st.composite
def flat(draw: st.DrawFn) -> Price:
    rates = (draw(RATE), draw(RATE), draw(st.none() | RATE), draw(st.none() | RATE), draw(RATE))
    writes = (draw(st.none() | RATE), draw(st.none() | RATE))
    return Price(*rates, cache_write=writes[0], cache_write_1h=writes[1])


@st.composite
def prices(draw: st.DrawFn) -> Price:
    price = draw(flat())
    limits = sorted(draw(st.lists(st.integers(1, 10**6), max_size=3, unique=True)))
    tiers = tuple((limit, draw(flat())) for limit in limits)
    return replace(price, above=tiers)


MAYBE = st.none() | COUNT
USAGES = st.builds(
    Usage, COUNT, COUNT, MAYBE, MAYBE, st.booleans(), written_input_tokens=MAYBE, hour_input_tokens=MAYBE
)


def exact(price: Price, usage: Usage) -> Fraction | None:
    """Return the cost in nano-dollars as a fraction, written another way than the code's; None where not known."""
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    for limit, tier in reversed(price.above):
        if usage.input_tokens > limit:
            price = tier
            break
    cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
    reasoning = min(usage.reasoning_tokens or 0, usage.output_tokens)
    room, new, hour = usage.input_tokens - cached, usage.written_input_tokens or 0, usage.hour_input_tokens
    if new and hour is None and price.cache_write_1h is not None:
        return None  # how long it is kept is unknown, and decides
    longer = min(hour or 0, new)
    if (new > longer and price.cache_write is None) or (longer and price.cache_write_1h is None):
        return None
    longer = min(longer, room)
    written = min(new - longer, room - longer)
    parts = [
        (room - written - longer, price.input),
        (written, price.cache_write or 0),
        (longer, price.cache_write_1h or 0),
        (cached, price.input if price.cached_input is None else price.cached_input),
        (usage.output_tokens - reasoning, price.output),
        (reasoning, price.output if price.reasoning is None else price.reasoning),
        (1, price.request),
    ]
    return sum((Fraction(count * rate, 1_000) for count, rate in parts), Fraction(0))


@given(prices(), USAGES)
def test_a_cost_is_the_exact_amount_rounded_up(price, usage):
    cost, wanted = price.cost_nano_usd(usage), exact(price, usage)
    if cost is None or wanted is None:
        assert cost is wanted
    else:
        assert 0 <= cost - wanted < 1


@given(prices(), USAGES, COUNT, COUNT)
def test_a_bound_is_never_below_the_cost_of_a_call_that_keeps_to_it(price, usage, more, longer):
    assert usage.input_tokens is not None
    assert usage.output_tokens is not None
    bound = price.bound_nano_usd(usage.input_tokens + more, usage.output_tokens + longer, for_an_hour=True)
    assert bound >= (price.cost_nano_usd(usage) or 0)


@given(flat(), USAGES, st.integers(1, 1_000))
def test_one_more_token_never_costs_less(price, usage, more):
    assert usage.output_tokens is not None
    longer = usage._replace(output_tokens=usage.output_tokens + more)
    assert (price.cost_nano_usd(longer) or 0) >= (price.cost_nano_usd(usage) or 0)


@given(st.lists(st.integers(0, 10**18)), st.randoms(use_true_random=False))
def test_a_sum_is_exact_in_any_order(costs, chance):
    shuffled = costs.copy()
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    assert total_nano_usd(shuffled) == sum(costs)
    assert sum((usd(cost) for cost in costs), Decimal(0)) == usd(sum(costs))


@given(st.lists(st.integers(0, 10**9)), st.integers(0, 50))
def test_one_unknown_anywhere_makes_a_sum_unknown(costs, place):
    at = place % (len(costs) + 1)
    assert total_nano_usd([*costs[:at], None, *costs[at:]]) is None


@given(st.integers(0, 10**15))
def test_usd_and_back_is_the_same(nano):
    assert nano_usd(usd(nano)) == nano


@given(st.decimals(0, 10**6, places=12))
def test_a_cap_is_never_widened_by_rounding(amount):
    assert usd(nano_usd(amount)) <= amount < usd(nano_usd(amount) + 1)


@given(st.decimals(0, 1_000, places=6), st.decimals(0, 1_000, places=6))
def test_a_price_list_is_read_and_shown_alike(first, second):
    shown = Price.per_million(input=first, output=second).usd_per_million()
    assert (shown["input"], shown["output"]) == (first, second)
