"""Convert rows to records and back: text without NUL, JSON as text, times in UTC, null for values that are not finite.

Pure: the same row always becomes the same record with the same id, so a row that is written twice is stored once.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cascade.checks import did_you_mean
from cascade.episodes.store.ids import content_id
from cascade.errors import UsageError
from cascade.logs.rowcheck import (
    AS_JSON,
    CHECKS,
    KINDS,
    MAX_WHOLE,
    TEXT,
    WHOLE,
    Check,
    OddValueError,
    instant,
    storable,
)
from cascade.logs.schema import COLUMNS, CONTENT_COLUMNS, SCHEMA_VERSION

_AS_JSON = frozenset(name for name, kind in KINDS.items() if kind in AS_JSON)
_MAX_SHOWN = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_IN_ID = tuple(name for name in COLUMNS if name != "schema_version")


class UnfitRowsError(UsageError):
    """Rows do not fit a table of episodes; the message lists their problems."""


def records(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the record of each row.

    Raises:
        UsageError: some rows cannot be written; the message has the first ten problems.
    """
    problems: list[str] = []
    for number, row in enumerate(rows, 1):
        made = _record(row, f"row {number}", problems)
        if made is not None and not problems:
            yield made
        if len(problems) >= _MAX_SHOWN:
            break
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems)
        raise UnfitRowsError(f"Nothing was written; these rows do not fit:{listed}")


def _record(row: Mapping[str, Any], place: str, problems: list[str]) -> dict[str, Any] | None:
    before = len(problems)
    try:
        made = _checked(row, place, problems)
    except ValueError:  # NaN or an infinite number becomes null, and the row records it (F57)
        del problems[before:]
        try:
            made = _checked(storable(row), place, problems)
        except (ValueError, RecursionError):
            problems.append(f"{place}: a value contains itself")
    if len(problems) > before:
        return None
    made["row_id"] = _row_id(made)
    made["schema_version"] = SCHEMA_VERSION
    return made


def _checked(row: Mapping[str, Any], place: str, problems: list[str]) -> dict[str, Any]:
    """Return a row's values in the table's form; raise ValueError if a number is not finite."""
    made: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, value in row.items():
        if value is None:
            continue
        fit = _FIT.get(name)
        if fit is None:
            problems.append(f"{place}: there is no column {name!r}{did_you_mean(name, COLUMNS)}")
            continue
        try:
            made[name] = fit(name, value)
        except OddValueError:
            if isinstance(value, float) and not math.isfinite(value):
                raise
            problems.append(f"{place}: {name} is no {KINDS[name]}")
    if made["schema_version"] not in {None, SCHEMA_VERSION}:
        problems.append(f"{place}: it has the schema {made['schema_version']}, and a store has {SCHEMA_VERSION}")
    if made["created_at"] is not None:
        made["created_at"] = _in_utc(made["created_at"], place, problems)
    return made


def _text(name: str, value: Any) -> str:
    """Return a text that both databases accept: NUL and half surrogate pairs are replaced (F29)."""
    text: str = value if type(value) is str else CHECKS[name](name, value)
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _whole(name: str, value: Any) -> int:
    if type(value) is int and 0 < value <= MAX_WHOLE:  # the usual case, and faster
        return value
    checked: int = CHECKS[name](name, value)
    return checked


def _as_json(name: str, value: Any) -> str:
    try:
        return _json(CHECKS[name](name, value))
    except (TypeError, RecursionError):
        raise OddValueError from None


_BY_KIND: Mapping[str, Check] = {TEXT: _text, WHOLE: _whole} | dict.fromkeys(AS_JSON, _as_json)
_FIT: Mapping[str, Check] = {name: _BY_KIND.get(kind, CHECKS[name]) for name, kind in KINDS.items()}
"""By column: its value in the table's form; raises as `CHECKS` do, and ValueError for JSON that is not finite."""


_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


def _json(value: Any) -> str:
    """Return JSON in ASCII: escapes for what neither database accepts as text (NUL, half of a surrogate pair)."""
    return _encode(value)


def _in_utc(text: str, place: str, problems: list[str]) -> str:
    """Return a time in one form that sorts as text."""
    moment = instant(text)
    if moment is None:
        problems.append(f"{place}: created_at {text[:40]!r} is not a time; write it as 2026-11-21T07:00:00+00:00")
        return text
    return moment.isoformat(timespec="milliseconds")


def _row_id(made: Mapping[str, Any]) -> str:
    """Return the id of a row's content. Null values are ignored, so a new column does not change an id."""
    content = "\x00".join([f"{name}\x00{made[name]}" for name in _IN_ID if made[name] is not None])  # no text has NUL
    digest = hashlib.sha256(content.encode()).digest()
    moment = None if made["created_at"] is None else instant(made["created_at"])
    return content_id(0 if moment is None else max(0, (moment - _EPOCH) // _MILLISECOND), digest)


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a record, every column in order."""
    made: dict[str, Any] = {name: record.get(name) for name in COLUMNS}
    for name in _AS_JSON:
        if made[name] is not None:
            made[name] = _loaded(made[name])
    made["schema_version"] = SCHEMA_VERSION
    return made


def _loaded(text: str) -> Any:
    """Return the value of a JSON column; null if it was changed by hand and is not valid."""
    try:
        return json.loads(text, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None


def without_content(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with texts of users and models, emptied."""
    emptied: dict[str, Any] = dict.fromkeys(CONTENT_COLUMNS)
    signals = _loaded(record["signals"]) if record["signals"] else None
    if isinstance(signals, dict) and isinstance(signals.get("replay"), dict):
        signals["replay"]["tokens"] = None
    emptied["signals"] = None if signals is None else _json(signals)
    return emptied
