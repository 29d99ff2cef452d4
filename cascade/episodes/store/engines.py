"""Engines: SQLAlchemy's way to one connection, to a file or to a server. Imported when a store is opened."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from cascade.episodes.store.address import Address
from cascade.episodes.store.problems import from_database
from cascade.episodes.store.sqlite import Connector
from cascade.errors import CascadeError, MissingExtraError, UsageError

_CONNECT_S = 10
# Parameters are rows, and rows hold what people asked: no error may show them.
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
    """Begin with the right to write at once, so that no transaction finds out halfway that it must wait."""
    reading = connection.get_execution_options().get("reading", False)
    connection.exec_driver_sql("BEGIN" if reading else "BEGIN IMMEDIATE")


def server_engine(address: Address) -> sa.Engine:
    """Return an engine with one connection to a server.

    Raises:
        MissingExtraError: the driver is not installed.
        UsageError: the URL cannot be used.
    """
    try:
        return sa.create_engine(
            address.url,
            **_ONE_CONNECTION,
            pool_pre_ping=True,  # a server that was restarted is found again
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
    """Return our error for one of SQLAlchemy, of a driver, or of the system; None for any other."""
    if isinstance(error, CascadeError):
        return error
    foreign = type(error).__module__.partition(".")[0] in {"sqlalchemy", "sqlite3", "psycopg"}
    return from_database(error, shown) if foreign or isinstance(error, OSError) else None
