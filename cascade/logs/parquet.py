"""cascade's rows as Parquet, by duckdb: written with a type for each column, read a piece at a time.

`gold`, `signals` and `parents` are JSON texts in the file; rows have their values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.logs.duck import Duck, as_text, name_literal, opened, text_literal
from cascade.logs.lines import opened as opened_file
from cascade.logs.rowcheck import (
    AS_JSON,
    AT_LEAST,
    CHECKS,
    KINDS,
    NUMBER,
    TEXT,
    TRUTH,
    WHOLE,
    OddValueError,
    fitting,
    fitting_signals,
    matches,
    no_log,
    note_unknown_column,
    storable,
    texts_in,
)
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped

ROWS_A_GROUP = 16_384
"""Rows of a row group: what is lost at most where a byte of a file is damaged."""
_TYPES = {WHOLE: "BIGINT", NUMBER: "DOUBLE", TRUTH: "BOOLEAN"}


def sql_type(name: str) -> str:
    """Return the SQL type of a column; of any other name, that of a text."""
    return _TYPES.get(KINDS.get(name, TEXT), "VARCHAR")


# --- writing ---


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows that have every column, and return how many.

    Raises:
        UsageError: a value does not fit its column.
        MissingExtraError: duckdb is not installed.
    """
    with opened([path.absolute()]) as duck:
        load_rows(duck, rows)
        listed = ", ".join(map(name_literal, COLUMNS))
        duck.run(f"CREATE VIEW rows AS SELECT {listed} FROM calls ORDER BY n")
        return copy_rows(duck, path)


def load_rows(duck: Duck, rows: Iterable[Mapping[str, Any]]) -> None:
    """Make the table `calls` of rows, with their numbers as `n` and `row`."""
    spool, longest = duck.folder / "rows.jsonl", 0
    with spool.open("wb") as file:
        for number, row in enumerate(rows, 1):
            line = _line(row, number)
            longest = max(longest, len(line))
            file.write(line)
    columns = ", ".join(f"{text_literal(name)}: '{sql_type(name)}'" for name in COLUMNS)
    duck.run(
        f"CREATE TABLE calls AS SELECT row_number() OVER () AS n, 0 AS file, row_number() OVER () AS row, * FROM "
        f"read_json({text_literal(spool)}, format = 'newline_delimited', columns = {{{columns}}}, "
        f"maximum_object_size = {max(longest, 1 << 24)})"
    )


