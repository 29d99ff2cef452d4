"""Convert the errors of a store: what is wrong, and what to do next."""

from __future__ import annotations

import errno
from typing import Any, ClassVar

from cascade.errors import CascadeError, UsageError, quote


class NoTracesError(UsageError):
    """A store was opened for reading before anything was written to it."""


class StoreError(CascadeError):
    """A store operation failed: the store is full, unreachable, locked or damaged.

    `retryable`: the same may succeed later. `busy`: another writer uses the file. Under `traces.strict`, `answer` is
    the paid answer that could not be recorded.
    """

    exit_code: ClassVar[int] = 1
    retryable: bool = False
    busy: bool = False
    answer: Any = None


_FULL = "the disk is full, so nothing was written. Free some space, or name a store elsewhere: traces: sqlite:///FILE"
_READ_ONLY = "cannot be written: {said}. Choose a folder that you may write to: traces: sqlite:///FILE"

_SQLITE: tuple[tuple[str, type[CascadeError], bool, str], ...] = (
    ("SQLITE_FULL", StoreError, True, _FULL),
    ("SQLITE_READONLY", UsageError, False, _READ_ONLY),
    ("SQLITE_CANTOPEN", UsageError, False, "cannot be opened: {said}. Check its path and your rights"),
    ("SQLITE_PERM", UsageError, False, _READ_ONLY),
    ("SQLITE_AUTH", UsageError, False, _READ_ONLY),
    ("SQLITE_BUSY", StoreError, True, "another process has locked it for too long. Try again"),
    ("SQLITE_LOCKED", StoreError, True, "another process has locked it for too long. Try again"),
    ("SQLITE_NOTADB", UsageError, False, "is not an SQLite database. Choose another file"),
    ("SQLITE_CORRUPT", StoreError, False, "is damaged ({said}). Move it away; sqlite3 FILE .recover saves what it can"),
    ("SQLITE_IOERR", StoreError, True, "could not be read or written: {said}; its disk may be full, or failing"),
)
"""By the start of SQLite's error name: the class, whether it is retryable, and the message."""

_POSTGRES: tuple[tuple[str, type[CascadeError], bool, str], ...] = (
    ("53100", StoreError, True, "the server's disk is full, so nothing was written"),
    ("3F", UsageError, False, "there is no such schema. Make it, or set another search_path"),
    ("42501", UsageError, False, "the user may not do this: {said}"),
    ("25006", UsageError, False, "the server only reads: {said}"),
    ("22", UsageError, False, "a value does not fit: {said}"),
    ("23", UsageError, False, "a row breaks a rule of the table: {said}"),
    ("42", UsageError, False, "the tables are not as cascade makes them: {said}"),
)
"""By the start of the SQLSTATE. Reference: PostgreSQL 15, appendix A. A connection that is refused has none."""


def from_database(error: Exception, shown: str) -> CascadeError:
    """Return cascade's error for one of SQLAlchemy, sqlite3 or psycopg. It quotes no statement, no row and no password.

    `shown` is the store's address without its password.
    """
    origin = getattr(error, "orig", None) or error
    name = getattr(origin, "sqlite_errorname", None)
    if name is not None:
        return _chosen(_SQLITE, str(name), origin, shown)
    state = getattr(origin, "sqlstate", None)
    if state is not None:
        return _chosen(_POSTGRES, str(state), origin, shown)
    if type(origin).__module__ == "sqlite3":
        return StoreError(f"The trace store {shown} failed: {quote(str(origin))}.")
    said = quote(str(origin).partition("(Background on")[0])  # SQLAlchemy's own errors end with a link
    return StoreError(f"The trace store {shown} cannot be reached: {said.rstrip('.')}.", retryable=True)


def _chosen(
    table: tuple[tuple[str, type[CascadeError], bool, str], ...], code: str, origin: BaseException, shown: str
) -> CascadeError:
    said = quote(str(origin).partition("\nDETAIL")[0])  # the detail quotes the row
    for start, kind, retryable, text in table:
        if code.startswith(start):
            message = f"The trace store {shown}: {text.format(said=said)}."
            return StoreError(message, retryable=retryable) if kind is StoreError else kind(message)
    return StoreError(f"The trace store {shown} failed ({code}): {said}.", retryable=True)


def from_file(error: OSError, shown: str) -> CascadeError:
    """Return cascade's error for a folder or file that the system refused."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreError(f"The trace store {shown}: {_FULL}.", retryable=True)
    return UsageError(f"The trace store {shown} {_READ_ONLY.format(said=error.strerror or error)}.")
