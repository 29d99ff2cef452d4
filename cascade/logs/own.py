"""cascade's own rows in files, as a relation in which each column has its type. SQL checks every value.

A value that does not fit its column is null and counted, never 0; a row without a place is left out and counted
(F54 to F57). Columns that have their type already are not converted, so texts stay in a Parquet file unread.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.checks import hint_at
from cascade.errors import UsageError
from cascade.logs.duck import Duck, as_text, name_literal, opened, text_literal
from cascade.logs.rowcheck import (
    AS_JSON,
    AT_LEAST,
    AT_MOST,
    CHECKS,
    KINDS,
    MAX_WHOLE,
    NUMBER,
    TEXT,
    TEXTS,
    TRUTH,
    WHOLE,
    OddValueError,
    fitting_signals,
    storable,
)
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped
from cascade.logs.source import Source

_SQL_TYPES = {WHOLE: "BIGINT", NUMBER: "DOUBLE", TRUTH: "BOOLEAN"}
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_NUMBERS = ("DOUBLE", "FLOAT", *_INTEGERS)
ROWS_A_GROUP = 16_384
"""Rows of a row group of a Parquet file."""
_UNKNOWN_AT_MOST = 50
_PLACES = 3


def sql_type(name: str) -> str:
    """Return the SQL type of a column; of any other name, that of a text."""
    return _SQL_TYPES.get(KINDS.get(name, TEXT), "VARCHAR")


def own_rows(duck: Duck, sources: Sequence[Source], dropped: Dropped, where: Mapping[str, str] | None = None) -> str:
    """Return a query of the rows of files, with every column and `n`, `file` and `row`; count what is left out.

    Raises:
        UsageError: a row has another schema, or there are records and none is a row.
    """
    before, queries = dropped.count, []
    for source in sources:
        _note_unknown(source, dropped)
        queries.append(_checked(duck, source, dropped))
    union, names = " UNION ALL ".join(f"({query})" for query in queries), ", ".join(map(name_literal, COLUMNS))
    if dropped.count > before and not duck.value(f"SELECT count(*) FROM ({union})"):
        raise UsageError(
            f"{sources[0].path} has no row of an episode log: {dropped.describe()}. Logs of other kinds are read with: "
            "cascade import"
        )
    return f"SELECT n, file, row, {names} FROM ({union}) WHERE {matching(where or {})}"


def matching(where: Mapping[str, str]) -> str:
    """Return a test whether a row has the wanted values."""
    return " AND ".join(_matches(name, text) for name, text in where.items()) or "true"


def _matches(name: str, text: str) -> str:
    """Return a test whether a column has a value, written as a text: null is "null", truth "true" and "false"."""
    column = name_literal(name)
    if KINDS[name] == NUMBER:
        return f"({column} = TRY_CAST({text_literal(text)} AS DOUBLE) OR ({text == 'null'} AND {column} IS NULL))"
    return f"coalesce({column}::VARCHAR, 'null') = {text_literal(text)}"


def _note_unknown(source: Source, dropped: Dropped) -> None:
    """Count each unknown column once: it belongs to the file, not to each row. Random keys do not fill the memory."""
    unknown = [name for name in source.names if name not in KINDS]
    for name in unknown[:_UNKNOWN_AT_MOST]:
        reason = f"an unknown column {name[:80]!r}, left out{hint_at(name[:80], COLUMNS)}"
        dropped.note(reason, source.path.name)
    if unknown[_UNKNOWN_AT_MOST:]:
        dropped.note("more unknown columns, left out", source.path.name, len(unknown) - _UNKNOWN_AT_MOST)


def _checked(duck: Duck, source: Source, dropped: Dropped) -> str:
    """Return a query of the rows of one file that have a place; count the others, and the values that are null now."""
    raw, kinds = source.typed()
    values = {name: _value(name, kinds[name]) for name in COLUMNS if name in kinds}
    listed = [f"({values.get(name, 'NULL')})::{sql_type(name)} AS {name_literal(name)}" for name in COLUMNS]
    listed += [f"{name_literal(name)} AS {name_literal('raw ' + name)}" for name in values]
    checked = f"SELECT row, bad, {', '.join(listed)} FROM ({raw})"
    listed = ["row", "bad", *map(name_literal, COLUMNS)]
    listed += [f"({_odd(name, kinds[name])}) AS {name_literal('odd ' + name)}" for name in values]
    checked = f"SELECT {', '.join(listed)} FROM ({checked})"
    if source.is_json:  # each line is parsed once
        duck.run(f"CREATE TEMP TABLE own{source.number} AS {checked}")
        checked = f"SELECT * FROM own{source.number}"
    version = """WHEN "odd schema_version" IS NOT NULL THEN 'schema_version is no whole number' """
    status = (
        f"CASE WHEN bad IS NOT NULL THEN bad {version if 'schema_version' in values else ''}WHEN step IS NULL "
        "THEN 'no step' WHEN question IS NULL AND episode_id IS NULL THEN 'neither question nor episode_id' END"
    )
    reasons = {"status": "status"} | {
        f"{name_literal('odd ' + name)}": "odd" for name in values if name != "schema_version"
    }
    reasons["CASE WHEN question IS NULL AND status IS NULL THEN 'question is null' END"] = "odd"
    every = ", ".join(map(name_literal, COLUMNS))
    # The hash reads every byte, so that damage shows here and not in the middle of a fit.
    count = f"SELECT bit_xor(hash({every})), {', '.join(f'count({reason})' for reason in reasons)} FROM "
    rows = f"SELECT *, {status} AS status FROM ({checked})"
    counts = duck.rows(f"{count}({rows})")[0][1:]
    for (reason, kind), times in zip(reasons.items(), counts, strict=True):
        report = dropped.drop if kind == "status" else dropped.note
        for text, total, numbers in (
            duck.rows(
                f"SELECT {reason} AS reason, count(*), min(row, {_PLACES}) FROM ({rows}) WHERE reason IS NOT NULL "
                "GROUP BY reason ORDER BY min(row)"
            )
            if times
            else ()
        ):
            for at, row in enumerate(numbers):
                report(text, source.location(row), 1 if at + 1 < len(numbers) else total - at)
    filled = {
        "episode_id": "coalesce(episode_id, digest(question, context))", "schema_version": str(SCHEMA_VERSION),
    }  # fmt: skip
    columns = ", ".join(f"{filled.get(name, name_literal(name))} AS {name_literal(name)}" for name in COLUMNS)
    foreign = duck.rows(
        f"SELECT row, schema_version FROM ({rows}) WHERE schema_version <> {SCHEMA_VERSION} AND status IS NULL "
        "ORDER BY row LIMIT 1"
    )
    for row, schema in foreign:  # the meaning of its columns is unknown here (F56)
        raise UsageError(
            f"{source.location(row)} has the schema {schema}, and this version of cascade reads {SCHEMA_VERSION} alone."
        )
    return (
        f"SELECT {source.number * _FILE}::BIGINT + row AS n, {source.number} AS file, row, {columns} FROM ({rows}) "
        "WHERE status IS NULL"
    )


_FILE = 1 << 40
"""More than the rows of a file: the number of a row in the log is that in its file after those of the files before."""


def _value(name: str, kind: str) -> str:
    """Return a column of some SQL type as a value of its own type; null where it has none."""
    own_type, column = KINDS[name], name_literal(name)
    text = column if kind == "VARCHAR" else as_text(name, kind)
    if own_type == WHOLE:
        plain = "true" if kind in _INTEGERS else rf"regexp_full_match({text}, '\d{{1,19}}(\.0*)?')"
        number = column if kind in _INTEGERS else f"TRY_CAST({text} AS HUGEINT)"
        low, high = AT_LEAST.get(name, 0), AT_MOST.get(name, MAX_WHOLE)
        return f"CASE WHEN {plain} AND {number} BETWEEN {low} AND {high} THEN {number} END"
    if own_type == NUMBER:
        return f"finite({column}::DOUBLE)" if kind in _NUMBERS else f"finite(TRY_CAST({text} AS DOUBLE))"
    if own_type == TRUTH:
        true, false = (", ".join(map(text_literal, texts)) for texts in (("true", "1", "1.0"), ("false", "0", "0.0")))
        spelled = f"CASE WHEN {text} IN ({true}) THEN true WHEN {text} IN ({false}) THEN false END"
        return column if kind == "BOOLEAN" else spelled
    if own_type == TEXTS:
        return f"accepted({column})" if kind == "JSON" else f"CASE WHEN {column} IS NOT NULL THEN texts({text}) END"
    return text if own_type == TEXT else f"as_object({text})" if name == "signals" else f"step_list({text})"


def _odd(name: str, kind: str) -> str:
    """Return why a value became null, as SQL; null where it did not."""
    if kind == sql_type(name) and KINDS[name] in {TEXT, TRUTH}:
        return "NULL::VARCHAR"
    column, raw = name_literal(name), name_literal(f"raw {name}")
    reason = text_literal(f"{name} is no {KINDS[name]}, read as null")
    if KINDS[name] == WHOLE:
        negative = text_literal(f"{name} is negative, read as null")
        reason = f"CASE WHEN starts_with({raw}::VARCHAR, '-') THEN {negative} ELSE {reason} END"
    return f"CASE WHEN {raw} IS NOT NULL AND {column} IS NULL THEN {reason} END"


def dicts(duck: Duck, query: str, dropped: Dropped | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query that has every column, as values of Python; signals that are no number are null."""
    listed = ", ".join(map(name_literal, COLUMNS))
    for rows in duck.pieces(f"SELECT {listed} FROM ({query})"):
        for values in rows:
            row = dict(zip(COLUMNS, values, strict=True))
            for name in ("gold", "signals", "parents"):
                if row[name] is not None:
                    row[name] = json.loads(row[name])
            if row["signals"]:
                row["signals"] = fitting_signals(row["signals"], str(row["episode_id"]), dropped or Dropped())
            yield row


