"""The journal of paid calls: each reply is written to disk before it is used, and is looked up by its request.

A killed process loses at most the calls in flight. The file is an SQLite database: each call is recorded in a
transaction, and only one process at a time can open the file.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade.errors import UsageError
from cascade.files import Closed
from cascade.logs.lines import writing
from cascade.logs.schema import completion_of
from cascade.types import Completion

SYNCHRONOUS = "FULL"
"""With this setting, SQLite returns from a transaction only once it is on disk."""


class Journal(Closed):
    """The rows of calls, by the digests of their requests. Thread-safe.

    Raises:
        UsageError: another process is using this journal, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._claimed: set[str] = set()
        self._released = threading.Condition()
        with self._writing():
            path.touch(mode=0o600)
            self._calls = sqlite3.connect(path, timeout=0, isolation_level=None, check_same_thread=False)
            try:
                self._calls.executescript(
                    f"PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = {SYNCHRONOUS}; "
                    "BEGIN IMMEDIATE; CREATE TABLE IF NOT EXISTS calls "
                    "(digest TEXT PRIMARY KEY, row TEXT NOT NULL, cost INTEGER, bound INTEGER NOT NULL); COMMIT"
                )
            except sqlite3.Error:
                self._calls.close()
                raise

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of the system and of SQLite into UsageErrors."""
        with writing(self.path):
            try:
                yield
            except sqlite3.Error as error:
                if getattr(error, "sqlite_errorname", "").startswith("SQLITE_BUSY"):
                    advice = "Wait for it, or choose another output."
                    raise UsageError(f"Another process is writing {self.path}. {advice}") from None
                raise OSError(0, str(error)) from None

    @property
    def spent_nano_usd(self) -> int:
        """An upper bound on the total cost of the recorded calls: an unknown cost counts at its bound."""
        spent: int = self._value("SELECT coalesce(sum(coalesce(cost, bound)), 0) FROM calls")
        return spent

    @property
    def cost_known(self) -> bool:
        """Whether `spent_nano_usd` is exact, with every cost known."""
        return not self._value("SELECT count(*) FROM calls WHERE cost IS NULL")

    def __iter__(self) -> Iterator[str]:
        with self._lock:
            return iter([digest for (digest,) in self._calls.execute("SELECT digest FROM calls ORDER BY rowid")])

    def _value(self, sql: str, *values: Any) -> Any:
        with self._lock:
            record = self._calls.execute(sql, values).fetchone()
        return None if record is None else record[0]

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and return once they are on disk. A call that is already recorded is not written again.

        Raises:
            UsageError: they cannot be written, for example because the disk is full. None of them is recorded.
        """
        records = map(_record, rows)
        with self._lock, self._writing():
            self._calls.execute("BEGIN")
            try:
                self._calls.executemany("INSERT OR IGNORE INTO calls VALUES (?, ?, ?, ?)", records)
                self._calls.execute("COMMIT")
            except BaseException:
                if self._calls.in_transaction:
                    self._calls.execute("ROLLBACK")
                raise

    def row(self, digest: str) -> dict[str, Any] | None:
        """Return the row of a call; None if it is not recorded."""
        text = self._value("SELECT row FROM calls WHERE digest = ?", digest)
        return None if text is None else json.loads(text)

    def completion(self, digest: str) -> Completion | None:
        """Return the completion of a call; None if it is not recorded."""
        row = self.row(digest)
        return None if row is None else completion_of(row)

    @contextlib.contextmanager
    def claim(self, digest: str) -> Iterator[Completion | None]:
        """Yield the completion of a recorded call, or None if this thread must make the call now.

        Other threads that claim the same call wait: a set may have a question twice, but its call is paid for once.
        """
        with self._released:
            self._released.wait_for(lambda: digest not in self._claimed)
            self._claimed.add(digest)
        try:
            yield self.completion(digest)
        finally:
            with self._released:
                self._claimed.discard(digest)
                self._released.notify_all()

    def remove(self) -> None:
        """Delete the file, once everything in it has been stored elsewhere."""
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._calls.close()


def _record(row: Mapping[str, Any]) -> tuple[str, str, int | None, int]:
    replay, text = row["signals"]["replay"], json.dumps(row, ensure_ascii=False, allow_nan=False)
    plain = text.encode("utf-8", "replace").decode()
    return replay["request"], plain, row["cost_nano_usd"], replay.get("cost_bound_nano_usd", 0)


def is_call(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a complete call, so that its request can be answered from it."""
    try:
        completion_of(row)
        replay = row["signals"]["replay"]
        texts, costs = (row["text"], replay["request"]), (row["cost_nano_usd"], replay.get("cost_bound_nano_usd"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(text, str) for text in texts) and all(isinstance(cost, int | None) for cost in costs)
