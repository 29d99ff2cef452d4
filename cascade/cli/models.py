"""`cascade models`: the weights of the local models. `cascade prices`: what models cost, by which source."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer
from rich.table import Table

from cascade.api.output import plain
from cascade.checks import did_you_mean
from cascade.cli import options as opt
from cascade.cli.main import Shown, console, notes, print_json
from cascade.errors import ModelFileError, UsageError
from cascade.money import STALE_AFTER_DAYS, PriceTable
from cascade.providers import weights

app = typer.Typer(help="Fetch, list and serve the local models.", no_args_is_help=True, add_completion=False)

NameOption = Annotated[list[str] | None, typer.Argument(help="The models; by default all.")]


@app.command()
def pull(names: NameOption = None) -> None:
    """Download weights and check them against pinned hashes. An interrupted download resumes.

    Example: cascade models pull smollm2-135m
    """
    fetch([weights.known(name) for name in dict.fromkeys(names or weights.registry())])


def fetch(wanted: list[weights.Weights]) -> None:
    """Print the size of the download, then pull the models that are not here."""
    missing = [entry for entry in wanted if not entry.here]
    out = notes()
    if missing:
        total = sum(entry.bytes for entry in missing)
        names = ", ".join(entry.name for entry in missing)
        out.print(f"fetching {shown_size(total)} of model weights ({names}) into {plain(str(weights.models_folder()))}")
    for entry in missing:
        with Shown() as bar:
            weights.pull(entry, partial(_tell, bar, entry.name))
        out.print(f"{entry.name}: {shown_size(entry.bytes)}, SHA-256 as pinned")


def _tell(bar: Shown, name: str, stage: str, done: int, total: int) -> None:
    bar.tell(f"{name}: {stage}", done, total)


def shown_size(size_bytes: int) -> str:
    """Return a size in words.

    >>> shown_size(1_608_720_832), shown_size(98_362_432), shown_size(466_247)
    ('1.6 GB', '98 MB', '0.5 MB')
    """
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


@app.command("list")
def list_models(
    as_json: opt.AsJson = False,
) -> None:
    """List the models and whether they are on this machine.

    Example: cascade models list
    """
    entries = weights.registry().values()
    if as_json:
        names = ("name", "title", "bytes", "licence", "sha256", "here")
        print_json([{name: getattr(entry, name) for name in names} for entry in entries])
        return
    table = Table("name", "what it is", "MB", "licence", "here")
    for one in entries:
        table.add_row(one.name, one.title, f"{one.bytes / 1e6:.0f}", one.licence, "yes" if one.here else "no")
    console().print(table)


@app.command()
def path(
    name: Annotated[str, typer.Argument(help="A model's name.")],
    check: Annotated[bool, typer.Option("--check", help="Read the file and compare its SHA-256.")] = False,
) -> None:
    """Print the path of a model's file.

    Example: cascade models path qwen2.5-coder-0.5b
    """
    found = weights.find(name)
    if check and not name.endswith(".gguf") and not weights.verified(weights.known(name)):
        raise ModelFileError(f"{found} is not the pinned file. Remove it and pull again.")
    console().print(str(found), soft_wrap=True)


@app.command()
def serve(
    name: Annotated[str, typer.Argument(help="A model's name or the path of a GGUF file.")],
    port: Annotated[int, typer.Option("--port", help="The loopback port; 0 takes a free one.")] = 8080,
) -> None:
    """Serve one model, OpenAI-compatible, on loopback until interrupted.

    Example: cascade models serve qwen2.5-coder-1.5b --port 8081
    """
    from cascade.providers.local import start_server

    server = start_server(name, port=port)
    console().print(f"{plain(name)} at {server.listening_address}/v1 (Ctrl-C ends it)")
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        del server


# --- prices ---

_SHOW_AT_MOST = 40
_RATES = ("input", "cached_input", "cache_write", "output", "reasoning")


def prices(
    pattern: Annotated[str, typer.Argument(help="A model's name, or a part of it.")] = "",
    litellm: Annotated[
        bool, typer.Option("--litellm", help="Read the price map of the installed litellm instead.")
    ] = False,
    as_json: opt.AsJson = False,
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
