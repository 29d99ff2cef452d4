"""The files of a log as relations of texts: CSV, lines of JSON, JSON documents, Parquet, Inspect's `.eval`.

duckdb reads them. Python decides the format by the content, and copies only compressed files, documents, and lines with
bytes that duckdb would refuse. A bad line is left out; a table or a Parquet file that is damaged is refused.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from cascade.errors import UsageError
from cascade.logs.duck import Duck, as_text, name_literal, text_literal
from cascade.logs.duck import opened as open_duck
from cascade.logs.lines import MAX_LINE_BYTES, first_bytes, is_table, numbered_lines, opened, text_of
from cascade.logs.presets import ALSO, SIGNALS
from cascade.logs.schema import COLUMNS, Dropped
from cascade.logs.values import KINDS, NUMBER, WHOLE
from cascade.text import decoded

_SAMPLE = 10_000
"""The number of records that are searched for names of fields."""
_LONGEST_BYTES = 1 << 28
"""256 MiB: the longest JSON document, which is parsed at once. A file of lines has no such limit."""
_PEEKED_LINES = 20
_DOCUMENT_BYTES = 64_000_000
"""A file whose first object is on a later line is read at once to see if it is one document; a larger one has lines."""
_SEPARATORS = ",;\t|"
"""What may separate a table's cells. In locales with a decimal comma, programs write semicolons."""
_UNREAD = dict.fromkeys((".zst", ".bz2", ".xz", ".zip", ".7z"), "packed: unpack it, or pack it with gzip")
_UNREAD |= dict.fromkeys((".xlsx", ".xls", ".ods"), "a workbook: save a sheet of it as CSV in UTF-8")
"""By ending: why a file is not read, and what to do."""
WHOLE_RECORD = "$"
"""The path of a JSON record itself."""
_REJECTED = {
    "MISSING COLUMNS": "fewer cells than the first line",
    "TOO MANY COLUMNS": "more cells than the first line",
    "UNQUOTED VALUE": "an unclosed quotation mark, in this line or before it",
}


