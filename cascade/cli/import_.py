"""`cascade import`: turns the log of another program into a log of episodes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn
from rich.table import Table

from cascade.api.output import plain
from cascade.cli.main import console, notes, print_json
from cascade.episodes.opening import stored
from cascade.errors import UsageError
from cascade.logs.files import OWN, Dropped, is_there, write_rows
from cascade.logs.importers import IMPORTERS, import_rows, known
from cascade.logs.importers.values import nano_usd
from cascade.records.address import is_url
from cascade.text import counted

_TOLD_EVERY = 1_000
_DATASETS_SHOWN = 20


def import_log(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="The log: JSON, lines of JSON, CSV or Parquet, compressed with gzip or not. For a batch: the file "
            "of requests and the files of results. Of lm-eval: the samples of each model, the cheapest first.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .jsonl, .jsonl.gz or .parquet.")],
    kind: Annotated[
        str | None, typer.Option("--from", help=f"{', '.join(IMPORTERS)}; by default, the file's columns decide.")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="COLUMN=FIELD: our column (question, answer, model, gold, cost_usd, …) and the log's field for it.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option("--models", help="CHEAP,DEAR: the models of the cascade, where the log has more models."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option("--role", help="MODEL=base, guide or judge. Without it, each call is a step of a ladder."),
    ] = None,
    cost: Annotated[
        list[str] | None,
        typer.Option("--cost", help="MODEL=USD: what a call of this model costs where the log does not say."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", help="MODEL=NAME: the name that cascade.yaml gives to a model of the log."),
    ] = None,
    dataset: Annotated[str | None, typer.Option("--dataset", help="The name of the questions in the log.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn another tool's log into a log of episodes, and list what was left out and why.

    Example: cascade import spend.csv -o episodes.parquet --role gpt-4o-mini=base --role gpt-4o=guide
    Example: cascade import requests.jsonl results-mini.jsonl results-4o.jsonl -o episodes.parquet
    Example: cascade import small/samples_arc.jsonl large/samples_arc.jsonl -o episodes.jsonl --cost small=0.0001
    """
    source, *also = sources
    if output.resolve() in {Path(one).resolve() for one in sources}:
        raise UsageError("--output is the file that is read; choose another one.")
    if is_there(output) and not force:
        raise UsageError(f"{output} exists already. Choose another name, or --force to overwrite it.")
    roles, columns = (
        parse_pairs("--role", "MODEL=base", role),
        parse_pairs("--map", "COLUMN=FIELD, as answer=reply", mapped),
    )
    costs = _costs(parse_pairs("--cost", "MODEL=USD, as small=0.0001", cost))
    names = parse_pairs("--rename", "MODEL=NAME, as small=openai/gpt-4o-mini", rename)
    name = OWN if is_url(source) else kind or known(source) or "table"
    tally = Tally()
    chosen = [one.strip() for one in (models or "").split(",") if one.strip()]
    rows = (
        stored(source)
        if is_url(source)
        else import_rows(
            source,
            tally.dropped,
            kind=kind,
            models=chosen,
            also=also,
            roles=roles,
            columns=columns,
            dataset=dataset,
            told=lambda lines: notes().print(plain("\n".join(lines)), soft_wrap=True),
        )
    )
    first = next(rows, None)
    if first is None:
        raise UsageError(f"Nothing in {source} can be imported. {tally.dropped.describe()}".strip())
    whole = _renamed(_priced(itertools.chain([first], rows), costs, tally.dropped), names, tally.dropped)
    write_rows(output, _shown(tally.counted(whole)))
    if as_json:
        print_json({"source": source, "from": name, "output": str(output), **tally.document()})
        return
    _print(tally, source, name, output)


def _costs(given: Mapping[str, str]) -> dict[str, int]:
    """Return the cost of a call by its model, in nano-USD.

    >>> _costs({"small": "0.0001"})
    {'small': 100000}
    """
    found = {model: nano_usd(amount) for model, amount in given.items()}
    bad = [f"{model}={given[model]}" for model, amount in found.items() if amount is None]
    if bad:
        raise UsageError(f"--cost takes MODEL=USD, an amount of 0 or more; not {', '.join(bad)}.")
    return {model: amount for model, amount in found.items() if amount is not None}


