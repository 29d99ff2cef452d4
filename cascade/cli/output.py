"""Printing: text for people, or one JSON document, on stdout; everything else on stderr."""

from __future__ import annotations

import json
import logging
import sys
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cascade.api.output import SafeConsole, plain, shown, spelled

if TYPE_CHECKING:
    from cascade.api.output import Result


class LogFormatter(logging.Formatter):
    """Formats a log line with `shown`, since it may quote a server."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        return shown(super().format(record))


def console() -> Console:
    """Return the console for results."""
    return SafeConsole(highlight=False, soft_wrap=False)


def notes() -> Console:
    """Return the console for everything but the result: progress, warnings, errors."""
    return SafeConsole(stderr=True, highlight=False)


def say(text: str) -> None:
    """Print a sentence that the reader of a result must know, on stderr."""
    notes().print(plain(text), style="yellow", soft_wrap=True)


def print_result(result: Result, *, as_json: bool) -> None:
    """Print a result, as text for this terminal or as one JSON document."""
    if as_json:
        print_json(result.to_dict())
        return
    out = console()
    for part in result.parts(out.width):
        out.print(part, crop=False)  # a command with a line break could not be run


def print_json(document: Any) -> None:
    """Print one JSON document on stdout; control characters are written as escapes."""
    text = json.dumps(document, ensure_ascii=False, indent=1, default=_number, allow_nan=False)
    sys.stdout.write(spelled(text) + "\n")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
