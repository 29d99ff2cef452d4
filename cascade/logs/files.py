"""Logs in files: rows as lines of JSON, compressed or not, or as Parquet; written atomically, read in pieces.

`logs.schema` defines a row. Rows of another schema are refused. A row that cannot be read is dropped and counted, with
its location, and reading goes on (F54 to F57). It is an error only if no row at all can be read.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.files import is_there
from cascade.logs.importing import Imported, imported
from cascade.logs.lines import writing
from cascade.logs.presets import ImportOptions
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped
from cascade.logs.sql import write_lines, write_parquet
from cascade.logs.values import checked_where

__all__ = ["Dropped", "is_there", "opened_log", "read_rows", "replaced", "write_rows"]

WRITTEN_AS = (".jsonl", ".jsonl.gz", ".parquet")


def write_rows(path: Path | str, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a new file or replace one, atomically, and return how many rows it has.

    The name decides the format: .jsonl, .jsonl.gz or .parquet. Columns that a row lacks are null. Only the owner can
    read the file. Numbers that are not finite become null, and `signals["replay"]["not_finite"]` names their columns.

    Raises:
        UsageError: the name has another ending, a row does not fit the schema, or the file cannot be written.
        MissingExtraError: Parquet needs duckdb, which is not installed.
    """
    path = Path(path)
    if not path.name.endswith(WRITTEN_AS):
        raise UsageError(f"{path} must end in one of {', '.join(WRITTEN_AS)}.")
    with replaced(path) as new:
        if path.suffix == ".parquet":
            return write_parquet(new, _whole_rows(rows))
        # No name and no time in the gzip header, so that the same rows give the same bytes.
        with (
            new.open("wb") as plain,
            gzip.GzipFile("", "wb", fileobj=plain, mtime=0) if path.suffix == ".gz" else plain as file,
        ):
            return write_lines(file, _whole_rows(rows))


@contextlib.contextmanager
def opened_log(
    path: Path | str,
    dropped: Dropped | None = None,
    where: Mapping[str, str] | None = None,
    models: Sequence[str] = (),
) -> Iterator[Imported]:
    """Open a log for reading: cascade's own, or one that `cascade import` reads without a mapping.

    Args:
        path: the file, recognised by its content.
        dropped: counts what is left out, and why.
        where: only rows with these values, compared as text: `{"dataset": "mmlu", "step": "1"}`.
        models: the order of a foreign log's models, the cheapest first.

    Raises:
        UsageError: nothing in it can be read, it has another schema, or `where` names no column.
        MissingExtraError: duckdb is not installed.
    """
    filters = checked_where(where)
    with imported([path], ImportOptions(models=models), dropped, where=filters) as log:
        yield log


def read_rows(
    path: Path | str, dropped: Dropped | None = None, where: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log, each with every column (`opened_log`); only a piece of it is in memory at a time."""
    with opened_log(path, dropped, where) as log:
        yield from log.rows()


def _whole_rows(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield rows with every column, in order; raise UsageError for columns that would be lost."""
    blank = dict.fromkeys(COLUMNS)
    for number, row in enumerate(rows, 1):
        if unknown := row.keys() - blank.keys():
            raise UsageError(f"Row {number} has columns that no log has: {', '.join(sorted(map(str, unknown)))}.")
        yield {**blank, **row, "schema_version": SCHEMA_VERSION}


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """Yield a new file beside `path` that replaces it on success and is deleted on an error."""
    with writing(path):
        if path.is_dir():
            raise IsADirectoryError(0, "it is a folder")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.", suffix=".part")  # mode 0600
        os.close(handle)
        new = Path(name)
        try:
            yield new
            _to_disk(new)
            new.replace(path)
            _to_disk(path.parent)
        finally:
            new.unlink(missing_ok=True)


def _to_disk(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
