"""`Store`: write, read, count and remove the rows of episodes and the feedback on them.

Rows are read in short steps along the key, so a long export blocks no writer and takes little memory.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import Any

import sqlalchemy as sa

from cascade.errors import UsageError
from cascade.logs.schema import COLUMNS, CONTENT_COLUMNS, hashed
from cascade.logs.values import KINDS, NUMBER, TEXT, TRUTH, WHOLE, checked_where
from cascade.records.database import Database, episodes, feedback, insert
from cascade.records.rows import records, row_of, without_content

_ROWS_PER_INSERT = 500
_ROWS_PER_READ = 250
"""The rows read in one step: a few megabytes if contexts have some thousand characters."""
_PARSED: Mapping[str, Callable[[str], Any]] = {
    TEXT: str,
    WHOLE: int,
    NUMBER: float,
    TRUTH: {"true": True, "false": False}.__getitem__,
}
Conditions = list[sa.ColumnElement[bool]]


class Store(Database):
    """Rows of episodes in a database. Close it, or use it in a `with` block.

    Example: `Store("sqlite:///cascade.db", read_only=True)`
    """

    def append(self, rows: Iterable[Mapping[str, Any]]) -> int:
        """Write rows in one transaction; return how many are new. When it returns, they are committed.

        A row that already exists, equal in every column, is not written again. NaN and infinite numbers become null,
        and `signals["replay"]["not_finite"]` names their columns.

        Raises:
            UsageError: a row does not fit, or the store is closed or read-only. Nothing was written.
            StoreError: the database failed. Nothing was written, unless the connection broke during the commit; in
                either case the rows can be written again.
        """
        statement = insert(episodes).on_conflict_do_nothing(index_elements=["row_id"])
        written, unwritten = 0, records(rows)
        with self.transaction() as connection:
            while batch := list(islice(unwritten, _ROWS_PER_INSERT)):
                written += connection.execute(statement, batch).rowcount
        return written

    def read(self, where: Mapping[str, str] | None = None) -> Iterator[dict[str, Any]]:
        """Yield rows in the order they were written, a few hundred in memory at a time.

        Every row that was committed before the call and is not removed meanwhile is yielded.

        Args:
            where: values by column, as text: {"model": "gpt-4o", "correct": "true", "walk": "null"}.

        Raises:
            UsageError: the filter names no column, or the store is closed.
            StoreError: the database failed.
        """
        chosen = _conditions(where)
        return (row_of(record) for record in self._records(chosen, COLUMNS))

    def latest(self, columns: Sequence[str], most: int) -> list[dict[str, Any]]:
        """Return these columns of the latest rows, up to a number, in the order they were written; raise as `read`."""
        query = sa.select(*(episodes.c[name] for name in columns)).order_by(episodes.c.id.desc()).limit(most)
        return [row._asdict() for row in reversed(self.rows(query))]

    def count(
        self, where: Mapping[str, str] | None = None, before: datetime | None = None, user: str | None = None
    ) -> int:
        """Return the number of rows that match a filter, a time and a user. Raises as `read` does."""
        chosen = [*_conditions(where), *_chosen(before, user)]
        ((number,),) = self.rows(sa.select(sa.func.count()).select_from(episodes).where(*chosen))
        return int(number)

    def add_feedback(self, row: Mapping[str, Any]) -> bool:
        """Write later feedback on an answer; return False, and write nothing, if its reviewer has judged it before.

        Raises as `append` does.

        Args:
            row: `episode_id`, `reviewer`, `right`, `score`, `better`, `created_at`; a missing value is None.
        """
        with self.transaction() as connection:
            return bool(connection.execute(insert(feedback).on_conflict_do_nothing(), row).rowcount)

    def feedback(self) -> list[dict[str, Any]]:
        """Return all feedback in the order of time. Raises as `read` does."""
        query = sa.select(feedback).order_by(feedback.c.created_at, *feedback.primary_key)
        return [row._asdict() for row in self.rows(query)]

    def models_of(self, episode_id: str) -> list[str]:
        """Return the models that were asked in an episode, in order; empty if the episode does not exist."""
        query = sa.select(episodes.c.model).where(episodes.c.episode_id == episode_id).order_by(episodes.c.id)
        return list(dict.fromkeys(model for (model,) in self.rows(query)))

    def purge(self, before: datetime | None = None, *, user: str | None = None, content_only: bool = False) -> int:
        """Remove rows, or only their texts; return how many. SQLite overwrites removed data with zeros.

        Args:
            before: only rows that were made before this time; all by default. A row without a time is removed only with
                all others.
            user: only rows of this user's requests, by name or its hash, and the feedback on them.
            content_only: keep the rows, with costs and signals, but empty user, question, context, gold, answer, text,
                and the tokens among the signals.

        Raises:
            UsageError: the store is closed or read-only.
            StoreError: the database failed; rows removed before that stay removed.
        """
        chosen = _chosen(before, user)
        if content_only:
            removed = self._empty(chosen)
        else:
            self._remove_feedback(before, None if user is None else chosen)
            removed = self._remove(chosen)
        if self.address.path is not None:  # PostgreSQL has autovacuum
            with self.driver() as connection, suppress(sqlite3.Error):  # a reader is active, or the disk is full
                for statement in ("PRAGMA wal_checkpoint(TRUNCATE)", "VACUUM", "PRAGMA wal_checkpoint(TRUNCATE)"):
                    connection.execute(statement)
        return removed

    def summary(self) -> dict[str, Any]:
        """Return the number of rows and episodes, their time span, the costs by model, and the size of its file.

        Rows of all walks count. A model's cost is None if that of any row is unknown; `cost_unknown` counts these rows.
        """
        of = episodes.c
        head = sa.select(
            sa.func.count().label("rows"),
            sa.func.count(of.episode_id.distinct()).label("episodes"),
            sa.func.min(of.created_at).label("first"),
            sa.func.max(of.created_at).label("last"),
        )
        unknown = (sa.func.count() - sa.func.count(of.cost_nano_usd)).label("cost_unknown")
        cost = sa.func.sum(of.cost_nano_usd).label("cost_nano_usd")
        by_model = sa.select(of.model, sa.func.count().label("rows"), cost, unknown).group_by(of.model)
        with self.transaction(reading=True) as connection:
            figures = dict(connection.execute(head).mappings().one())
            models = connection.execute(by_model.order_by(sa.desc("rows"), of.model)).mappings().all()
        figures["models"] = [
            dict(row) | {"cost_nano_usd": None if row["cost_unknown"] else int(row["cost_nano_usd"])} for row in models
        ]
        path = self.address.path
        size = None if path is None or not path.exists() else path.stat().st_size
        return {"store": self.address.shown, **figures, "bytes": size}

    def _records(self, chosen: Conditions, columns: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield records in the order of their key, a few hundred per query, with no transaction open in between."""
        selected, last = [episodes.c.id, *(episodes.c[name] for name in columns)], 0
        while True:
            query = sa.select(*selected).where(episodes.c.id > last, *chosen).order_by(episodes.c.id)
            step = self.rows(query.limit(_ROWS_PER_READ))
            yield from (row._asdict() for row in step)
            if len(step) < _ROWS_PER_READ:
                return
            last = step[-1].id

    def _remove(self, chosen: Conditions) -> int:
        """Delete rows, a few hundred per transaction, so that other writers wait little and the journal stays short."""
        records_left, removed = self._records(chosen, ()), 0
        while batch := [record["id"] for record in islice(records_left, _ROWS_PER_READ)]:
            with self.transaction() as connection:
                removed += connection.execute(sa.delete(episodes).where(episodes.c.id.in_(batch))).rowcount
        return removed

    def _remove_feedback(self, before: datetime | None, chosen: Conditions | None) -> None:
        """Remove feedback from before a time, or on the chosen answers."""
        old = [] if before is None else [feedback.c.created_at < _in_utc(before)]
        if chosen is not None:
            old = [feedback.c.episode_id.in_(sa.select(episodes.c.episode_id).where(*chosen))]
        with self.transaction() as connection:
            connection.execute(sa.delete(feedback).where(*old))

    def _empty(self, chosen: Conditions) -> int:
        full = sa.or_(*(episodes.c[name].is_not(None) for name in CONTENT_COLUMNS))
        change = sa.update(episodes).where(episodes.c.id == sa.bindparam("key"))
        records_left, emptied = self._records([*chosen, full], ("signals",)), 0
        while batch := list(islice(records_left, _ROWS_PER_READ)):
            with self.transaction() as connection:
                connection.execute(change, [{"key": record["id"], **without_content(record)} for record in batch])
            emptied += len(batch)
        return emptied


