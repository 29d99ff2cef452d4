"""Rows with cascade's columns in SQL: convert texts and stored columns to values, read rows from files, write them.

A value that does not fit its column becomes null and is counted, never 0; a row without a place is left out and counted
(F54 to F57). Columns that already have their type are not converted, so a Parquet file's texts are not copied.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from cascade.checks import hint_at
from cascade.errors import UsageError
from cascade.logs.duck import Duck, as_text, name_literal, opened, text_literal
from cascade.logs.schema import COLUMNS, PLACES, SCHEMA_VERSION, Dropped
from cascade.logs.source import Source, note_rejects, sources
from cascade.logs.values import (
    AT_LEAST,
    AT_MOST,
    KINDS,
    MAX_WHOLE,
    NUMBER,
    TEXT,
    TEXTS,
    TRUTH,
    WHOLE,
    finite_row,
    fitting_signals,
)

_SQL_TYPES = {WHOLE: "BIGINT", NUMBER: "DOUBLE", TRUTH: "BOOLEAN"}
_INTEGERS = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_NUMBERS = ("DOUBLE", "FLOAT", *_INTEGERS)
_MACROS = {WHOLE: ("whole", _INTEGERS), NUMBER: ("number", _NUMBERS), TRUTH: ("truth", ("BOOLEAN",))}
"""By the kind of a column: the macro that converts its texts, and the stored types that need no conversion."""
ROWS_A_GROUP = 16_384
"""Rows per row group of a Parquet file."""
_UNKNOWN_AT_MOST = 50
NO_QUESTION = "question is null, as in rows below a merged cell"


@dataclass(slots=True)
class Tables:
    """The tables of one log: connection, sources, what was left out, and the values of a foreign record (`targets`)."""

    duck: Duck
    sources: Sequence[Source]
    dropped: Dropped
    targets: list[str] = field(default_factory=list)

    def count(self, reason: str, table: str, condition: str = "true", *, note: bool = False) -> None:
        """Count the rows that meet a condition, with the first locations; `reason` is SQL for what to count them as."""
        query = (
            f"SELECT {reason} AS reason, count(*), min([file, row], {PLACES}) FROM {table} WHERE {condition} "
            "GROUP BY ALL HAVING count(*) > 0 ORDER BY min(n)"
        )
        report = self.dropped.note if note else self.dropped.drop
        for text, total, first in self.duck.rows(query):
            for at, (file, row) in enumerate(first):
                report(text, self.sources[file].location(row), 1 if at + 1 < len(first) else total - at)

    def note_faults(self, reasons: Sequence[str], table: str, bits: int) -> None:
        """Note the values that became null. `faults` has a bit for each reason; `bits` is its OR over all rows."""
        for at, reason in enumerate(reasons):
            if bits >> at & 1:
                self.count(text_literal(reason), table, f"faults & (1::BIGINT << {at}) > 0", note=True)

    def note_rejects(self) -> None:
        """Count the lines of tables that duckdb rejected."""
        for source in self.sources:
            if source.rejects:
                note_rejects(self.duck, source, self.dropped)


# --- values ---


def sql_type(name: str) -> str:
    """Return the SQL type of a column; any other name has that of a text."""
    return _SQL_TYPES.get(KINDS.get(name, TEXT), "VARCHAR")


def macro_of(name: str, kind: str = "VARCHAR") -> str | None:
    """Return the macro that converts a column of an SQL type; None if the column needs no such macro."""
    macro, typed = _MACROS.get(KINDS.get(name, TEXT), (None, ()))
    return None if kind in typed else macro


def converted(query: str, texts: Mapping[str, tuple[str | None, str]]) -> str:
    """Return a query with a column `value_name` for each text, given by name as its macro, if it has one, and its SQL.

    A macro converts its texts in one list, so that duckdb plans it once: planning takes longer than a small log.
    """
    columns: dict[str, list[str]] = {}
    for name, (macro, _) in texts.items():
        if macro is not None:
            columns.setdefault(macro, []).append(name)
    lists, values = "", ""
    for macro, names in columns.items():
        if len(names) > 1:
            listed = ", ".join(texts[name][1] for name in names)
            lists += f", list_transform([{listed}], lambda t: {macro}(t)) AS {macro}_values"
        for at, name in enumerate(names, 1):
            value = f"{macro}_values[{at}]" if len(names) > 1 else f"{macro}({texts[name][1]})"
            values += f", {value} AS {value_name(name)}"
    return f"SELECT *{values} FROM (SELECT *{lists} FROM ({query}))"


def value_name(name: str) -> str:
    """Return the quoted name of the column with a converted text's value."""
    return name_literal(f"value of {name}")


