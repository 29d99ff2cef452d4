"""What the command line prints with: text for people on stdout, or one JSON document with everything else on stderr."""

from __future__ import annotations

import json
import re
import sys
from decimal import Decimal
from typing import Any

from rich.console import Console
from rich.markup import escape

_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def console() -> Console:
    """Return the console for results."""
    return Console(highlight=False, soft_wrap=False)


def notes() -> Console:
    """Return the console for what is not the result: progress, warnings, errors."""
    return Console(stderr=True, highlight=False)


def plain(text: str) -> str:
    r"""Return foreign text fit for a terminal: no control or escape codes, no markup (F69).

    >>> plain("a\x1b[31mb [bold]")
    'a[31mb \\[bold]'
    """
    return escape(_CONTROL.sub("", text))


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    sys.stdout.write(json.dumps(document, ensure_ascii=False, indent=1, default=_number, allow_nan=False) + "\n")


def _number(value: Any) -> Any:
    if isinstance(value, Decimal):
        return float(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


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