class Source(NamedTuple):
    """A file as a relation.

    Attributes:
        path: the file.
        number: its number among the files.
        unit: what precedes a row's number in a location: ":" for lines, else a word such as " row " or " item ".
        names: its fields, in the order of their first appearance.
        relation: SQL of a relation with `row` and, for JSON, `line` (null: unreadable) and `around`; for a table, a
            column of texts for each name.
        is_json: whether its records are JSON objects.
        rejects: whether duckdb wrote the lines that it rejected into `reject_errors`.
        stored, kinds: for Parquet, SQL of a relation with the columns as they are stored, and their SQL types.
        point: SQL template for a number's text, in place of `{}`: in a table with semicolons, commas are decimal.
    """

    path: Path
    number: int
    unit: str
    names: tuple[str, ...]
    relation: str
    is_json: bool
    rejects: bool = False
    stored: str | None = None
    kinds: Mapping[str, str] = MappingProxyType({})
    point: str = "{}"

    def typed(self) -> tuple[str, Mapping[str, str]]:
        """Return SQL of a relation with `row`, `bad` (why a line is no record) and the stored fields; and their types.

        These are SQL types: "VARCHAR", except for Parquet's own types and "JSON" for accepted answers in JSON records.
        """
        if not self.is_json:
            kinds = self.kinds or dict.fromkeys(self.names, "VARCHAR")
            return f"SELECT *, NULL::VARCHAR AS bad FROM ({self.stored or self.relation})", kinds
        fields = [name for name in self.names if name in COLUMNS]
        kinds = {name: "JSON" if name == "gold" else "VARCHAR" for name in fields}
        listed = ", ".join(text_literal(pointer([name])) for name in fields) or "'/'"
        values = {name: f"held[{at}]" for at, name in enumerate(fields, 1)}
        if "gold" in values:
            values["gold"] = f"CASE WHEN {values['gold']} IS NOT NULL THEN json_extract(line, '/gold') END"
        columns = "".join(f", {sql} AS {name_literal(name)}" for name, sql in values.items())
        query = f"SELECT row, {_BAD} AS bad, line, json_extract_string(line, [{listed}]) AS held FROM ({self.relation})"
        return f"SELECT row, bad{columns} FROM ({query})", kinds

    def location(self, row: int) -> str:
        """Return the location of a record, as an error or a note names it."""
        return f"{self.path.name}{self.unit}{row}"

    def select(self, fields: Mapping[str, Sequence[str]], prepare: str | None = None) -> str:
        """Return SQL that selects fields as texts, each from the first of its paths that has a value.

        A path is a field's name, or names separated by dots: metadata.user. `prepare` is an SQL function that returns
        a record's JSON, given the record and the object around it.
        """
        head = f"SELECT {self.number} AS file, row"
        if not self.is_json:
            texts = {name: self._first(paths) for name, paths in fields.items()}
            columns = [
                f"{self.point.format(sql) if _is_number(name) else sql} AS {name_literal(name)}"
                for name, sql in texts.items()
            ]
            return f"{', '.join([head, 'NULL AS bad', *columns])} FROM ({self.relation})"
        line = _WITHOUT_NAN if prepare is None else f"{prepare}(line, around)"
        pointers = list(dict.fromkeys(pointer for paths in fields.values() for p in paths for pointer in self._ways(p)))
        at = {pointer: f"held[{number}]" for number, pointer in enumerate(pointers, 1)}
        columns = [
            f"{_coalesced(sql for path in paths for sql in self._inside(path, at))} AS {name_literal(name)}"
            for name, paths in fields.items()
        ]
        listed = ", ".join(map(text_literal, pointers)) or "'/'"
        query = f"SELECT row, line, json_extract_string({line}, [{listed}]) AS held FROM ({self.relation})"
        return f"{', '.join([head, f'{_BAD} AS bad', *columns])} FROM ({query})"

    def _ways(self, path: str) -> list[str]:
        """Return the JSON pointers to where a path may lead; the last one's field may hold JSON as a text."""
        if path == WHOLE_RECORD:
            return [path]
        if path in self.names or "." not in path:
            return [pointer([path])]
        head, rest = self._head(path)
        split = [pointer([head, rest]), pointer([head, *rest.split(".")]), pointer([head])]
        return list(dict.fromkeys([pointer([path]), *split]))

    def _inside(self, path: str, at: Mapping[str, str]) -> list[str]:
        *direct, outer = self._ways(path)
        if not direct:
            return [at[outer]]
        rest = self._head(path)[1]
        return [*(at[pointer] for pointer in direct), _in_text(at[outer], rest)]

    def _head(self, path: str) -> tuple[str, str]:
        """Return the longest start of a path that is a field, and the rest."""
        words = path.split(".")
        starts = [".".join(words[:size]) for size in range(len(words) - 1, 0, -1)]
        head = next((start for start in starts if start in self.names), words[0])
        return head, path[len(head) + 1 :]

    def _first(self, paths: Sequence[str]) -> str:
        expressions = []
        for path in paths:
            head, rest = (path, "") if path in self.names else self._head(path) if "." in path else ("", "")
            if head in self.names:
                expressions.append(_in_text(name_literal(head), rest) if rest else name_literal(head))
        return _coalesced(expressions)


def _is_number(target: str) -> bool:
    name = target.rpartition(" ")[2]  # a flat table's target begins with the number of its model
    return name.startswith(SIGNALS) or name in ALSO or KINDS.get(name) in {NUMBER, WHOLE}


_BAD = "CASE WHEN line IS NULL THEN 'not a JSON object' END"
"""SQL for the reason why a line is no record."""
_WITHOUT_NAN = "CASE WHEN contains(line, 'NaN') OR contains(line, 'Infinity') THEN repaired(line) ELSE line END"
"""Python writes NaN for a missing text; it is null."""


def _coalesced(expressions: Iterable[str]) -> str:
    listed = [f"unless_empty({expression})" for expression in expressions]
    return f"coalesce({', '.join([*listed, 'NULL::VARCHAR'])})"


def _in_text(expression: str, rest: str) -> str:
    pointers = dict.fromkeys([pointer([rest]), pointer(rest.split("."))])
    ways = [f"json_extract_string(as_object({expression}), {text_literal(pointer)})" for pointer in pointers]
    return f"coalesce({', '.join(ways)}, NULL)"


