"""Results of the public functions (`Result`), their notices (`Tell`), and how text is displayed.

No text from a log, a model or a file can control a terminal. All output passes through `shown`: consoles, JSON and log
lines. `plain` is for text inside markup.
"""

from __future__ import annotations

import html
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.markup import escape

from cascade.errors import CascadeError

if TYPE_CHECKING:
    from cascade.reports.report import Report

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
    return _CONTROL.sub(lambda character: f"\\u{ord(character[0]):04x}", text)


def plain(text: str) -> str:
    r"""Return foreign text that is safe in a console's markup: without control codes, its markup escaped.

    >>> plain("a\x1b[31mb [bold]")
    'a[31mb \\[bold]'
    """
    return escape(shown(text))


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


class Result(ABC):
    """The result of a function of the package. `print(result)` shows what the command line prints.

    A notebook shows the same. `to_dict` returns the document that the command prints with `--json`;
    `docs/schemas` has its JSON Schema.
    """

    @property
    @abstractmethod
    def reports(self) -> tuple[Report, ...]:
        """What it says: a report, or one for each data set."""

    @property
    def error(self) -> CascadeError | None:
        """The error with which the command ends although there is a result; None if all is well."""
        return None

    def to_dict(self) -> dict[str, Any]:
        """Return the figures as plain values. Costs are in USD; unknown is None."""
        (report,) = self.reports
        return dict(report.document)

    def text(self, *, details: bool = False) -> str:
        """Return what the command line prints: a few lines, and with `details` the tables too."""
        several, texts = len(self.reports) > 1, list[str]()
        for report in self.reports:
            texts.append(f"{report.title}\n" * (several and bool(report.title)) + report.text(details=details))
        return shown("\n\n".join(texts))

    def markdown(self) -> str:
        """Return it as a page, tables included."""
        return shown("\n".join(report.markdown() for report in self.reports))

    def __str__(self) -> str:
        return self.text()

    def _repr_html_(self) -> str:
        """Return the text for a notebook, every character of it escaped."""
        return f'<pre style="white-space:pre;overflow-x:auto;line-height:1.3">{html.escape(str(self))}</pre>'
