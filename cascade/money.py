"""Money: integer nano-dollars, prices per token, and the dated table that they come from.

1 nano-dollar = 10⁻⁹ USD. A price of 0.15 USD per million tokens is 150 nano-dollars per token; prices below one
nano-dollar per token exist, so a `Price` keeps pico-dollars (10⁻¹² USD) per token and rounds a call's cost up, once.
An unknown price is `None`, never 0.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

PICO_PER_NANO = 1_000
PICO_USD_PER_USD = 10**12
STALE_AFTER_DAYS = 30
PLAIN_TIERS = frozenset({"", "auto", "default", "standard", "standard_only", "on_demand"})
"""The names of service tiers at the plain rate, from OpenAI, Anthropic and Groq."""


def usd(nano_usd: int) -> Decimal:
    """Return an exact amount in USD.

    >>> usd(1_500_000)
    Decimal('0.001500000')
    """
    return Decimal(nano_usd).scaleb(-9)


def exact_dollars(nano_usd: int) -> str:
    """Return an exact amount as a text.

    >>> exact_dollars(5), exact_dollars(-20_000_000), exact_dollars(0)
    ('$0.000000005', '-$0.02', '$0')
    """
    return f"{'-' if nano_usd < 0 else ''}${usd(abs(nano_usd)).normalize():f}"


def usd_or_none(nano_usd: int | None) -> Decimal | None:
    """Return an exact amount in USD, or None for an unknown one."""
    return None if nano_usd is None else usd(nano_usd)


def dollars(amount_usd: Decimal | None) -> str:
    """Return an amount in USD with three significant digits, or "unknown".

    >>> dollars(Decimal("0.000123456")), dollars(None), dollars(Decimal(0))
    ('$0.000123', 'unknown', '$0')
    """
    if amount_usd is None:
        return "unknown"
    return f"${Decimal(f'{amount_usd:.3g}'):f}" if amount_usd else "$0"


def nano_usd(amount_usd: Decimal | float | str) -> int:
    """Return a USD amount in nano-dollars, rounded down: a cap is never widened by rounding."""
    return int(Decimal(str(amount_usd)).scaleb(9))


def _pico(amount_usd: Decimal) -> int:
    """Return an amount in pico-dollars; an amount above 0 is at least 1."""
    pico = int((amount_usd * PICO_USD_PER_USD).to_integral_value(rounding=ROUND_HALF_UP))
    return 1 if pico == 0 and amount_usd > 0 else pico


def _per_token(per_million_usd: Decimal | float | str | None) -> int | None:
    return None if per_million_usd is None else _pico(Decimal(str(per_million_usd)).scaleb(-6))


class Usage(NamedTuple):
    """Token counts of one call. `estimated` marks counts that the provider did not send; estimates are high.

    `cached_input_tokens` were read from the provider's prompt cache, `written_input_tokens` written to it; both are
    among `input_tokens`. `hour_input_tokens` of those written are kept for an hour; None: how many is unknown.
    """

    input_tokens: int | None
    output_tokens: int | None
    cached_input_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False
    written_input_tokens: int | None = None
    hour_input_tokens: int | None = None

    @property
    def writes(self) -> dict[str, int] | None:
        """The tokens written to a cache by how long they are kept, under Anthropic's names; None if unknown."""
        if self.hour_input_tokens is None:
            return None
        short = (self.written_input_tokens or 0) - self.hour_input_tokens
        return {"ephemeral_5m_input_tokens": short, "ephemeral_1h_input_tokens": self.hour_input_tokens}