def pointer(names: Iterable[str]) -> str:
    """Return the JSON pointer to a value inside nested objects."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def sources(duck: Duck, paths: Sequence[Path], dropped: Dropped) -> list[Source]:
    """Return the files as relations.

    Raises:
        UsageError: a file is missing, is not a regular file, or cannot be read.
    """
    duck.define("repaired", repaired, 1)
    return [_source(duck, path, number, dropped) for number, path in enumerate(paths)]


def _source(duck: Duck, path: Path, number: int, dropped: Dropped) -> Source:
    if first_bytes(path, 4) == b"PAR1" or path.suffix == ".parquet":
        return _parquet(duck, path, number)
    if path.suffix.lower() in _UNREAD:
        raise UsageError(f"{path} is {_UNREAD[path.suffix.lower()]}.")
    if zipfile.is_zipfile(path):
        return _json(duck, path, number, " sample ", _spooled(duck, number, _inspect_samples(path, dropped)))
    if is_table(path):
        return _table(duck, path, number, dropped)
    if has_lines(path):
        return _json(duck, path, number, ":", readable(path, duck.folder / f"lines{number}", dropped))
    return _json(duck, path, number, " item ", _spooled(duck, number, documents(path, dropped)))


class Record(NamedTuple):
    """One record and its location in the file."""

    location: str
    fields: Mapping[str, Any]


def records(path: Path, dropped: Dropped) -> Iterator[Record]:
    """Yield the records of a question file: JSON values, or the cells of a table as texts, with None for empty ones."""
    file = path.absolute()
    with open_duck([file]) as duck:
        (source,) = sources(duck, [file], dropped)
        listed = "line" if source.is_json else ", ".join(map(name_literal, source.names))
        for rows in duck.pieces(f"SELECT row, {listed} FROM ({source.relation}) ORDER BY row"):
            for row, *values in rows:
                if not source.is_json:
                    cells = {name: value or None for name, value in zip(source.names, values, strict=True)}
                    yield Record(source.location(row), cells)
                elif values[0] is not None:
                    yield Record(source.location(row), json.loads(values[0], parse_constant=lambda _: None))
                else:
                    dropped.drop("not a JSON object", source.location(row))
        if source.rejects:
            note_rejects(duck, source, dropped)


# --- bytes ---


class Readable(NamedTuple):
    """A file that duckdb can read, and the length of its longest line."""

    path: Path
    longest: int


def readable(path: Path, copy: Path, dropped: Dropped) -> Readable:
    """Return a file, or a clean copy: unpacked, UTF-8 without a byte order mark, without damaged or overlong lines."""
    with opened(path) as file:
        if not isinstance(file, gzip.GzipFile) and first_bytes(path, 3) != b"\xef\xbb\xbf":
            longest, ends = 0, set[bool]()
            for block in iter(lambda: file.read(1 << 20) + file.readline(MAX_LINE_BYTES), b""):
                longest = max(longest, *map(len, block.split(b"\n")))
                of_two, lines = block.count(b"\r\n"), block.count(b"\n")
                ends |= {of_two == lines, of_two > 0} if is_table(path) and lines else set()
                if longest >= MAX_LINE_BYTES or len(ends) > 1 or not _is_clean(block, of_two):
                    break
            else:
                return Readable(path, longest)
    longest, at, quoted = 0, 0, 0
    with copy.open("wb") as clean:
        for number, raw in numbered_lines(path, dropped):
            text = text_of(raw, dropped, path, number).replace("\0", "\ufffd")
            if is_table(path):
                text, quoted = _with_same_ends(text, quoted)
            else:  # duckdb would end a line at a carriage return
                text = text.rstrip("\r\n").replace("\r", " ") + "\n" * text.endswith("\n")
            line = text.encode()
            clean.write(b"\n" * (number - at - 1) + line)
            at, longest = number, max(longest, len(line))
    return Readable(copy, longest)


def _with_same_ends(line: str, quoted: int) -> tuple[str, int]:
    r"""Return a table's line with every line end outside quoted cells as LF, and 1 if it ends inside such a cell.

    >>> _with_same_ends('a,"b\r\n', 0), _with_same_ends('c",d\r\n', 1)
    (('a,"b\r\n', 1), ('c",d\n', 0))
    """
    parts = line.split('"')
    parts[quoted::2] = [part.replace("\r\n", "\n").replace("\r", "\n") for part in parts[quoted::2]]
    return '"'.join(parts), (quoted + len(parts) - 1) % 2


def _is_clean(block: bytes, ends: int) -> bool:
    """Return whether duckdb reads a block as it is: UTF-8, no NUL, carriage returns only in its `ends` CRLFs."""
    if b"\0" in block or block.count(b"\r") > ends:
        return False
    try:
        return block.isascii() or bool(block.decode())
    except UnicodeDecodeError:
        return False


def _spooled(duck: Duck, number: int, records: Iterable[Mapping[str, Any]]) -> Readable:
    """Write records as lines, and return the file."""
    copy, longest = duck.folder / f"lines{number}", 0
    with copy.open("wb") as lines:
        for record in records:
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n"
            lines.write(line)
            longest = max(longest, len(line))
    return Readable(copy, longest)


# --- JSON ---


def _json(duck: Duck, path: Path, number: int, unit: str, file: Readable) -> Source:
    size = max(file.longest + 2, 1 << 21)
    read = (
        f"SELECT row_number() OVER () AS row, line FROM read_csv({text_literal(file.path)}, columns = {{'line': "
        f"'VARCHAR'}}, delim = '', quote = '', escape = '', header = false, auto_detect = false, strict_mode = false, "
        f"nullstr = '', new_line = '\\n', max_line_size = {size}, buffer_size = {4 * size})"
    )
    checked = "CASE WHEN json_valid(line) AND json_type(line) = 'OBJECT' THEN line ELSE repaired(line) END"
    relation = (
        f"SELECT row, {checked} AS line, NULL::VARCHAR AS around FROM ({read}) "
        "WHERE trim(line, E' \\t\\r\\n\\f\\v') <> ''"
    )
    names = _keys(duck, f"SELECT row, line FROM ({relation} LIMIT {_SAMPLE})")
    return Source(path, number, unit, names, relation, is_json=True)


def _keys(duck: Duck, lines: str) -> tuple[str, ...]:
    rows = duck.rows(
        "SELECT name FROM (SELECT row, unnest(json_keys(line)) AS name, generate_subscripts(json_keys(line), 1) "
        f"AS number FROM ({lines})) GROUP BY name ORDER BY min(row * 10000 + number)"
    )
    return tuple(name for (name,) in rows)


def unnested(duck: Duck, source: Source, chain: Sequence[str]) -> Source:
    """Return a source of the items in a source's nested lists, such as spans in scopes; `around` is the rest of it."""
    relation = source.relation
    for name in chain:
        items = f"json_extract(line, {text_literal(pointer([name]))})"
        # duckdb computes the columns beside unnest for each item, so a subquery makes the record without its items
        relation = (
            f"SELECT row, CASE WHEN json_type(item) = 'OBJECT' THEN item::VARCHAR END AS line, around FROM (SELECT "
            f"row, around, unnest(items) AS item FROM (SELECT row, CASE json_type({items}) WHEN 'ARRAY' THEN "
            f"json_merge_patch(line, {text_literal(json.dumps({name: None}))})::VARCHAR END AS around, CASE "
            f"json_type({items}) WHEN 'ARRAY' THEN json_extract({items}, '$[*]') WHEN 'OBJECT' THEN [{items}] "
            f"ELSE [line::JSON] END AS items FROM ({relation})))"
        )
    return source._replace(relation=relation, names=_keys(duck, f"SELECT row, line FROM ({relation} LIMIT {_SAMPLE})"))


