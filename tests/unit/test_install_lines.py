"""Every pip line that is shown names this package, an extra that exists, and what the commands beside it need."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from cascade.errors import DISTRIBUTION, EXTRAS, install_command

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.py")])
FROM_A_CLONE = 'pip install -c constraints.txt -e ".[{extras}]"'
CORE = (
    "pip install build hatchling",
    'pip install -c constraints.txt --find-links dist "certified-cascade-core[{extras}]"',
    'pip install "certified-cascade-core[{extras}]"',
)
"""How the quickstart builds and installs the core; tools/try_wheel.py does the same."""
FIRST = ("README.md", "quickstart.md")
"""The pages that install the package."""
IN_A_CLONE = (*FIRST, "serve.md")
"""The pages that install from a clone; the others add an extra to what is installed."""
SHOWN = [
    (page.name, line.rstrip())
    for page in PAGES
    for line in re.findall(r"pip install [^`\n]*?(?=`|  |\n|$)", page.read_text("utf-8"))
]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def extras_of(line: str) -> set[str]:
    found = re.search(r"\[([\w,]+)\]", line)
    return set(found[1].split(",")) if found else set()


def test_the_messages_name_the_distribution_of_pyproject() -> None:
    assert PROJECT["name"] == DISTRIBUTION


def test_every_install_line_has_a_form_that_works_and_extras_that_exist() -> None:
    wrong = []
    for page, line in SHOWN:
        extras = ",".join(re.findall(r"\[([\w,]+)\]", line))
        known = {form.format(extras=extras) for form in (FROM_A_CLONE, *CORE)} if page in IN_A_CLONE else set()
        if (
            line not in known | {install_command(extras)}
            or not extras_of(line) <= PROJECT["optional-dependencies"].keys()
        ):
            wrong.append(f"{page}: {line}")
    assert not wrong
    assert len(SHOWN) > len(FIRST)


def test_no_page_or_message_names_a_package_of_somebody_else() -> None:
    """`cascade` and `cascade-orchestrator` on the package index are other projects."""
    sources = [
        *PAGES,
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *ROOT.glob("cascade/**/*.py"),
        ROOT / "Makefile",
        ROOT / "pyproject.toml",
    ]
    others = re.compile(r"pip install (?:-\S+ )*[\"']?cascade(?![-\w]*/)|cascade[-_]orchestrator")
    assert not [path.name for path in sources if others.search(path.read_text("utf-8"))]


@pytest.mark.parametrize("page", FIRST)
def test_the_first_install_line_brings_what_the_page_uses(page: str) -> None:
    (line, *_) = [line for name, line in SHOWN if name == page]
    assert extras_of(line) >= {EXTRAS[name] for name in ("xllamacpp", "duckdb")}