# --- writing ---


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows that have every column, and return how many.

    Raises:
        UsageError: a value does not fit its column.
        MissingExtraError: duckdb is not installed.
    """
    with opened([path.absolute()]) as duck:
        rows_sql, listed = load_rows(duck, rows), ", ".join(map(name_literal, COLUMNS))
        return copy_rows(duck, f"SELECT {listed} FROM ({rows_sql}) ORDER BY n", path)


def load_rows(duck: Duck, rows: Iterable[Mapping[str, Any]]) -> str:
    """Return a query of rows of Python, with every column and their numbers as `n` and `row`."""
    spool, longest = duck.folder / "rows.jsonl", 0
    with spool.open("wb") as file:
        for number, row in enumerate(rows, 1):
            line = _line(row, number)
            longest = max(longest, len(line))
            file.write(line)
    columns = ", ".join(f"{text_literal(name)}: '{sql_type(name)}'" for name in COLUMNS)
    duck.run(
        f"CREATE TABLE loaded AS SELECT row_number() OVER () AS n, 0 AS file, row_number() OVER () AS row, * FROM "
        f"read_json({text_literal(spool)}, format = 'newline_delimited', columns = {{{columns}}}, "
        f"maximum_object_size = {max(longest, 1 << 24)})"
    )
    return "SELECT * FROM loaded"


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


def copy_rows(duck: Duck, query: str, path: Path) -> int:
    """Write the rows of a query with cascade's columns into a Parquet file, and return their number."""
    written = duck.rows(
        f"COPY ({query}) TO {text_literal(path.absolute())} "
        f"(FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, ROW_GROUP_SIZE {ROWS_A_GROUP})"
    )
    return int(written[0][0])
