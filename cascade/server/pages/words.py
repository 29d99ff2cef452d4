"""Formats amounts, shares and times for a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from typing import Any

from cascade.money import dollars, usd

MINUS = "\N{MINUS SIGN}"


def money(nano: int | None) -> str:
    """Return nano-dollars in USD with three significant digits.

    >>> money(1_234_567_890), money(-20_000_000), money(None)
    ('$1.23', '−$0.0200', 'unknown')
    """
    if nano is None:
        return "unknown"
    amount = dollars(usd(abs(nano)))
    return f"{MINUS}{amount}" if nano < 0 else amount


def share(value: float | None) -> str:
    r"""Return a share as a rounded percentage.

    >>> share(0.6049), share(0.0123), share(-0.2), share(None)
    ('60\xa0%', '1.2\xa0%', '−20\xa0%', 'unknown')
    """
    if value is None:
        return "unknown"
    digits = 0 if abs(value) >= 0.1 or value == 0 else 1
    return f"{MINUS if value < 0 else ''}{abs(value) * 100:.{digits}f}\N{NO-BREAK SPACE}%"


def day(text: str) -> str:
    """Return the day of an ISO time in words.

    >>> day("2026-11-12T10:00:00+00:00"), day("")
    ('12 Nov 2026', 'unknown')
    """
    try:
        moment = date.fromisoformat(text[:10])
    except ValueError:
        return "unknown"
    return f"{moment.day} {moment:%b %Y}"


def time_of(text: str) -> str:
    """Return an ISO time to the second, UTC.

    >>> time_of("2026-11-12T10:00:00.123+00:00")
    '12 Nov 10:00:00'
    """
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return "unknown"
    return f"{moment.day} {moment:%b %H:%M:%S}"


def whole(count: int) -> str:
    """Return a count with separators between thousands."""
    return f"{count:,}"


FILTERS: Mapping[str, Callable[..., Any]] = {
    "money": money,
    "share": share,
    "day": day,
    "time": time_of,
    "whole": whole,
}
