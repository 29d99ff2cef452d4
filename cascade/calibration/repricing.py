"""Whether a log was costed at the prices of the cascade that will serve: a promise about money holds at those alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from cascade.money import Price
from cascade.types import Usage

_ROUNDING = 100
"""Foreign logs round their costs: within a hundredth, or a nano-dollar, they are the same."""


class Mispriced(NamedTuple):
    """One model's calls that cost something else at the given prices: how many, and one of them in nano-USD."""

    model: str
    calls: int
    logged_nano_usd: int
    priced_nano_usd: int

    def describe(self) -> str:
        """Return it in words."""
        return (
            f"{self.model}: {self.calls} calls; one is on record with {self.logged_nano_usd / 1e9:.6g} USD and costs "
            f"{self.priced_nano_usd / 1e9:.6g} USD at the configured price"
        )


def mispriced(rows: Iterable[Mapping[str, Any]], prices: Mapping[str, Price | None]) -> list[Mispriced]:
    """Return the models whose logged costs are not those of the given prices, in the order of the log.

    Args:
        rows: a log's rows, as `episodes.schema` says; those without tokens or costs are passed over.
        prices: of the models by name; one without a price is passed over.
    """
    found: dict[str, Mispriced] = {}
    for row in rows:
        price, logged = prices.get(row["model"] or ""), row["cost_nano_usd"]
        if price is None or logged is None:
            continue
        usage = Usage(*(row[name] for name in _TOKENS))
        priced = price.cost_nano_usd(usage)
        if priced is None or abs(priced - logged) <= max(1, logged // _ROUNDING):
            continue
        first = found.setdefault(row["model"], Mispriced(row["model"], 0, logged, priced))
        found[row["model"]] = first._replace(calls=first.calls + 1)
    return list(found.values())


_TOKENS = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_tokens")
