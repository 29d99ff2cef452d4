"""Helpers of the tests of logs: write a file, read it as `cascade import` does."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.logs.importing import imported
from cascade.logs.presets import ImportOptions
from cascade.logs.schema import Dropped


def lines(path: Path, *records: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{record if isinstance(record, str) else json.dumps(record)}\n" for record in records))
    return path


def rows_of(
    *paths: Path, dropped: Dropped | None = None, hints: list[str] | None = None, **options: Any
) -> list[dict[str, Any]]:
    with imported(paths, ImportOptions(**options), dropped, tell=None if hints is None else hints.extend) as log:
        return list(log.rows())


def picked(rows: Sequence[Mapping[str, Any]], *names: str) -> list[tuple[Any, ...]]:
    return [tuple(row[name] for name in names) for row in rows]
