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
        contents: by plain file names, or by paths below the folder ("levels/low/policy.json"), whose folders are made;
            those that are left empty go with their last file.
    """
    folder.mkdir(parents=True, exist_ok=True)
    held = Path(tempfile.mkdtemp(prefix=".writing.", dir=folder))  # on the same disk, so that files can be moved
    try:
        for name, data in contents.items():
            if data is not None:
                _flushed(_beside(held, "new", name), data)
            if (folder / name).exists():
                shutil.copy2(folder / name, _beside(held, "old", name))
        _put(folder, held, contents)
    finally:
        shutil.rmtree(held, ignore_errors=True)


def _beside(held: Path, which: str, name: str) -> Path:
    """Return where a file waits: in one folder, so that no folders have to be made; "@" stands for "/"."""
    return held / f"{which}.{name.replace('/', '@')}"


def _put(folder: Path, held: Path, contents: Mapping[str, bytes | None]) -> None:
    """Let the new files take their places, or put the old ones back."""
    done: list[str] = []
    try:
        for name, data in contents.items():
            done.append(name)
            if data is None:
                (folder / name).unlink(missing_ok=True)
            else:
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                _beside(held, "new", name).replace(folder / name)
    except BaseException:
        for name in reversed(done):
            with contextlib.suppress(OSError):  # the first error is the one to tell
                if _beside(held, "old", name).exists():
                    _beside(held, "old", name).replace(folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
        _tidy(folder, done)
        raise
    _tidy(folder, done)


def _tidy(folder: Path, names: list[str]) -> None:
    """Take away the folders below that hold nothing any more."""
    below = {folder / parent for name in names for parent in Path(name).parents} - {folder}
    for one in sorted(below, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):  # it holds something, or is gone already
            one.rmdir()


def _flushed(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    file.chmod(0o644)
