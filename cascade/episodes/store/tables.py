"""The database in SQLAlchemy Core: one connection to a file or a server, the tables, and the statements.

Imported when a store is opened: SQLAlchemy takes 0.25 s.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import sqlite

from cascade.episodes.store.address import Address
from cascade.episodes.store.problems import from_database
from cascade.episodes.store.sqlite import Connector
from cascade.errors import CascadeError, MissingExtraError, UsageError
from cascade.logs.rowcheck import AS_JSON, KINDS, NUMBER, TEXT, TRUTH, WHOLE, checked_where
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, hashed

_TYPES: Mapping[str, type[sa.types.TypeEngine[Any]]] = {
    TEXT: sa.Text,
    WHOLE: sa.BigInteger,
    NUMBER: sa.Double,
    TRUTH: sa.Boolean,
    **dict.fromkeys(AS_JSON, sa.Text),  # PostgreSQL's JSON types refuse text that a model may write, such as \u0000
}
_CREATION_LOCK = 0x63617363
"""PostgreSQL's advisory lock for making and changing the tables: "casc" in ASCII, which no other program should use."""
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

feedback = sa.Table(
    "feedback",
    sa.MetaData(),
    sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
    sa.Column("episode_id", sa.Text, nullable=False, index=True),
    sa.Column("right", sa.Boolean),
    sa.Column("score", sa.Double),
    sa.Column("better", sa.Text),
    sa.Column("reviewer", sa.Text),
    sa.Column("created_at", sa.Text, nullable=False),
)


def insert_feedback(connection: sa.Connection, row: Mapping[str, Any]) -> None:
    """Write one row of feedback; make its table if it is the first."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    feedback.create(connection, checkfirst=True)
    connection.execute(sa.insert(feedback), row)


def insert_new(connection: sa.Connection, batch: Sequence[Mapping[str, Any]]) -> int:
    """Write records that do not exist yet; return how many are new."""
    if connection.dialect.name == "postgresql":
        return _copy_new(connection, batch)
    statement = sqlite.insert(episodes).on_conflict_do_nothing(index_elements=["row_id"])
    return connection.execute(statement, batch).rowcount


def _copy_new(connection: sa.Connection, batch: Sequence[Mapping[str, Any]]) -> int:
    """Do the same by COPY and a temporary table: twice as many rows a second as INSERT (design/store.md)."""
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


def there(connection: sa.Connection, shown: str) -> bool:
    """Return whether the tables exist.

    Raises:
        UsageError: they are not cascade's, or they have another schema.
    """
    inspector = sa.inspect(connection)
    names = {name for name in ("episodes", "meta") if inspector.has_table(name)}
    if not names:
        return False
    stored = None
    if names == {"episodes", "meta"} and {"key", "value"} <= _names(inspector, "meta"):
        stored = connection.scalar(sa.select(meta.c.value).where(meta.c.key == "schema_version"))
    if stored is None or not str(stored).isdecimal():
        raise UsageError(
            f"The trace store {shown} has tables named episodes and meta that cascade did not make. "
            "Use another database, or a separate schema: postgresql://…?options=-csearch_path%3DSCHEMA"
        )
    if int(stored) != SCHEMA_VERSION:
        raise UsageError(
            f"The trace store {shown} has the schema {stored}, and this version of cascade reads {SCHEMA_VERSION} "
            "alone. Use another one."
        )
    missing = {"row_id", *COLUMNS} - _names(inspector, "episodes")
    if missing:
        raise UsageError(f"The trace store {shown} lacks the columns {', '.join(sorted(missing))}. Use another one.")
    return True


def _names(inspector: sa.Inspector, table: str) -> set[str]:
    return {str(column["name"]) for column in inspector.get_columns(table)}


def create(connection: sa.Connection, shown: str) -> None:
    """Create the tables, unless they exist, within the transaction of the connection."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
    if there(connection, shown):
        return
    metadata.create_all(connection, checkfirst=False)
    values = {"schema_version": str(SCHEMA_VERSION), "created_at": datetime.now(UTC).isoformat(timespec="seconds")}
    connection.execute(sa.insert(meta), [{"key": key, "value": value} for key, value in values.items()])


