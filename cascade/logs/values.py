"""Check the values of columns and clean rows: an invalid value becomes null, never 0, and is counted."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.logs.schema import COLUMNS, Dropped
from cascade.text import decoded, map_json

TEXT, WHOLE, NUMBER, TRUTH, TEXTS, NUMBERS = "text", "whole number", "number", "true or false", "texts", "signals"
WHOLES = "list of step numbers"
KINDS: Mapping[str, str] = (
    dict.fromkeys(COLUMNS, TEXT)
    | dict.fromkeys(("step", "horizon", "candidate", "cost_nano_usd", "schema_version"), WHOLE)
    | dict.fromkeys(("input_tokens", "cached_input_tokens", "output_tokens", "reasoning_tokens"), WHOLE)
    | {"confidence": NUMBER, "latency_ms": NUMBER, "correct": TRUTH, "kept": TRUTH, "gold": TEXTS, "signals": NUMBERS}
    | {"parents": WHOLES}
)
"""The kind of each column. A whole number is never negative; every number is finite; null means unknown."""
AT_LEAST: Mapping[str, int] = {"step": 1, "horizon": 1}
"""The minimum of whole numbers, if it is not 0."""
AT_MOST: Mapping[str, int] = {"step": 1_000, "horizon": 1_000, "candidate": 1_000, "cost_nano_usd": 10**13}
"""The maximum of whole numbers, if it is not `MAX_WHOLE`: a call costs 10,000 USD at most, so that no sum overflows."""
MAX_WHOLE = 2**63 - 1
"""The largest whole number in Parquet and SQL."""


class OddValueError(ValueError):
    """A value does not fit its column; the text says why if the column's kind does not explain it."""


def _text(_name: str, value: Any) -> str:
    if isinstance(value, str | int) and not isinstance(value, bool):
        return str(value)  # ids are often numbers
    raise OddValueError


def _whole_number(name: str, value: Any) -> int:
    if isinstance(value, float | Decimal) and math.isfinite(value) and value == int(value):
        value = int(value)  # a database's NUMERIC is a Decimal
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and AT_LEAST.get(name, 0) <= value <= AT_MOST.get(name, MAX_WHOLE):
        return int(value)
    raise OddValueError


def _number(_name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not math.isfinite(value):
        raise OddValueError
    return float(value)


def _truth(_name: str, value: Any) -> bool:
    if isinstance(value, int | float) and value in {0, 1}:
        return bool(value)  # data frames and evaluation harnesses write 1 and 0.0
    raise OddValueError


def _texts(name: str, value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple):
        raise OddValueError
    return [_text(name, text) for text in value]


def _step_numbers(_name: str, value: Any) -> list[int]:
    if isinstance(value, list | tuple):
        return sorted({_whole_number("step", step) for step in value})
    raise OddValueError


def texts_in(text: str) -> list[str]:
    """Return the texts of a JSON list of texts; any other text is returned as one text, even if it is other JSON.

    >>> texts_in('["a", "b"]'), texts_in("[4, 1]")
    (['a', 'b'], ['[4, 1]'])
    """
    texts = decoded(text) if text.startswith("[") else None
    return texts if isinstance(texts, list) and all(isinstance(entry, str) for entry in texts) else [text]


def _numbers(_name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OddValueError
    return value


Check = Callable[[str, Any], Any]
_BY_KIND: Mapping[str, Check] = {
    TEXT: _text,
    WHOLE: _whole_number,
    NUMBER: _number,
    TRUTH: _truth,
    TEXTS: _texts,
    NUMBERS: _numbers,
    WHOLES: _step_numbers,
}
AS_JSON = frozenset({TEXTS, NUMBERS, WHOLES})
"""The kinds that are stored as JSON in files and tables without lists."""
CHECKS: Mapping[str, Check] = {name: _BY_KIND[kind] for name, kind in KINDS.items()}
"""By column: returns a value in the column's form, or raises `OddValueError`. Never called with None."""


@lru_cache(maxsize=64)  # rows of one answer share their time
def instant(text: str) -> datetime | None:
    """Return a moment written as ISO 8601, in UTC if it names no zone; None for any other text.

    >>> str(instant("2026-11-21T07:00:00"))
    '2026-11-21 07:00:00+00:00'
    """
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def fitting_signals(signals: dict[str, Any], location: str, dropped: Dropped) -> dict[str, Any]:
    """Return signals with null for every value that is not a finite number; "replay" is left unchanged."""
    if all(type(value) is float or value is None for name, value in signals.items() if name != "replay"):
        return signals  # as in nearly all rows; Parquet and the decoder have already made some null
    fitting = dict(signals)
    for name, value in signals.items():
        if name == "replay" or value is None:
            continue
        try:
            fitting[name] = _number(name, float(value) if isinstance(value, bool) else value)
        except OddValueError:
            fitting[name] = None
            dropped.note(f"signals.{name[:80]} is no number, read as null", location)
    return fitting


def checked_where(where: Mapping[str, str] | None) -> dict[str, str]:
    """Return a filter unchanged; raise UsageError that names every column that cannot be compared."""
    filters = dict(where or {})
    if wrong := [f"{name}{did_you_mean(name, COLUMNS)}" for name in filters if name not in KINDS]:
        raise UsageError(f"There is no column {'; and no column '.join(wrong)}")
    if lists := [name for name in filters if KINDS[name] in AS_JSON]:
        raise UsageError(f"{' and '.join(lists)} cannot be compared with a text. Filter on another column.")
    return filters


def finite_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with null for each NaN or infinite number, and their columns named in its signals (F57).

    The names are in `signals["replay"]["not_finite"]`, which policies do not read.
    """
    if not (odd_columns := [name for name, value in row.items() if not _all_finite(value)]):
        return dict(row)
    finite = map_json(row, lambda value: None if isinstance(value, float) and not math.isfinite(value) else value)
    signals = dict(finite.get("signals") or {})
    signals["replay"] = {**(signals.get("replay") or {}), "not_finite": odd_columns}
    return {**finite, "signals": signals}


def _all_finite(value: Any) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, Mapping):
        return all(map(_all_finite, value.values()))
    return not isinstance(value, list | tuple) or all(map(_all_finite, value))
