"""A database that any number of processes share: pooled connections, and one transaction at a time on each.

SQLite or PostgreSQL by their own drivers, so that a statement takes microseconds: the ledger makes two for each call.
"""

from __future__ import annotations

import queue
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from cascade.errors import MissingExtraError

_CREATION_LOCK = "SELECT pg_advisory_xact_lock(1667330919)"
_BUSY_S = 30.0
_LIMITS = {"application_name": "cascade", "connect_timeout": 5, "tcp_user_timeout": 10_000}
"""Default parameters of libpq (in s and ms), so that a host that drops packets fails soon and not after minutes
(`tcp_user_timeout` only on Linux)."""


class UndoneError(Exception):
    """Raised in a transaction to roll it back and keep the connection."""


class Database:
    """Connections to a database. Made by `sqlite`, `postgres` or `memory`; close it.

    A connection that broke while it was not in use is replaced. `broken` are the errors that a transaction raises if
    its connection breaks or cannot be opened: it is then unknown whether it was committed.

    Args:
        connect: opens a connection without the driver's own transactions.
        begin: the statement that begins a writing transaction.
        mark: the placeholder of a parameter.
        tables: the statements that create missing tables.
        alone: whether there is only one connection, which uses share in turn.
        broken: the errors of a broken network connection.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        begin: str,
        mark: str,
        tables: Iterable[str],
        *,
        alone: bool = False,
        broken: tuple[type[Exception], ...] = (),
    ) -> None:
        self._connect, self._begin, self._mark, self._alone = connect, begin, mark, alone
        self.broken, self._remote = broken, bool(broken)
        self._free: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._closed = False
        if alone:
            self._free.put(connect())
        with self.transaction() as run:
            for statement in tables:
                run(statement)

    @classmethod
    def sqlite(cls, path: str | Path, tables: Iterable[str]) -> Database:
        """Return the database in a file, with these tables; a missing file is created."""

        def connect() -> sqlite3.Connection:
            made = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            made.execute("PRAGMA synchronous = FULL")
            return made

        return cls(connect, "BEGIN IMMEDIATE", "?", tables)

    @classmethod
    def memory(cls, tables: Iterable[str]) -> Database:
        """Return a database of this process, which ends with it."""

        def connect() -> sqlite3.Connection:
            return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)

        return cls(connect, "BEGIN IMMEDIATE", "?", tables, alone=True)

    @classmethod
    def postgres(cls, url: str, tables: Iterable[str]) -> Database:
        """Return the database of a server, with these tables. Raises MissingExtraError without psycopg."""
        try:
            import psycopg
        except ModuleNotFoundError:
            raise MissingExtraError("psycopg", "A store in PostgreSQL") from None
        made = [_CREATION_LOCK, *tables]
        told = psycopg.conninfo.conninfo_to_dict(url)
        limits: Any = {name: value for name, value in _LIMITS.items() if name not in told}

        def connect() -> Any:
            return psycopg.connect(url, autocommit=True, **limits)

        return cls(connect, "BEGIN", "%s", made, broken=(psycopg.OperationalError,))

    @property
    def row_lock(self) -> str:
        """The suffix of a query whose rows the transaction will change; SQLite locks the whole file at the start."""
        return " FOR UPDATE" if self._remote else ""

    @property
    def unsynced(self) -> str:
        """The first statement of a transaction that need not wait for the disk at its end; "" if there is none."""
        return "SET LOCAL synchronous_commit TO OFF" if self._remote else ""

    @property
    def blocks(self) -> bool:
        """Whether a transaction may take too long for an event loop."""
        return not self._alone

    def close(self) -> None:
        """Close the connections that are not in use; the others are closed when they are released."""
        self._closed = True
        with suppress(queue.Empty):
            while True:
                self._free.get_nowait().close()

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[Callable[..., Any]]:
        """Run statements in one transaction, which ends with the block; an error in it rolls all of them back.

        Args:
            reading: the transaction only reads, so that no writer has to wait.
        """
        connection = self._begun(reading=reading)
        try:
            with closing(connection.cursor()) as cursor:
                yield lambda statement, *values: cursor.execute(statement.replace("?", self._mark), values)
                connection.commit()
        except BaseException as error:
            if isinstance(error, UndoneError) or self._alone:
                connection.rollback()
                self._give_back(connection)
            else:
                connection.close()
            raise
        self._give_back(connection)

    def _begun(self, *, reading: bool) -> Any:
        """Return a connection on which a transaction has begun."""
        while True:
            try:
                connection, kept = self._free.get(block=self._alone and not self._closed), True
            except queue.Empty:
                connection, kept = self._connect(), False
            try:
                connection.execute("BEGIN" if reading else self._begin)
            except BaseException as error:
                connection.close()
                if not (kept and isinstance(error, self.broken)):
                    raise
            else:
                return connection

    def _give_back(self, connection: Any) -> None:
        connection.close() if self._closed else self._free.put(connection)