def _line(row: Mapping[str, Any], number: int) -> bytes:
    try:
        text = json.dumps(_packed(row, number), ensure_ascii=False, allow_nan=False)
    except ValueError:  # looked for only where there is one: this walks through everything
        text = json.dumps(_packed(storable(row), number), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace") + b"\n"


def _packed(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    packed = {}
    for name, value in row.items():
        if value is None:
            continue
        try:
            packed[name] = CHECKS[name](name, value)
            if KINDS[name] in AS_JSON:
                packed[name] = json.dumps(packed[name], ensure_ascii=False, allow_nan=False)
        except (OddValueError, TypeError, RecursionError):
            if isinstance(value, float) and not math.isfinite(value):
                raise ValueError from None  # a caller writes null instead
            raise UsageError(f"Row {number} cannot be written: its {name} is no {KINDS[name]}.") from None
    return packed


def copy_rows(duck: Duck, path: Path) -> int:
    """Write what is in `rows` into a Parquet file, and return the number of rows."""
    written = duck.rows(
        f"COPY (SELECT * FROM rows) TO {text_literal(path.absolute())} "
        f"(FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, ROW_GROUP_SIZE {ROWS_A_GROUP})"
    )
    return int(written[0][0])


# --- reading ---


def names_in(path: Path) -> set[str]:
    """Return the names of a file's columns."""
    with opened([path.absolute()]) as duck:
        return set(_kinds(duck, path))


def _kinds(duck: Duck, path: Path) -> dict[str, str]:
    with opened_file(path):
        pass  # a regular file that can be read, or an error in cascade's words
    try:
        described = duck.rows(f"DESCRIBE SELECT * FROM read_parquet({text_literal(path.absolute())})")
    except UsageError as error:
        raise UsageError(f"{path} is not a Parquet file: {error}") from None
    return {row[0]: row[1] for row in described}


def read_parquet(path: Path, dropped: Dropped, where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a file's rows, like `files.read_rows`.

    Raises:
        UsageError: it is not a Parquet file, not a log, or it has another schema.
        MissingExtraError: duckdb is not installed.
    """
    before, good = dropped.count, 0
    with opened([path.absolute()]) as duck:
        for row in _rows(duck, path, dropped, where):
            good += 1
            if matches(row, where):
                yield row
    if not good and dropped.count > before:
        raise no_log(path, dropped)


def _rows(duck: Duck, path: Path, dropped: Dropped, where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    read = f"read_parquet({text_literal(path.absolute())}, file_row_number = true)"
    kinds = _kinds(duck, path)
    for name in kinds:
        if name not in KINDS:
            note_unknown_column(name, path.name, dropped)
    missing = [name for name in where if name not in kinds]
    if missing:
        raise UsageError(f"{path} has no column {', '.join(missing)}.")
    if _is_clean(duck, read, kinds):
        yield from _typed_rows(duck, read, path, dropped)
        return
    plain = {name: name_literal(name) if _is_plain(kind) else as_text(name, kind) for name, kind in kinds.items()}
    listed = ", ".join(f"{sql} AS {name_literal(name)}" for name, sql in plain.items())
    for number, values in _fetched(duck, f"SELECT file_row_number + 1, {listed} FROM {read}", path, dropped):
        raw = {name: _decoded(name, value) for name, value in zip(plain, values, strict=True)}
        if where and not matches({**dict.fromkeys(COLUMNS), **raw}, where):
            continue
        row = fitting(
            {name: value for name, value in raw.items() if name in KINDS}, f"{path.name}: row {number}", dropped
        )
        if row is not None:
            yield row


def _is_plain(kind: str) -> bool:
    return (
        kind in {"VARCHAR", "BOOLEAN", "DOUBLE", "FLOAT"} or kind.endswith(("INT", "INTEGER")) or kind[:7] == "DECIMAL"
    )


def _decoded(name: str, value: Any) -> Any:
    """Return the value of a JSON text in a column that holds such; an invalid one is not read as another value."""
    if not isinstance(value, str) or KINDS.get(name) not in AS_JSON:
        return value
    if name == "gold":
        return texts_in(value)
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def _is_clean(duck: Duck, read: str, kinds: Mapping[str, str]) -> bool:
    """Whether every value fits its column, so that none needs a check by itself."""
    if any(kinds.get(name, sql_type(name)) != sql_type(name) for name in COLUMNS) or not {*COLUMNS} <= kinds.keys():
        return False
    tests = ["step IS NULL OR question IS NULL OR episode_id IS NULL", f"schema_version <> {SCHEMA_VERSION}"]
    tests += [f"{name} < {AT_LEAST.get(name, 0)}" for name in COLUMNS if KINDS[name] == WHOLE]
    tests += [f"NOT isfinite({name})" for name in COLUMNS if KINDS[name] == NUMBER]
    try:
        return not duck.value(f"SELECT count(*) FROM {read} WHERE {' OR '.join(f'({test})' for test in tests)}")
    except UsageError:
        return False


def _typed_rows(duck: Duck, read: str, path: Path, dropped: Dropped) -> Iterator[dict[str, Any]]:
    listed = ", ".join(map(name_literal, COLUMNS))
    for number, values in _fetched(duck, f"SELECT file_row_number + 1, {listed} FROM {read}", path, dropped):
        row = _unpacked(values)
        if row["signals"]:
            row["signals"] = fitting_signals(row["signals"], f"{path.name}: row {number}", dropped)
        yield row


def _fetched(duck: Duck, query: str, path: Path, dropped: Dropped) -> Iterator[tuple[int, tuple[Any, ...]]]:
    """Yield the numbers and values of rows, by row group; the rest of a damaged group is counted as dropped."""
    first = 0
    for (size,) in duck.rows(
        "SELECT any_value(row_group_num_rows) FROM parquet_metadata("
        f"{text_literal(path.absolute())}) GROUP BY row_group_id ORDER BY row_group_id"
    ):
        done = first
        try:
            for rows in duck.pieces(f"{query} WHERE file_row_number >= {first} AND file_row_number < {first + size}"):
                for number, *values in rows:
                    yield number, tuple(values)
                done += len(rows)
        except UsageError:
            dropped.drop("a damaged part of the file", f"{path.name}: row {done + 1}", first + size - done)
        first += size


def rows_in(duck: Duck, query: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query that selects every column in its place."""
    for rows in duck.pieces(query):
        yield from map(_unpacked, rows)


def _unpacked(values: tuple[Any, ...]) -> dict[str, Any]:
    row = dict(zip(COLUMNS, values, strict=True))
    for name in ("gold", "signals", "parents"):
        if row[name] is not None:
            row[name] = _decoded(name, row[name])
    return row
