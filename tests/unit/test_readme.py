"""The README is for strangers: short, and every word of the output that it leads to stands in the glossary."""

from __future__ import annotations

import re
from pathlib import Path

from cases import each

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text("utf-8")
WORDS = (
    *("question", "base", "guide", "step", "candidate", "signal", "feature", "policy", "doubt", "threshold, κ (kappa)"),
    *(
        "promise",
        "certificate",
        "coverage",
        "regret",
        "error",
        "agreement",
        "preference",
        "reference",
        "audit",
        "alarm",
    ),
    *("risk, α (alpha)", "confidence, δ (delta)", "fallback", "level", "trace", "log", "episode", "UALA", "LLM-exit"),
    *("P(yes)", "horizon, T", "learned rule", "menu", "ladder", "clairvoyant bound", "segment", "group", "attempt"),
)


def test_the_readme_is_read_in_minutes() -> None:
    assert len(README.splitlines()) <= 120
    assert len(README.split()) <= 1_000


def test_the_readme_leads_with_the_two_commands_one_picture_and_a_ladder() -> None:
    assert README.index("make demo") < README.index("make test") < README.index("```python")
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert [(ROOT / one).exists() for one in pictures] == [True]
    assert "kind: ladder" in README
    assert "base_guide" not in README


@each("link", sorted(set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", README))))
def test_what_the_readme_links_to_exists(link: str) -> None:
    assert (ROOT / link).exists()


@each("word", WORDS)
def test_the_glossary_has_one_row_for_each_word(word: str) -> None:
    rows = [line for line in GLOSSARY.splitlines() if line.startswith(f"| {word} |")]
    assert len(rows) == 1
    assert rows[0].rstrip(" |").endswith(".")
