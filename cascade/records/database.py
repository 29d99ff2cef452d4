"""The tables and the transactions on them, in SQLite and PostgreSQL. Importing SQLAlchemy takes 0.25 s.

Threads take turns with connections. A forked child opens its own.
"""

from __future__ import annotations

import os
import socket
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from cascade.errors import CascadeError, MissingExtraError, NoTracesError, StoreError, UsageError, logger, quote
from cascade.files import Closed
from cascade.forks import keep, no_fork, now_and_after_fork
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION
from cascade.logs.values import KINDS, NUMBER, TRUTH, WHOLE
from cascade.records import link
from cascade.records.address import FULL, READ_ONLY, Address, parse, prepare_file, tightened

WAL_SINCE = (3, 51, 3)
"""The first SQLite in which two writers cannot damage a file in WAL mode (sqlite.org/wal.html, "The WAL-reset bug").
Older versions use the rollback journal, which is slower but safe with any number of writers."""
COMMAND_S = 300.0
"""How long a transaction of a command may take, such as one that counts all rows."""
_LOCK_S = 5.0
"""The longest wait for another transaction that has locked the file. Most take milliseconds."""
_POLL_S = 0.01
_CONNECT_S = 10
_CONNECTIONS = 8
_GRACE_S = 0.5
"""How much later than the server, which enforces the same limit, the client ends a transaction."""
_RULE = "a row breaks a rule of the table: {reason}"
_BUSY = "another process has locked it for too long. Try again"
_DAMAGED = "is damaged ({reason}). Move it away; sqlite3 FILE .recover saves what it can"
_CREATION_LOCK = 0x63617363
"""PostgreSQL's advisory lock for making the tables: "casc" in ASCII, which no other program should use."""

metadata = sa.MetaData()
_KINDS: dict[str, Any] = {
    "text": sa.Text,
    "whole": sa.BigInteger,
    "number": sa.Double,
    "truth": sa.Boolean,
    "id": sa.BigInteger().with_variant(sa.Integer(), "sqlite"),
}
_KIND_OF = {WHOLE: "whole", NUMBER: "number", TRUTH: "truth"}
"""Column kinds of rows. JSON is stored as text: PostgreSQL's JSON types refuse text that a model may write (NUL)."""


def _table(name: str, columns: str, *rules: sa.Index | sa.UniqueConstraint) -> sa.Table:
    """Return a table. A column is "NAME KIND", and "NAME KIND key" if it is part of the key; "KIND?" may be null."""
    listed = []
    for column in columns.split(", "):
        label, kind, *key = column.split()
        null = kind.endswith("?")
        listed.append(sa.Column(label, _KINDS[kind.rstrip("?")], primary_key=bool(key), nullable=null))
    return sa.Table(name, metadata, *listed, *rules)


formats = _table("cascade_format", "version text key")
"""One row. Increment `_FORMAT` with any change to a table; a database of another format is refused (F56)."""
_FORMAT = f"9, rows {SCHEMA_VERSION}"
episodes = _table(
    "episodes",
    ", ".join(["id id key", "row_id text", *(f"{name} {_KIND_OF.get(KINDS[name], 'text')}?" for name in COLUMNS)]),
    sa.UniqueConstraint("row_id"),
    sa.Index("episodes_by_id", "episode_id", postgresql_using="hash"),  # an id may be too long for a B-tree
)
feedback = _table(
    "feedback",
    "episode_id text key, reviewer text key, right truth?, score number?, better text?, created_at text",
)
accounts = _table("cascade_accounts", "name text key, spent whole, held whole, alerted whole, resets whole")
resets = _table("cascade_resets", "account text key, number whole key, who text, reset_at text, spent whole")
holds = _table("cascade_holds", "id text key, amount whole, accounts text, owner text, expires_s number")
cascades = _table("cascade_modes", "cascade text key, version whole, secret text, document text")
draws = _table(
    "cascade_draws",
    "trace_id text key, cascade text, conversation text, turn text, role text, drawn_s number, era whole, "
    "certificate text?, outcome text, look whole?, differs truth?, e_value number?, until_s number",
    sa.UniqueConstraint("cascade", "conversation", "turn"),
    sa.Index("cascade_draws_when", "cascade", "drawn_s"),
)
looks = _table(
    "cascade_looks",
    "cascade text key, look whole key, opened_s number, until_s number, level number, era whole, tries whole, "
    "verdict text, page text, files text",
)
written = _table("cascade_written", "conversation text key")
reviews = _table("cascade_reviews", "number whole key, line text")
insert = postgresql.insert
"""An insert with `on_conflict_do_nothing`, for which SQLite has adopted PostgreSQL's syntax."""


