"""Read a file of unknown origin: never more than a given number of bytes, whatever size the file claims."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, most_bytes: int, *, regular: bool = False) -> bytes | None:
    """Return the contents of a file; None if they are longer than `most_bytes`.

    Args:
        path: the file.
        most_bytes: the most that is read, since a device such as /dev/zero has no end.
        regular: whether the file must be a regular one: a pipe or a device is then refused without waiting for it.

    Raises:
        OSError: the file cannot be read, or is not a regular file although `regular` asks for one.
    """
    if regular and not stat.S_ISREG(path.stat().st_mode):  # opening a pipe without a writer would wait for ever
        raise OSError(errno.EINVAL, "it is no regular file")
    with path.open("rb") as file:
        if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most_bytes + 1)
    return None if len(data) > most_bytes else data
