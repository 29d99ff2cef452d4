"""What the documents say of the matchers is so: the examples print what stands below them, the rules differ as listed."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
from pathlib import Path

import pytest
from cases import each

from cascade.matching import get_matcher, registry

ROOT = Path(__file__).parents[3]
GUIDE = (ROOT / "docs" / "matching.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", GUIDE, re.DOTALL)


def test_the_guide_has_examples() -> None:
    assert len(EXAMPLES) == 4


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


# The table of design/matching.md: two texts, and whether the rule says that they are the same.
DIFFERENCES = [
    ("3.5", "35", False),
    ("-5", "5", False),
    ("\u201cDanube\u201d", "Danube", True),
    ("1914\u20131918", "1914-1918", True),
    ("\uff24anube", "Danube", True),
    ("Straße", "STRASSE", True),
    ("!!!", "?", False),
    ("the", "a", False),
    ("foo_bar", "foobar", True),
    ("9 eggs", "9", True),
    ("1 000", "1000", False),
    ("cafe\u0301", "caf\u00e9", True),
    ("x" * 2_000 + "y", "x" * 2_000 + "z", False),
]


@each("answer, gold, same", DIFFERENCES)
def test_the_rule_exact_is_as_the_design_says(answer: str, gold: str, same: bool) -> None:
    assert get_matcher("exact").matches(answer, [gold]) is same


def test_the_design_lists_every_difference() -> None:
    table = (ROOT / "design" / "matching.md").read_text("utf-8").split("| | official |")[1].split("\n\n")[0]
    assert len(table.splitlines()) == 2 + 11
