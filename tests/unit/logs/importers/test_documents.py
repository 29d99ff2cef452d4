"""What the page on importing says is so: its example runs, its columns and importers are those that there are."""

from __future__ import annotations

import re
from pathlib import Path

from cascade.logs.importers import IMPORTERS
from cascade.logs.schema import COLUMNS

PAGE = (Path(__file__).parents[4] / "docs" / "import.md").read_text("utf-8")


def test_the_examples_run() -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert examples
    for code in examples:
        exec(compile(code, "docs/import.md", "exec"), {"__name__": "example"})  # noqa: S102 - our own page


def test_every_importer_has_its_row() -> None:
    assert re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE) == list(IMPORTERS)


def test_every_column_is_named() -> None:
    listed = PAGE.partition("## Columns")[2].partition("A row is one call")[0]
    assert re.findall(r"`(\w+)`", listed) == [name for name in COLUMNS if name != "schema_version"]