def as_json(source: Source) -> Source:
    """Return a table as a source of JSON records."""
    fields = ", ".join(f"{text_literal(name)}, {name_literal(name)}" for name in source.names)
    columns = f"row, json_object({fields})::VARCHAR AS line, NULL AS around"
    return source._replace(relation=f"SELECT {columns} FROM ({source.relation})", is_json=True)


def repaired(line: str | None) -> str | None:
    r"""Return an object of JSON as Python reads it, without unpaired surrogates, NaN and infinities; else None.

    >>> repaired('{"a": "\\ud83d", "b": NaN}'), repaired('{"a": ')
    ('{"a": "?", "b": null}', None)
    """
    value = decoded(line)
    return (
        json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode() if isinstance(value, dict) else None
    )


def has_lines(path: Path) -> bool:
    """Return whether a file is read line by line: one of its first lines is an object, or its name ends in .jsonl."""
    filled = (line for _, line in numbered_lines(path, Dropped()) if not line.isspace())
    for at, line in enumerate(islice(filled, _PEEKED_LINES)):
        if at == 0 and line.lstrip().startswith(b"["):
            return False
        if isinstance(record := decoded(line), dict):
            _refuse_columns(record, path)
            return at == 0 or not _is_document(path)
    return path.name.endswith((".jsonl", ".jsonl.gz"))


