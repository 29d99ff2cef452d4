"""The files of a directory: read with a limit and as strict JSON, written all at once or not at all."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from cascade.errors import ConfigError, UsageError
from cascade.safety import read_bounded

MOST_BYTES = 1 << 28
"""256 MiB, enough for the ids of ten million questions. A larger file is refused before it is read."""
REPAIR = "restore the file as it was, and readable, or make it again"
"""What to do about a file that cannot be read or was changed."""


class Closed:
    """Something with a `close`, which a `with` block calls at its end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()  # type: ignore[attr-defined]


def writable(directory: str | Path) -> None:
    """Refuse a path where no folder can be written. Call this before hours of work, not after.

    Raises:
        UsageError: the name is empty or a file's, or nothing can be written there; the message has the reason.
    """
    if not str(directory):
        raise UsageError("Name the policy directory to be written: --output DIR")
    folder = Path(directory)
    try:
        nearest = next(path for path in (folder, *folder.absolute().parents) if is_there(path))
        tempfile.TemporaryDirectory(prefix=".writing.", dir=nearest).cleanup()
    except OSError as error:
        raise unwritten(folder, error) from None


def is_there(path: Path) -> bool:
    """Return whether a file or a folder exists at a path that is about to be written."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}. Choose another name.") from None
    return True


def unwritten(folder: Path, error: OSError) -> UsageError:
    """Return the message for a policy directory that cannot be written."""
    if error.errno == errno.EEXIST or (error.errno == errno.ENOTDIR and folder.is_file()):
        return UsageError(f"{folder} is a file, so no policy directory can be written there; choose another --output.")
    return UsageError(f"The policy directory {folder} cannot be written: {error.strerror}. Choose another one.")


def content(file: Path) -> bytes:
    """Read a file of at most `MOST_BYTES`. Raises ConfigError if it cannot be read."""
    try:
        size = file.stat().st_size
        data = None if size > MOST_BYTES else read_bounded(file, MOST_BYTES)
    except OSError as error:
        raise ConfigError([f"it cannot be read: {error.strerror}; {REPAIR}"], str(file)) from None
    if data is None:
        raise ConfigError([f"it has {size:,} bytes or more; more than {MOST_BYTES:,} are not read"], str(file))
    return data


def json_of(file: Path) -> Any:
    """Read a JSON file without duplicate names or non-JSON numbers. Raises ConfigError if it is not valid."""
    data = content(file)
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=without_repeats, parse_constant=_finite, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"it is not JSON as cascade writes it: {error}; {REPAIR}"], str(file)) from None


def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object. Raises ValueError if a name occurs twice in it."""
    names = dict(pairs)
    if len(names) != len(pairs):
        raise ValueError("a name appears twice in an object")
    return names


def _finite(digits: str) -> float:
    """Return a number; refuse NaN, which is not JSON, and numbers such as 1e999, which would become infinite."""
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits} is not a finite number")
    return number


def json_bytes(document: Mapping[str, Any]) -> bytes:
    """Return a document as the bytes of a file; equal values give equal bytes."""
    return (json.dumps(document, sort_keys=True, indent=1, allow_nan=False) + "\n").encode("ascii")


# --- Atomic writing of several files of one directory ---


def write_whole(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write several files atomically, and remove those whose content is None.

    All files are first written to temporary names and flushed to the disk. Then they are moved into place in the given
    order, so a reader finds each file complete, old or new. If a move fails, the old files are restored. A crash of the
    machine can leave some old and some new files, so the last file should name the others by their hashes.

    Args:
        folder: created if it does not exist.
        contents: the content by file name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    spare = Path(tempfile.mkdtemp(prefix=".writing.", dir=folder))  # on the same disk, so that files can be moved
    begun: list[str] = []
    try:
        for name, data in contents.items():
            if data is not None:
                _flushed(spare / f"new.{name}", data)
            if (folder / name).exists():
                shutil.copy2(folder / name, spare / f"old.{name}")
        for name in contents:
            begun.append(name)
            _move(spare / f"new.{name}", folder / name)
    except BaseException:
        for name in reversed(begun):
            with contextlib.suppress(OSError):  # report the first error
                _move(spare / f"old.{name}", folder / name)
        raise
    finally:
        shutil.rmtree(spare, ignore_errors=True)


def _move(source: Path, target: Path) -> None:
    """Move a file into its place, or remove the target if there is no such file."""
    if source.exists():
        source.replace(target)
    else:
        target.unlink(missing_ok=True)


def _flushed(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    file.chmod(0o644)
