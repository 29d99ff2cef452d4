"""A store's address: its URL, the part that may be shown, and the file, which only its owner may read."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

from cascade.errors import CascadeError, StoreError, UsageError
from cascade.safety import open_regular

FOLDER = ".cascade"
"""The folder of a project's own store; its .gitignore keeps it out of version control."""
_FORMS = "A store is sqlite:///FILE (four slashes for an absolute path) or postgresql://USER@HOST/DATABASE"
_POSTGRES = ("postgresql", "postgres", "postgresql+psycopg")
_SQLITE = b"SQLite format 3\0"
_SIDE_FILES = ("-wal", "-shm", "-journal")
"""The files that SQLite puts beside the file."""
FULL = "the disk is full, so nothing was written. Free some space, or name a store elsewhere: traces: sqlite:///FILE"
READ_ONLY = "cannot be written: {reason}. Choose a folder that you may write to: traces: sqlite:///FILE"
_RIGHTS = {errno.EACCES, errno.EPERM, errno.EROFS}
_LASTING = _RIGHTS | {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP}
"""Errors that will recur for the same path with the same permissions."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a store. The URL may contain a password, so show only `shown`. A server has no path."""

    url: str = field(repr=False)
    shown: str
    path: Path | None = None


def is_url(path: Path | str) -> bool:
    """Return whether this is the URL of a store, not the path of a file.

    >>> is_url("sqlite:///cascade.db"), is_url("log.jsonl")
    (True, False)
    """
    scheme, separator, _ = str(path).partition("://")
    return bool(separator) and scheme in {"sqlite", *_POSTGRES}


def located(store: Path | str) -> Path | str:
    """Return the URL of an SQLite file, the URL of a store unchanged, and anything else as a path."""
    with suppress(OSError), open_regular(Path(store)) as file:  # no file, or a URL; opening a pipe would block
        return f"sqlite:///{Path(store).resolve()}" if file.read(len(_SQLITE)) == _SQLITE else Path(store)
    return str(store) if is_url(store) else Path(store)


def parse(url: str) -> Address:
    """Return a store's address.

    Raises:
        UsageError: the URL names no store.

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
        raise UsageError(f"{url!r} does not name a file. {_FORMS}.")
    path = Path(name).expanduser().absolute()
    if ".." in path.parts:
        # A path built from untrusted input could lead out of the folder that the user means (F70).
        raise UsageError(f"The path in {url!r} contains `..`. Write the absolute path: sqlite:////folder/file.db.")
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
    """Return whether any part of a URL contains a password."""
    try:
        parts = urlsplit(url)
        options = parse_qsl(parts.query)
    except ValueError:
        return False
    return parts.password is not None or any("password" in name for name, _ in options)


def prepare_file(address: Address, path: Path) -> None:
    """Make sure that a store's file exists and is a regular file; only its owner can read a new one (F70).

    Raises:
        UsageError: it is a link or a folder, or cannot be written.
        StoreError: the disk is full, or the system fails temporarily.
    """
    try:
        _refuse_links(address, path)
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if path.parent.name == FOLDER and not (ignored := path.parent / ".gitignore").exists():
            ignored.write_text("*\n")
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        raise from_system(error, address.shown) from None


def from_system(error: OSError, shown: str) -> CascadeError:
    """Return cascade's error for a folder or file that the system refused."""
    if error.errno in _LASTING:
        return UsageError(f"The store {shown} {READ_ONLY.format(reason=error.strerror)}.")
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return StoreError(f"The store {shown}: {FULL}.", retryable=True)
    return StoreError(f"The store {shown} cannot be used now: {error.strerror or error}.", retryable=True)


def _refuse_links(address: Address, path: Path) -> None:
    for suffix in ("", *_SIDE_FILES):
        file = path.with_name(path.name + suffix)
        if file.is_symlink():
            raise UsageError(f"The store {address.shown}: {file} is a symbolic link. Name the file itself.")
    if path.exists() and not path.is_file():
        raise UsageError(f"The store {address.shown}: {path} is not a file. Choose another name.")


def tightened(path: Path) -> list[str]:
    """Restrict a store's files to their owner; return warnings."""
    folder, mode = path.parent.stat().st_mode, stat.S_IMODE(path.stat().st_mode)
    if folder & stat.S_IWOTH and not folder & stat.S_ISVTX:
        return [f"everybody may write to the folder {path.parent}, so anybody can replace the store in it"]
    if not mode & 0o077:
        return []
    try:
        for suffix in ("", *_SIDE_FILES):
            file = path.with_name(path.name + suffix)
            if file.exists():
                file.chmod(0o600)
    except PermissionError:
        return [f"others may read the store {path} (mode {mode:03o}), and its mode cannot be changed"]
    return [f"others could read the store {path} (mode {mode:03o}); now only you can (600)"]
