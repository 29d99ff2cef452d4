"""Open and read files that a user names: no wait for a pipe, no device without an end, no more bytes than asked for."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_OPEN_ALREADY = {"/dev/fd", "/proc/self/fd"}
"""Folders of what this process has open: a pipe there is the shell's, as in `cascade ask -c <(make-config)`."""


def open_regular(path: Path, *, or_open_pipe: bool = False) -> BinaryIO:
    """Open a regular file for reading; refuse a pipe, a device or a socket without waiting for it.

    Args:
        path: the file.
        or_open_pipe: whether a pipe that this process has open already, such as /dev/fd/63, may be read too.

    Raises:
        OSError: the file cannot be opened, or is not a regular file; `strerror` then says so.
    """
    _check_kind(path.stat().st_mode, path, or_open_pipe=or_open_pipe)  # to open some devices has an effect
    plain = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
    nonblocking = getattr(os, "O_NONBLOCK", 0)  # another file may have taken its place since, and a pipe would wait
    descriptor = os.open(path, os.O_RDONLY | nonblocking | plain)
    try:
        _check_kind(os.fstat(descriptor).st_mode, path, or_open_pipe=or_open_pipe)
        if nonblocking:
            os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_bounded(path: Path, most_bytes: int, *, or_open_pipe: bool = False) -> bytes | None:
    """Return the contents of a file; None if they are longer than `most_bytes`, whatever size the file claims.

    Raises:
        OSError: as `open_regular` does, or the file cannot be read.
    """
    with open_regular(path, or_open_pipe=or_open_pipe) as file:
        data = file.read(most_bytes + 1)
    return None if len(data) > most_bytes else data


def _check_kind(mode: int, path: Path, *, or_open_pipe: bool) -> None:
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if stat.S_ISFIFO(mode) and or_open_pipe and (str(path.parent) in _OPEN_ALREADY or str(path) == "/dev/stdin"):
        return
    kind = "a pipe" if stat.S_ISFIFO(mode) else "a device or a socket"
    raise OSError(errno.EINVAL, f"it is not a regular file but {kind}; write its contents to a file and name that")
