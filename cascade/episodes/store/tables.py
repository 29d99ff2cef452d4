"""The tables and what is said to them, in SQLAlchemy Core. Imported when a store is opened: SQLAlchemy takes 0.25 s."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite
from sqlalchemy.schema import CreateColumn

from cascade.episodes.rowcheck import KINDS, NUMBER, NUMBERS, TEXT, TEXTS, TRUTH, WHOLE, checked_where
from cascade.episodes.schema import COLUMNS, SCHEMA_VERSION
from cascade.errors import UsageError, upgrade_advice

_TYPES: Mapping[str, type[sa.types.TypeEngine[Any]]] = {
    TEXT: sa.Text,
    WHOLE: sa.BigInteger,
    NUMBER: sa.Double,
    TRUTH: sa.Boolean,
    TEXTS: sa.Text,  # JSON as text: PostgreSQL's own types refuse what a model may write, such as \u0000
    NUMBERS: sa.Text,
}
_ADDED: Mapping[int, tuple[str, ...]] = {2: ("walk", "confidence"), 3: ("segment",)}
"""The columns that came with each version of the schema."""
_CREATION_LOCK = 0x63617363
"""PostgreSQL's advisory lock for making and changing the tables: "casc" in ASCII, which nobody else should take."""
_INCOMING = f"cascade_incoming_{SCHEMA_VERSION}"

metadata = sa.MetaData()
episodes = sa.Table(
    "episodes",
    metadata,
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("row_id", sa.Text, nullable=False, unique=True),
    *(sa.Column(name, _TYPES[KINDS[name]]) for name in COLUMNS),
)
meta = sa.Table(
    "meta",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)


def insert_new(connection: sa.Connection, batch: Sequence[Mapping[str, Any]]) -> int:
    """Write records and leave those alone that are there; return how many are new."""
    if connection.dialect.name == "postgresql":
        return _copy_new(connection, batch)
    statement = sqlite.insert(episodes).on_conflict_do_nothing(index_elements=["row_id"])
    return connection.execute(statement, batch).rowcount


def _copy_new(connection: sa.Connection, batch: Sequence[Mapping[str, Any]]) -> int:
    """Do the same by COPY and a table of the session's own: twice as many rows a second as INSERT (design/store.md)."""
    names = tuple(batch[0])
    columns = ", ".join(f'"{name}"' for name in names)  # of COLUMNS, so nothing foreign is in the statements
    driver: Any = connection.connection.driver_connection
    with driver.cursor() as cursor:
        made = f"SELECT {columns} FROM episodes LIMIT 0"  # noqa: S608
        cursor.execute(f"CREATE TEMP TABLE IF NOT EXISTS {_INCOMING} ON COMMIT DELETE ROWS AS {made}")
        with cursor.copy(f"COPY {_INCOMING} ({columns}) FROM STDIN") as copy:
            for record in batch:
                copy.write_row([record[name] for name in names])
        moved = f"SELECT {columns} FROM {_INCOMING}"  # noqa: S608
        cursor.execute(f"INSERT INTO episodes ({columns}) {moved} ON CONFLICT (row_id) DO NOTHING")
        new: int = cursor.rowcount
        cursor.execute(f"DELETE FROM {_INCOMING}")  # noqa: S608 - for the next batch of this transaction
    return new


def found_version(connection: sa.Connection, shown: str) -> int | None:
    """Return the version of the tables that are there, None if there are none.

    Raises:
        UsageError: they are not ours, or a newer version of cascade made them.
    """
    inspector = sa.inspect(connection)
    there = {name for name in ("episodes", "meta") if inspector.has_table(name)}
    if not there:
        return None
    stored = None
    if there == {"episodes", "meta"} and {"key", "value"} <= _names(inspector, "meta"):
        stored = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    if stored is None or not str(stored).isdecimal():
        raise UsageError(
            f"The trace store {shown} has tables of the names episodes and meta that cascade did not make. "
            "Use another database, or a schema of its own: postgresql://…?options=-csearch_path%3DSCHEMA"
        )
    version = int(stored)
    if version > SCHEMA_VERSION:
        raise UsageError(
            f"The trace store {shown} was written by a newer version of cascade (schema {version}; this one knows "
            f"{SCHEMA_VERSION}). {upgrade_advice()}"
        )
    missing = columns_of(version) - _names(inspector, "episodes")
    if missing:
        raise UsageError(f"The trace store {shown} lacks the columns {', '.join(sorted(missing))}. Use another one.")
    return version


def _names(inspector: sa.Inspector, table: str) -> set[str]:
    return {str(column["name"]) for column in inspector.get_columns(table)}


def columns_of(version: int) -> set[str]:
    """Return the columns that a version's table of episodes has, besides its key."""
    later = {name for number, names in _ADDED.items() if number > version for name in names}
    return {"row_id", *COLUMNS} - later


def made_current(connection: sa.Connection, shown: str) -> None:
    """Make the tables, or bring those of an older version up to date, within the transaction of the connection.

    Raises:
        UsageError: as `found_version`.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    version = found_version(connection, shown)
    if version == SCHEMA_VERSION:
        return
    if version is None:
        metadata.create_all(connection, checkfirst=False)
        values = {"schema_version": str(SCHEMA_VERSION), "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
        connection.execute(sa.insert(meta), [{"key": key, "value": value} for key, value in values.items()])
        return
    for number in range(version + 1, SCHEMA_VERSION + 1):
        for name in _ADDED.get(number, ()):
            column = CreateColumn(episodes.c[name]).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE episodes ADD COLUMN {column}")
    connection.execute(sa.update(meta).where(meta.c.key == "schema_version").values(value=str(SCHEMA_VERSION)))


def conditions(where: Mapping[str, str] | None, columns: Iterable[str]) -> list[sa.ColumnElement[bool]]:
    """Return a filter as SQL. It means what `rowcheck.matches` means: "null" is null, "true" and "false" are truth.

    Raises:
        UsageError: a column is not known or cannot be compared, or a value is not of its column's kind.
    """
    wanted = checked_where(where)
    problems: list[str] = []
    made = [_condition(name, value, set(columns), problems) for name, value in wanted.items()]
    if problems:
        raise UsageError(f"That filter cannot be used: {'; '.join(problems)}.")
    return made


def _condition(name: str, value: str, columns: set[str], problems: list[str]) -> sa.ColumnElement[bool]:
    column, kind = episodes.c[name], KINDS[name]
    if name not in columns:  # read from an older version, where it is null
        return sa.true() if value == "null" else sa.false()
    if value == "null":
        return column.is_(None) | (column == value) if kind == TEXT else column.is_(None)
    try:
        wanted: sa.ColumnElement[bool] = column == _PARSED[kind](value)
    except (ValueError, KeyError):
        problems.append(f"{name} is a {kind} or null, not {value!r}")
        return sa.false()
    return wanted


_PARSED: Mapping[str, Callable[[str], Any]] = {
    TEXT: str,
    WHOLE: int,
    NUMBER: float,
    TRUTH: {"true": True, "false": False}.__getitem__,
}
