"""Tables of figures, and pages that can be shown on a terminal and written as Markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cascade.api.output import dollars, plain_text
from cascade.text import markdown_table, plain_line

_COMMAND_WIDTH = 72
"""The longest line of a command; with its continuation mark it fits on a terminal of 80 columns."""


_Line = TypeVar("_Line")

# --- tables ---


class Column(NamedTuple, Generic[_Line]):
    """A column of figures.

    Attributes:
        head: its name.
        from_width: the least width of a terminal that shows the column.
        cell: returns the cell of a line, as markup.
    """

    head: str
    from_width: int
    cell: Callable[[_Line], str]


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, left: int = 1, wrap: int = 0, name_width: int = 0
) -> Table:
    """Return a table without rules.

    Args:
        heads: the columns' names.
        rows: the cells; a text as markup.
        left: how many columns are left-aligned; the others, with figures, are right-aligned.
        wrap: how many columns at the end may wrap; the others never do.
        name_width: the least width of the first column; a longer name is cut.
    """
    made = Table(box=None, padding=(0, 1, 0, 0))
    for place, head in enumerate(heads):
        broken = place >= len(heads) - wrap
        made.add_column(
            head,
            justify="left" if place < left or broken else "right",
            no_wrap=not broken,
            overflow="fold" if broken else "ellipsis",
            min_width=name_width if not place and name_width else None,
        )
    for row in rows:
        made.add_row(*row)
    return made


def figures(
    lines: Sequence[_Line],
    columns: Sequence[Column[_Line]],
    width: int,
    name: Callable[[_Line, int], Text],
    *,
    head: str = "",
    least_name: int = 0,
    style: Callable[[_Line], str] = lambda _: "",
    why: Callable[[_Line], Text] | None = None,
) -> Table:
    """Return a table with a line for each item, and as many columns of figures as fit.

    Args:
        lines: what the lines are about.
        columns: the figures.
        width: columns of the terminal.
        name: returns the first cell of a line, cut to a number of columns.
        head: the name of the first column.
        least_name: the least width of the first column.
        style: returns the style of a line.
        why: returns a last cell, which may wrap.
    """
    shown = [column for column in columns if column.from_width <= width]
    cells = [[column.cell(line) for column in shown] for line in lines]
    taken = sum(max(_widths([one.head, *(row[k] for row in cells)])) + 1 for k, one in enumerate(shown))
    made = table([head, *(one.head for one in shown), *([""] if why else [])], [], wrap=1 if why else 0)
    for line, row in zip(lines, cells, strict=True):
        last = [] if why is None else [why(line)]
        made.add_row(name(line, max(least_name, width - taken - 1)), *row, *last, style=style(line))
    return made


def _widths(cells: Sequence[str]) -> Iterator[int]:
    return (Text.from_markup(cell).cell_len for cell in cells)


# --- pages ---


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
    """A command that runs as printed: its parts, each kept on one line, quoted for a shell."""

    parts: Sequence[str]


class Rows(NamedTuple):
    """A table: the names of its columns except the first, and the rows."""

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
        yield listed(block.items)
        yield ""
    elif isinstance(block, Command):
        yield Text(" \\\n  ".join(map(plain_text, _lines_of(block))), no_wrap=True, overflow="ignore")
        yield ""
    else:
        yield table(block.heads, [[Text(plain_text(cell)) for cell in row] for row in block.rows])
        yield ""


def _lines_of(command: Command) -> list[str]:
    """Return a command in lines that a shell reads as one, broken only between its parts.

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


def listed(items: Iterable[str]) -> Table:
    """Return sentences, one below the other."""
    made = Table.grid(padding=(0, 1))
    for item in items:
        made.add_row("-", Text(plain_text(item)))
    return made


def markdown(blocks: Iterator[Block]) -> str:
    """Return a page as Markdown."""
    return "\n\n".join(_written(block) for block in blocks) + "\n"


def _written(block: Block) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {plain_line(block.said)}"
    if isinstance(block, Said):
        return f"**{plain_line(block.said)}**" if block.strong else plain_line(block.said)
    if isinstance(block, Listed):
        return "\n".join(f"- {plain_line(item)}" for item in block.items)
    if isinstance(block, Command):
        return "\n".join(f"    {plain_text(line)}" for line in " \\\n  ".join(_lines_of(block)).splitlines())
    rows = [[plain_line(cell) for cell in row] for row in block.rows]
    return "\n".join(markdown_table([plain_line(head) for head in block.heads], rows, figures=True)).rstrip("\n")


def per_thousand(usd: float | None) -> str:
    """Return USD a question as USD a thousand questions, three significant digits.

    >>> per_thousand(0.000123456), per_thousand(None)
    ('$0.123', '-')
    """
    return "-" if usd is None else dollars(Decimal(repr(usd * 1_000)))
