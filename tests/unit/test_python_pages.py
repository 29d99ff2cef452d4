"""The pages that show Python: what stands on them runs, in order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "page",
    [
        "docs/index.md",
        "docs/python.md",
        "docs/fit.md",
        "docs/write-an-agent.md",
    ],
)
def test_the_python_on_the_page_runs(page: str) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert blocks
    names: dict[str, Any] = {"__name__": "example"}
    for code in blocks:
        exec(compile(code, page, "exec"), names)  # noqa: S102 - our own page
