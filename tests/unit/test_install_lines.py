"""Every install line that is shown can be run in a clone, and that of the README brings what its commands need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from cascade.errors import EXTRAS, install_command

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")])
SHOWN = [
    (page.name, line)
    for page in PAGES
    for line in re.findall(r"pip install [^`\n]*?(?=`|  |\n|$)", page.read_text("utf-8"))
]


def extras_of(line: str) -> set[str]:
    found = re.search(r"\[([\w,]+)\]", line)
    return set(found[1].split(",")) if found else set()


@pytest.mark.parametrize(("page", "line"), SHOWN)
def test_an_install_line_is_the_one_form_and_its_extras_exist(page: str, line: str) -> None:
    assert line.rstrip() == install_command(",".join(re.findall(r"\[([\w,]+)\]", line)))
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    assert extras_of(line) <= known.keys()


@pytest.mark.parametrize("page", ["README.md", "quickstart.md"])
def test_the_first_install_line_brings_what_the_page_uses(page: str) -> None:
    (line, *_) = [line for name, line in SHOWN if name == page]
    assert extras_of(line) >= {EXTRAS[name] for name in ("xllamacpp", "pyarrow", "matplotlib", "scikit-learn")}
