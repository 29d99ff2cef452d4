"""What the documents say of the matchers is so: the examples print what stands below them, and every option is listed."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest

from cascade.matching import registry

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "matching.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize(("code", "printed"), EXAMPLES)
def test_an_example_prints_the_output_below_it(code: str, printed: str) -> None:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(code, "docs/matching.md", "exec"), {"__name__": "example"})  # noqa: S102 - our own page
    assert out.getvalue() == printed


def test_the_guide_lists_every_matcher_with_its_options() -> None:
    rows = {
        name: row for row in GUIDE.splitlines() if (match := re.match(r"\| `(\w+)` \|", row)) for name in [match[1]]
    }
    assert set(rows) == set(registry.MATCHERS.built_in)
    for name in set(rows) - {"function"}:
        for option in set(inspect.signature(registry.MATCHERS.find(name) or object).parameters) - {"args", "kwargs"}:
            assert f"`{option}`" in rows[name], (name, option)
