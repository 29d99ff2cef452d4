"""What the documents say of the matchers is so: the examples print what stands below them, the rules differ as listed."""

from __future__ import annotations

import contextlib
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
    for name, takes in registry.OPTIONS.items():
        for option in set(takes.readers) - {"function"}:
            assert f"`{option}`" in rows[name], (name, option)


# The table of design/matching.md: two texts, whether the official rule and ours say they are the same.
DIFFERENCES = [
    ("3.5", "35", True, False),
    ("-5", "5", True, False),
    ("\u201cDanube\u201d", "Danube", False, True),
    ("1914\u20131918", "1914-1918", False, True),
    ("\uff24anube", "Danube", False, True),
    ("Straße", "STRASSE", False, True),
    ("!!!", "?", True, False),
    ("the", "a", True, False),
    ("foo_bar", "foobar", True, True),
    ("9 eggs", "9", False, True),
    ("1 000", "1000", False, False),
    ("cafe\u0301", "caf\u00e9", False, True),
    ("x" * 2_000 + "y", "x" * 2_000 + "z", False, False),
]


@each("answer, gold, official, ours", DIFFERENCES)
def test_our_rule_differs_from_the_official_one_as_the_design_says(
    answer: str, gold: str, official: bool, ours: bool
) -> None:
    assert get_matcher("squad").matches(answer, [gold]).correct is official
    assert get_matcher("exact").matches(answer, [gold]).correct is ours


def test_the_design_lists_every_difference() -> None:
    table = (ROOT / "design" / "matching.md").read_text("utf-8").split("| | official |")[1].split("\n\n")[0]
    assert len(table.splitlines()) == 2 + 11
