"""`cascade traces`: show, export and remove the traces of earlier requests."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cascade.api.logs import parse_where
from cascade.api.output import dollars, plain
from cascade.cli.main import console, notes, print_json
from cascade.config import default_traces_url, load, traces_url
from cascade.errors import StoreError, UsageError
from cascade.logs.files import is_there, write_rows
from cascade.money import usd_or_none
from cascade.records.traces import Store

app = typer.Typer(
    help="Show, export or remove the traces of earlier requests.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_AGE = re.compile(r"(\d{1,5})\s*([hdw])")
_UNITS = {"h": "hours", "d": "days", "w": "weeks"}

StoreOption = Annotated[str | None, typer.Option("--store", help="sqlite:///FILE or postgresql://…")]
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", help="The configuration that names the store, if --store is not given.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
WhereOption = Annotated[
    list[str] | None, typer.Option("--where", help="COLUMN=VALUE: only these rows. May be given several times.")
]
_CONFIG = Path("cascade.yaml")


@app.command("export")
def export(
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="A .jsonl, .jsonl.gz or .parquet file. By default standard output."),
    ] = None,
    where: WhereOption = None,
    store: StoreOption = None,
    config: ConfigOption = _CONFIG,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write rows to a file that evaluate and compare can read, or as JSON lines to standard output.

    Example: cascade traces export -o log.parquet --where model=openai/gpt-4o
    """
    chosen = parse_where(where or ())
    if output is None and as_json:
        raise UsageError("--json prints a document about the file that is written: name a file with -o.")
    if output is not None and is_there(output) and not force:
        raise UsageError(f"{output} exists already. Choose another name, or --force to overwrite it.")
    with _reading(store, config) as opened:
        rows = opened.read(chosen)
        count = _print_lines(rows) if output is None else write_rows(output, rows)
    if as_json:
        print_json({"rows": count, "path": str(output)})
    elif output is not None:
        notes().print(f"{count} rows in {plain(str(output))}", soft_wrap=True)


def _print_lines(rows: Iterator[Mapping[str, Any]]) -> int:
    count = 0
    try:
        for row in rows:
            sys.stdout.write(json.dumps(row, ensure_ascii=True, allow_nan=False) + "\n")
            count += 1
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe; Python's last flush must not fail on it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return count


@app.command("purge")
def purge(
    older_than: Annotated[
        str | None,
        typer.Option("--older-than", help="Remove rows at least this old: 12h, 30d, 8w; 0d is everything."),
    ] = None,
    user: Annotated[
        str | None,
        typer.Option("--user", help="Remove only this user's rows: the request's user, or else the server key's name."),
    ] = None,
    content_only: Annotated[
        bool, typer.Option("--content-only", help="Keep the numbers; remove questions, contexts and answers.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    store: StoreOption = None,
    config: ConfigOption = _CONFIG,
    as_json: JsonOption = False,
) -> None:
    """Remove rows that are old or of one user, or only their texts. SQLite overwrites removed rows with zeros.

    Example: cascade traces purge --older-than 30d --content-only
    """
    if older_than is None and user is None:
        raise UsageError(
            "Choose what to remove: --older-than AGE, --user NAME, or both. --older-than 0d is everything."
        )
    age = None if older_than is None else _age(older_than)
    before = datetime.now(UTC) - age if age else None  # everything, also rows without a time
    url = _url(store, config)
    with Store.open(url, read_only=True) as opened:
        count, shown = opened.count(before=before, user=user), plain(opened.address.shown)
    what = "the texts of" if content_only else "all of"
    if count and not yes:
        since = "" if before is None else f" from before {before:%Y-%m-%d %H:%M} UTC"
        of_user = "" if user is None else f" of {plain(user)}"
        _confirm(f"Remove {what} {count} rows{of_user}{since} in {shown}?")
    removed = 0
    if count:
        with Store.open(url) as opened:
            removed = opened.purge(before, user=user, content_only=content_only)
    if as_json:
        until = None if before is None else before.isoformat(timespec="seconds")
        print_json({"removed": removed, "content_only": content_only, "before": until, "user": user})
    else:
        console().print(f"{removed} rows {'emptied' if content_only else 'removed'}")


def _age(text: str) -> timedelta:
    found = _AGE.fullmatch(text.strip().lower())
    if found is None:
        raise UsageError(f"--older-than {text!r} is not an age. Write a number with h, d or w: 12h, 30d, 8w.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError(f"{question} There is no terminal to ask at; give --yes.")
    if not typer.confirm(question, err=True):
        raise typer.Exit(1)


@app.command("stats")
def stats(
    store: StoreOption = None,
    config: ConfigOption = _CONFIG,
    check: Annotated[
        bool, typer.Option("--check", help="Let SQLite check the whole file. This takes a while.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show how many traces there are, since when, and the cost of each model.

    Example: cascade traces stats --check
    """
    with _reading(store, config) as opened:
        found = opened.summary()
        problems = opened.integrity() if check else None
    if check:
        found["integrity"] = problems or ["ok"]
    print_json(_in_usd(found)) if as_json else _show(found)
    if problems:
        raise StoreError(
            f"The trace store {found['store']} is damaged: {'; '.join(problems)[:200]}. Move it away; sqlite3 FILE "
            ".recover saves as much as possible."
        )


def _in_usd(found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures with costs in USD, as every other command prints them."""
    models = [{**one, "cost_usd": usd_or_none(one["cost_nano_usd"])} for one in found["models"]]
    names = ("model", "rows", "cost_usd", "cost_unknown")
    return found | {"models": [{name: one[name] for name in names} for one in models]}


def _show(found: dict[str, Any]) -> None:
    out = console()
    size = "" if found["bytes"] is None else f", {found['bytes'] / 1e6:.1f} MB, journal {found['journal_mode']}"
    out.print(f"{plain(found['store'])}{size}", soft_wrap=True)
    if not found["rows"]:
        out.print("no traces yet")
        return
    out.print(f"{found['rows']} rows of {found['episodes']} episodes, {found['first']} to {found['last']}")
    if found["not_finite"]:
        out.print(f"{found['not_finite']} rows had numbers that were not finite; they are null there")
    table = Table("model", "calls", "cost")
    for one in found["models"]:
        cost, unknown = dollars(usd_or_none(one["cost_nano_usd"])), one["cost_unknown"]
        calls = f" ({unknown} calls)" if unknown else ""
        table.add_row(plain(one["model"] or "unknown"), str(one["rows"]), f"{cost}{calls}")
    out.print(table)
    if "integrity" in found:
        out.print(f"integrity: {plain('; '.join(found['integrity']))}", soft_wrap=True)


@contextlib.contextmanager
def _reading(store: str | None, config: Path) -> Iterator[Store]:
    with Store.open(_url(store, config), read_only=True) as opened:
        yield opened


def _url(store: str | None, config: Path) -> str:
    """Return the store to use: the one given, the configuration's, or the project's own file."""
    if store is not None:
        return store
    url = traces_url(load(config).traces) if config != _CONFIG or config.exists() else default_traces_url()
    if url is None:
        raise UsageError("The configuration has traces: off, so it names no store. Name one: --store sqlite:///FILE")
    return url