def _in_utc(moment: datetime) -> str:
    if moment.tzinfo is None:
        raise UsageError("before needs a time with a time zone, such as datetime.now(UTC).")
    return moment.astimezone(UTC).isoformat(timespec="milliseconds")


def _chosen(before: datetime | None, user: str | None) -> Conditions:
    """Return the conditions for rows before a time, of a user by name or its hash."""
    chosen: Conditions = [] if before is None else [episodes.c.created_at < _in_utc(before)]
    return chosen if user is None else [*chosen, episodes.c.user.in_((user, hashed(user)))]


def _conditions(where: Mapping[str, str] | None) -> Conditions:
    """Return a filter as SQL, with the meaning it has for files: "null" is null, "true" and "false" are truth values.

    Raises:
        UsageError: a column is unknown or cannot be compared, or a value does not fit its column.
    """
    problems: list[str] = []
    conditions = [_condition(name, value, problems) for name, value in checked_where(where).items()]
    if problems:
        raise UsageError(f"That filter cannot be used: {'; '.join(problems)}.")
    return conditions


def _condition(name: str, value: str, problems: list[str]) -> sa.ColumnElement[bool]:
    column, kind = episodes.c[name], KINDS[name]
    if value == "null":
        return column.is_(None) | (column == value) if kind == TEXT else column.is_(None)
    try:
        parsed = _PARSED[kind](value)
    except (ValueError, KeyError):
        problems.append(f"{name} is a {kind} or null, not {value!r}")
        return sa.false()
    condition: sa.ColumnElement[bool] = column == parsed
    return condition
