"""Logs as Parquet, in row groups of a fixed size, so that the memory for reading does not grow with the file.

`gold` and `signals` are JSON texts in the file; rows have their values. pyarrow is imported where it is used.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cascade.errors import MissingExtraError, UsageError
from cascade.logs.lines import opened
from cascade.logs.rowcheck import (
    AS_JSON,
    AT_LEAST,
    CHECKS,
    KINDS,
    MAX_WHOLE,
    NUMBER,
    TEXT,
    TEXTS,
    TRUTH,
    WHOLE,
    OddValueError,
    belongs,
    fitting_signals,
    no_log,
    note_unknown_column,
    odd,
    refuse_other,
    shown,
    storable,
    texts_in,
)
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped

ROWS_A_GROUP = 16_384
"""Rows of a row group and of a batch: a batch of plain rows takes some 30 MB (`benchmarks/parquet.py`)."""
_READ_BYTES = 1 << 20
"""How much of a column is fetched at once; without a limit it would be a row group's whole column."""


def _pyarrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.compute
        import pyarrow.parquet
    except ModuleNotFoundError:
        raise MissingExtraError("pyarrow", "Parquet") from None
    return pa


@cache
def _schema() -> Any:
    """Return the columns with their types; every column may be null."""
    pa = _pyarrow()
    types = {WHOLE: pa.int64(), NUMBER: pa.float64(), TRUTH: pa.bool_()}
    return pa.schema([(name, types.get(KINDS[name], pa.string())) for name in COLUMNS])


# --- writing ---


