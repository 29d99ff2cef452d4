"""duckdb for one task: the files it may open, the memory it may use, and the conversion of texts to values.

A connection opens only the files that it was given, loads no extension and cannot change its settings. What does not
fit into its memory goes to a temporary folder, which is deleted at the end. duckdb guesses no types: every field is
read as text and converted by the macros here. A text that cannot be converted becomes null.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cascade.errors import MissingExtraError, UsageError
from cascade.identity import identity

MEMORY = "1GB"
"""The memory limit of duckdb's tables and buffers; the rest goes to the disk."""

_FETCHED = 1_024
_NESTED = ("STRUCT", "MAP", "UNION", "JSON", "VARIANT")
_TRUE = (
    "'true', '1', '1.0', 'yes', 'y', 'correct', 'right', 'pass', 'passed', "
    "'up', 'thumbs_up', 'thumbs up', '👍', 'wahr', 'richtig', 'ja', 'vrai', 'verdadero', 'verdadeiro', 'vero', 'waar'"
)
_FALSE = (
    "'false', '0', '0.0', 'no', 'n', 'incorrect', 'wrong', 'fail', 'failed', "
    "'down', 'thumbs_down', 'thumbs down', '👎', 'falsch', 'nein', 'faux', 'falso', 'onwaar'"
)

