"""Where Markdown is written: tables, and lines in which foreign words are never a link, a tag or a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def markdown_table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, figures: bool = False) -> Iterator[str]:
    """Yield a table, and an empty line after it; with `figures` all columns but the first stand to the right."""
    yield f"| {' | '.join(heads)} |"
    yield f"|{'|'.join(['---', *['---:' if figures else '---'] * (len(heads) - 1)])}|"
    yield from (f"| {' | '.join(row)} |" for row in rows)
    yield ""


def plain_line(text: str) -> str:
    """Return foreign text for one line of Markdown: printable, and nothing of it read as a link, a tag or a table."""
    said = " ".join("".join([letter if letter.isprintable() else " " for letter in text]).split())
    for letter in "\\`*[]<>|":
        said = said.replace(letter, f"\\{letter}")
    return said