def write_parquet(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write rows that have every column, and return how many.

    Raises:
        UsageError: a value does not fit its column.
        MissingExtraError: pyarrow is not installed.
    """
    pa, count = _pyarrow(), 0
    rows = iter(rows)
    with pa.parquet.ParquetWriter(path, _schema(), compression="zstd", write_page_checksum=True) as writer:
        while chunk := list(itertools.islice(rows, ROWS_A_GROUP)):
            writer.write_batch(_packed_chunk(chunk, count), row_group_size=ROWS_A_GROUP)
            count += len(chunk)
    return count


def _packed_chunk(chunk: Sequence[Mapping[str, Any]], first: int) -> Any:
    try:
        columns = [_packed(name, chunk, first) for name in COLUMNS]
    except OddValueError:  # a NaN; looked for only where there is one, since this walks through everything
        chunk = [storable(row) for row in chunk]
        columns = [_packed(name, chunk, first) for name in COLUMNS]
    return _pyarrow().record_batch(columns, schema=_schema())


def _packed(name: str, chunk: Sequence[Mapping[str, Any]], first: int) -> Any:
    values = [row[name] for row in chunk]
    try:
        return _typed(name, values)
    except (TypeError, OverflowError, ValueError) as error:
        if isinstance(error, OddValueError):
            raise
        bad = next(number for number, value in enumerate(values, first + 1) if not _fits(name, value))
        raise UsageError(f"Row {bad} cannot be written: its {name} is no {KINDS[name]}.") from None


def _typed(name: str, values: list[Any]) -> Any:
    pa, kind = _pyarrow(), _schema().field(name).type
    if KINDS[name] in AS_JSON:
        values = [None if value is None else _json_text(value) for value in values]
    elif any(type(value) is float and not math.isfinite(value) for value in values):
        raise OddValueError
    try:
        return pa.array(values, kind)
    except UnicodeEncodeError:  # half of a pair of surrogates; Parquet's texts are UTF-8
        return pa.array([None if one is None else one.encode("utf-8", "replace").decode() for one in values], kind)


def _json_text(value: Any) -> str:
    if not isinstance(value, list | tuple | Mapping):
        raise TypeError
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False)
    except ValueError:
        raise OddValueError from None


def _fits(name: str, value: Any) -> bool:
    try:
        _typed(name, [value])
    except (TypeError, OverflowError, ValueError):
        return False
    return True


# --- reading rows ---


def read_parquet(path: Path, dropped: Dropped, where: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """Yield a file's rows, like `files.read_rows`.

    Raises:
        UsageError: it is not a Parquet file, not a log, or it has another schema.
        MissingExtraError: pyarrow is not installed.
    """
    source = _Source.of(path, dropped)
    before, good = dropped.count, 0
    for piece in source.pieces():
        chosen = _where(piece, where)
        good += len(piece.numbers) - len(chosen.numbers)
        for row in _rows(chosen, source):
            good += 1
            yield row
    if not good and dropped.count > before:
        raise no_log(path, dropped)


class _Piece(NamedTuple):
    """Some rows of a file, as Arrow columns, with their numbers in it."""

    columns: Any
    numbers: Sequence[int]


class _Source(NamedTuple):
    """An open file: its path, the columns that it has, and what was left out of it."""

    path: Path
    file: Any
    names: tuple[str, ...]
    dropped: Dropped

    @classmethod
    def of(cls, path: Path, dropped: Dropped) -> _Source:
        """Open a file with a log."""
        file = open_parquet(path)
        present = file.schema_arrow.names
        for name in present:
            if name not in KINDS:
                note_unknown_column(name, path.name, dropped)
        missing = "step" if "step" not in present else "" if {"episode_id", "question"} & {*present} else "question"
        if missing:
            dropped.drop(f"no column {missing}", path.name, max(1, file.metadata.num_rows))
            raise no_log(path, dropped)
        return cls(path, file, tuple([name for name in COLUMNS if name in present]), dropped)

    def pieces(self) -> Iterator[_Piece]:
        """Yield the file in pieces; end early if it is damaged."""
        first = 1
        for batch in batches(self.file, self.names, ROWS_A_GROUP):
            if batch is None:
                rest = self.file.metadata.num_rows - first + 1
                self.dropped.drop("the file is damaged from here on", self.place(first), rest)
                return
            yield _Piece(batch, range(first, first + batch.num_rows))
            first += batch.num_rows

    def place(self, number: int) -> str:
        """Return the name of a row for messages."""
        return f"{self.path.name}: row {number}"


def open_parquet(path: Path) -> Any:
    """Open a file."""
    pa = _pyarrow()
    with opened(path):
        pass  # reports why a file cannot be read, as for every other format
    try:
        return pa.parquet.ParquetFile(path, buffer_size=_READ_BYTES, pre_buffer=False, page_checksum_verification=True)
    except (pa.ArrowException, OSError, ValueError):  # a name that is no UTF-8 is a ValueError
        raise UsageError(f"{path} is not a Parquet file, or its end is damaged or missing.") from None


def batches(file: Any, names: Sequence[str], size: int) -> Iterator[Any]:
    """Yield a file's columns in pieces of at most so many rows; yield None at the end if the file is damaged."""
    found = file.iter_batches(batch_size=size, columns=list(names), use_threads=False)
    while True:
        try:
            batch = next(found, _END)
        except (_pyarrow().ArrowException, OSError, ValueError):
            yield None
            return
        if batch is _END:
            return
        yield batch


_END = object()


def _where(piece: _Piece, where: Mapping[str, str]) -> _Piece:
    """Return the rows that have the wanted values."""
    if not where:
        return piece
    chosen = np.ones(len(piece.numbers), dtype=np.bool_)
    for name, wanted in where.items():
        has = name in piece.columns.schema.names
        values = plain_values(piece.columns.column(name)) if has else [None] * len(piece.numbers)
        chosen &= np.fromiter((shown(value) == wanted for value in values), np.bool_, len(values))
    numbers = [number for number, keep in zip(piece.numbers, chosen, strict=True) if keep]
    return _Piece(piece.columns.filter(_pyarrow().array(chosen)), numbers)


def _rows(piece: _Piece, source: _Source) -> Iterator[dict[str, Any]]:
    """Yield rows with every column."""
    values = {name: _values(name, piece, source) for name in source.names}
    nothing = [None] * len(piece.numbers)
    for number, version in zip(piece.numbers, values.get("schema_version", nothing), strict=True):
        refuse_other(version, source.place(number))
    values["schema_version"] = [SCHEMA_VERSION] * len(piece.numbers)
    table = [values.get(name, nothing) for name in COLUMNS]
    whole = not any(None in values.get(name, nothing) for name in ("step", "question", "episode_id"))
    for number, row in zip(piece.numbers, zip(*table, strict=True), strict=True):
        made = dict(zip(COLUMNS, row, strict=True))
        if whole or belongs(made, source.place(number), source.dropped):
            yield made


def _values(name: str, piece: _Piece, source: _Source) -> list[Any]:
    """Return a column as plain values, with null for each invalid value."""
    array = piece.columns.column(name)
    if array.null_count == len(array):
        return [None] * len(array)
    values = plain_values(array)
    if _holds(name, array):
        return values
    kept: list[Any] = []
    nan: list[str] = []
    decode = json.JSONDecoder(parse_constant=nan.append).decode
    for number, value in zip(piece.numbers, values, strict=True):
        try:
            kept.append(None if value is None else _plain(name, value, decode))
        except OddValueError as error:
            source.dropped.note(odd(name, error), source.place(number))
            kept.append(None)
        if nan:
            source.dropped.note("NaN or an infinite number, read as null", source.place(number), len(nan))
            nan.clear()
        if name == "signals" and kept[-1]:
            kept[-1] = fitting_signals(kept[-1], source.place(number), source.dropped)
    return kept


def plain_values(array: Any) -> list[Any]:
    """Return a column's values. Bytes become texts, with invalid UTF-8 replaced; lists of such texts become null."""
    pa = _pyarrow()
    if pa.types.is_binary(array.type) or pa.types.is_large_binary(array.type):
        return [None if one is None else one.decode("utf-8", "replace") for one in array.to_pylist()]
    try:
        values: list[Any] = array.to_pylist()
    except UnicodeDecodeError:
        if not (pa.types.is_string(array.type) or pa.types.is_large_string(array.type)):
            return [None] * len(array)
        raw = array.cast(pa.large_binary()).to_pylist()
        return [None if one is None else one.decode("utf-8", "replace") for one in raw]
    return values


def _plain(name: str, value: Any, decode: Callable[[str], Any]) -> Any:
    """Return one value in its column's form: JSON texts parsed, times as texts."""
    kind = KINDS[name]
    if isinstance(value, str):
        if kind == TEXTS:
            return texts_in(value)
        if kind in AS_JSON:
            try:
                value = decode(value)
            except (ValueError, RecursionError):
                raise OddValueError from None
    elif kind == TEXT and hasattr(value, "isoformat"):
        value = value.isoformat()
    return CHECKS[name](name, value)


def _holds(name: str, array: Any) -> bool:
    """Whether a whole column is valid by its type, so that its values need no check each."""
    pa, kind = _pyarrow(), array.type
    if KINDS[name] == TEXT:
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
    if KINDS[name] == TRUTH:
        return bool(pa.types.is_boolean(kind))
    if KINDS[name] == NUMBER:
        return bool(pa.types.is_floating(kind)) and bool(pa.compute.all(pa.compute.is_finite(array)).as_py())
    if KINDS[name] != WHOLE or not pa.types.is_integer(kind):
        return False
    span = pa.compute.min_max(array)
    return bool(AT_LEAST.get(name, 0) <= span["min"].as_py() and span["max"].as_py() <= MAX_WHOLE)
