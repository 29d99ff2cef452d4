"""Several files of one directory, written all or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path


def write_whole(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write files in one go, and take away those whose content is None.

    Everything is first written beside its place and flushed to the disk. Then one after the other takes its place, in
    the order given: whoever reads a file finds the old one or the new one, whole. If that fails half-way, what was
    there before is put back. A machine that stops half-way can leave some old and some new files: the last should
    name the others by their hashes.

    Args:
        folder: made if it is not there.
        contents: by plain file names.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = Path(tempfile.mkdtemp(prefix=".writing.", dir=folder))  # on the same disk, so that files can be moved
    try:
        for name, data in contents.items():
            if data is not None:
                _flushed(held / f"new.{name}", data)
            if (folder / name).exists():
                shutil.copy2(folder / name, held / f"old.{name}")
        _put(folder, held, contents)
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _put(folder: Path, held: Path, contents: Mapping[str, bytes | None]) -> None:
    """Let the new files take their places, or put the old ones back."""
    done: list[str] = []
    try:
        for name, data in contents.items():
            done.append(name)
            if data is None:
                (folder / name).unlink(missing_ok=True)
            else:
                (held / f"new.{name}").replace(folder / name)
    except BaseException:
        for name in reversed(done):
            with contextlib.suppress(OSError):  # the first error is the one to tell
                if (held / f"old.{name}").exists():
                    (held / f"old.{name}").replace(folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
        raise


def _flushed(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    file.chmod(0o644)
