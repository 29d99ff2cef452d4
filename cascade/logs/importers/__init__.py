"""Import logs of other tools as episodes, and detect which tool wrote a file.

An importer is a function of a file that yields rows in the form of `logs.schema`, a few at a time, and counts what
it leaves out. It is chosen by the columns of the file's first records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.logs.files import OWN, looks_parquet, read_rows
from cascade.logs.rowcheck import checked_where, matches
from cascade.logs.schema import Dropped


class _Importer(NamedTuple):
    """The module with an importer's function `rows_from_NAME`, its options, and why it refuses others."""

    module: str
    takes: frozenset[str] = frozenset()
    refusal: str = "has the roles of its models itself: it takes no roles, mapping or name."


_CALLS = frozenset({"roles", "columns", "dataset"})
_REQUESTS = frozenset({"models", "columns", "dataset"})
_OF_REQUESTS = "is a log of chat requests: choose its models with --models, not with roles."
_IMPORTERS = {
    "pairs": _Importer("pairs"),
    "requests": _Importer("requests", _REQUESTS, _OF_REQUESTS),
    "batch": _Importer("batch", _REQUESTS | {"also"}, _OF_REQUESTS),
    "harness": _Importer("harness", _CALLS | {"also"}),
    "litellm": _Importer("litellm_spend", _CALLS),
    "otel": _Importer("otel", _CALLS),
    "langfuse": _Importer("langfuse", _CALLS),
    "table": _Importer("table", _CALLS | {"told"}),
}
IMPORTERS = tuple(_IMPORTERS)
"""The importers. A table of calls needs a mapping, or cascade's column names; a wide table is read by its names."""
_LOOKED_AT = 20


def known(path: Path | str) -> str | None:
    """Return the kind of a log: `OWN` for cascade's own, else an importer's name; None if it is unknown."""
    from cascade.logs.importers.sources import has_lines, kind_of, records, table_suffix

    path = Path(path)
    found = itertools.islice(records(path, Dropped()), _LOOKED_AT)
    kind = next((name for record in found if (name := kind_of(record)) is not None), None)
    if kind == OWN and not looks_parquet(path) and (table_suffix(path) or not has_lines(path)):
        return "table"  # cascade's own rows in CSV or in a JSON list are a table that needs no mapping
    return kind


def import_rows(
    path: Path | str,
    dropped: Dropped | None = None,
    *,
    kind: str | None = None,
    models: Sequence[str] = (),
    also: Sequence[Path | str] = (),
    roles: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
    told: Callable[[Sequence[str]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log; `kind` is one of `IMPORTERS`, by default recognised from the file.

    cascade's own logs are read unchanged, so this converts any format to any other. `told` is called, before the first
    row, with lines that say how the columns of a wide table are read. `models` selects the steps of a ladder, the
    cheapest first, from a log of chat requests with many models. `also` are the other files of a batch, or of an
    evaluation.

    Raises:
        UsageError: the kind of the file is unknown, or an option does not fit its kind.
    """
    chosen = kind or known(path) or ("table" if columns or _is_table(path) else None)
    if chosen is None:
        raise UsageError(
            f"The columns of {path} are not those of a known log. Name its kind with --from ({', '.join(IMPORTERS)}), "
            f"or map its fields to columns: --map question=FIELD --map answer=FIELD --map model=FIELD."
        )
    if chosen not in {*IMPORTERS, OWN}:
        raise UsageError(f"There is no importer {chosen}{did_you_mean(chosen, IMPORTERS)}")
    importer = _IMPORTERS.get(chosen, _Importer("files"))
    if also and "also" not in importer.takes:
        raise UsageError(
            f"Only a batch and samples of the evaluation harness are read from several files, and {path} is neither. "
            "Import the files one by one."
        )
    if models and "models" not in importer.takes:
        raise UsageError(f"--models picks models of a log of chat requests; {path} is not one. See --role and --map.")
    options: dict[str, Any] = {"roles": roles, "columns": columns, "dataset": dataset}
    if any(value for name, value in options.items() if name not in importer.takes):
        raise UsageError(f"{path} {importer.refusal}")
    if chosen == OWN:
        return read_rows(path, dropped)
    options |= {"models": models, "told": told}
    taken = {name: value for name, value in options.items() if name in importer.takes}
    read = getattr(import_module(f"{__name__}.{importer.module}"), f"rows_from_{chosen}")  # few logs need it
    found: Iterator[dict[str, Any]] = read([path, *also] if "also" in importer.takes else path, dropped, **taken)
    return found


def _is_table(path: Path | str) -> bool:
    from cascade.logs.importers.table import is_table

    return is_table(path)


def read_log(
    path: Path | str,
    dropped: Dropped | None = None,
    where: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a cascade log, or of a foreign log that is recognised by its columns, for the commands.

    Takes and raises the same as `files.read_rows`. A foreign log of chat requests is read as a ladder of `models`;
    other logs are read whole. A wide table is refused: the user should first see how its columns are read, and the
    order of its models (`cascade import`).
    """
    kind = known(path)
    if kind is None and _is_table(path):
        raise UsageError(
            f"{path} is a table with a row for each question or call. Import it first, and use the result: "
            f"cascade import {path} -o episodes.jsonl"
        )
    if kind in {None, OWN}:
        yield from read_rows(path, dropped, where)
        return
    wanted = checked_where(where)
    chosen = models if "models" in _IMPORTERS[kind].takes else ()
    yield from (row for row in import_rows(path, dropped, kind=kind, models=chosen) if matches(row, wanted))
