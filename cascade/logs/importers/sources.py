"""The records of a foreign log, one at a time: Parquet, CSV, lines of JSON, or a JSON document, compressed or not."""

from __future__ import annotations

import codecs
import csv
import gzip
import json
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, NamedTuple

from cascade.errors import UsageError
from cascade.logs.files import OWN, looks_parquet
from cascade.logs.importers.values import attributes, snake
from cascade.logs.lines import MAX_LINE_BYTES, decoder, json_lines, numbered_lines, opened, text_of
from cascade.logs.schema import Dropped

_CHUNK_BYTES = 1 << 20
_PEEKED_LINES = 20
_DOCUMENT_BYTES = 64_000_000
"""A document is read at once; a larger log is read line by line."""
_BATCH_ROWS = 4_096
_TABLES = {".csv": ",;", ".tsv": "\t"}
"""The separators of cells, by the file's ending. In locales with a decimal comma, programs write semicolons."""
AROUND = "around"
"""The field in which a record has its surrounding object, such as the trace of an observation."""
PAIR_NAMES = frozenset({"pair", "question_id", "round", "T", "base_correct", "guide_correct"})
ANSWER_NAMES = frozenset({"question_id", "model", "role", "method", "correct"})
"""The columns that identify logs of pairs; the second set is of logs with one answer per row."""
RESULT_NAMES = frozenset({"custom_id", "response"})
"""The fields that identify a line of a batch's results."""
_KNOWN_BY: Mapping[str, tuple[frozenset[str], ...]] = {
    OWN: (frozenset({"step", "episode_id"}), frozenset({"step", "question", "source"})),
    "pairs": (PAIR_NAMES, ANSWER_NAMES),
    "requests": (frozenset({"request_id", "model", "run", "messages_json", "output_text", "tool_calls_json"}),),
    "batch": (RESULT_NAMES, frozenset({"custom_id", "body"})),
    "harness": (frozenset({"doc_id", "doc", "target", "filtered_resps"}),),
    "litellm": (frozenset({"request_id", "call_type", "spend", "startTime"}),),
    "otel": (frozenset({"resourceSpans"}), frozenset({"resource_spans"})),
}
"""For each kind of log, sets of names; a record of that kind has all names of one set."""


class Record(NamedTuple):
    """One record and its place in the file."""

    place: str
    fields: dict[str, Any]


def kind_of(record: Record) -> str | None:
    """Return the kind of a record's log: `OWN`, or an importer's name; None if its names do not identify one."""
    names = record.fields.keys()
    kind = next((kind for kind, sets in _KNOWN_BY.items() if any(names >= one for one in sets)), None)
    if kind is not None:
        return kind
    if any(name.startswith("gen_ai.") for name in attributes(record.fields.get("attributes"))):
        return "otel"
    plain = {snake(name) for name in names}
    is_observation = {"id", "trace_id", "type"} <= plain and plain & {"start_time", "usage_details", "input", "output"}
    return "langfuse" if is_observation else None


def records(path: Path, dropped: Dropped) -> Iterator[Record]:
    """Yield the records of a file; other lines and items are dropped and counted. The content decides the format.

    Only a JSON document that is not a list is held in memory completely.
    """
    if looks_parquet(path):
        return _parquet_records(path, dropped)
    if table_suffix(path):
        return _table_records(path, dropped)
    if has_lines(path):
        return _line_records(path, dropped)
    return _document_records(path, dropped)


def _parquet_records(path: Path, dropped: Dropped) -> Iterator[Record]:
    from cascade.logs.parquet import batches, open_parquet, plain_values

    file = open_parquet(path)
    names, first = _each_once(file.schema_arrow.names, path), 1
    for batch in batches(file, names, _BATCH_ROWS):
        if batch is None:
            rest = file.metadata.num_rows - first + 1
            dropped.drop("the file is damaged from here on", f"{path.name}: row {first}", rest)
            return
        columns = [plain_values(batch.column(i)) for i in range(len(names))]
        for number, row in enumerate(zip(*columns, strict=True), first):
            yield Record(f"{path.name}: row {number}", dict(zip(names, row, strict=True)))
        first += batch.num_rows


# --- tables ---


class Cells(NamedTuple):
    """One line of a table, and its place in the file."""

    place: str
    cells: list[str]


def table_lines(path: Path, dropped: Dropped) -> Iterator[Cells]:
    """Yield the lines of a table unchanged, including the first; blank lines are skipped."""
    # A limit of the whole process, which is only raised, never lowered: an answer may be longer than 128 KiB.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE_BYTES))
    rows = csv.reader(_texts(path, dropped), delimiter=_separator(path), strict=False)
    while True:
        place = f"{path.name}:{rows.line_num + 1}"
        try:
            cells = next(rows, None)
        except csv.Error as error:
            dropped.drop(f"no row of a table: {error}", place)
            continue
        if cells is None:
            return
        if cells:
            yield Cells(place, cells)


def _separator(path: Path) -> str:
    """Return the separator of a table's cells: the candidate that occurs most often in its first line."""
    possible = _TABLES[table_suffix(path)]
    first = next((line for line in _texts(path, Dropped()) if line.strip()), "") if len(possible) > 1 else ""
    return max(possible, key=first.count)


def table_suffix(path: Path) -> str:
    """Return ".csv" or ".tsv" for a table, compressed or not, and an empty text for any other file."""
    suffix = Path(path.stem).suffix if path.suffix == ".gz" else path.suffix
    return suffix.lower() if suffix.lower() in _TABLES else ""