# A lambda binds a value that is used twice: a macro's argument is copied, and nested copies multiply.
# `decimal_point`: a number's text with a decimal point instead of a comma. `amount`: the same, without thousands
# separators, if the text shows what its comma is: 1,234 may be either. `whole`: a count; commas may separate its
# thousands. `nano`: USD as nano-USD, rounded half to even. `seconds`: seconds since 1970, from ISO 8601 (UTC if it
# names no zone), from [seconds, nanoseconds], or from a number whose size tells its unit, if that is in 2000 or later:
# a spreadsheet's days are smaller. `duration`: a number of at least 0. `truth`: t and f are from Postgres, up and down
# from thumbs, wahr and the like from spreadsheets in other languages.
_MACROS = rf"""
CREATE MACRO plain_number(t) AS CASE WHEN regexp_full_match(t, '[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?') THEN t END;
CREATE MACRO decimal_point(t) AS list_transform([t], lambda x: CASE WHEN regexp_full_match(trim(x),
  '\$?[+-]?(\d+|\d{{1,3}}(\.\d{{3}})+),\d+') THEN replace(replace(x, '.', ''), ',', '.') ELSE x END)[1];
CREATE MACRO without_comma(t) AS list_transform([trim(t)], lambda x: CASE
  WHEN regexp_full_match(x, '[+-]?(0,\d+|\d+,(\d{{1,2}}|\d{{4,}})|\d{{1,3}}(\.\d{{3}})+,\d+)') THEN decimal_point(x)
  WHEN regexp_full_match(x, '[1-9]\d{{0,2}}(,\d{{3}})+\.\d+|[1-9]\d{{0,2}}(,\d{{3}}){{2,}}') THEN replace(x, ',', '')
  END)[1];
CREATE MACRO amount(t) AS plain_number(CASE WHEN contains(t, ',') THEN without_comma(t) ELSE trim(t) END);
CREATE MACRO finite(d) AS list_filter([d], lambda x: isfinite(x))[1];
CREATE MACRO number(t) AS CASE WHEN regexp_full_match(t, '-?\d{{1,15}}(\.\d{{1,17}})?') THEN TRY_CAST(t AS DOUBLE)
  ELSE finite(TRY_CAST(amount(t) AS DOUBLE)) END;
CREATE MACRO counted(t) AS CASE WHEN regexp_full_match(trim(t), '\d{{1,19}}') THEN TRY_CAST(trim(t) AS BIGINT)
  ELSE list_transform([number(t)], lambda x: TRY_CAST(CASE WHEN x = floor(x) AND x >= 0 THEN x END AS BIGINT))[1]
  END;
CREATE MACRO within(k, low, high) AS CASE WHEN k BETWEEN low AND high THEN k END;
CREATE MACRO whole(t) AS list_transform([CASE WHEN contains(t, ',') AND regexp_full_match(trim(t),
  '[1-9]\d{{0,2}}(,\d{{3}})+(\.\d+)?') THEN replace(t, ',', '') ELSE t END], lambda x: counted(x))[1];
CREATE MACRO usd(t) AS TRY_CAST(amount(regexp_replace(trim(t), '^\$', '')) AS DECIMAL(38, 28));
CREATE MACRO unless_tie(d) AS CASE WHEN abs(d - floor(d) - 0.5) > 0.01 THEN round(d)::BIGINT END;
CREATE MACRO exact_nano(t) AS CASE WHEN usd(t) >= 0 THEN
  TRY_CAST(replace(round_even(usd(t), 9)::VARCHAR, '.', '') AS BIGINT) END;
CREATE MACRO nano(t) AS coalesce(CASE WHEN regexp_full_match(t, '\d{{1,3}}(\.\d{{1,17}})?(e-\d\d)?')
  THEN unless_tie(TRY_CAST(t AS DOUBLE) * 1e9) END, exact_nano(t));
CREATE MACRO spelled(t) AS lower(trim(regexp_replace(t, '^\[([^,]*)\]$', '\1'), ' "'));
CREATE MACRO truth(t) AS CASE WHEN t IN ('1', '0', 't', 'f') THEN t IN ('1', 't') WHEN spelled(t) IN ({_TRUE}) THEN true
  WHEN spelled(t) IN ({_FALSE}) THEN false END;
CREATE MACRO duration(t) AS list_filter([number(t)], lambda x: x >= 0)[1];
CREATE MACRO since(d) AS list_transform([d], lambda x: CASE WHEN x < 946684800 THEN NULL WHEN x < 1e11 THEN x
  WHEN x < 1e14 THEN x / 1e3 WHEN x < 1e17 THEN x / 1e6 ELSE x / 1e9 END)[1];
CREATE MACRO until_9999(s) AS list_filter([s], lambda x: x < 253402300800)[1];
CREATE MACRO seconds(t) AS until_9999(CASE
  WHEN regexp_full_match(t, '\d+(\.\d+)?') THEN since(number(t))
  WHEN regexp_full_match(t, '\[\d+,\s*\d+\]') THEN number(regexp_extract(t, '\d+')) +
    number(regexp_extract(t, '(\d+)\]', 1)) / 1e9
  ELSE epoch(TRY_CAST(t AS TIMESTAMPTZ)) END);
CREATE MACRO iso(s) AS strftime(TRY(make_timestamp(round(s * 1e6)::BIGINT)), '%Y-%m-%dT%H:%M:%S.%g+00:00');
CREATE MACRO moment(t) AS list_transform([seconds(t)], lambda s: CASE WHEN contains(t, '-') AND s IS NOT NULL THEN t
  ELSE iso(s) END)[1];
CREATE MACRO texts(t) AS CASE WHEN json_valid(t) AND json_type(t) = 'ARRAY'
  AND len(list_filter(json_type(t::VARCHAR, '$[*]'), lambda kind: kind <> 'VARCHAR')) = 0 THEN t
  ELSE to_json([t])::VARCHAR END;
CREATE MACRO accepted(j) AS CASE WHEN json_type(j) = 'VARCHAR' THEN texts(json_extract_string(j, '$'))
  WHEN json_type(j) = 'ARRAY' AND len(list_filter(json_type(j, '$[*]'), lambda kind: kind NOT IN ('VARCHAR', 'BIGINT',
  'UBIGINT', 'HUGEINT'))) = 0 THEN to_json(json_extract_string(j, '$[*]'))::VARCHAR END;
CREATE MACRO step_list(t) AS CASE WHEN json_valid(t) AND json_type(t) = 'ARRAY' AND len(list_filter(
  json_extract_string(t::VARCHAR, '$[*]'), lambda s: coalesce(whole(s), 0) < 1)) = 0
  THEN to_json(list_sort(list_distinct(CAST(json_extract_string(t::VARCHAR, '$[*]') AS BIGINT[]))))::VARCHAR END;
CREATE MACRO as_object(t) AS CASE WHEN json_valid(t) AND json_type(t) = 'OBJECT' THEN t END;
CREATE MACRO as_array(t) AS CASE WHEN json_valid(t) AND json_type(t) = 'ARRAY' THEN t END;
CREATE MACRO items(t) AS CASE WHEN json_type(as_array(t)) IS NULL THEN json_extract(as_object(t), '$.*')
  ELSE json_extract(as_array(t), '$[*]') END;
CREATE MACRO kinds(t, pattern) AS list_sum([whole(json_extract_string(as_object(t), '/' || kind))
  FOR kind IN json_keys(as_object(t)) IF regexp_matches(lower(kind), pattern)]);
CREATE MACRO log_prob(t) AS within(number(t), -1e300, 0);
CREATE MACRO unless_empty(t) AS nullif(t, '');
CREATE MACRO spaced(t) AS trim(regexp_replace(lower(t),
  '[ \t\n\x0b\f\r\x1c-\x1f]{{2,}}|[\t\n\x0b\f\r\x1c-\x1f]', ' ', 'g'));
CREATE MACRO without_idle(t) AS coalesce(list_filter([regexp_replace(regexp_replace(
  spaced(t), '([a-z]{{2}})[,;:.?!]+( |$)', '\1\2', 'g'), '[ .?,;:]+$', '')], lambda s: s <> '')[1], spaced(t));
CREATE MACRO plain_ascii(t) AS CASE WHEN regexp_matches(lower(t),
  '[\t\n\x0b\f\r\x1c-\x1f]|  |^ | $|[a-z]{{2}}[,;:.?!]+ |![,;:.?!]*$') THEN without_idle(t)
  WHEN regexp_matches(t, '[.?,;:]$') THEN coalesce(nullif(regexp_replace(lower(t), '[ .?,;:]+$', ''), ''), lower(t))
  ELSE lower(t) END;
CREATE MACRO is_ascii(t) AS coalesce(strlen(t) = length(t), true);
CREATE MACRO digest(t, c) AS left(sha256(t || chr(31) || coalesce(c, '')), 16);
CREATE MACRO request_id(t, c) AS CASE WHEN is_ascii(t) AND is_ascii(c) THEN digest(plain_ascii(t), plain_ascii(c))
  ELSE identity_of([t, c]) END;
CREATE MACRO signal(j, p) AS CASE WHEN json_type(j, p) IN ('DOUBLE', 'BIGINT', 'UBIGINT', 'HUGEINT')
  THEN finite(TRY_CAST(json_extract_string(j, p) AS DOUBLE)) WHEN json_type(j, p) = 'BOOLEAN'
  THEN json_extract_string(j, p)::BOOLEAN::DOUBLE END;
"""
# `request_id` is `identity`, with its rule for ASCII texts repeated in SQL.
_BY_NAME = {statement.split("(")[0].split()[-1]: statement for statement in _MACROS.split(";\n") if statement}
_CALLED = re.compile(r"\b(\w+)\(")