def _is_document(path: Path) -> bool:
    """Return whether a file is one document although some lines are objects, as in an export with a record per line."""
    with opened(path) as file:
        text = file.read(_DOCUMENT_BYTES + 1)
    return len(text) <= _DOCUMENT_BYTES and isinstance(decoded(text), dict | list)


def documents(path: Path, dropped: Dropped) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a JSON document, which is parsed at once: those of its list, or the only one.

    Raises:
        UsageError: it is too long for that, is not JSON by its first character, or is a whole table in one object.
    """
    with opened(path) as file:
        try:
            text = file.read(_LONGEST_BYTES + 1)
        except (EOFError, OSError, zlib.error):
            dropped.drop("the file is cut short or damaged", path.name)
            return
    if len(text) > _LONGEST_BYTES:
        limit = f"{_LONGEST_BYTES >> 20} MiB"
        raise UsageError(f"{path} is one JSON document of more than {limit}: write its records as lines (jq -c '.[]').")
    plain = text.decode("utf-8", "replace").removeprefix("\ufeff")
    if plain.strip()[:1] not in {"[", "{", ""}:
        raise UsageError(
            f"{path} is no log: it is neither JSON nor Parquet, and the name of a table ends in .csv or .tsv."
        )
    try:
        value = json.loads(plain) if plain.strip() else []
    except (ValueError, RecursionError) as error:
        dropped.drop(f"not JSON ({error})", path.name)
        return
    for number, record in enumerate(value if isinstance(value, list) else [value], 1):
        if isinstance(record, dict):
            _refuse_columns(record, path)
            yield record
        else:
            dropped.drop("not a JSON object", f"{path.name} item {number}")


def _refuse_columns(record: Mapping[str, Any], path: Path) -> None:
    """Raise UsageError for an object that is a whole table, as pandas, W&B and MLflow write one."""
    inner = [value for value in record.values() if isinstance(value, dict)]
    alike = 1 < len(inner) == len(record) and len({tuple(value) for value in inner}) == 1
    numbered = alike and inner[0] and (all(map(str.isdigit, inner[0])) or all(map(str.isdigit, record)))
    if numbered or ("data" in record and {"columns", "schema"} & record.keys()):
        raise UsageError(f"{path} is one object with a whole table: write a record for each row (orient='records').")


def _inspect_samples(path: Path, dropped: Dropped) -> Iterator[Mapping[str, Any]]:
    """Yield the samples of an `.eval` file of Inspect, each with the task and the model that the header names."""
    try:
        with zipfile.ZipFile(path) as packed:
            names = packed.namelist()
            header = decoded(packed.read("header.json")) if "header.json" in names else None
            task = header.get("eval") if isinstance(header, dict) else None
            about = {name: task.get(name) for name in ("task", "model")} if isinstance(task, dict) else {}
            for name in names:
                if name.startswith("samples/") and name.endswith(".json"):
                    if packed.getinfo(name).file_size > MAX_LINE_BYTES:
                        dropped.drop(f"a sample of more than {MAX_LINE_BYTES >> 20} MiB", f"{path.name}: {name}")
                        continue
                    sample = decoded(packed.read(name))
                    if isinstance(sample, dict):
                        yield {**sample, "eval": about}
                    else:
                        dropped.drop("not a JSON object", f"{path.name}: {name}")
    except (zipfile.BadZipFile, zlib.error, OSError, NotImplementedError, RuntimeError, EOFError):
        dropped.drop("the file is cut short or damaged from here on", path.name)


# --- tables ---


def _header(path: Path) -> tuple[list[str], int, str]:
    """Return the names in a table's first line that is not blank, the line's number, and the separator of cells.

    That is the one that occurs most often there, unless a line before it, which Excel may write, names it: `sep=;`.

    Raises:
        UsageError: the header cannot be parsed.
    """
    numbered = numbered_lines(path, Dropped())
    lines = ((at, text_of(line, Dropped(), path, at)) for at, line in numbered if not line.isspace())
    line, first = next(lines, (0, ""))
    if (given := re.fullmatch(r'"?sep=(.)"?\s*', first)) is not None:
        line, first = next(lines, (0, ""))
    separator = max(_SEPARATORS, key=first.count) if given is None else given[1]
    try:
        names = next(filter(None, csv.reader(chain([first], (text for _, text in lines)), delimiter=separator)), [])
    except csv.Error:
        raise UsageError(f"{path} has no header: its lines must end with LF or CRLF.") from None
    return [name.strip() for name in names], line, separator


def _table(duck: Duck, path: Path, number: int, dropped: Dropped) -> Source:
    header, line, separator = _header(path)
    names = [name or f"column {at}" for at, name in enumerate(header, 1)]  # pandas' index column has no name
    if not names:
        raise UsageError(f"{path} has no row.")
    times = Counter(map(str.lower, names))  # duckdb ignores case in names
    if twice := sorted(name for name in {*names} if times[name.lower()] > 1):
        raise UsageError(f"{path} has more than one column {', '.join(twice)}.")
    file = readable(path, duck.folder / f"table{number}", dropped)
    size = max(file.longest + 2, 1 << 21)
    columns = ", ".join(f"{text_literal(name)}: 'VARCHAR'" for name in names)
    cells = (
        f"SELECT row_number() OVER () AS row, * FROM read_csv({text_literal(file.path)}, columns = {{{columns}}}, "
        f"delim = {text_literal(separator)}, quote = '\"', escape = '\"', skip = {line - 1}, "
        f"header = true, auto_detect = false, ignore_errors = true, store_rejects = true, rejects_limit = 100000, "
        f"max_line_size = {size}, buffer_size = {4 * size}) QUALIFY concat_ws(chr(31), "  # without the header again
        f"{', '.join(map(name_literal, names))}) <> {text_literal(chr(31).join(filter(None, header)))}"
    )
    point = "decimal_point({})" if separator == ";" else "{}"
    return Source(path, number, " row ", tuple(names), cells, is_json=False, rejects=True, point=point)


def note_rejects(duck: Duck, source: Source, dropped: Dropped) -> None:
    """Count the lines of a table that duckdb rejected, by reason; an unclosed quotation mark rejects all after it."""
    for kind, line, count in duck.rows(
        "SELECT any_value(error_type)::VARCHAR, line, CASE any_value(error_type) WHEN 'UNQUOTED VALUE' THEN "
        "len(string_split(trim(any_value(csv_line), chr(10)), chr(10))) ELSE 1 END FROM reject_errors JOIN "
        "reject_scans USING (scan_id, file_id) "
        f"WHERE trim(csv_line, E' \\r\\n') <> '' AND contains({text_literal(source.relation)}, file_path) "
        "GROUP BY line ORDER BY line"
    ):
        dropped.drop(f"no row of the table: {_REJECTED.get(kind, kind.lower())}", f"{source.path.name}:{line}", count)


def _parquet(duck: Duck, path: Path, number: int) -> Source:
    read = f"read_parquet({text_literal(path)}, file_row_number = true)"
    try:
        described = [(row[0], row[1]) for row in duck.rows(f"DESCRIBE SELECT * FROM {read}")]
    except UsageError as error:
        raise UsageError(f"{path} is not a Parquet file, or it is damaged: {error}") from None
    columns = {name: as_text(name, kind) for name, kind in described if name != "file_row_number"}
    listed = ", ".join(f"{expression} AS {name_literal(name)}" for name, expression in columns.items())
    relation = f"SELECT file_row_number + 1 AS row, {listed} FROM {read}"
    stored = f"SELECT file_row_number + 1 AS row, * EXCLUDE (file_row_number) FROM {read}"
    return Source(
        path,
        number,
        ": row ",
        tuple(columns),
        relation,
        is_json=False,
        stored=stored,
        kinds={k: v for k, v in described if k in columns},
    )