class Database(Closed):
    """The tables of a store, and transactions on them. Threads may share it. Close it after use.

    Args:
        store: "sqlite:///FILE" or "postgresql://…"; a missing file and missing tables are created.
        read_only: change nothing; the tables must exist.
        durable: whether each commit waits for the disk. Otherwise SQLite in WAL mode may lose the last commits when the
            power fails, but not when the process dies.
        limit_s: how long a transaction may take, and may wait for locks, for a connection or for a server that hangs.
        connections: the most connections to a server; a file has one.

    Raises:
        UsageError: the URL, the path, the permissions or the tables are wrong, or the tables have another format.
        NoTracesError: it is opened for reading only, and nothing was written to it yet.
        StoreError: it cannot be reached, is locked, or the disk is full (`retryable`).
        MissingExtraError: PostgreSQL's driver is not installed.
    """

    def __init__(
        self,
        store: str | Address,
        *,
        read_only: bool = False,
        durable: bool = True,
        limit_s: float = COMMAND_S,
        connections: int = 1,
    ) -> None:
        self.address = parse(store) if isinstance(store, str) else store
        self.read_only = read_only
        self._durable = durable
        self._limit_s, self._lock_s = limit_s, min(limit_s, _LOCK_S)
        self._connections = connections
        self.skew_s, self._closed = 0.0, False
        now_and_after_fork(self._renew)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    @classmethod
    def shared(cls, store: str, limit_s: float | None = None) -> Self:
        """Open a database that requests wait for: a transaction may take `limit_s`, by default `link.LIMIT_S`."""
        return cls(store, limit_s=link.LIMIT_S if limit_s is None else limit_s, connections=_CONNECTIONS)

    def _renew(self) -> None:
        """Start without connections; in a forked child, those of the parent stay open and untouched (F50)."""
        keep(vars(self).get("_opened"))
        self._opened: sa.Engine | None = None

    @property
    def _engine(self) -> sa.Engine:
        if (engine := self._opened) is None:
            with no_fork():  # imports drivers, which a child forked meanwhile could not finish
                if (engine := self._opened) is None:
                    engine = self._opened = self._server_engine() if self.address.path is None else self._file_engine()
                    sa.event.listen(engine, "checkin", self._returned)
        return engine

    def _returned(self, _driver: Any, record: Any) -> None:
        """Close a connection that a thread was using when the database was closed."""
        if self._closed:
            record.invalidate()

    def _prepare(self) -> None:
        path, file = self.address.path, None if self.read_only else self.address.path
        if self.read_only and path is not None and not path.is_file():
            raise NoTracesError(f"There is no store {self.address.shown}.")
        if file is not None:
            prepare_file(self.address, file)
        with self.transaction(reading=self.read_only) as connection:
            if self.read_only:
                if not self._is_made(connection):
                    advice = "The first answered request writes some; tables of your own need a file and cascade import"
                    raise NoTracesError(f"There are no traces in {self.address.shown}. {advice}.")
                return
            if path is None:
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATION_LOCK)))
            if not self._is_made(connection):
                metadata.create_all(connection, checkfirst=False)
                connection.execute(sa.insert(formats), {"version": _FORMAT})
        for warning in [] if file is None else tightened(file):
            logger.warning("%s", warning)

    def _is_made(self, connection: sa.Connection) -> bool:
        """Return whether the tables exist. Raises UsageError if they are not cascade's, or have another format."""
        if not (here := {name for name in metadata.tables if sa.inspect(connection).has_table(name)}):
            return False
        if formats.name not in here:
            raise UsageError(
                f"The store {self.address.shown} has tables named {', '.join(sorted(here))} that cascade did not make. "
                "Use another database, or a separate schema: postgresql://…?options=-csearch_path%3DSCHEMA"
            )
        version = connection.scalar(sa.select(sa.func.max(formats.c.version)))
        if version != _FORMAT:
            raise UsageError(
                f"The store {self.address.shown} has the format {version}, and this version of cascade reads only "
                f"{_FORMAT}. Use another store."
            )
        return True

    @contextmanager
    def transaction(self, *, reading: bool = False) -> Iterator[sa.Connection]:
        """Run one transaction, which ends with the block; an error in it rolls everything back.

        Raises:
            UsageError: the database is closed, or only read.
            StoreError: it failed. Nothing was written, unless the connection to a server broke during the commit.
        """
        if self._closed:
            raise UsageError(f"The store {self.address.shown} was closed. Open it again.")
        if self.read_only and not reading:
            raise UsageError(f"The store {self.address.shown} was opened for reading only.")
        try:
            with ExitStack() as stack:
                yield self._begun(stack, reading)
        except Exception as error:  # noqa: BLE001 - mapped, or raised again
            raise translated(error, self.address.shown) or error from None

    def _begun(self, stack: ExitStack, reading: bool) -> sa.Connection:
        """Begin a transaction, which ends with the stack.

        While it waits for another process to unlock a file, it holds nothing, so forks and other threads go on.
        """
        ends_s = time.monotonic() + self._lock_s
        while True:
            with ExitStack() as turn:
                try:
                    if self.address.path is not None:
                        # A child that is forked during a transaction could never lock the file: SQLite would count its
                        # parent's locks as its own.
                        turn.enter_context(no_fork(max(0.0, ends_s - time.monotonic())))
                    connection = turn.enter_context(self._engine.connect().execution_options(reading=reading))
                    if self.address.path is None:
                        turn.enter_context(_cut_off(connection.connection.driver_connection, self._limit_s))
                    turn.enter_context(connection.begin())
                except TimeoutError:
                    raise StoreError(f"The store {self.address.shown}: {_BUSY}.", retryable=True, busy=True) from None
                except (sa.exc.OperationalError, sqlite3.OperationalError) as error:
                    code = getattr(getattr(error, "orig", error), "sqlite_errorname", "")
                    if not code.startswith("SQLITE_BUSY") or time.monotonic() >= ends_s:
                        raise
                else:
                    stack.enter_context(turn.pop_all())
                    return connection
            time.sleep(_POLL_S)

    def rows(self, query: sa.Select[Any], **values: Any) -> Sequence[Any]:
        """Return the rows that a query finds, in a transaction of its own."""
        with self.transaction(reading=True) as connection:
            return connection.execute(query, values).all()

    def now_s(self) -> float:
        """Return the time by the database server's clock, in seconds since 1970, since those of replicas may differ."""
        return datetime.now(UTC).timestamp() + self.skew_s

    @contextmanager
    def driver(self) -> Iterator[Any]:
        """Yield the driver's own connection, outside a transaction."""
        with self._engine.connect() as connection:
            yield connection.connection.driver_connection

    def close(self) -> None:
        """Close the connections. May be called twice."""
        self._closed = True
        if self._opened is not None:
            self._opened.dispose()

    def _file_engine(self) -> sa.Engine:
        engine = sa.create_engine("sqlite://", creator=self._connect_file, **self._pool(1))
        sa.event.listen(engine, "begin", self._lock_file)
        return engine

    def _lock_file(self, connection: sa.Connection) -> None:
        """Lock the file at the start, so that no transaction has to wait halfway; `_begun` waits for the lock."""
        driver: Any = connection.connection.driver_connection
        driver.execute("PRAGMA busy_timeout = 0")
        if connection.get_execution_options().get("reading", False):
            driver.execute("BEGIN")
            driver.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # BEGIN alone takes no lock
        else:
            driver.execute("BEGIN IMMEDIATE")
        driver.execute(f"PRAGMA busy_timeout = {round(1000 * self._lock_s)}")  # for the commit

    def _server_engine(self) -> sa.Engine:
        limit_s = self._limit_s
        options: dict[str, Any] = {
            "connect_timeout": min(max(2, round(limit_s)), _CONNECT_S),  # the least that libpq takes is 2 s
            "application_name": "cascade",
            "client_encoding": "utf8",  # of a database in SQL_ASCII the driver would return bytes
            "tcp_user_timeout": 10_000,
        }
        try:
            engine = sa.create_engine(self.address.url, connect_args=options, **self._pool(self._connections))
        except ModuleNotFoundError:
            raise MissingExtraError("psycopg", "A store in PostgreSQL") from None
        except sa.exc.ArgumentError:
            raise UsageError(f"The store {self.address.shown} has a URL that cannot be used.") from None

        def prepare(driver: Any, _record: Any) -> None:
            driver.execute(f"SET statement_timeout = {round(limit_s * 1000)}")
            driver.commit()

        def check(driver: Any, _record: Any, _proxy: Any) -> None:
            """Replace a connection that broke while it was not in use, and compare the clocks: one may be set anew."""
            try:
                with _cut_off(driver, min(limit_s, _GRACE_S)):
                    driver.autocommit = True  # one round trip
                    row = driver.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
                    self.skew_s = float(row[0]) - datetime.now(UTC).timestamp()
                    driver.autocommit = False
            except Exception:  # noqa: BLE001 - whatever broke, the pool opens another
                raise sa.exc.DisconnectionError from None

        sa.event.listen(engine, "connect", prepare)
        sa.event.listen(engine, "checkout", check)
        return engine

    def _pool(self, size: int) -> dict[str, Any]:
        return {
            "poolclass": sa.QueuePool,
            "pool_size": size,
            "max_overflow": 0,
            "pool_timeout": self._lock_s,
            "hide_parameters": True,  # they contain what people asked, which no error may show
            "execution_options": {"preserve_rowcount": True},  # else an insert with a conflict may count as made
        }

    def _connect_file(self) -> sqlite3.Connection:
        """Return a connection that may move between threads and leaves transactions to the caller."""
        path = self.address.path or Path()
        # A reader may have to roll back what a killed writer left, so it opens the file as a writer does.
        target = f"{path.as_uri()}?mode=rw"
        connection = sqlite3.connect(target, uri=True, timeout=0, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")  # a foreign file must not run functions
            if self.read_only:
                connection.execute("PRAGMA query_only = ON")
            else:
                self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        journal = "WAL" if sqlite3.sqlite_version_info >= WAL_SINCE else "TRUNCATE"
        mode = connection.execute(f"PRAGMA journal_mode = {journal}").fetchone()[0]
        # Without WAL, NORMAL could damage a file when the power fails (sqlite.org/pragma.html#pragma_synchronous).
        level = "FULL" if self._durable or mode != "wal" else "NORMAL"
        connection.execute(f"PRAGMA synchronous = {level}")
        connection.execute("PRAGMA secure_delete = ON")  # removed data is overwritten in the file


@contextmanager
def _cut_off(driver: Any, limit_s: float) -> Iterator[None]:
    """Break a connection to a server that does not answer in time; libpq itself would wait forever."""

    def break_off() -> None:
        with suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as copy:
            copy.shutdown(socket.SHUT_RDWR)

    descriptor = driver.fileno()
    timer = threading.Timer(limit_s + _GRACE_S, break_off)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


_SQLITE: tuple[tuple[str, type[CascadeError], str], ...] = (
    ("SQLITE_FULL", StoreError, FULL),
    ("SQLITE_READONLY", UsageError, READ_ONLY),
    ("SQLITE_CANTOPEN", UsageError, "cannot be opened: {reason}. Check its path and your rights"),
    ("SQLITE_PERM", UsageError, READ_ONLY),
    ("SQLITE_AUTH", UsageError, READ_ONLY),
    ("SQLITE_BUSY", StoreError, _BUSY),
    ("SQLITE_LOCKED", StoreError, _BUSY),
    ("SQLITE_CONSTRAINT", UsageError, _RULE),
    ("SQLITE_NOTADB", UsageError, "is not an SQLite database. Choose another file"),
    ("SQLITE_CORRUPT", StoreError, _DAMAGED),
    ("SQLITE_IOERR", StoreError, "could not be read or written: {reason}; its disk may be full, or failing"),
)
"""The class and the message of an error, by the start of SQLite's name for it."""

_POSTGRES: tuple[tuple[str, type[CascadeError], str], ...] = (
    ("53100", StoreError, "the server's disk is full, so nothing was written"),
    ("3F", UsageError, "there is no such schema. Make it, or set another search_path"),
    ("42501", UsageError, "the user may not do this: {reason}"),
    ("25006", UsageError, "the server only reads: {reason}"),
    ("22", UsageError, "a value does not fit: {reason}"),
    ("23", UsageError, _RULE),
    ("42P01", StoreError, "a table is gone: {reason}"),
    ("42", UsageError, "the tables are not as cascade makes them: {reason}"),
)
"""The same, by the start of the SQLSTATE (PostgreSQL 15, appendix A). A refused connection has none."""


def translated(error: Exception, shown: str) -> CascadeError | None:
    """Return cascade's error for one of SQLAlchemy or a driver, a CascadeError unchanged, and None for any other.

    It quotes no statement, no row and no password; `shown` is the store's address without its password.
    """
    if isinstance(error, CascadeError):
        return error
    if type(error).__module__.partition(".")[0] not in {"sqlalchemy", "sqlite3", "psycopg"}:
        return None
    origin = getattr(error, "orig", None) or error
    text = str(origin).partition("\nDETAIL")[0].partition("(Background on")[0]  # the detail quotes the row
    reason = quote(text).rstrip(".")
    for table, code in ((_SQLITE, "sqlite_errorname"), (_POSTGRES, "sqlstate")):
        if getattr(origin, code, None) is not None:
            return _error(table, str(getattr(origin, code)), reason, shown)
    if isinstance(origin, sa.exc.TimeoutError):
        return StoreError(f"The store {shown}: {_BUSY}.", retryable=True, busy=True)
    if type(origin).__module__ == "sqlite3":
        return StoreError(f"The store {shown} failed: {reason}.")
    return StoreError(f"The store {shown} cannot be reached: {reason}.", retryable=True)


def _error(table: tuple[tuple[str, type[CascadeError], str], ...], code: str, reason: str, shown: str) -> CascadeError:
    for start, kind, text in table:
        if code.startswith(start):
            message = f"The store {shown}: {text.format(reason=reason)}."
            if kind is UsageError:
                return UsageError(message)
            return StoreError(message, retryable=text is not _DAMAGED, busy=text is _BUSY)
    return StoreError(f"The store {shown} failed ({code}): {reason}.", retryable=True)
