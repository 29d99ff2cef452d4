"""Tables in Markdown."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np


def head() -> str:
    """Return the day and the machine."""
    day = datetime.now(UTC).date().isoformat()
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{day}, {cores}, Python {platform.python_version()}, numpy {np.__version__}"


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a table in Markdown.

    >>> table(["a", "b"], [["1", "2"]])
    ['| a | b |', '|---|---|', '| 1 | 2 |']
    """
    return [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *(f"| {' | '.join(row)} |" for row in rows)]
