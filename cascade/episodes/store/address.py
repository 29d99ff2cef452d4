"""A store's address: its URL, the part that may be shown, and the file, which only its owner may read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, urlsplit

from cascade.errors import UsageError, quote

if TYPE_CHECKING:
    from cascade.budget.database import Database

_FORMS = "A store is sqlite:///FILE (four slashes for an absolute path) or postgresql://USER@HOST/DATABASE"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
SCHEMES = ("sqlite", *_POSTGRES)
"""The starts of store URLs."""
SIDE_FILES = ("-wal", "-shm", "-journal", "-lock")
"""The files that SQLite and the writer's lock put beside the file."""


def is_url(path: Path | str) -> bool:
    """Whether this names a store of episodes, not a file.

    >>> is_url("sqlite:///cascade.db"), is_url("log.jsonl")
    (True, False)
    """
    scheme, mark, _ = str(path).partition("://")
    return bool(mark) and scheme in SCHEMES


@dataclass(frozen=True, slots=True)
class Address:
    """A store's place. The URL may contain a password, so only `shown` is shown. A server has no path."""

    url: str = field(repr=False)
    shown: str
    path: Path | None = None


def parse(url: str) -> Address:
    """Return a store's address.

    >>> parse("postgresql://me:secret@db.example/traces").shown
    'postgresql://me:***@db.example/traces'
    """
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "sqlite":
        return _file(url, rest)
    if separator and scheme in _POSTGRES:
        return _server(rest)
    raise UsageError(f"{scheme!r} is not a kind of store. {_FORMS}." if separator else f"{_FORMS}.")


def _file(url: str, rest: str) -> Address:
    name = rest.removeprefix("/")
    if name == rest or not name or name.startswith(":memory:") or "?" in name or "\x00" in name:
        raise UsageError(f"{url!r} names no file. {_FORMS}.")
    path = Path(name).expanduser().absolute()
    if ".." in path.parts:
        # A path made of untrusted input could lead a write out of the folder that the user means (F70).
        raise UsageError(f"The path in {url!r} leads upwards (..). Write the absolute path: sqlite:////folder/file.db.")
    return Address(url, url, path)


def _server(rest: str) -> Address:
    url = f"postgresql+psycopg://{rest}"
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError as error:
        raise UsageError(f"That is not the URL of a PostgreSQL server: {error}. {_FORMS}.") from None
    user = f"{parts.username}{':***' if parts.password else ''}@" if parts.username else ""
    return Address(url, f"postgresql://{user}{parts.hostname or ''}{port}{parts.path}")


def holds_password(url: str) -> bool:
    """Whether a URL contains a password in any of its parts."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query)
    except ValueError:
        return False
    return parts.password is not None or any("password" in name for name, _ in options)


def made_ready(address: Address) -> list[str]:
    """Make sure that a store's file exists, is a file, and only its owner can read it (F70); return warnings.

    An existing file is never opened: closing it would release the locks that SQLite has on it in this process
    (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        UsageError: it is a link or a folder, or cannot be written.
        StoreError: the disk is full.
    """
    assert address.path is not None  # noqa: S101 - callers have a file
    path = address.path
    try:
        _refuse_links(address, path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        warnings = _folder_warnings(path.parent)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        except FileExistsError:
            warnings += _tightened(path)
    except OSError as error:
        from cascade.episodes.store.problems import from_file

        raise from_file(error, address.shown) from None
    return warnings


def database_at(url: str, tables: Iterable[str], what: str) -> Database:
    """Return the database at a store's URL, with these tables; a missing file is made. `what` names it in errors.

    Raises:
        UsageError: the URL is not that of a store.
        StoreError: it cannot be reached.
    """
    from cascade.budget.database import Database

    address = parse(url)
    try:
        if address.path is None:
            return Database.postgres(address.url.replace("postgresql+psycopg://", "postgresql://", 1), tables)
        made_ready(address)
        return Database.sqlite(address.path, tables)
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in {"psycopg", "sqlite3"}:
            raise
        from cascade.episodes.store.problems import StoreError

        said = quote(str(error)).rstrip(".")
        raise StoreError(f"{what}: {address.shown} cannot be used: {said}.", retryable=True) from None


def _refuse_links(address: Address, path: Path) -> None:
    for suffix in ("", *SIDE_FILES):
        one = path.with_name(path.name + suffix)
        if one.is_symlink():
            raise UsageError(f"The trace store {address.shown}: {one} is a symbolic link. Name the file itself.")
    if path.exists() and not path.is_file():
        raise UsageError(f"The trace store {address.shown}: {path} is not a file. Choose another name.")


def _folder_warnings(folder: Path) -> list[str]:
    mode = folder.stat().st_mode
    if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
        return [f"everybody may write to the folder {folder}, so anybody can replace the trace store in it"]
    return []


def _tightened(path: Path) -> list[str]:
    """Remove everybody's rights to a file but its owner's."""
    mode = stat.S_IMODE(path.stat().st_mode)
    if not mode & 0o077 or os.name != "posix":
        return []
    try:
        for suffix in ("", *SIDE_FILES):
            one = path.with_name(path.name + suffix)
            if one.exists():
                one.chmod(0o600)
    except PermissionError:
        return [f"others may read the trace store {path} (mode {mode:03o}), and its mode cannot be changed"]
    return [f"others could read the trace store {path} (mode {mode:03o}); now only you can (600)"]
