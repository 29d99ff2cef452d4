"""Reads any log for the commands: cascade's own rows, or what `cascade import` reads without a mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.logs.files import first_record, has_own_names, read_rows
from cascade.logs.rowcheck import checked_where, matches
from cascade.logs.schema import Dropped


def read_log(
    path: Path | str,
    dropped: Dropped | None = None,
    where: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
) -> Iterator[dict[str, Any]]:
    """Yield the rows of any log that `cascade import` reads without a mapping, for the commands.

    `where` has the values that rows must have, compared as text; `models` is the order of a ladder's steps.

    Raises:
        UsageError: nothing in it can be read.
        MissingExtraError: it does not have cascade's rows in lines of JSON, and duckdb is not installed.
    """
    names = first_record(Path(path))
    if names is None or has_own_names(names):
        yield from read_rows(path, dropped, where)
        return
    from cascade.logs.importing import import_rows  # of another tool's log alone

    wanted = checked_where(where)
    yield from (row for row in import_rows(path, dropped, models=models) if matches(row, wanted))
