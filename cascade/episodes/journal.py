"""What was paid for, written down before it is used: one line a call, found again by what was asked.

A process that is killed loses at most the calls that were in flight: each answer is on the disk before anything is made
of it, and a call whose request is on record is answered from the record.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from cascade.episodes.schema import completion_of
from cascade.errors import UsageError
from cascade.types import Completion


class Journal:
    """A file of call rows with an index in memory: some 200 bytes a call, whatever its length. Safe between threads.

    Attributes:
        bad_lines: how many lines were no rows when it was opened.
        spent_nano_usd: what the calls on record cost together, as far as it is known.

    Raises:
        UsageError: another process is writing this journal.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines = 0
        self.spent_nano_usd = 0
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        path.touch(mode=0o600, exist_ok=True)
        self._file = path.open("r+b")
        _lock_or_refuse(self._file, path)
        self._end = self._index()

    def _index(self) -> int:
        """Find every whole row; a torn last line is cut off, a bad one in the middle passed over and counted."""
        place = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self._file.truncate(place)
                break
            row = _row_in(line)
            if row is None:
                self.bad_lines += 1
            else:
                self._place(row, place)
            place += len(line)
        return place

    def _place(self, row: Mapping[str, Any], place: int) -> None:
        digest = row["signals"]["replay"]["request"]
        if digest not in self._places:
            self._places[digest] = place
            self.spent_nano_usd += row["cost_nano_usd"] or 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and return once they are on the disk. A call that is on record already is not written again."""
        with self._lock:
            for row in rows:
                digest = row["signals"]["replay"]["request"]
                if digest in self._places:
                    continue
                line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
                self._file.seek(self._end)
                self._file.write(line)
                self._place(row, self._end)
                self._end += len(line)
            self._file.flush()
            os.fsync(self._file.fileno())

    def row(self, digest: str) -> dict[str, Any] | None:
        """Return the row of a call, None if it is not on record."""
        with self._lock:
            place = self._places.get(digest)
            if place is None:
                return None
            self._file.seek(place)
            line = self._file.readline()
        found: dict[str, Any] = json.loads(line)
        return found

    def completion(self, digest: str) -> Completion | None:
        """Return what a call brought, None if it is not on record."""
        row = self.row(digest)
        return None if row is None else completion_of(row)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _row_in(line: bytes) -> dict[str, Any] | None:
    """Return the row that a line holds, None if it is not a whole one."""
    try:
        row = json.loads(line)
        completion_of(row)
        whole = isinstance(row["signals"]["replay"]["request"], str) and isinstance(row["cost_nano_usd"], int | None)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return row if whole else None


def _lock_or_refuse(file: IO[bytes], path: Path) -> None:
    """Keep a second process off this journal, where the system has file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(f"Another process is writing {path}. Wait for it, or choose another output.") from None
