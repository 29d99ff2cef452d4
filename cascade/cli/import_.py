"""`cascade import`: turns the log of another program into a log of episodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from cascade.api.output import plain
from cascade.cli.main import console, notes, print_json
from cascade.episodes.opening import stored
from cascade.errors import UsageError
from cascade.logs.duck import MEMORY, opened
from cascade.logs.files import Dropped, is_there, replaced, write_rows
from cascade.logs.importing import Asked, Imported, imported
from cascade.logs.presets import presets
from cascade.records.address import is_url
from cascade.text import counted

_DATASETS_SHOWN = 20


def import_log(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE...",
            help="The log: files or folders of JSON, lines of JSON, CSV, Parquet or .eval, packed with gzip or not. "
            "Several files are one log: each a model's, the cheapest first, or the parts of a batch.",
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write: .jsonl, .jsonl.gz or .parquet.")],
    kind: Annotated[
        str | None, typer.Option("--from", help=f"{', '.join(presets())}; by default, the log's fields decide.")
    ] = None,
    mapped: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            help="COLUMN=FIELD or MODEL.COLUMN=FIELD: our column (question, answer, model, gold, cost_usd, …) and the "
            "log's field for it, or a path to it: usage.total.",
        ),
    ] = None,
    models: Annotated[
        str | None,
        typer.Option("--models", help="CHEAP,DEAR: the models of the cascade, where the log has more models."),
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(
            "--role", help="MODEL=base, guide or judge. Without it, each model or call is a step of a ladder."
        ),
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
    memory: Annotated[
        str, typer.Option("--memory", help="The most memory for tables; the rest goes to disk.")
    ] = MEMORY,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Turn another tool's log into a log of episodes, and list what was left out and why.

    Example: cascade import answers.csv -o episodes.parquet
    Example: cascade import spend.csv -o episodes.parquet --role gpt-4o-mini=base --role gpt-4o=guide
    Example: cascade import small/samples_arc.jsonl large/samples_arc.jsonl -o episodes.jsonl --cost small=0.0001
    """
    if output.resolve() in {Path(source).resolve() for source in sources}:
        raise UsageError("--output is the file that is read; choose another one.")
    if is_there(output) and not force:
        raise UsageError(f"{output} exists already. Choose another name, or --force to overwrite it.")
    asked = Asked(
        kind=kind,
        columns=parse_pairs("--map", "COLUMN=FIELD, as answer=reply", mapped),
        models=[name.strip() for name in (models or "").split(",") if name.strip()],
        roles=parse_pairs("--role", "MODEL=base", role),
        dataset=dataset,
        costs=_costs(parse_pairs("--cost", "MODEL=USD, as small=0.0001", cost)),
        rename=parse_pairs("--rename", "MODEL=NAME, as small=openai/gpt-4o-mini", rename),
        memory=memory,
    )
    dropped = Dropped()
    with _log(sources, asked, dropped, output) as log:
        counts = log.counts()
        document = {
            "source": sources[0],
            "from": log.kind,
            "output": str(output),
            **counts,
            "dropped": {
                "rows": dict(dropped.rows),
                "notes": dict(dropped.notes),
                "first": [*dropped.first, *dropped.noted],
            },
        }
    if as_json:
        print_json(document)
    else:
        _print(document, dropped)


@contextmanager
def _log(sources: Sequence[str], asked: Asked, dropped: Dropped, output: Path) -> Iterator[Imported]:
    """Read the sources, write the output, and yield the log for its counts."""

    def tell(lines: Sequence[str]) -> None:
        notes().print(plain("\n".join(lines)), soft_wrap=True)

    rows = stored(sources[0]) if is_url(sources[0]) else None
    if output.suffix != ".parquet":
        with imported(sources, asked, dropped, tell=tell, rows=rows) as log:
            write_rows(output, log.rows())
            yield log
        return
    with replaced(output) as new, imported(sources, asked, dropped, tell=tell, output=new, rows=rows) as log:
        log.write_parquet(new)
        yield log


def _costs(given: Mapping[str, str]) -> dict[str, int]:
    """Return the cost of a call by its model, in nano-USD.

    >>> _costs({"small": "0.0001"})
    {'small': 100000}
    """
    if not given:
        return {}
    with opened() as duck:
        values = {model: duck.nano_usd(amount) for model, amount in given.items()}
    bad = [f"{model}={given[model]}" for model, amount in values.items() if amount is None]
    if bad:
        raise UsageError(f"--cost takes MODEL=USD, an amount of 0 or more; not {', '.join(bad)}.")
    return {model: amount for model, amount in values.items() if amount is not None}


def parse_pairs(option: str, example: str, given: Iterable[str] | None) -> dict[str, str]:
    """Return NAME=VALUE pairs as a mapping.

    >>> parse_pairs("--role", "MODEL=base", ["gpt-4o=guide"])
    {'gpt-4o': 'guide'}
    """
    pairs = [pair.partition("=") for pair in given or ()]
    bad = [f"{name}{equals}{value}" for name, equals, value in pairs if not name or not value]
    if bad:
        raise UsageError(f"{option} takes {example}; not {', '.join(bad)}.")
    return {name: value for name, _, value in pairs}


def _print(document: Mapping[str, Any], dropped: Dropped) -> None:
    out, datasets = console(), document["datasets"]
    out.print(
        f"{document['episodes']:,} episodes, {document['rows']:,} rows from {plain(document['source'])} "
        f"({document['from']}) in {plain(document['output'])}",
        soft_wrap=True,
    )
    if len(datasets) > 1:
        table = Table("data set", "episodes", "rows")
        for name, counts in list(datasets.items())[:_DATASETS_SHOWN]:
            table.add_row(plain(name), f"{counts['episodes']:,}", f"{counts['rows']:,}")
        out.print(table)
        if len(datasets) > _DATASETS_SHOWN:
            out.print(f"and {len(datasets) - _DATASETS_SHOWN} more data sets")
    if document["unjudged_answers"]:
        out.print(f"{counted(document['unjudged_answers'], 'answer')} that nothing says is right or wrong")
    if document["rows_without_cost"]:
        out.print(f"{counted(document['rows_without_cost'], 'row')} whose cost is not known")
    out.print(plain(dropped.describe()) or "nothing was left out", soft_wrap=True)
