"""Reading a file that somebody else wrote: never more than a bound, whatever the file says of its size."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_bounded(path: Path, most_bytes: int, *, regular: bool = False) -> bytes | None:
    """Return what a file holds; None where that is more than `most_bytes`.

    Args:
        path: of the file.
        most_bytes: how much is read at most; a device such as /dev/zero has no end.
        regular: whether it must be a regular file: a pipe or a device is then refused, without waiting for it.

    Raises:
        OSError: it cannot be read, or is no regular file where one is wanted.
    """
    if regular and not stat.S_ISREG(path.stat().st_mode):  # to open a pipe that nobody writes to waits for ever
        raise OSError(errno.EINVAL, "it is no regular file")
    with path.open("rb") as file:
        if regular and not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file")
        data = file.read(most_bytes + 1)
    return None if len(data) > most_bytes else data
