"""The rows of an answer, without keys and with texts as configured, and the records that a database has of rows.

A record has text without NUL, JSON as text, times in UTC, and null for what is not finite. The same row always becomes
the same record with the same id, so a row that is written twice is stored once.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from cascade.checks import did_you_mean
from cascade.errors import UnfitRowsError
from cascade.forks import after_fork
from cascade.logs.rowcheck import AS_JSON, CHECKS, KINDS, TEXT, OddValueError, instant, storable
from cascade.logs.schema import COLUMNS, CONTENT_COLUMNS, SCHEMA_VERSION, hashed, rows, said_text
from cascade.safety import holds_key, redact
from cascade.types import Answer, Call

Content = Literal["full", "hash", "none"]
TEXTS = tuple(name for name in CONTENT_COLUMNS if name != "gold")
"""The columns of content that hold one text each."""
_MAX_SHOWN = 10
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
_TAIL_BITS = 74
_STEP_BITS = 32
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
"""JSON in ASCII: escapes for what no database accepts as text (NUL, half of a surrogate pair)."""


class _Ids:
    """Makes UUIDs of version 7 that ascend within a process, also if the clock is set back.

    Reference: RFC 9562, section 5.7, with the monotonic random tail of its section 6.2, method 2.
    """

    def __init__(self) -> None:
        self._last = 0
        self._renew()
        after_fork(self._renew)  # another thread may have held the lock at the fork

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def __call__(self) -> str:
        drawn = int.from_bytes(os.urandom(10))
        with self._lock:
            now = time.time_ns() // 1_000_000 << _TAIL_BITS  # a label: no duration is computed from it
            later = self._last + 1 + drawn % (1 << _STEP_BITS)
            self._last = max(later, now | drawn % (1 << _TAIL_BITS - 1))
            last = self._last
        tail = last % (1 << _TAIL_BITS)
        value = last >> _TAIL_BITS << 80 | 0x7 << 76 | tail >> 62 << 64 | 0b10 << 62 | tail % (1 << 62)
        digits = f"{value:032x}"
        return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


uuid7 = _Ids()
"""Return a new UUID of version 7 as text: unique, and greater than every one that this process made before."""


def records(rows: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the record of each row.

    Raises:
        UnfitRowsError: some rows cannot be written; the message has the first ten problems.
    """
    problems: list[str] = []
    for number, row in enumerate(rows, 1):
        record = _record(row, f"row {number}", problems)
        if not problems:
            yield record
        if len(problems) >= _MAX_SHOWN:
            break
    if problems:
        listed = "".join(f"\n  - {problem}" for problem in problems[:_MAX_SHOWN])
        raise UnfitRowsError(f"Nothing was written; these rows do not fit:{listed}")


