"""What a page cites exists, every benchmark is cited by a page, and no page installs a package of somebody else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
CITED = re.compile(r"(?<![\w/.-])((?:design|docs)/[\w-]+\.(?:md|svg)|benchmarks/\w+\.py)\b")
NEIGHBOUR = re.compile(r"`([\w-]+\.md)`")
"""How a page of `design/` speaks of another."""
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


def texts(*patterns: str) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(ROOT.glob(pattern))


PAGES = ("README.md", "design/*.md", "docs/*.md")
READ = list(texts(*PAGES, "CHANGELOG.md", "CONTRIBUTING.md", "cascade/**/*.py", "benchmarks/**/*.py", "examples/*.py"))


def test_what_is_cited_exists() -> None:
    lost = []
    for path in READ:
        text = path.read_text("utf-8")
        cited = set(CITED.findall(text))
        if path.parent.name == "design":
            cited |= {f"design/{name}" for name in NEIGHBOUR.findall(text) if name.islower()}
        if path.name == "README.md":
            cited |= set(LINK.findall(text))
        lost += [f"{path.relative_to(ROOT)}: {name}" for name in sorted(cited) if not (ROOT / name).exists()]
    assert lost == []


def test_every_benchmark_is_cited_by_a_page() -> None:
    pages = "\n".join(path.read_text("utf-8") for path in texts(*PAGES))
    cited = set(re.findall(r"(?<!\w)(\w+\.py)\b", pages))
    assert not [path.name for path in texts("benchmarks/*.py") if path.name not in cited]


def test_no_page_or_message_names_a_package_of_somebody_else() -> None:
    """`cascade` and `cascade-orchestrator` on the package index are other projects."""
    others = re.compile(r"pip install (?:-\S+ )*[\"']?cascade(?![-\w]*/)|cascade[-_]orchestrator")
    shown = [path for path in READ if path.parent.name != "design"]  # design/packaging.md says whose names they are
    sources = (*shown, *texts("SECURITY.md", "Makefile", "pyproject.toml"))
    assert not [path.name for path in sources if others.search(path.read_text("utf-8"))]