def text_literal(text: object) -> str:
    """Return a text as an SQL literal."""
    return "'" + str(text).replace("'", "''") + "'"


def name_literal(name: str) -> str:
    """Return a column's name as a quoted SQL identifier."""
    return '"' + name.replace('"', '""') + '"'


def as_text(name: str, kind: str) -> str:
    """Return SQL for a column of any type as text: nested values as JSON, bytes as UTF-8; null for others and NaN."""
    column = name_literal(name)
    if kind.endswith("]") or kind.startswith(_NESTED):
        return f"to_json({column})::VARCHAR"
    own = dict.fromkeys(("FLOAT", "DOUBLE"), f"nullif({column}::VARCHAR, 'nan')") | {"BLOB": f"TRY(decode({column}))"}
    return f"iso(epoch({column}))" if kind.startswith("TIMESTAMP") else own.get(kind, f"{column}::VARCHAR")


class Duck:
    """A connection to duckdb and the folder of its temporary files.

    >>> with opened() as duck:
    ...     duck.rows("SELECT nano('$0.0000000025'), whole('1,234'), truth('Wrong'), number('nan')")
    [(2, 1234, False, None)]
    """

    def __init__(self, connection: Any, folder: Path, files: Sequence[Path] = ()) -> None:
        self._connection, self.folder, self._files = connection, folder, files
        self._undefined = {*_BY_NAME}

    def run(self, sql: str) -> Any:
        """Run statements; an error of duckdb becomes a UsageError with its first line."""
        import duckdb

        self._define_called(sql)
        try:
            return self._connection.execute(sql)
        except duckdb.Error as error:
            raise self._refused(error) from None

    def _define_called(self, sql: str) -> None:
        """Create the macros that statements call; creating all of them would take as long as reading a small log."""
        for name in self._undefined.intersection(_CALLED.findall(sql)):
            if name in self._undefined:  # an earlier macro may have created it
                self._undefined.discard(name)
                self._define_called(_BY_NAME[name])
                self._connection.execute(_BY_NAME[name])

    def rows(self, sql: str) -> list[tuple[Any, ...]]:
        """Return all rows of a small query."""
        rows: list[tuple[Any, ...]] = self.run(sql).fetchall()
        return rows

    def pieces(self, sql: str) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows of a large query, some thousand at a time."""
        import duckdb

        cursor = self.run(sql)
        try:
            while rows := cursor.fetchmany(_FETCHED):
                yield rows
        except duckdb.Error as error:
            raise self._refused(error) from None

    def _refused(self, error: Exception) -> UsageError:
        """Return an error with the first line of duckdb's and the files that it was opened for."""
        names = ", ".join(str(path) for path in self._files) or "the log"
        advice = {"OutOfMemoryException": " (cascade import --memory raises the limit)"}.get(type(error).__name__, "")
        return UsageError(f"{names} cannot be read or written: {str(error).splitlines()[0]}{advice}")

    def value(self, sql: str) -> Any:
        """Return the only value of a query."""
        return self.rows(sql)[0][0]

    def define(self, name: str, function: Callable[..., Any], arguments: int, result: str = "VARCHAR") -> None:
        """Make a Python function of texts available in SQL; null arguments reach it as None."""
        # duckdb counts a function's parameters and would find one in *texts, so the function takes one list.
        self._connection.create_function(
            f"{name}_of", lambda texts: function(*texts), ["VARCHAR[]"], result, null_handling="special"
        )
        names = ", ".join(f"t{number}" for number in range(arguments))
        self.run(f"CREATE MACRO {name}({names}) AS {name}_of([{names}])")


