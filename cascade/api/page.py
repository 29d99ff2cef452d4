"""What a page is made of, and how it is shown: on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.output import plain_text

_COMMAND_WIDTH = 72
"""A line of a command; with the mark that it goes on it fits on a terminal of 80 columns."""


class Heading(NamedTuple):
    """The name of a cascade, or of a part of its page."""

    said: str
    level: int = 2


class Said(NamedTuple):
    """A paragraph; `strong` for the one sentence that decides."""

    said: str
    strong: bool = False


class Listed(NamedTuple):
    """Sentences, one below the other."""

    items: Sequence[str]


class Command(NamedTuple):
    """A command that runs as it is printed: its words, those that belong together in one, quoted for a shell."""

    parts: Sequence[str]


class Rows(NamedTuple):
    """A table: the names of its columns, the first one without, and the rows."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


Block: TypeAlias = Heading | Said | Listed | Command | Rows


# --- how it is shown ---


def rendered(blocks: Iterator[Block]) -> RenderableType:
    """Return a page for the terminal."""
    return Group(*(part for block in blocks for part in _shown(block)))


def _shown(block: Block) -> Iterator[RenderableType]:
    if isinstance(block, Heading):
        yield Text(plain_text(block.said), style="bold underline" if block.level == 2 else "bold")
    elif isinstance(block, Said):
        yield Text(plain_text(block.said), style="bold" if block.strong else "")
        yield ""
    elif isinstance(block, Listed):
        yield _listed(block)
        yield ""
    elif isinstance(block, Command):
        yield Text(" \\\n  ".join(map(plain_text, _lines_of(block))), no_wrap=True, overflow="ignore")
        yield ""
    else:
        yield _tabled(block)
        yield ""


def _lines_of(command: Command) -> list[str]:
    """Return a command in lines that a shell reads as one, broken between its parts alone.

    >>> _lines_of(Command(["cascade fit", "log.jsonl", "--alpha 0.1"]))
    ['cascade fit log.jsonl --alpha 0.1']
    """
    lines = [""]
    for part in command.parts:
        if lines[-1] and len(lines[-1]) + len(part) > _COMMAND_WIDTH:
            lines.append(part)
        else:
            lines[-1] = f"{lines[-1]} {part}".strip()
    return lines


def _listed(block: Listed) -> Table:
    table = Table.grid(padding=(0, 1))
    for item in block.items:
        table.add_row("-", Text(plain_text(item)))
    return table


def _tabled(block: Rows) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0))
    for place, head in enumerate(block.heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in block.rows:
        table.add_row(*(Text(plain_text(cell)) for cell in row))
    return table


def markdown(blocks: Iterator[Block]) -> str:
    """Return a page as Markdown."""
    return "\n\n".join(_written(block) for block in blocks) + "\n"


def _written(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_marked(block.said)}"
    if isinstance(block, Said):
        return f"**{_marked(block.said)}**" if block.strong else _marked(block.said)
    if isinstance(block, Listed):
        return "\n".join(f"- {_marked(item)}" for item in block.items)
    if isinstance(block, Command):
        return "\n".join(f"    {plain_text(line)}" for line in " \\\n  ".join(_lines_of(block)).splitlines())
    lines = [block.heads, ["---", *["---:"] * (len(block.heads) - 1)], *block.rows]
    return "\n".join(f"| {' | '.join(_marked(cell) for cell in line)} |" for line in lines)


def _marked(text: str) -> str:
    """Return foreign text for a line of Markdown: nothing of it is read as a link, a tag or a table's end."""
    said = plain_text(text)
    for letter in "\\`*_[]<>|#":
        said = said.replace(letter, f"\\{letter}")
    return said
