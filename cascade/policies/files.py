"""Reads and writes the files of a policy directory, with error messages if that fails."""

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
from typing import Any

from cascade.errors import ConfigError, UsageError, upgrade_advice
from cascade.safety import read_bounded

MOST_BYTES = 1 << 28
"""256 MiB: ten million questions' ids. A larger file is refused before it is read."""
REPAIR = "restore the file as it was, and readable, or make the policy again (cascade fit, or cascade calibrate)"


POLICY_DIRECTORY, OUTPUT = "policy directory", "--output"


def writable(directory: str | Path, what: str = POLICY_DIRECTORY, option: str = OUTPUT) -> None:
    """Refuse a place where no folder can be written; called before hours of work, not after them.

    It removes what it creates to find out.

    Args:
        directory: the place.
        what: what the folder is called in errors.
        option: the command line's option for it.

    Raises:
        UsageError: the name is empty, it is a file, or nothing can be written there; with the reason.
    """
    if not str(directory):
        raise UsageError(f"Name the {what} to be written: {option} DIR")
    folder = Path(directory)
    made: list[Path] = []
    try:
        missing = [one for one in (folder, *folder.parents) if not one.exists()]
        for one in reversed(missing):
            one.mkdir(exist_ok=True)
            made.append(one)
        tempfile.TemporaryDirectory(prefix=".writing.", dir=folder).cleanup()
    except OSError as error:
        raise unwritten(folder, error, what, option) from None
    finally:
        for one in reversed(made):
            with contextlib.suppress(OSError):  # another process has written there meanwhile
                one.rmdir()


def unwritten(folder: Path, error: OSError, what: str = POLICY_DIRECTORY, option: str = OUTPUT) -> UsageError:
    """Return the message for a folder that cannot be written; `what` and `option` as in `writable`."""
    if error.errno == errno.EEXIST or (error.errno == errno.ENOTDIR and folder.is_file()):
        return UsageError(f"{folder} is a file, and a {what} is to be written; choose another {option}.")
    return UsageError(f"The {what} {folder} cannot be written: {error.strerror}. Choose another one.")


def there(file: Path) -> bool:
    """Whether there is such a file.

    Raises:
        ConfigError: it cannot be told, as in a directory without read permission.
    """
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unread(file, error) from None
    return True


def content(file: Path) -> bytes:
    """Read a file of at most `MOST_BYTES`. Raises ConfigError if it cannot be read."""
    try:
        size = file.stat().st_size
        data = None if size > MOST_BYTES else read_bounded(file, MOST_BYTES)
    except OSError as error:
        raise _unread(file, error) from None
    if data is None:
        raise ConfigError([f"it has {size:,} bytes or more; more than {MOST_BYTES:,} are not read"], str(file))
    return data


def json_of(file: Path) -> Any:
    """Read a JSON file: each name once, only numbers that JSON allows. Raises ConfigError if it is not such a file."""
    return json_of_bytes(content(file), str(file))


def json_of_bytes(data: bytes, source: str) -> Any:
    """Read the bytes of such a file. Raises ConfigError as `json_of` does; `source` is what its message calls them."""
    try:
        return json.loads(
            data.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_constant, parse_float=_finite
        )
    except (ValueError, RecursionError) as error:
        raise ConfigError([f"it is no JSON as it was written: {error}"], source) from None


class NewerFileError(ConfigError):
    """A file that a newer release wrote: nothing is wrong with it, and what its fields mean is not known here."""


def refuse_newer(version: object, known: int, source: str | None) -> None:
    """Raise NewerFileError for a file of a form that is newer than the `known` one."""
    if isinstance(version, int) and not isinstance(version, bool) and version > known:
        said = f"a newer release of cascade wrote it (its form is {version}, and this release reads up to {known})"
        raise NewerFileError([f"{said}. {upgrade_advice()}; or make the policy again with this release"], source)


def versioned(file: Path, known: int) -> Any:
    """Read a JSON file as `json_of`, unless its `schema_version` is newer than the `known` one."""
    document = json_of(file)
    if isinstance(document, dict):
        refuse_newer(document.get("schema_version"), known, str(file))
    return document


def damaged(error: ConfigError) -> ConfigError:
    """Return the problem of a file, with advice; of one that a newer release wrote, as it is."""
    if isinstance(error, NewerFileError):
        return error
    *first, last = error.problems
    return ConfigError([*first, f"{last}; {REPAIR}"], error.source)


def _unread(file: Path, error: OSError) -> ConfigError:
    return ConfigError([f"it cannot be read: {error.strerror}"], str(file))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


def _finite(digits: str) -> float:
    """Return a number; 1e999 would be read as infinite, which no file of ours holds."""
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits} is no number that a computer can hold")
    return number


# --- Several files of one directory, written all or not at all ---


def write_whole(folder: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write files in one go, and remove those whose content is None.

    All files are first written beside their places and flushed to the disk. Then they are moved into place in the given
    order, so a reader finds each file whole, old or new. If a move fails, the old files are restored. A machine that
    stops half-way can leave some old and some new files, so the last file should name the others by their hashes.

    Args:
        folder: created if it does not exist.
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
    """Return where a file is kept before its move: in one flat folder, with "@" for "/"."""
    return held / f"{which}.{name.replace('/', '@')}"


def _put(folder: Path, held: Path, contents: Mapping[str, bytes | None]) -> None:
    """Move the new files into place, or restore the old ones."""
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
            with contextlib.suppress(OSError):  # report the first error
                if _beside(held, "old", name).exists():
                    _beside(held, "old", name).replace(folder / name)
                else:
                    (folder / name).unlink(missing_ok=True)
        _tidy(folder, done)
        raise
    _tidy(folder, done)


def _tidy(folder: Path, names: list[str]) -> None:
    """Remove folders that are now empty."""
    below = {folder / parent for name in names for parent in Path(name).parents} - {folder}
    for one in sorted(below, key=lambda path: len(path.parts), reverse=True):
        with contextlib.suppress(OSError):  # it is not empty, or is gone already
            one.rmdir()


def _flushed(file: Path, data: bytes) -> None:
    with file.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    file.chmod(0o644)