def _table_records(path: Path, dropped: Dropped) -> Iterator[Record]:
    """Yield a table's rows by the names in its first line; an empty cell is null."""
    lines = table_lines(path, dropped)
    names = _header(path, lines)
    for place, cells in lines:
        if len(cells) == len(names):
            yield Record(place, {name: cell or None for name, cell in zip(names, cells, strict=True)})
        else:
            dropped.drop(f"not as many cells as the {len(names)} of the first line", place)


def _header(path: Path, lines: Iterator[Cells]) -> list[str]:
    first = next(lines, None)
    return _each_once([] if first is None else [name.strip() for name in first.cells], path)


def _each_once(names: list[str], path: Path) -> list[str]:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{path} has more than one column {', '.join(twice)}.")
    return names


def _texts(path: Path, dropped: Dropped) -> Iterator[str]:
    for number, line in numbered_lines(path, dropped):
        yield text_of(line, dropped, f"{path.name}:{number}")


# --- JSON ---


def has_lines(path: Path) -> bool:
    """Whether one of the first lines is a complete object: then the file is read line by line."""
    peeked = 0
    for _, line in numbered_lines(path, Dropped()):
        if line.isspace():
            continue
        peeked += 1
        if peeked == 1 and line.lstrip().startswith(b"["):
            return False
        try:
            if isinstance(json.loads(line), dict):
                return peeked == 1 or not _is_document(path)
        except (ValueError, RecursionError):
            pass
        if peeked >= _PEEKED_LINES:
            break
    return False


def _is_document(path: Path) -> bool:
    """Whether the file is one document although lines of it are objects: an export with a record on each line."""
    with opened(path) as file:
        text = file.read(_DOCUMENT_BYTES + 1)
    try:
        return len(text) <= _DOCUMENT_BYTES and isinstance(json.loads(text), dict | list)
    except (ValueError, RecursionError):
        return False


def _line_records(path: Path, dropped: Dropped) -> Iterator[Record]:
    for number, value in json_lines(path, dropped):
        yield from _unwrapped(value, f"{path.name}:{number}")


def _document_records(path: Path, dropped: Dropped) -> Iterator[Record]:
    for number, value in enumerate(_values(path, dropped), 1):
        place = f"{path.name}: item {number}"
        if isinstance(value, dict):
            yield from _unwrapped(value, place)
        else:
            dropped.drop("not a JSON object", place)


def _unwrapped(value: dict[str, Any], place: str) -> Iterator[Record]:
    """Yield the records of an API's page or of a trace, with the surrounding object; other objects are records."""
    page = "data" in value and value.keys() <= {"data", "meta"}
    inside = value.get("data" if page else "observations")
    if not isinstance(inside, list) or not all(isinstance(one, dict) for one in inside):
        yield Record(place, value)
        return
    around = {name: one for name, one in value.items() if one is not inside}
    for number, one in enumerate(inside, 1):
        yield Record(f"{place}.{number}", {**one, AROUND: around})


def _values(path: Path, dropped: Dropped) -> Iterator[Any]:
    """Yield the items of a JSON list a piece at a time, or the one value of another document."""
    with opened(path) as file:
        text = _Text(file, path, dropped)
        if text.next("\ufeff \t\r\n") == "[":
            text.at += 1
            yield from _items(text)
            return
        while text.more():
            pass
    if not text.held:
        return
    try:
        yield decoder()(text.held.encode("utf-8", "replace"), dropped, path.name)
    except (ValueError, RecursionError) as error:
        dropped.drop(f"not JSON ({error})", path.name)


class _Text:
    """A file's text, processed up to `at`; the text before it is freed when more is read."""

    def __init__(self, file: IO[bytes] | gzip.GzipFile, path: Path, dropped: Dropped) -> None:
        self.held, self.at = "", 0
        self.path, self.dropped = path, dropped
        self._file = file
        self._decode = codecs.getincrementaldecoder("utf-8")("replace")

    def more(self) -> bool:
        """Read as much again as is in memory; return False at the end."""
        self.held, self.at = self.held[self.at :], 0
        try:
            raw = self._file.read(max(_CHUNK_BYTES, len(self.held)))
        except (EOFError, OSError, zlib.error):
            self.dropped.drop("the file is cut short or damaged from here on", self.path.name)
            return False
        self.held += self._decode.decode(raw, final=not raw)
        return bool(raw)

    def next(self, blank: str) -> str:
        """Return the next character that is not blank, without consuming it; an empty text at the end."""
        while True:
            while self.at < len(self.held):
                if self.held[self.at] not in blank:
                    return self.held[self.at]
                self.at += 1
            if not self.more():
                return ""


def _items(text: _Text) -> Iterator[Any]:
    """Yield the items of a list whose opening bracket was read."""
    number = 0
    while (found := text.next(" \t\r\n,")) != "]":
        number += 1
        place = f"{text.path.name}: item {number}"
        if not found:
            text.dropped.drop("the list is cut short", place)
            return
        odd: list[str] = []
        try:
            yield _item(text, odd)
        except (ValueError, RecursionError):
            text.dropped.drop("not JSON from here on", place)
            return
        if odd:
            text.dropped.note("NaN or an infinite number, read as null", place, len(odd))


def _item(text: _Text, odd: list[str]) -> Any:
    """Return the next item. Each new attempt has twice as much text, so a long item takes linear time."""
    parse = json.JSONDecoder(parse_constant=odd.append).raw_decode
    while True:
        odd.clear()
        try:
            value, end = parse(text.held, text.at)
        except (ValueError, RecursionError):
            if len(text.held) - text.at > MAX_LINE_BYTES or not text.more():
                raise
            continue
        if end < len(text.held) or isinstance(value, dict | list):
            text.at = end
            return value
        if not text.more():  # a number may continue in the next piece
            text.at = len(text.held)
            return value