@contextmanager
def opened(files: Sequence[Path] = (), memory: str = MEMORY) -> Iterator[Duck]:
    """Open duckdb so that it can read and write these files and no others.

    Raises:
        MissingExtraError: duckdb is not installed.
    """
    try:
        import duckdb
    except ModuleNotFoundError:
        raise MissingExtraError("duckdb", "A log in Parquet, CSV or of another tool") from None
    name = tempfile.mkdtemp(prefix="cascade-")
    try:
        folder = Path(name)
        settings: dict[str, str | bool | int | float | list[str]] = {
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "temp_directory": name,
            "memory_limit": memory,
        }
        try:
            connection = duckdb.connect(":memory:", config=settings)
        except duckdb.Error as error:
            raise UsageError(f"duckdb does not start: {str(error).splitlines()[0]}") from None
        try:
            listed = ", ".join(text_literal(path) for path in files)
            connection.execute(f"SET allowed_paths = [{listed}]; SET TimeZone = 'UTC'")
            connection.execute(f"SET allowed_directories = [{text_literal(name)}]")
            if connection.execute("SELECT current_setting('enable_progress_bar')").fetchall()[0][0]:
                connection.execute("SET enable_progress_bar = false")  # it prints; Jupyter without ipywidgets has none
            duck = Duck(connection, folder, files)
            duck.define("identity", lambda text, context: None if text is None else identity(text, context), 2)
            connection.execute("SET enable_external_access = false; SET lock_configuration = true")
            yield duck
        finally:
            connection.close()
    finally:
        shutil.rmtree(name, ignore_errors=True)
