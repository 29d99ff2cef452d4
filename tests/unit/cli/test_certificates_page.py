"""The page on certificates: its figures are what the benchmark prints."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "certificates.md").read_text("utf-8")


def test_the_figures_are_those_of_the_benchmark() -> None:
    made: dict[str, Any] = runpy.run_path(str(ROOT / "benchmarks" / "needed_questions.py"))
    assert "\n".join(made["needed_table"]()) in PAGE
    for questions, lost in (("50", 1), ("100", 5), ("500", 40), ("1,000", 87)):
        (row,) = [line.split(" | ") for line in made["spread_table"]() if line.startswith(f"| {questions} |")]
        assert int(row[3]) == lost
        assert re.search(rf"\b{lost}\s(?:\w+\s)?of\s{questions}\b", PAGE)
