"""The page on certificates: its Python runs, and its tables are what the benchmark prints."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "certificates.md").read_text("utf-8")


def test_the_tables_are_those_of_the_benchmark() -> None:
    made: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "needed_questions.py"))
    for table in (made["needed_table"](), made["spread_table"]()):
        assert len(table) > 5
        assert "\n".join(table) in PAGE