def value_of(name: str, kind: str = "VARCHAR") -> str:
    """Return SQL for a stored column's value in cascade's type, null if it does not fit; in a `converted` query."""
    own_type, column = KINDS.get(name, TEXT), name_literal(name)
    text = column if kind == "VARCHAR" else as_text(name, kind)
    if own_type in _MACROS:
        value = column if macro_of(name, kind) is None else value_name(name)
        if own_type == WHOLE:
            return f"within({value}, {AT_LEAST.get(name, 0)}, {AT_MOST.get(name, MAX_WHOLE)})"
        return f"finite({value}::DOUBLE)" if own_type == NUMBER and value == column else value
    if own_type == TEXTS:
        return f"accepted({column})" if kind == "JSON" else f"CASE WHEN {column} IS NOT NULL THEN texts({text}) END"
    return text if own_type == TEXT else f"as_object({text})" if name == "signals" else f"step_list({text})"


def bits(tests: Iterable[str]) -> str:
    """Return SQL for an integer with one bit for each test that a row meets."""
    return " + ".join(f"(coalesce({test}, false)::BIGINT << {at})" for at, test in enumerate(tests)) or "0"


# --- reading ---


def native_rows(tables: Tables, where: Mapping[str, str] | None = None) -> str:
    """Return a query of the rows in the files, with every column and `n`, `file` and `row`; count rows left out.

    Raises:
        UsageError: a row has another schema, or there are records and none is a row.
    """
    before, dropped = tables.dropped.count, tables.dropped
    union = " UNION ALL ".join(f"({_rows_in(tables, source)})" for source in tables.sources)
    tables.note_rejects()
    if dropped.count > before and not tables.duck.value(f"SELECT count(*) FROM ({union})"):
        raise UsageError(
            f"{tables.sources[0].path} has no row of an episode log: {dropped.describe()}. Logs of other kinds are "
            "read with: cascade import"
        )
    listed = ", ".join(map(name_literal, COLUMNS))
    return f"SELECT n, file, row, {listed} FROM ({union}) WHERE {matching(where or {})}"


def matching(where: Mapping[str, str]) -> str:
    """Return an SQL test for the rows with these values."""
    return " AND ".join(_matches(name, text) for name, text in where.items()) or "true"


def _matches(name: str, text: str) -> str:
    """Return an SQL test for a column's value, given as text: null is "null", and truth is "true" or "false"."""
    column = name_literal(name)
    if KINDS[name] == NUMBER:
        return f"({column} = TRY_CAST({text_literal(text)} AS DOUBLE) OR ({text == 'null'} AND {column} IS NULL))"
    return f"coalesce({column}::VARCHAR, 'null') = {text_literal(text)}"


def _note_unknown(source: Source, dropped: Dropped) -> None:
    """Note each unknown column once per file; after 50, only their number, so that random keys cannot fill memory."""
    unknown = [name for name in source.names if name not in KINDS]
    for name in unknown[:_UNKNOWN_AT_MOST]:
        dropped.note(f"an unknown column {name[:80]!r}, left out{hint_at(name[:80], COLUMNS)}", source.path.name)
    if unknown[_UNKNOWN_AT_MOST:]:
        dropped.note("more unknown columns, left out", source.path.name, len(unknown) - _UNKNOWN_AT_MOST)


_FILE = 1 << 40
"""More than the rows of any file: a row's number in the log is its file's number times this, plus its row number."""


