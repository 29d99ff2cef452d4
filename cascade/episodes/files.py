"""Episodes as JSON lines: written whole lines at a time, read a line at a time."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cascade.episodes.schema import SCHEMA_VERSION
from cascade.errors import UsageError


def append_jsonl(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Append rows to a file, readable by its owner only; return how many."""
    lines = [json.dumps(row, ensure_ascii=False, allow_nan=False) for row in rows]
    path.touch(mode=0o600, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.write("".join(f"{line}\n" for line in lines))
    return len(lines)


def read_jsonl(path: Path, bad: list[str] | None = None) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. Lines that are no rows are passed over, each named in `bad` if a list is given.

    Raises:
        UsageError: no such file, or written by a newer version.
    """
    if not path.is_file():
        raise UsageError(f"There is no file {path}.")
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):
                row = None
            if not isinstance(row, dict):
                if bad is not None:
                    bad.append(f"{path}:{number}: not a JSON object")
                continue
            written = row.get("schema_version")
            if isinstance(written, int) and written > SCHEMA_VERSION:
                raise UsageError(f"{path}:{number} was written by a newer version of cascade; please upgrade.")
            yield row
