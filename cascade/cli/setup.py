"""`cascade init`, `models` and `prices`: a configuration, the weights of the local models, what models cost."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from cascade.checks import did_you_mean
from cascade.cli import options as opt
from cascade.cli.main import Meter, console, notes, print_report, say
from cascade.config import environment
from cascade.errors import UsageError
from cascade.money import STALE_AFTER_DAYS, PriceTable
from cascade.providers import weights
from cascade.reports.report import Report, Table

_PROMISE = "--promise regret --risk 0.15 --confidence 0.9"
_LOCAL = "qwen2.5-coder-0.5b qwen2.5-coder-1.5b"
"""The models that the local configuration names."""
_BASE, _GUIDE, _KEY = "openai/gpt-6-luna", "openai/gpt-6.1-sol", "OPENAI_API_KEY"
"""The pair of the configuration that ships, with a judge, and the variable of their key."""
_UNJUDGED = {
    "ANTHROPIC_API_KEY": ("anthropic/claude-haiku-5-5", "anthropic/claude-opus-5-5"),
    "GEMINI_API_KEY": ("gemini/gemini-3.5-flash-lite", "gemini/gemini-4-argon"),
}
"""The pairs of vendors that sell no decisions, by the variable of their key."""
_NEXT = """wrote {path}
next:{fetch}
  cascade doctor --config {path}
  cascade ask "What is the capital of Spain?" --config {path}
then estimate what it saves, from {log}"""


def init(
    path: Annotated[Path, typer.Argument(help="The file to write.")] = opt.CONFIG,
    local: Annotated[bool, typer.Option("--local", help="Use the local models: no key, no network.")] = False,
    force: opt.Force = False,
) -> None:
    """Write a commented configuration for a ladder of two models, and print the next steps.

    Which models depends on which of OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY is set.

    Example: cascade init --local
    """
    if path.exists() and not force:
        raise UsageError(f"{path} already exists. Choose another name, or overwrite it with --force.")
    text = resources.files("cascade").joinpath("data", f"cascade{'_local' * local}.yaml").read_text("utf-8")
    key = next((name for name in (_KEY, *_UNJUDGED) if environment(name) is not None), None)
    if key in _UNJUDGED and not local:
        text = _without_judge(text, *_UNJUDGED[key])
    fetch = "" if key else f"\n  export {_KEY}=…   (or the key that your models need)"
    if local:
        fetch = f"\n  cascade models pull {_LOCAL}"
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}.") from None
    log = f"the log that ships with the package:\n  cascade prove demo-ladder {_PROMISE}"
    if not local:
        log = "a log of your own questions (cascade collect):\n  cascade prove episodes.parquet"
    console().print(_NEXT.format(path=path, fetch=fetch, log=log))


def _without_judge(text: str, base: str, guide: str) -> str:
    """Return the shipped configuration with another pair of models, and without its judge."""
    lines = [
        line for line in text.replace(", judge: judge", "").splitlines(keepends=True) if "kind: decision" not in line
    ]
    return "".join(lines).replace(_BASE, base).replace(_GUIDE, guide)


# --- models ---

app = typer.Typer(help="Fetch and list the local models.", no_args_is_help=True, add_completion=False)


@app.command()
def pull(names: Annotated[list[str] | None, typer.Argument(help="The models; by default all.")] = None) -> None:
    """Download weights and check them against pinned hashes. An interrupted download resumes.

    Example: cascade models pull smollm2-135m
    """
    fetch([weights.entry_of(name) for name in dict.fromkeys(names or weights.registry())])


def fetch(wanted: list[weights.Weights]) -> None:
    """Print which models are already here and the size of the download, then fetch the others."""
    missing, here = [entry for entry in wanted if not entry.here], [entry.name for entry in wanted if entry.here]
    if here:
        notes().print(f"already in {weights.models_folder()}: {', '.join(here)}")
    if missing:
        total, names = sum(entry.bytes for entry in missing), ", ".join(entry.name for entry in missing)
        notes().print(f"fetching {shown_size(total)} of model weights ({names}) into {weights.models_folder()}")
    for entry in missing:
        with Meter() as meter:
            weights.pull(entry, partial(_tell, meter, entry.name))
        notes().print(f"{entry.name}: {shown_size(entry.bytes)}, SHA-256 as pinned")


def _tell(meter: Meter, name: str, stage: str, done: int, total: int) -> None:
    meter.tell(f"{name}: {stage}", done, total)


def shown_size(size_bytes: int) -> str:
    """Return a size as people write it.

    >>> shown_size(1_608_720_832), shown_size(98_362_432), shown_size(466_247)
    ('1.6 GB', '98 MB', '0.5 MB')
    """
    if size_bytes >= 1e9:
        return f"{size_bytes / 1e9:.1f} GB"
    return f"{size_bytes / 1e6:.0f} MB" if size_bytes >= 1e7 else f"{size_bytes / 1e6:.1f} MB"


@app.command("list")
def list_models(as_json: opt.AsJson = False) -> None:
    """List the models and whether they are on this machine.

    Example: cascade models list
    """
    entries, names = weights.registry().values(), ("name", "title", "bytes", "licence", "sha256", "here")
    rows = [(model.name, shown_size(model.bytes), "yes" if model.here else "no", model.licence) for model in entries]
    titled = tuple([(*row, model.title) for row, model in zip(rows, entries, strict=True)])
    table = Table("", ("model", "size", "here", "licence", "what it is"), titled)
    document = [{name: getattr(model, name) for name in names} for model in entries]
    print_report(Report((), (table,), document), as_json=as_json)


# --- prices ---

_SHOW_AT_MOST = 40
_RATES = ("input", "cached_input", "cache_write", "cache_write_1h", "output", "reasoning")


def prices(
    pattern: Annotated[str, typer.Argument(help="A model's name, or a part of it.")] = "",
    as_json: opt.AsJson = False,
) -> None:
    """Look up prices, in USD per million tokens.

    Example: cascade prices gpt-4o-mini
    """
    table = PriceTable.bundled()
    names = [pattern] if table.price(pattern) else [name for name in table.prices if pattern.lower() in name.lower()]
    if not names:
        raise UsageError(f"No price is known for {pattern!r}{did_you_mean(pattern, table.prices)}")
    age = table.age_days(datetime.now(UTC).date())
    if age > STALE_AFTER_DAYS:
        say(f"these prices are {age} days old; check those you rely on, or set your own")
    rows = {name: price.usd_per_million() for name in names if (price := table.price(name))}
    for name, rates in [*rows.items()]:
        decisions = table.price(name, decides=True)
        if decisions is not None and decisions.usd_per_million() != rates:
            rows[f"{name}, decisions"] = decisions.usd_per_million()
    document = {"as_of": table.as_of.isoformat(), "source": table.source, "sha256": table.digest}
    cells = [
        (name, *("" if (rate := rates[field]) is None else f"{rate:f}" for field in _RATES))
        for name, rates in list(rows.items())[:_SHOW_AT_MOST]
    ]
    head = f"USD per million tokens, {table.source}, {table.as_of}"
    if len(rows) > _SHOW_AT_MOST:
        head += f"; {len(rows) - _SHOW_AT_MOST} more: give a longer part of the name"
    listed = Table(head, ("model", *(field.replace("_", " ") for field in _RATES)), tuple(cells))
    document |= {"unit": "USD per 10^6 tokens"}
    print_report(Report((), (listed,), {**document, "models": rows}), as_json=as_json)