def _rows_in(tables: Tables, source: Source) -> str:
    """Return a query of one file's rows that have a place; count the others, and the values that became null."""
    _note_unknown(source, tables.dropped)
    raw, kinds = source.typed()
    new = {name: name_literal(f"new {name}") for name in COLUMNS}
    values = {name: value_of(name, kinds[name]) if name in kinds else "NULL" for name in COLUMNS}
    faults = {
        f"{name} is no {KINDS[name]}, read as null": f"{name_literal(name)} IS NOT NULL AND {new[name]} IS NULL"
        for name, kind in kinds.items()
        if name in new and name != "schema_version" and not (kind == sql_type(name) and KINDS[name] in {TEXT, TRUTH})
    }
    faults[NO_QUESTION] = f"{new['question']} IS NULL"
    version = "schema_version" if "schema_version" in kinds else "NULL"
    status = (
        f"CASE WHEN bad IS NOT NULL THEN bad WHEN {version} IS NOT NULL AND {new['schema_version']} IS NULL THEN "
        f"'schema_version is no whole number' WHEN {new['step']} IS NULL THEN 'no step' WHEN "
        f"coalesce({new['question']}, {new['episode_id']}) IS NULL THEN 'neither question nor episode_id' END"
    )
    texts = {name: (macro_of(name, kind), as_text(name, kind)) for name, kind in kinds.items() if name in new}
    typed = ", ".join(f"({sql})::{sql_type(name)} AS {new[name]}" for name, sql in values.items())
    listed = ", ".join(f"{sql} AS {name_literal(name)}" for name, sql in new.items())
    rows = (
        f"SELECT {source.number * _FILE}::BIGINT + row AS n, {source.number} AS file, row, {status} AS status, "
        f"{bits(faults.values())} AS faults, {listed} FROM (SELECT *, {typed} FROM ({converted(raw, texts)}))"
    )
    if source.is_json:  # each line is parsed once
        tables.duck.run(f"CREATE TEMP TABLE own{source.number} AS {rows}")
        rows = f"SELECT * FROM own{source.number}"
    # The hash reads every byte, so that damage shows here and not in the middle of a fit.
    odd = f"schema_version <> {SCHEMA_VERSION} AND status IS NULL"  # its columns mean something unknown (F56)
    damaged, kinds_of_faults, foreign = tables.duck.rows(
        "SELECT count(status), bit_or(faults) FILTER (status IS NULL), arg_min([row, schema_version], row) FILTER "
        f"({odd}), bit_xor(hash({', '.join(map(name_literal, COLUMNS))})) FROM ({rows})"
    )[0][:3]
    if damaged:
        tables.count("status", f"({rows})", "status IS NOT NULL")
    tables.note_faults([*faults], f"({rows} WHERE status IS NULL)", kinds_of_faults or 0)
    if foreign is not None:
        raise UsageError(
            f"{source.location(foreign[0])} has the schema {foreign[1]}, but this version of cascade reads only "
            f"{SCHEMA_VERSION}."
        )
    filled = f"coalesce(episode_id, digest(question, context)) AS episode_id, {SCHEMA_VERSION} AS schema_version"
    return f"SELECT * REPLACE ({filled}) FROM ({rows}) WHERE status IS NULL"


def dicts(duck: Duck, query: str, dropped: Dropped | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a query with every column as Python values; signals that are not numbers become null."""
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
    dropped = Dropped()
    with opened([path.absolute()]) as duck:
        query = native_rows(spooled(duck, rows, dropped))
        if dropped.count or dropped.notes.keys() - {NO_QUESTION}:
            raise UsageError(f"The rows cannot be written: {dropped.describe()}.")
        return copy_rows(duck, f"SELECT {', '.join(map(name_literal, COLUMNS))} FROM ({query}) ORDER BY n", path)


def spooled(duck: Duck, rows: Iterable[Mapping[str, Any]], dropped: Dropped) -> Tables:
    """Write Python rows to a file in duckdb's folder, and return tables with this file as their source."""
    spool = duck.folder / "rows.jsonl"
    with spool.open("wb") as file:
        write_lines(file, rows)
    return Tables(duck, sources(duck, [spool], dropped), dropped)


def write_lines(file: IO[bytes] | gzip.GzipFile, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows as lines of JSON, and return how many."""
    count = 0
    for count, row in enumerate(rows, 1):
        try:
            text = _encoded(row)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(f"Row {count} has no JSON form: {error}.") from None
        try:
            file.write(f"{text}\n".encode())
        except UnicodeEncodeError:  # an unpaired surrogate has no UTF-8 form, but JSON can escape it
            file.write(f"{json.dumps(finite_row(row))}\n".encode())
    return count


def _encoded(row: Mapping[str, Any]) -> str:
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False)
    except ValueError:  # a NaN or an infinity: `finite_row` walks through everything, so only now
        return json.dumps(finite_row(row), ensure_ascii=False, allow_nan=False)


def copy_rows(duck: Duck, query: str, path: Path) -> int:
    """Write the rows of a query with cascade's columns into a Parquet file, and return their number."""
    options = f"FORMAT parquet, COMPRESSION zstd, USE_TMP_FILE false, ROW_GROUP_SIZE {ROWS_A_GROUP}"
    return int(duck.value(f"COPY ({query}) TO {text_literal(path.absolute())} ({options})"))
