"""Pages and benchmarks that are cited exist, and every benchmark is cited by a page that says what it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"(?<![\w/.-])((?:design|docs)/[\w-]+\.(?:md|svg)|benchmarks/\w+\.py)\b")
NEIGHBOUR = re.compile(r"`([\w-]+\.md)`")
"""How a page of `design/` speaks of another."""


def texts(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(ROOT.glob(pattern))


PAGES = ("README.md", "design/*.md", "docs/*.md")
READ = list(texts(*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "cascade/**/*.py", "benchmarks/**/*.py", "examples/*.py"))


def test_there_is_something_to_read() -> None:
    names = {cited for path in READ for cited in CITED.findall(path.read_text("utf-8"))}
    assert {"design/validity.md", "docs/certificates.md", "benchmarks/validity.py"} <= names
    assert CITED.findall("see `design/no-such.md`, (docs/x.md) and ../shared/design/y.md") == [
        "design/no-such.md",
        "docs/x.md",
    ]


def test_what_is_cited_exists() -> None:
    lost = []
    for path in READ:
        text = path.read_text("utf-8")
        cited = set(CITED.findall(text))
        if path.parent.name == "design":
            cited |= {f"design/{name}" for name in NEIGHBOUR.findall(text) if name.islower()}
        lost += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(cited) if not (ROOT / name).exists()]
    assert lost == []


def test_every_benchmark_is_cited_by_a_page() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in texts(*PAGES))
    cited = set(re.findall(r"(?<!\w)(\w+\.py)\b", pages))
    assert not [path.name for path in texts("benchmarks/*.py") if path.name not in cited]
