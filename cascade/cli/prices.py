"""`cascade prices`: what models cost, with the source of each price."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.table import Table

from cascade.api.output import plain
from cascade.checks import did_you_mean
from cascade.cli.main import console, notes, print_json
from cascade.errors import UsageError
from cascade.money import STALE_AFTER_DAYS, PriceTable

_SHOW_AT_MOST = 40
_RATES = ("input", "cached_input", "cache_write", "output", "reasoning")


def prices(
    pattern: Annotated[str, typer.Argument(help="A model's name, or a part of it.")] = "",
    litellm: Annotated[
        bool, typer.Option("--litellm", help="Read the price map of the installed litellm instead.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Look up prices, in USD per million tokens.

    Example: cascade prices gpt-4o-mini
    """
    table = PriceTable.from_litellm() if litellm else PriceTable.bundled()
    if table is None:
        raise UsageError("litellm is not installed, so its price map cannot be read. Leave --litellm out.")
    exact = table.price(pattern)
    names = [pattern] if exact else [name for name in table.prices if pattern.lower() in name.lower()]
    if not names:
        raise UsageError(f"No price is known for {pattern!r}{did_you_mean(pattern, table.prices)}")
    age = table.age_days(datetime.now(UTC).date())
    if age > STALE_AFTER_DAYS:
        notes().print(f"[yellow]these prices are {age} days old[/]; check those you rely on, or set your own")
    rows = {name: price.usd_per_million() for name in names if (price := table.price(name))}
    if as_json:
        head = {"as_of": table.as_of.isoformat(), "source": table.source, "sha256": table.digest}
        print_json({**head, "unit": "USD per 10^6 tokens", "models": rows})
        return
    shown = Table("model", *(field.replace("_", " ") for field in _RATES))
    for name, rates in list(rows.items())[:_SHOW_AT_MOST]:
        cells = (rates[field] for field in _RATES)
        shown.add_row(plain(name), *("" if rate is None else f"{rate:f}" for rate in cells))
    out = console()
    out.print(shown)
    if len(rows) > _SHOW_AT_MOST:
        out.print(f"… and {len(rows) - _SHOW_AT_MOST} more; give a longer part of the name")
    out.print(f"[dim]USD per million tokens, {plain(table.source)}, {table.as_of}[/]")
