"""Read files in pieces, compressed or not, count the lines that are left out, and report files that cannot be used."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from cascade.errors import UsageError
from cascade.logs.schema import Dropped
from cascade.safety import open_regular

MAX_LINE_BYTES = 256 * 2**20
"""A longer line is skipped, since a line is held in memory as a whole. 25 times the longest line in tests."""
_GZIP = b"\x1f\x8b"
_UTF8_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@contextmanager
def opened(path: Path) -> Iterator[IO[bytes] | gzip.GzipFile]:
    """Open a file for reading, decompressed if it is a gzip file."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise UsageError(_why_not(path, error)) from None
    with file:
        packed = file.read(2) == _GZIP
        file.seek(0)
        if not packed:
            yield file
            return
        with gzip.GzipFile(fileobj=file) as unpacked:
            yield unpacked


def first_bytes(path: Path, count: int) -> bytes:
    """Return the first bytes of a file, decompressed; none if it is empty or damaged there."""
    with opened(path) as file:
        try:
            return file.read(count)
        except (EOFError, zlib.error, OSError):
            return b""


def _why_not(path: Path, error: OSError) -> str:
    if isinstance(error, FileNotFoundError):
        return f"There is no file {path}."
    if isinstance(error, IsADirectoryError) or path.is_dir():
        return f"{path} is a folder; name a file in it."
    return f"{path} cannot be read: {error.strerror or error}."


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn a system error about a file that cannot be written into a UsageError."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror or error}.") from None


def numbered_lines(path: Path, dropped: Dropped) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file with their numbers; a line that is too long or damaged is dropped and counted."""
    with opened(path) as file:
        number = 0
        while line := _next_line(file, dropped, f"{path.name}:{number + 1}"):
            number += 1
            if number == 1:
                if line.startswith(_UTF16_MARKS) or b"\0\0" in (line[:3:2], line[1:4:2]):
                    raise UsageError(f"{path} is written in UTF-16; save it as UTF-8.")
                line = line.removeprefix(_UTF8_MARK)
            if len(line) < MAX_LINE_BYTES or line.endswith(b"\n"):
                yield number, line
                continue
            dropped.drop(f"a line of more than {MAX_LINE_BYTES >> 20} MiB", f"{path.name}:{number}")
            while line and not line.endswith(b"\n"):
                line = _next_line(file, dropped, f"{path.name}:{number}")


def _next_line(file: IO[bytes] | gzip.GzipFile, dropped: Dropped, location: str) -> bytes:
    try:
        return file.readline(MAX_LINE_BYTES)
    except (EOFError, zlib.error, OSError):
        # A compressed file that was cut short or damaged fails only here; the lines before are kept.
        dropped.drop("the file is cut short or damaged from here on", location)
        return b""


def is_table(path: Path) -> bool:
    """Return whether a file's name is that of a table of cells, compressed or not."""
    return path.name.lower().removesuffix(".gz").endswith((".csv", ".tsv"))


def text_of(raw: bytes, dropped: Dropped, path: Path, number: int) -> str:
    """Return the text of a line; invalid UTF-8 is noted and replaced, or, in a table, may be read as Windows-1252."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        windows = is_table(path) and raw.decode("utf-8", "ignore").isascii()  # as Excel saves it
        how = "read as Windows-1252" if windows else "replaced"
        dropped.note(f"bytes that are not UTF-8, {how}", f"{path.name}:{number}")
        return raw.decode("cp1252" if windows else "utf-8", "replace")
