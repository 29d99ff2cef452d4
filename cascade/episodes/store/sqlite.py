"""SQLite as the store uses it: one writing connection to a file, in WAL mode where that is safe.

SQLite before 3.51.3 can damage a file in WAL mode when one connection commits while another checkpoints
(sqlite.org/wal.html, "The WAL-reset bug"). With one connection that both writes and checkpoints this cannot happen. So
with such a version a writer holds an advisory lock beside the file while its connection is open, and a second writer
waits, or is refused with this reason (F55). Readers open the file read-only: they never checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import sys
import time
import weakref
from dataclasses import dataclass
from typing import ClassVar, Literal, Self

from cascade.episodes.store.address import Address
from cascade.episodes.store.problems import StoreError
from cascade.forks import after_fork, no_fork

SOUND_SINCE = (3, 51, 3)
"""The first version without the WAL-reset bug."""
BUSY_S = 5.0
"""How long a statement waits for another process's lock. Its transactions here last milliseconds."""
_POLL_S = 0.01
NO_WAL = (
    "this system or file system has no file locks, and this SQLite could damage a file in WAL mode with two "
    "writers (fixed in 3.51.3), so the slower rollback journal is used"
)
Durability = Literal["group", "full"]


def version() -> tuple[int, ...]:
    """Return the version of the SQLite that Python is linked with."""
    return sqlite3.sqlite_version_info


def has_wal_bug() -> bool:
    """Whether two writing connections could damage a file in WAL mode."""
    return version() < SOUND_SINCE


class WriterLock:
    """The right to write to a file: an advisory lock on a file beside it. It ends with the process that holds it.

    A waiting writer holds a second lock, the turn. The first lock is taken only with the turn, so a writer that
    releases the file and wants it back at once comes after a waiting writer (F50).
    """

    _held: ClassVar[weakref.WeakSet[WriterLock]] = weakref.WeakSet()

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._descriptor: int | None = descriptor
        self._held.add(self)

    @classmethod
    def take(cls, address: Address, wait_s: float) -> WriterLock | None:
        """Wait for a file's lock and take it; return None if the system or the file system has no such locks.

        Raises:
            StoreError: another writer held it all the time.
        """
        until = time.monotonic() + wait_s
        with contextlib.ExitStack() as opened:
            turn = opened.enter_context(cls._opened(address, "-turn"))
            lock = opened.enter_context(cls._opened(address, "-lock"))
            taken = _waited_for(turn, until) and _waited_for(lock, until)
            if not taken:
                raise _refusal(address, lock.descriptor)
            if taken == "unsupported":
                return None
            opened.pop_all()
            turn.release()
        with contextlib.suppress(OSError):  # on a full disk the lock works without the name in it
            os.ftruncate(lock.descriptor, 0)
            os.pwrite(lock.descriptor, str(os.getpid()).encode(), 0)
        return lock

    @classmethod
    def _opened(cls, address: Address, suffix: str) -> WriterLock:
        assert address.path is not None  # noqa: S101 - a server needs no lock
        path = address.path.with_name(f"{address.path.name}{suffix}")
        with no_fork():  # a child must know every copy of the descriptor, or it would keep the lock
            return cls(os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.release()

    def release(self) -> None:
        """Release the lock. May be called twice. A child process releases only its copy."""
        if self._descriptor is not None:
            os.close(self._descriptor)  # never LOCK_UN: in a child that would release its parent's lock
        self._descriptor = None

    @classmethod
    def release_inherited(cls) -> None:
        """Close a fork's copies of the parent's locks, which would outlive the parent."""
        for lock in list(cls._held):
            lock.release()
        cls._held = weakref.WeakSet()


after_fork(WriterLock.release_inherited)


def _waited_for(lock: WriterLock, until_s: float) -> Literal["", "taken", "unsupported"]:
    """Try to take a lock until that time of the monotonic clock, at least once; "" if another holds it."""
    while not (taken := _try_lock(lock.descriptor)):
        if time.monotonic() >= until_s:
            break
        time.sleep(_POLL_S)
    return taken


def _try_lock(descriptor: int) -> Literal["", "taken", "unsupported"]:
    if sys.platform == "win32":
        return "unsupported"
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return "" if error.errno in {errno.EWOULDBLOCK, errno.EINTR} else "unsupported"
    return "taken"


def _refusal(address: Address, descriptor: int) -> StoreError:
    holder = os.pread(descriptor, 20, 0).decode("ascii", "replace").strip("\x00 ")
    who = "another part of this process" if holder == str(os.getpid()) else f"process {holder or '?'}"
    return StoreError(
        f"The trace store {address.shown} is being written by {who}, and SQLite {sqlite3.sqlite_version} can damage a "
        "file with two writers (fixed in 3.51.3). Wait for it to end, use a file for each process, PostgreSQL, or a "
        "newer SQLite.",
        retryable=True,
        busy=True,
        exit_code=2,
    )


@dataclass(slots=True)
class Connector:
    """Opens connections to a file; SQLAlchemy's pool calls it.

    A file that is only read gets no checkpoints. Without a `lock` there are none on this system, or none is needed.
    """

    address: Address
    read_only: bool
    durability: Durability
    lock: WriterLock | None = None
    mode: str | None = None

    def __call__(self) -> sqlite3.Connection:
        """Return a connection that may move between threads and leaves transactions to its user."""
        assert self.address.path is not None  # noqa: S101 - a file has a path
        target = f"{self.address.path.as_uri()}?mode={'ro' if self.read_only else 'rw'}"
        connection = sqlite3.connect(target, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            connection.execute("PRAGMA trusted_schema = OFF")  # a foreign file must not run functions
            if self.read_only:
                self.mode = str(connection.execute("PRAGMA journal_mode").fetchone()[0])
            else:
                self._set_up(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _set_up(self, connection: sqlite3.Connection) -> None:
        """Use WAL if it is safe: a version without the bug, or the only writer."""
        wal = not has_wal_bug() or self.lock is not None
        self.mode = str(connection.execute(f"PRAGMA journal_mode = {'WAL' if wal else 'DELETE'}").fetchone()[0])
        # Without WAL, NORMAL could damage a file when the power fails (sqlite.org/pragma.html#pragma_synchronous).
        level = "NORMAL" if self.durability == "group" and self.mode == "wal" else "FULL"
        connection.execute(f"PRAGMA synchronous = {level}")
        connection.execute("PRAGMA secure_delete = ON")  # purged data is overwritten in the file


def shrink(connection: sqlite3.Connection) -> None:
    """Return the space of deleted rows to the disk, if no reader is active and there is room for a copy."""
    with contextlib.suppress(sqlite3.Error):
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