def _record(row: Mapping[str, Any], name: str, problems: list[str]) -> dict[str, Any]:
    before = len(problems)
    try:
        record = _values(row, name, problems)
    except ValueError:  # NaN or an infinite number becomes null, and the row records it (F57)
        del problems[before:]
        try:
            record = _values(storable(row), name, problems)
        except (ValueError, RecursionError):
            problems.append(f"{name}: a value contains itself")
            return {}
    record["schema_version"] = None
    content = "\x00".join([f"{column}\x00{value}" for column, value in record.items() if value is not None])
    moment = None if record["created_at"] is None else instant(record["created_at"])
    since = 0 if moment is None else max(0, (moment - _EPOCH) // _MILLISECOND)
    # Of the content alone, after its time: a row that is written again is recognised, and ids sort by time.
    record["row_id"] = f"{since:012x}-{hashlib.sha256(content.encode()).hexdigest()[:32]}"
    record["schema_version"] = SCHEMA_VERSION
    return record


def _values(row: Mapping[str, Any], row_name: str, problems: list[str]) -> dict[str, Any]:
    """Return a row's values in the table's form; raise ValueError if a number is not finite."""
    record: dict[str, Any] = dict.fromkeys(COLUMNS)
    for name, value in row.items():
        if value is None:
            continue
        if name not in KINDS:
            problems.append(f"{row_name}: there is no column {name!r}{did_you_mean(name, COLUMNS)}")
            continue
        try:
            record[name] = _value(name, value)
        except OddValueError:
            if isinstance(value, float) and not math.isfinite(value):
                raise
            problems.append(f"{row_name}: {name} is no {KINDS[name]}")
    if record["schema_version"] not in {None, SCHEMA_VERSION}:
        version = record["schema_version"]
        problems.append(f"{row_name}: it has the schema {version}, and a store has {SCHEMA_VERSION}")
    if (written := record["created_at"]) is not None:
        moment = instant(written)
        if moment is None:
            expected = "write it as 2026-11-21T07:00:00+00:00"
            problems.append(f"{row_name}: created_at {written[:40]!r} is not a time; {expected}")
        else:  # one form, which sorts as text
            record["created_at"] = moment.isoformat(timespec="milliseconds")
    return record


def _value(name: str, value: Any) -> Any:
    kind = KINDS[name]
    checked = value if kind == TEXT and type(value) is str else CHECKS[name](name, value)
    if kind in AS_JSON:
        try:
            return _encode(checked)
        except (TypeError, RecursionError):
            raise OddValueError from None
    return _storable_text(checked) if kind == TEXT else checked


def _storable_text(text: str) -> str:
    """Return a text that both databases accept: NUL and half surrogate pairs are replaced (F29)."""
    text = text.replace("\x00", "\ufffd")
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def row_of(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a record, every column in order."""
    row: dict[str, Any] = {name: record[name] for name in COLUMNS}
    for name, kind in KINDS.items():
        if kind in AS_JSON and row[name] is not None:
            row[name] = _loaded(row[name])
    row["schema_version"] = SCHEMA_VERSION
    return row


def _loaded(text: str) -> Any:
    """Return the value of a JSON column; null if it was changed by hand and is not valid."""
    try:
        return json.loads(text, parse_constant=lambda _name: None)
    except (ValueError, RecursionError):
        return None


def without_content(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns with texts of users and models, emptied."""
    signals = _loaded(record["signals"]) if record["signals"] else None
    if isinstance(signals, dict) and isinstance(signals.get("replay"), dict):
        signals["replay"]["tokens"] = None
    return {**dict.fromkeys(CONTENT_COLUMNS), "signals": None if signals is None else _encode(signals)}


# --- the parts of an answer that go into its rows ---
#
# The search for keys runs while the question is answered, before anything waits in a queue, so it must be quick. Only
# if a key is found are the rows made at once, without the key.


def texts_of(answer: Answer, columns: Mapping[str, Any]) -> str:
    """Return all texts of an answer's rows, each on its own lines."""
    question = answer.question
    texts = [question.text, question.context or "", *_strings(columns.values())]
    for step in answer.steps:
        texts += [candidate.text for candidate in step.candidates]
        _add_generated(texts, step.calls)
    _add_generated(texts, answer.loose_calls)
    return "\n".join(texts)


def _add_generated(texts: list[str], calls: Iterable[Call]) -> None:
    for call in calls:
        completion = call.completion
        if completion is not None:
            texts.append(said_text(completion))
            if completion.tokens is not None:
                generated = "".join([token[0] for token in completion.tokens])
                if generated != completion.text:  # a key may be in the generated tokens but not in the text
                    texts.append(generated)


def _strings(values: Iterable[Any]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, list | tuple):
            yield from _strings(value)


def rows_of(answer: Answer, columns: Mapping[str, Any], content: Content) -> list[dict[str, Any]]:
    """Return the rows of an answer with its texts as `content` says, and the reason for its end among the signals."""
    answer_rows = list(rows(answer, **columns))
    for row in answer_rows:
        row["signals"]["replay"]["stopped"] = answer.stopped
    return veiled(answer_rows, content)


def veiled(rows: list[dict[str, Any]], content: Content) -> list[dict[str, Any]]:
    """Return rows with their texts replaced as `content` says. The given rows are changed."""
    if content != "full":
        for row in rows:
            _veil(row, content)
    return rows


def _veil(row: dict[str, Any], content: Content) -> None:
    """Replace each text of a row by a hash, or remove it."""
    for name in TEXTS:
        row[name] = hashed(row[name]) if content == "hash" and row[name] is not None else None
    gold = row["gold"]
    row["gold"] = [hashed(text) for text in gold] if content == "hash" and gold is not None else None
    row["signals"]["replay"]["tokens"] = None


def without_keys(row: dict[str, Any], secrets: Iterable[str]) -> dict[str, Any]:
    """Return a row without texts of the shape of a key, and without the given secrets."""
    keys = tuple(secrets)
    cleaned = {name: _without_keys(value, keys) for name, value in row.items() if name != "signals"}
    signals = dict(row["signals"])
    tokens = signals["replay"]["tokens"]
    spelt = () if tokens is None else ("".join([token[0] for token in tokens]), row["text"])
    if any(holds_key(text, keys) for text in spelt):
        signals["replay"] = {**signals["replay"], "tokens": None}  # the tokens would still contain the key, in pieces
    return cleaned | {"signals": signals}


def _without_keys(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        return redact(value, secrets)
    return [_without_keys(text, secrets) for text in value] if isinstance(value, list | tuple) else value