def _priced(rows: Iterable[dict[str, Any]], costs: Mapping[str, int], dropped: Dropped) -> Iterator[dict[str, Any]]:
    """Yield the rows with the costs that were given for calls whose cost is not known."""
    unused = dict.fromkeys(costs)
    for row in rows:
        if row["cost_nano_usd"] is None and row["model"] in costs:
            unused.pop(row["model"], None)
            yield {**row, "cost_nano_usd": costs[row["model"]], "cost_source": "given by hand"}
        else:
            yield row
    for model in unused:
        dropped.note("an unused --cost: the log has no such model, or gives the cost of its calls", model)


def _renamed(rows: Iterable[dict[str, Any]], names: Mapping[str, str], dropped: Dropped) -> Iterator[dict[str, Any]]:
    """Yield the rows with the given names of their models."""
    unused = dict.fromkeys(names)
    for row in rows:
        changed = {name: names[row[name]] for name in ("model", "source") if row[name] in names}
        unused.pop(row["model"], None)
        yield {**row, **changed} if changed else row
    for model in unused:
        dropped.note("an unused --rename: the log has no such model", model)


def parse_pairs(option: str, example: str, given: Iterable[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping.

    >>> parse_pairs("--role", "MODEL=base", ["gpt-4o=guide"])
    {'gpt-4o': 'guide'}
    """
    pairs = [one.partition("=") for one in given or ()]
    bad = [f"{name}{equals}{value}" for name, equals, value in pairs if not name or not value]
    if bad:
        raise UsageError(f"{option} takes {example}; not {', '.join(bad)}.")
    return {name: value for name, _, value in pairs}


@dataclass(slots=True)
class Tally:
    """What was imported: rows by data set, episodes by data set, and what was left out."""

    rows: Counter[str] = field(default_factory=Counter)
    episodes: Counter[str] = field(default_factory=Counter)
    unjudged: int = 0
    unpriced: int = 0
    dropped: Dropped = field(default_factory=Dropped)

    def counted(self, rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
        """Count the rows, and yield them."""
        seen: set[int] = set()  # hashes, not ids: a few dozen bytes an episode
        for row in rows:
            name = row["dataset"] or "log"
            self.rows[name] += 1
            key = hash((name, row["episode_id"]))
            if key not in seen:
                seen.add(key)
                self.episodes[name] += 1
            self.unjudged += row["candidate"] is not None and row["correct"] is None
            self.unpriced += row["cost_nano_usd"] is None
            yield row

    def document(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return {
            "episodes": self.episodes.total(),
            "rows": self.rows.total(),
            "datasets": {name: {"episodes": self.episodes[name], "rows": count} for name, count in self.rows.items()},
            "unjudged_answers": self.unjudged,
            "rows_without_cost": self.unpriced,
            "dropped": {
                "rows": dict(self.dropped.rows),
                "notes": dict(self.dropped.notes),
                "first": [*self.dropped.first, *self.dropped.noted],
            },
        }


def _shown(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows; on a terminal their number is shown as it grows."""
    out = notes()
    shape = SpinnerColumn(), TextColumn("{task.completed:,.0f} rows")
    with Progress(*shape, console=out, transient=True, disable=not out.is_terminal) as bar:
        task = bar.add_task("importing", total=None)
        for number, row in enumerate(rows, 1):
            if number % _TOLD_EVERY == 0:
                bar.update(task, completed=number)
            yield row


def _print(tally: Tally, source: str, name: str, output: Path) -> None:
    out = console()
    episodes, rows = tally.episodes.total(), tally.rows.total()
    out.print(
        f"{episodes:,} episodes, {rows:,} rows from {plain(source)} ({name}) in {plain(str(output))}", soft_wrap=True
    )
    if len(tally.rows) > 1:
        table = Table("data set", "episodes", "rows")
        for dataset, count in tally.rows.most_common(_DATASETS_SHOWN):
            table.add_row(plain(dataset), f"{tally.episodes[dataset]:,}", f"{count:,}")
        out.print(table)
        if len(tally.rows) > _DATASETS_SHOWN:
            out.print(f"and {len(tally.rows) - _DATASETS_SHOWN} more data sets")
    if tally.unjudged:
        out.print(f"{counted(tally.unjudged, 'answer')} of which it is not known whether they are right")
    if tally.unpriced:
        out.print(f"{counted(tally.unpriced, 'row')} whose cost is not known")
    out.print(plain(tally.dropped.describe()) or "nothing was left out", soft_wrap=True)
