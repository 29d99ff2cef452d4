"""`Store`: rows are added, read, counted and purged, in SQLite or PostgreSQL.

A store has one connection, which threads may share: uses are serialised. After a fork the child opens its own. Reading
goes in short steps along the key, so a long export blocks no writer and takes little memory.
"""

from __future__ import annotations

import os
import threading
import warnings
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from logging import getLogger
from typing import TYPE_CHECKING, Any, Self

from cascade.episodes.store.address import Address, made_ready, parse
from cascade.episodes.store.problems import NoTracesError, from_file
from cascade.episodes.store.records import records, row_of, without_content
from cascade.episodes.store.sqlite import NO_WAL, Connector, Durability, WriterLock, has_wal_bug, shrink
from cascade.errors import UsageError
from cascade.forks import after_fork, keep
from cascade.logs.schema import COLUMNS, CONTENT_COLUMNS

if TYPE_CHECKING:
    import sqlalchemy as sa

logger = getLogger("cascade")
WAIT_S = 5.0
"""How long a writer waits for another if only one is allowed; writers that share a file hold it only briefly."""
_ROWS_PER_INSERT = 1_000
_ROWS_PER_READ = 250
"""The rows of a reading step. With contexts of some thousand characters that is a few megabytes."""


class Store:
    """Rows of episodes in a database. Made by `Store.open`; close it, or use it in a `with` block.

    Attributes:
        address: its address; `address.shown` has no password.
        read_only: whether it is only read.
    """

    def __init__(self, address: Address, *, read_only: bool, durability: Durability, wait_s: float) -> None:
        self.address = address
        self.read_only = read_only
        self._durability: Durability = durability
        self._wait_s = wait_s
        self._closed = False
        self._connect()

    @classmethod
    def open(
        cls,
        url: str | Address,
        read_only: bool = False,
        *,
        durability: Durability = "group",
        wait_s: float | None = None,
    ) -> Store:
        """Open a store; create its file and tables, or update them, unless it is only read.

        Args:
            url: "sqlite:///FILE" or "postgresql://…".
            read_only: do not change it; it must exist.
            durability: "full" waits at each commit until the disk has it; "group" leaves that to SQLite, so that the
                last commits may be lost when the power fails (never when the process dies).
            wait_s: how long to wait for another writer if SQLite allows only one; 5 seconds by default.

        Raises:
            UsageError: the URL, the path, the rights, or the tables are wrong, or have another schema.
            StoreError: it cannot be reached, the disk is full, or another writer uses it (`retryable`).
            MissingExtraError: PostgreSQL's driver is not installed.
        """
        address = url if isinstance(url, Address) else parse(url)
        wait_s = WAIT_S if wait_s is None else wait_s
        return cls(address, read_only=read_only, durability=durability, wait_s=wait_s)

    @property
    def journal_mode(self) -> str | None:
        """SQLite's journal mode, "wal" or "delete"; None for PostgreSQL."""
        return None if self._connector is None else self._connector.mode

    @property
    def exclusive(self) -> bool:
        """Whether other writers must wait until this store is closed."""
        return self._writer_lock is not None

    def append(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows in one transaction; return how many are new. When it returns, they are committed.

        A row that already exists, equal in every column, is not written again. NaN and infinite numbers become null,
        and `signals["replay"]["not_finite"]` names their columns.

        Raises:
            UsageError: a row does not fit, or the store is closed or only read. Nothing was written.
            StoreError: the database failed. Nothing was written, unless the connection broke during the commit; rows
                may be written again in any case.
        """
        if self.read_only:
            raise UsageError(f"The trace store {self.address.shown} was opened for reading only.")
        from cascade.episodes.store.tables import insert_new

        written, left = 0, records(rows)
        with self._transaction() as connection:
            while batch := list(islice(left, _ROWS_PER_INSERT)):
                written += insert_new(connection, batch)
        return written

    def read(self, where: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows in the order they were written, a few hundred in memory at a time.

        Every row that was committed before the call and is not purged meanwhile is yielded.

        Args:
            where: values by column, as text: {"model": "gpt-4o", "correct": "true", "walk": "null"}.

        Raises:
            UsageError: the filter names no column, or the store is closed.
            StoreError: the database failed.
        """
        from cascade.episodes.store.tables import conditions

        wanted = conditions(where)
        return (row_of(record) for record in self._records(wanted, COLUMNS))

    def add_feedback(self, row: Mapping[str, Any]) -> None:
        """Write later feedback on an answer. Raises as `append` does.

        Args:
            row: `episode_id`, `right`, `score`, `better`, `reviewer`, `created_at`; a missing value is None.
        """
        from cascade.episodes.store.tables import insert_feedback

        with self._transaction() as connection:
            insert_feedback(connection, row)

    def feedback(self) -> list[dict[str, Any]]:
        """Return all feedback in the order it came. Raises as `read` does."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import feedback

        with self._transaction(reading=True) as connection:
            if not sa.inspect(connection).has_table(feedback.name):
                return []
            rows = connection.execute(sa.select(feedback).order_by(feedback.c.id)).mappings()
            return [{name: value for name, value in row.items() if name != "id"} for row in rows]

    def models_of(self, episode_id: str) -> list[str]:
        """Return the models that were asked in an episode, in order; empty if the episode does not exist."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        query = sa.select(episodes.c.model).where(episodes.c.episode_id == episode_id).order_by(episodes.c.id)
        with self._transaction(reading=True) as connection:
            return list(dict.fromkeys(connection.scalars(query)))

    def served_by(self, episode_id: str) -> str | None:
        """Return the model whose message was served in an episode; None if there is none, or no such episode."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        of = episodes.c
        query = sa.select(of.model).where(of.episode_id == episode_id, of.kept.is_(True)).order_by(of.step.desc())
        with self._transaction(reading=True) as connection:
            found: str | None = connection.scalars(query.limit(1)).first()
        return found

    def latest(self, columns: Sequence[str], most: int) -> list[dict[str, Any]]:
        """Return the latest rows, up to a number, in the order in which they were written.

        Args:
            columns: which of `COLUMNS` are read.
            most: how many rows.

        Raises as `read` does.
        """
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        chosen = [episodes.c[name] for name in columns]
        query = sa.select(*chosen).order_by(episodes.c.id.desc()).limit(most)
        with self._transaction(reading=True) as connection:
            found = connection.execute(query).all()
        return [dict(zip(columns, row, strict=True)) for row in reversed(found)]

    def count(
        self, where: Mapping[str, str] | None = None, before: datetime | None = None, user: str | None = None
    ) -> int:
        """Return the number of rows, of a filter, before a time, for a user. Raises as `read` does."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import conditions, episodes

        wanted = [*conditions(where), *self._chosen(before, user)]
        query = sa.select(sa.func.count()).select_from(episodes).where(*wanted)
        with self._transaction(reading=True) as connection:
            return int(connection.scalar(query) or 0)

    def purge(self, before: datetime | None = None, *, user: str | None = None, content_only: bool = False) -> int:
        """Remove rows, or only their texts; return how many. SQLite overwrites removed data with zeros.

        Args:
            before: only rows that were made before this time; all by default. A row without a time is removed only with
                all others.
            user: only rows of this user's requests, by name or its hash.
            content_only: keep the rows, with costs and signals, but empty user, question, context, gold, answer, text,
                and the tokens among the signals.

        Raises:
            UsageError: the store is closed or only read.
            StoreError: the database failed; rows removed before that stay removed.
        """
        if self.read_only:
            raise UsageError(f"The trace store {self.address.shown} was opened for reading only.")
        chosen = self._chosen(before, user)
        if not content_only:
            self._remove_feedback(before, None if user is None else chosen)
        removed = self._empty(chosen) if content_only else self._remove(chosen)
        self._shrink()
        return removed

    def integrity(self) -> list[str]:
        """Return the errors that SQLite finds in the file; an empty list if there are none, or for PostgreSQL."""
        pragma = "PRAGMA integrity_check" if self.address.path else "SELECT 'ok'"
        with self._transaction(reading=True) as connection:
            found = [str(row[0]) for row in connection.exec_driver_sql(pragma)]
        return [] if found == ["ok"] else found

    def summary(self) -> dict[str, Any]:
        """Return the number of rows and episodes, their time span, the costs by model, and the store's state."""
        from cascade.episodes.store.tables import summary

        with self._transaction(reading=True) as connection:
            found = summary(connection)
        path = self.address.path
        size = None if path is None or not path.exists() else path.stat().st_size
        return {"store": self.address.shown, **found, "bytes": size, "journal_mode": self.journal_mode}

    def close(self) -> None:
        """Close the connection and let other writers in. May be called twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._finalizer.detach()
                self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Store({self.address.shown!r}{', read_only=True' if self.read_only else ''})"

    # --- the connection ---

    def _connect(self) -> None:
        """Open the connection and check the tables; create them, unless only reading."""
        from cascade.episodes.store.tables import file_engine, server_engine

        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._current: sa.Connection | None = None
        self._connector = None if self.address.path is None else self._file_connector()
        self._engine = server_engine(self.address) if self._connector is None else file_engine(self._connector)
        self._finalizer = weakref.finalize(self, _left_open, self.address.shown, self._engine, self._writer_lock)
        self._finalizer.atexit = False
        try:
            self._check()
        except BaseException:
            self._finalizer.detach()
            self._release()
            raise

    @property
    def _writer_lock(self) -> WriterLock | None:
        return None if self._connector is None else self._connector.lock

    def _file_connector(self) -> Connector:
        address = self.address
        assert address.path is not None  # noqa: S101 - the caller looked
        if self.read_only:
            if not address.path.is_file():
                raise UsageError(f"There is no trace store {address.shown}.")
            return Connector(address, self.read_only, self._durability)
        with _opening:
            for warning in made_ready(address):
                logger.warning("%s", warning)
        if not has_wal_bug():
            return Connector(address, self.read_only, self._durability)
        try:
            lock = WriterLock.take(address, self._wait_s)
        except OSError as error:
            raise from_file(error, address.shown) from None
        if lock is None:
            logger.info("%s: %s", address.shown, NO_WAL)
        return Connector(address, self.read_only, self._durability, lock)

    def _check(self) -> None:
        from cascade.episodes.store.tables import create, there

        with self._transaction(reading=self.read_only) as connection:
            if not self.read_only:
                create(connection, self.address.shown)
            elif not there(connection, self.address.shown):
                raise NoTracesError(f"There are no traces in {self.address.shown}.")

    def _release(self) -> None:
        self._engine.dispose()
        if self._writer_lock is not None:
            self._writer_lock.release()

    @contextmanager
    def _transaction(self, *, reading: bool = False) -> Iterator[sa.Connection]:
        """One transaction, alone on the connection; every error of a database or driver is converted.

        If the same thread already has one, as when rows are read while they are written, it joins that transaction.
        """
        from cascade.episodes.store.tables import ours

        self._own()
        with self._lock:
            if self._closed:
                raise UsageError(f"The trace store {self.address.shown} was closed. Open it again.")
            if self._current is not None:
                yield self._current
                return
            try:
                with self._engine.connect() as connection, connection.execution_options(reading=reading).begin():
                    self._current = connection
                    yield connection
            except Exception as error:  # noqa: BLE001 - mapped, or raised again
                raise ours(error, self.address.shown) or error from None
            finally:
                self._current = None

    def _own(self) -> None:
        """Open again in a process that was forked (F50)."""
        if self._pid == os.getpid() or self._closed:
            return
        with _opening:
            if self._pid != os.getpid():
                self._finalizer.detach()
                keep(self._engine)
                self._connect()

    def _records(self, wanted: list[sa.ColumnElement[bool]], columns: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield records by their key, a few hundred a query, with no transaction open in between."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        chosen, last = [episodes.c.id, *(episodes.c[name] for name in columns)], 0
        while True:
            query = sa.select(*chosen).where(episodes.c.id > last, *wanted).order_by(episodes.c.id)
            with self._transaction(reading=True) as connection:
                found = connection.execute(query.limit(_ROWS_PER_READ)).mappings().all()
            yield from map(dict, found)
            if len(found) < _ROWS_PER_READ:
                return
            last = found[-1]["id"]

    def _remove(self, old: list[sa.ColumnElement[bool]]) -> int:
        """Delete rows, a few hundred a transaction: other writers do not wait long, and the journal stays short."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        found, removed = self._records(old, ()), 0
        while batch := [one["id"] for one in islice(found, _ROWS_PER_READ)]:
            with self._transaction() as connection:
                removed += connection.execute(sa.delete(episodes).where(episodes.c.id.in_(batch))).rowcount
        return removed

    def _chosen(self, before: datetime | None, user: str | None) -> list[sa.ColumnElement[bool]]:
        """Return the conditions for rows before a time, of a user."""
        from cascade.episodes.store.tables import asked_by

        if user is None:
            return _older(before)
        return [*_older(before), asked_by(user)]

    def _remove_feedback(self, before: datetime | None, chosen: list[sa.ColumnElement[bool]] | None) -> None:
        """Remove feedback from before a time, or on the chosen answers."""
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes, feedback

        with self._transaction() as connection:
            if sa.inspect(connection).has_table(feedback.name):
                old = [] if before is None else [feedback.c.created_at < before.astimezone(UTC).isoformat()]
                if chosen is not None:
                    old = [feedback.c.episode_id.in_(sa.select(episodes.c.episode_id).where(*chosen))]
                connection.execute(sa.delete(feedback).where(*old))

    def _empty(self, old: list[sa.ColumnElement[bool]]) -> int:
        import sqlalchemy as sa

        from cascade.episodes.store.tables import episodes

        full = sa.or_(*(episodes.c[name].is_not(None) for name in CONTENT_COLUMNS))
        change = sa.update(episodes).where(episodes.c.id == sa.bindparam("key"))
        found, emptied = self._records([*old, full], ("signals",)), 0
        while batch := [{"key": one["id"], **without_content(one)} for one in islice(found, _ROWS_PER_READ)]:
            with self._transaction() as connection:
                connection.execute(change, batch)
            emptied += len(batch)
        return emptied

    def _shrink(self) -> None:
        if self.address.path is None:
            return  # autovacuum does it
        with self._lock, self._engine.connect() as connection:
            driver: Any = connection.connection.driver_connection
            shrink(driver)


_opening = threading.RLock()
"""Files are prepared one at a time, so that no connection is opened meanwhile (see `made_ready`)."""


def _renew_lock() -> None:
    global _opening  # noqa: PLW0603 - another thread may have held it at the fork
    _opening = threading.RLock()


after_fork(_renew_lock)


def _older(before: datetime | None) -> list[sa.ColumnElement[bool]]:
    from cascade.episodes.store.tables import episodes

    if before is None:
        return []
    if before.tzinfo is None:
        raise UsageError("before needs a time with a time zone, such as datetime.now(UTC).")
    return [episodes.c.created_at < before.astimezone(UTC).isoformat(timespec="milliseconds")]


def _left_open(shown: str, engine: sa.Engine, lock: WriterLock | None) -> None:
    engine.dispose()
    if lock is not None:
        lock.release()
    warnings.warn(f"The trace store {shown} was not closed.", ResourceWarning, stacklevel=2)
