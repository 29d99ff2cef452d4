"""The journal of paid calls: each reply is written to a file before it is used, and found by its request.

A killed process loses at most the calls in flight: each reply is on the disk before it is used, and a call whose
request is recorded is answered from the record.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Self

from cascade.errors import UsageError
from cascade.logs.lines import write_all, writing
from cascade.logs.schema import completion_of
from cascade.types import Completion


class Journal:
    """A file of call rows with an index in memory: some 200 bytes a call, whatever its length. Safe between threads.

    Attributes:
        bad_lines: how many lines were not valid rows when it was opened.
        spent_nano_usd: the total cost of the recorded calls, at most: an unknown cost counts at its bound.
        cost_known: whether `spent_nano_usd` is exact, with every cost known.

    Raises:
        UsageError: another process is writing this journal, or the file cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.bad_lines = 0
        self.spent_nano_usd = 0
        self.cost_known = True
        self._places: dict[str, int] = {}
        self._lock = threading.Lock()
        self._claimed: set[str] = set()
        self._released = threading.Condition()
        with writing(path):
            self._file = _opened(path)
            # Unbuffered: written data is in the file, and a part written before the disk was full can be cut off again.
            self._out = path.open("r+b", buffering=0)
        self._end = self._index()

    def _index(self) -> int:
        """Find every complete row; cut off a torn last line; skip and count an invalid line in the middle."""
        place = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                self._out.truncate(place)
                break
            row = _row_in(line)
            if row is None:
                self.bad_lines += 1
            else:
                self._place(row, place)
            place += len(line)
        return place

    def _place(self, row: Mapping[str, Any], place: int) -> None:
        replay, cost = row["signals"]["replay"], row["cost_nano_usd"]
        if replay["request"] not in self._places:
            self._places[replay["request"]] = place
            self.spent_nano_usd += replay.get("cost_bound_nano_usd", 0) if cost is None else cost
            self.cost_known &= cost is not None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __contains__(self, digest: object) -> bool:
        return digest in self._places

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write rows and return once they are on the disk. A call that is already recorded is not written again.

        Raises:
            UsageError: the disk is full, or refuses them for another reason. The earlier rows are recorded.
        """
        with self._lock, writing(self.path):
            for row in rows:
                if row["signals"]["replay"]["request"] not in self._places:
                    self._write(row)
            os.fsync(self._out.fileno())

    def _write(self, row: Mapping[str, Any]) -> None:
        line = json.dumps(row, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        self._out.seek(self._end)
        try:
            write_all(self._out, line)
        except OSError:
            self._out.truncate(self._end)
            raise
        self._place(row, self._end)
        self._end += len(line)

    def row(self, digest: str) -> dict[str, Any] | None:
        """Return the row of a call, None if it is not recorded."""
        with self._lock:
            place = self._places.get(digest)
            if place is None:
                return None
            self._file.seek(place)
            line = self._file.readline()
        found: dict[str, Any] = json.loads(line)
        return found

    def completion(self, digest: str) -> Completion | None:
        """Return the completion of a call; None if it is not recorded."""
        row = self.row(digest)
        return None if row is None else completion_of(row)

    @contextlib.contextmanager
    def claim(self, digest: str) -> Iterator[Completion | None]:
        """Yield the completion of a recorded call, or None if this thread must make the call now.

        Other threads that claim the same call wait: a set may have a question twice, and its call is paid for once.
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
        if os.name != "nt":  # removed before the lock, so that no other process uses a file that is about to be deleted
            self.path.unlink()
        self.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._out.close()
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def is_call(row: Mapping[str, Any]) -> bool:
    """Whether a row has a complete call, so that its request can be answered from it."""
    try:
        completion_of(row)
        replay = row["signals"]["replay"]
        texts, costs = (row["text"], replay["request"]), (row["cost_nano_usd"], replay.get("cost_bound_nano_usd"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
    return all(isinstance(one, str) for one in texts) and all(isinstance(one, int | None) for one in costs)


def _row_in(line: bytes) -> dict[str, Any] | None:
    """Return the row of a line; None if it is not complete."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and is_call(row) else None


def _opened(path: Path) -> IO[bytes]:
    """Open a journal that only its owner can read; create it if it does not exist."""
    while True:
        path.touch(mode=0o600, exist_ok=True)
        file = path.open("r+b")
        _lock_or_refuse(file, path)
        if _is_still(file, path):
            return file
        file.close()


def _is_still(file: IO[bytes], path: Path) -> bool:
    """Whether the file still exists: another process may have finished and deleted it while it was being opened."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _lock_or_refuse(file: IO[bytes], path: Path) -> None:
    """Lock the journal against a second process, if the system has file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise UsageError(f"Another process is writing {path}. Wait for it, or choose another output.") from None
