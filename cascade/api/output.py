"""Results of the public functions (`Result`), their notices (`Tell`), and how text and tables are displayed.

No text from a log, a model or a file can control a terminal. All output passes through `shown`: consoles, JSON and log
lines. `plain` is for text inside markup, `plain_text` for one line of a `Text`. A table of figures fits a terminal.
"""

from __future__ import annotations

import io
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import Any, Generic, NamedTuple, TypeAlias, TypeVar

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from cascade.errors import CascadeError

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    r"""Return text without characters that control a terminal: control and escape codes, and direction marks (F69).

    >>> shown("a\x1b[31mb\x9d0;title\x07")
    'a[31mb0;title'
    """
    return text if text.isascii() and text.isprintable() else _CONTROL.sub("", text)


def spelled(text: str) -> str:
    r"""Return text with the characters that control a terminal written as escapes, so that a reader sees them.

    >>> spelled("a\x1b[31mb")
    'a\\u001b[31mb'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class SafeConsole(Console):
    """A console that strips control codes from texts; its own colours and cursor movements are other segments."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the output of a renderable, its texts passed through `shown`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


def plain(text: str) -> str:
    r"""Return foreign text that is safe in a console's markup: without control codes, its markup escaped.

    >>> plain("a\x1b[31mb [bold]")
    'a[31mb \\[bold]'
    """
    return escape(shown(text))


def plain_text(text: str) -> str:
    """Return foreign text for one line of a `Text` (which has no markup), without control codes."""
    return " ".join(Text.from_markup(plain(text)).plain.split())


def dollars(amount: Decimal | None) -> str:
    """Return an amount in USD with three significant digits, or "unknown".

    >>> dollars(Decimal("0.000123456")), dollars(None), dollars(Decimal(0))
    ('$0.000123', 'unknown', '$0')
    """
    if amount is None:
        return "unknown"
    if amount == 0:
        return "$0"
    rounded = Decimal(f"{amount:.3g}")
    return f"${rounded:f}"


def cut(text: str, width: int) -> str:
    """Return foreign text as one line of exactly `width` characters, safe in markup.

    >>> cut("two words", 6), cut("two", 6)
    ('two w…', 'two   ')
    """
    flat = " ".join(text.split())
    short = flat if len(flat) <= width else flat[: width - 1] + "…"
    return plain(f"{short:{width}}")


Tell: TypeAlias = Callable[[str], None]
"""A callback that takes a notice of one sentence. The command line prints it on stderr."""


def warn(text: str) -> None:
    """Log a notice as a warning of the logger `cascade`; the default `tell` of the package's functions."""
    logging.getLogger("cascade").warning("%s", text)


_WIDTH = 110
"""The default width of a summary, in columns: that of a notebook's cell."""


class Result(ABC):
    """The result of a function of the package. `print(result)` shows what the command line prints.

    A notebook shows the same. `to_dict` returns the document that the command prints with `--json`;
    `docs/schemas` has its JSON Schema.
    """

    @property
    def error(self) -> CascadeError | None:
        """The error with which the command ends although there is a result; None if all is well."""
        return None

    @abstractmethod
    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield the parts of the printed result, for a terminal `width` columns wide."""

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values. Costs are in USD; unknown is None."""

    def summary(self, width: int = _WIDTH) -> str:
        """Return what the command line prints, as plain text `width` columns wide."""
        console = SafeConsole(file=io.StringIO(), width=width, highlight=False, no_color=True, force_terminal=False)
        for part in self.parts(width):
            console.print(part, crop=False)
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        return "\n".join(line.rstrip() for line in text.splitlines()).strip("\n")

    def __str__(self) -> str:
        return self.summary()

    def _repr_html_(self) -> str:
        """Return the summary for a notebook, every character of it escaped."""
        console = SafeConsole(file=io.StringIO(), width=_WIDTH, highlight=False, record=True)
        for part in self.parts(_WIDTH):
            console.print(part, crop=False)
        block = '<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{code}</pre>'
        return console.export_html(inline_styles=True, code_format=block)


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
    texts = [
        [Text.from_markup(cell).cell_len for cell in (one.head, *(row[k] for row in cells))]
        for k, one in enumerate(shown)
    ]
    taken = sum(max(widths) + 1 for widths in texts)
    made = table([head, *(one.head for one in shown), *([""] if why else [])], [], wrap=1 if why else 0)
    for line, row in zip(lines, cells, strict=True):
        last = [] if why is None else [why(line)]
        made.add_row(name(line, max(least_name, width - taken - 1)), *row, *last, style=style(line))
    return made


def listed(items: Iterable[str]) -> Table:
    """Return sentences as a list, one per line."""
    made = Table.grid(padding=(0, 1))
    for item in items:
        made.add_row("-", Text(plain_text(item)))
    return made


def per_thousand(usd: float | None) -> str:
    """Return a cost in USD per question as USD per 1,000 questions, with three significant digits.

    >>> per_thousand(0.000123456), per_thousand(None)
    ('$0.123', '-')
    """
    return "-" if usd is None else dollars(Decimal(repr(usd * 1_000)))