def asked_by(user: str) -> sa.ColumnElement[bool]:
    """Return the condition that a user asked, by the name or its hash."""
    return episodes.c.user.in_((user, hashed(user)))


def conditions(where: Mapping[str, str] | None) -> list[sa.ColumnElement[bool]]:
    """Return a filter as SQL, with the meaning of `rowcheck.matches`: "null" is null, "true" and "false" are truth.

    Raises:
        UsageError: a column is unknown or cannot be compared, or a value does not fit its column.
    """
    wanted = checked_where(where)
    problems: list[str] = []
    made = [_condition(name, value, problems) for name, value in wanted.items()]
    if problems:
        raise UsageError(f"That filter cannot be used: {'; '.join(problems)}.")
    return made


def _condition(name: str, value: str, problems: list[str]) -> sa.ColumnElement[bool]:
    column, kind = episodes.c[name], KINDS[name]
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


_CONNECT_S = 10
# Parameters are rows, and rows contain what people asked: no error may show them.
_ONE_CONNECTION: dict[str, Any] = {
    "poolclass": sa.QueuePool,
    "pool_size": 1,
    "max_overflow": 0,
    "hide_parameters": True,
}


def file_engine(connector: Connector) -> sa.Engine:
    """Return an engine with one connection to a file."""
    engine = sa.create_engine("sqlite://", creator=connector, **_ONE_CONNECTION)
    sa.event.listen(engine, "begin", _begin)
    return engine


def _begin(connection: sa.Connection) -> None:
    """Take the write lock at the start, so that no transaction has to wait halfway."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def server_engine(address: Address) -> sa.Engine:
    """Return an engine with one connection to a server."""
    try:
        return sa.create_engine(
            address.url,
            **_ONE_CONNECTION,
            pool_pre_ping=True,  # reconnects after a server restart
            connect_args={"connect_timeout": _CONNECT_S, "application_name": "cascade"},
        )
    except ModuleNotFoundError:
        raise MissingExtraError("psycopg", "A trace store in PostgreSQL") from None
    except sa.exc.ArgumentError:
        raise UsageError(f"The trace store {address.shown} has a URL that cannot be used.") from None


def load(address: Address) -> None:
    """Import the database's driver and dialect. Raises as `server_engine` does."""
    engine = sa.create_engine("sqlite://") if address.path is not None else server_engine(address)
    engine.dispose()


def ours(error: Exception, shown: str) -> CascadeError | None:
    """Return cascade's error for one of SQLAlchemy, of a driver, or of the system; None for any other."""
    if isinstance(error, CascadeError):
        return error
    foreign = type(error).__module__.partition(".")[0] in {"sqlalchemy", "sqlite3", "psycopg"}
    return from_database(error, shown) if foreign or isinstance(error, OSError) else None


def summary(connection: sa.Connection) -> dict[str, Any]:
    """Return counts, the time span, and by model the calls and their costs.

    Rows of all walks count. A cost is None if one call's is unknown; `cost_unknown` counts those.
    """
    column = episodes.c
    marked = sa.case((column.signals.contains('"not_finite":', autoescape=True), 1), else_=0)
    head = sa.select(
        sa.func.count().label("rows"),
        sa.func.count(column.episode_id.distinct()).label("episodes"),
        sa.func.min(column.created_at).label("first"),
        sa.func.max(column.created_at).label("last"),
        sa.func.coalesce(sa.func.sum(marked), 0).label("not_finite"),
    )
    found = dict(connection.execute(head).mappings().one())
    found["not_finite"] = int(found["not_finite"])
    by_model = (
        sa.select(
            column.model,
            sa.func.count().label("rows"),
            sa.func.sum(column.cost_nano_usd).label("cost_nano_usd"),
            (sa.func.count() - sa.func.count(column.cost_nano_usd)).label("cost_unknown"),
        )
        .group_by(column.model)
        .order_by(sa.desc("rows"), column.model)
    )
    found["models"] = [_priced(dict(row)) for row in connection.execute(by_model).mappings()]
    return found


def _priced(row: dict[str, Any]) -> dict[str, Any]:
    known = row["cost_unknown"] == 0 and row["cost_nano_usd"] is not None
    return row | {"cost_nano_usd": int(row["cost_nano_usd"]) if known else None}
