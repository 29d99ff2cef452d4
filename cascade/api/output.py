"""What a function returns (`Result`) and tells its caller (`Tell`), and the display of foreign text.

No text from a log, a model or a file can control a terminal. All output passes through `shown`: consoles, JSON and log
lines. `plain` is for text inside markup, `plain_text` for one line of a `Text`.
"""

from __future__ import annotations

import io
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any, TypeAlias

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

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


logger = logging.getLogger("cascade")

Tell: TypeAlias = Callable[[str], None]
"""Takes one sentence. The command line prints it on stderr."""


def warn(text: str) -> None:
    """Log a warning to the logger `cascade`: the default `tell` of the package's functions."""
    logger.warning("%s", text)


_WIDTH = 110
"""The default width of a summary, in columns: that of a notebook's cell."""


class Result(ABC):
    """The result of a function of the package. `print(result)` shows what the command line prints.

    A notebook shows the same. `to_dict` returns the document that the command prints with `--json`;
    `docs/schemas` has its JSON Schema.
    """

    @abstractmethod
    def parts(self, width: int) -> Iterator[RenderableType]:
        """Yield what is printed, for a terminal of so many columns."""

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
