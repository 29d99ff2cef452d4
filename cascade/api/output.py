"""Text as people see it: nothing that a log, a model or a file holds can steer a terminal.

`shown` stands wherever text is put out, for consoles, JSON and log lines alike. `plain` is for text that goes into
markup, `plain_text` for one line of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from decimal import Decimal

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.text import Text

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def shown(text: str) -> str:
    r"""Return text without what steers a terminal: control and escape codes, and marks that turn its direction (F69).

    >>> shown("a\x1b[31mb\x9d0;title\x07")
    'a[31mb0;title'
    """
    return text if text.isascii() and text.isprintable() else _CONTROL.sub("", text)


def spelled(text: str) -> str:
    r"""Return text with what steers a terminal spelt out by its number, so that whoever reads it sees that it is there.

    >>> spelled("a\x1b[31mb")
    'a\\u001b[31mb'
    """
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


class SafeConsole(Console):
    """A console whose texts hold no codes; its own colours and cursor movements are segments of another kind."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield what a renderable puts out, its texts as `shown`."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(shown(segment.text), segment.style)


def plain(text: str) -> str:
    r"""Return foreign text fit for a console's markup: no control or escape codes, and no markup of its own.

    >>> plain("a\x1b[31mb [bold]")
    'a[31mb \\[bold]'
    """
    return escape(shown(text))


def plain_text(text: str) -> str:
    """Return foreign text for one line of a `Text`, which reads no markup: without control codes."""
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
    """Return foreign text as one line of exactly so many characters, fit for markup.

    >>> cut("two words", 6), cut("two", 6)
    ('two w…', 'two   ')
    """
    flat = " ".join(text.split())
    short = flat if len(flat) <= width else flat[: width - 1] + "…"
    return plain(f"{short:{width}}")
