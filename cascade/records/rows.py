"""The rows of an answer, without secrets and with texts as configured, and the database records of rows.

A record has text without NUL, JSON as text, times in UTC, and null for numbers that are not finite. The same row always
becomes the same record with the same id, so a row that is written twice is stored once.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from cascade.checks import did_you_mean
from cascade.errors import UnfitRowsError
from cascade.logs import schema
from cascade.logs.schema import COLUMNS, CONTENT_COLUMNS, SCHEMA_VERSION, hashed
from cascade.logs.values import AS_JSON, CHECKS, KINDS, OddValueError, finite_row, instant
from cascade.safety import holds_key, redact
from cascade.text import decoded, without_halves
from cascade.types import Answer

Content = Literal["full", "hash", "none"]
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
"""JSON in ASCII, which escapes what databases do not accept as text (NUL, half of a surrogate pair)."""


# --- a row as a record, and back ---


def records(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the record of each row. Raises UnfitRowsError at the first row that cannot be written."""
    for number, row in enumerate(rows, 1):
        try:
            try:
                record = _values(row)
            except OddValueError:  # NaN or an infinite number becomes null, and the row names its column (F57)
                record = _values(finite_row(row))
        except (OddValueError, RecursionError) as error:
            reason = "a value contains itself" if isinstance(error, RecursionError) else error
            raise UnfitRowsError(f"Nothing was written; row {number} does not fit: {reason}.") from None
        yield record


def _values(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's values in the table's form. Raises OddValueError for one that does not fit."""
    record: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, value in row.items():
        if value is None:
            continue
        if name not in KINDS:
            raise OddValueError(f"there is no column {name!r}{did_you_mean(name, COLUMNS)}")
        try:
            record[name] = _value(name, value)
        except (ValueError, TypeError, RecursionError):
            raise OddValueError(f"{name} is no {KINDS[name]}") from None
    if record["schema_version"] not in {None, SCHEMA_VERSION}:
        raise OddValueError(f"its schema is {record['schema_version']}, but the store's is {SCHEMA_VERSION}")
    since = 0
    if (written := record["created_at"]) is not None:
        if (moment := instant(written)) is None:
            raise OddValueError(f"created_at {written[:40]!r} is not a time such as 2026-11-21T07:00:00+00:00")
        record["created_at"] = moment.isoformat(timespec="milliseconds")  # one form for all, which sorts as text
        since = max(0, (moment - _EPOCH) // _MILLISECOND)
    record["schema_version"] = None
    content = "\x00".join([f"{column}\x00{value}" for column, value in record.items() if value is not None])
    # The time, then a hash of the content alone: ids sort by time, and a row that is written again is recognised.
    record["row_id"] = f"{since:012x}-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
    record["schema_version"] = SCHEMA_VERSION
    return record


def _value(name: str, value: Any) -> Any:
    checked = CHECKS[name](name, value)
    if KINDS[name] in AS_JSON:
        return _encode(checked)
    return without_halves(checked) if isinstance(checked, str) else checked


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a record, every column in order."""
    row: dict[str, Any] = {name: record[name] for name in COLUMNS}
    for name, kind in KINDS.items():
        if kind in AS_JSON and row[name] is not None:
            row[name] = decoded(row[name])
    row["schema_version"] = SCHEMA_VERSION
    return row


def without_content(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with texts of users and models, emptied."""
    signals = decoded(record["signals"]) if record["signals"] else None
    if isinstance(signals, dict) and isinstance(signals.get("replay"), dict):
        signals["replay"]["tokens"] = None
    return {**dict.fromkeys(CONTENT_COLUMNS), "signals": None if signals is None else _encode(signals)}


# --- the rows of an answer ---


def rows_of(
    answer: Answer, columns: Mapping[str, Any], content: Content = "full", secrets: Iterable[str] = ()
) -> list[dict[str, Any]]:
    """Return the rows of an answer, with the reason why it ended among the signals.

    Args:
        answer: the answer.
        columns: values that the answer lacks, by column.
        content: "full" keeps texts, "hash" replaces them by their SHA-256, "none" removes them.
        secrets: texts that are removed from every row (F68), besides everything with the format of a key.
    """
    rows, keys = list(schema.rows(answer, **columns)), tuple(secrets)
    texts = {text for row in rows for text in _texts(row)}  # each is searched once: the rows share their question
    if holds_key("\n".join(texts), keys):
        rows = [_without_keys(row, keys) for row in rows]
    for row in rows:
        replay = row["signals"]["replay"]
        replay["stopped"] = answer.stopped
        if content != "full":
            replay["tokens"] = None
            for name in CONTENT_COLUMNS:
                row[name] = _hashed(row[name]) if content == "hash" else None
    return rows


def _texts(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a row, and what its tokens spell, since a key may be in the tokens but not in the text."""
    for value in row.values():
        texts = value if isinstance(value, list | tuple) else (value,)
        yield from (text for text in texts if isinstance(text, str))
    yield _spelt(row)


def _spelt(row: Mapping[str, Any]) -> str:
    return "".join([token[0] for token in row["signals"]["replay"]["tokens"] or ()])


def _without_keys(row: Mapping[str, Any], secrets: tuple[str, ...]) -> dict[str, Any]:
    def clean(value: Any) -> Any:
        return redact(value, secrets) if isinstance(value, str) else value

    cleaned: dict[str, Any] = {
        name: list(map(clean, value)) if isinstance(value, list | tuple) else clean(value)
        for name, value in row.items()
    }
    if any(holds_key(text, secrets) for text in (_spelt(row), row["text"] or "")):
        cleaned["signals"]["replay"]["tokens"] = None  # they would still contain the key, in pieces
    return cleaned


def _hashed(value: Any) -> Any:
    return None if value is None else hashed(value) if isinstance(value, str) else [hashed(text) for text in value]