@dataclass(frozen=True, slots=True)
class Price:
    """The price of a model, in pico-dollars (10⁻¹² USD) per token and per request.

    `cached_input` (read from a prompt cache) and `reasoning` default to the plain rates. `cache_write` (written to it),
    `cache_write_1h` (written for an hour), `audio_input` and `audio_output` are unknown if they are None.
    `above` holds (tokens, Price) pairs: the price of a whole call whose input has more than this number of tokens.
    `tiers` holds the price at each service tier that has one of its own, `search` (size, pico-dollars) pairs of a
    model that searches the web once for each request.
    """

    input: int
    output: int
    cached_input: int | None = None
    reasoning: int | None = None
    request: int = 0
    above: tuple[tuple[int, Price], ...] = ()
    source: str = "config"
    note: str | None = None
    cache_write: int | None = None
    tiers: tuple[tuple[str, Price], ...] = ()
    search: tuple[tuple[str, int], ...] = ()
    audio_input: int | None = None
    audio_output: int | None = None
    cache_write_1h: int | None = None

    def at_tier(self, tier: str | None) -> Price | None:
        """Return the price at a service tier; None if it is unknown."""
        return self if tier is None or tier in PLAIN_TIERS else dict(self.tiers).get(tier)

    @classmethod
    def per_million(
        cls,
        *,
        input: Decimal | float | str,  # noqa: A002 - the field's name in every price list
        output: Decimal | float | str,
        cached_input: Decimal | float | str | None = None,
        cache_write: Decimal | float | str | None = None,
        cache_write_1h: Decimal | float | str | None = None,
        reasoning: Decimal | float | str | None = None,
        request: Decimal | float | str = 0,
        source: str = "config",
        note: str | None = None,
    ) -> Price:
        """Make a price from USD per million tokens (and USD per request), as price lists print it.

        A price above 0 counts as at least one pico-dollar per token: 0.000001 USD per million tokens.

        >>> Price.per_million(input=3.0, output=15.0, cached_input=0.3).input
        3000000
        """
        return cls(
            input=_per_token(input) or 0,
            output=_per_token(output) or 0,
            cached_input=_per_token(cached_input),
            reasoning=_per_token(reasoning),
            request=_pico(Decimal(str(request))),
            source=source,
            note=note,
            cache_write=_per_token(cache_write),
            cache_write_1h=_per_token(cache_write_1h),
        )

    def cost_nano_usd(self, usage: Usage) -> int | None:
        """Return the cost of a call in nano-dollars, rounded up; None if the usage, or a price for it, is unknown.

        >>> Price.per_million(input=0.15, output=0.6).cost_nano_usd(Usage(1000, 10))
        156000
        """
        if usage.input_tokens is None or usage.output_tokens is None:
            return None
        price = self.for_input(usage.input_tokens)
        cached = min(usage.cached_input_tokens or 0, usage.input_tokens)
        written = price.written_pico(usage, most=usage.input_tokens - cached)
        if written is None:
            return None  # writes cost more than plain input, by an unknown amount
        pico = written + usage.input_tokens * price.input + usage.output_tokens * price.output + price.request
        if cached and price.cached_input is not None:
            pico += cached * (price.cached_input - price.input)
        if usage.reasoning_tokens and price.reasoning is not None:
            pico += min(usage.reasoning_tokens, usage.output_tokens) * (price.reasoning - price.output)
        return -(-pico // PICO_PER_NANO)

    def written_pico(self, usage: Usage, *, most: int) -> int | None:
        """Return what writes to a cache cost beyond the plain input rate, in pico-dollars; None if unknown.

        If the price has no rate for an hour, a write for an unknown time is a plain one. At most `most` tokens are new.
        """
        total, hour = usage.written_input_tokens or 0, usage.hour_input_tokens
        if hour is None and total and self.cache_write_1h is not None:
            return None
        hour = min(hour or 0, total)
        if (hour < total and self.cache_write is None) or (hour and self.cache_write_1h is None):
            return None
        hour = min(hour, most)
        plain = min(total - hour, most - hour)
        return plain * ((self.cache_write or 0) - self.input) + hour * ((self.cache_write_1h or 0) - self.input)

    def bound_nano_usd(self, input_tokens: int, max_output_tokens: int, *, for_an_hour: bool = False) -> int:
        """Return the highest possible cost of a call: every token at the highest rate that may apply to it.

        `for_an_hour`: whether the request may write to a cache for an hour.
        """
        prices = (self, *(price for _, price in self.above))
        rates = [(p.input, p.cached_input, p.cache_write, p.cache_write_1h if for_an_hour else None) for p in prices]
        dearest_input = max(rate or 0 for of_one in rates for rate in of_one)
        dearest_output = max(max(p.output, p.reasoning or 0) for p in prices)
        pico = input_tokens * dearest_input + max_output_tokens * dearest_output + max(p.request for p in prices)
        return -(-pico // PICO_PER_NANO)

    def for_input(self, input_tokens: int) -> Price:
        """Return the price of a call whose prompt has this number of tokens."""
        if not self.above:
            return self
        applicable = [price for tokens, price in self.above if input_tokens > tokens]
        return applicable[-1] if applicable else self

    def usd_per_million(self) -> dict[str, Decimal | None]:
        """Return the rates as price lists print them: USD per million tokens, and per request."""
        picos = {name: getattr(self, name) for name in _LISTED[:-1]}
        rates = {name: None if pico is None else Decimal(pico).scaleb(-6).normalize() for name, pico in picos.items()}
        return {**rates, "request": Decimal(self.request).scaleb(-12).normalize()}


@dataclass(frozen=True, slots=True)
class PriceTable:
    """Prices by model name, with the day they were read and a hash of their content.

    Models that the table does not know have no price.
    """

    prices: Mapping[str, Mapping[str, Any]]
    as_of: date
    source: str
    digest: str

    @classmethod
    @cache
    def bundled(cls) -> PriceTable:
        """Return the table that ships with the package: no network, no other package needed."""
        raw = resources.files("cascade").joinpath("data/prices.json").read_bytes()
        table = json.loads(raw)
        digest = hashlib.sha256(raw).hexdigest()
        return cls(table["models"], date.fromisoformat(table["as_of"]), table["source"], digest)

    def price(self, model: str, *, decides: bool = False) -> Price | None:
        """Return a model's price, or None if it is unknown. An entry ("model@entry") has its model's price.

        With `decides` it is the price of its decisions, whose output is free; unknown if the model sells none.

        >>> PriceTable.bundled().price("openai/gpt-4o-mini").usd_per_million()["input"]
        Decimal('0.15')
        >>> PriceTable.bundled().price("openai/gpt-4o-mini@low").usd_per_million()["input"]
        Decimal('0.15')
        >>> PriceTable.bundled().price("openai/gpt-6-luna", decides=True).output
        0
        >>> PriceTable.bundled().price("nobody/knows-this") is None
        True
        """
        entry = self.prices.get(model)
        if entry is None:
            # "openai/gpt-4o" is listed as "gpt-4o" of openai; another host has another price.
            host, _, name = model.partition("/")
            listed = self.prices.get(name)
            entry = listed if listed is not None and listed.get("provider") == host else None
        if entry is None and (whole := model.rpartition("@")[0]):
            # Also for an unlisted dated version, as each listed one has the price of the name without the date.
            return self.price(whole, decides=decides)
        if entry is not None and decides:
            entry = entry.get("decisions") or (None if entry["output"] else entry)
        return None if entry is None else price_from_entry(entry, source=f"{self.source}, {self.as_of}")

    def age_days(self, today: date) -> int:
        """Return how many days old the table is."""
        return (today - self.as_of).days


_LISTED = ("input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning", "request")


def price_from_entry(entry: Mapping[str, Any], source: str) -> Price:
    """Read one entry of a price table: USD per million tokens under short names."""
    rates = {name: entry[name] for name in _LISTED if entry.get(name) is not None}
    above = sorted(entry.get("above", ()), key=lambda tier: int(tier["tokens"]))
    return replace(
        Price.per_million(**rates, source=source),
        above=tuple((int(tier["tokens"]), price_from_entry(tier, source)) for tier in above),
        tiers=tuple((name, price_from_entry(tier, source)) for name, tier in entry.get("tiers", {}).items()),
        search=tuple((size, _pico(Decimal(str(amount)))) for size, amount in entry.get("search", {}).items()),
        audio_input=_per_token(entry.get("audio_input")),
        audio_output=_per_token(entry.get("audio_output")),
    )


def total_nano_usd(costs: Iterable[int | None]) -> int | None:
    """Sum integer costs; one unknown makes the sum unknown.

    >>> total_nano_usd([1, 2]), total_nano_usd([1, None])
    (3, None)
    """
    total = 0
    for cost in costs:
        if cost is None:
            return None
        total += cost
    return total
