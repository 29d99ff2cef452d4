"""Import logs of other tools as episodes, and detect which tool wrote a file.

An importer is a function of a file that yields rows as `episodes.schema` has them, a few at a time, and counts what it
leaves out. It is found by the columns of the file's first records.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.checks import did_you_mean
from cascade.episodes.files import Dropped, is_url, looks_parquet, read_rows
from cascade.episodes.importers.batch import RESULT_NAMES, rows_from_batch
from cascade.episodes.importers.langfuse import rows_from_langfuse, snake
from cascade.episodes.importers.litellm_spend import NAMES as LITELLM_NAMES
from cascade.episodes.importers.litellm_spend import rows_from_litellm
from cascade.episodes.importers.otel import attributes, rows_from_otel
from cascade.episodes.importers.pairs import ANSWER_NAMES, PAIR_NAMES, rows_from_pairs
from cascade.episodes.importers.requests import NAMES as REQUESTS_NAMES
from cascade.episodes.importers.requests import rows_from_requests
from cascade.episodes.importers.sources import Record, has_lines, records, table_suffix
from cascade.episodes.importers.table import is_wide, rows_from_table
from cascade.episodes.rowcheck import checked_where, matches
from cascade.errors import UsageError

__all__ = [
    "IMPORTERS",
    "detect",
    "import_rows",
    "read_log",
    "rows_from_batch",
    "rows_from_langfuse",
    "rows_from_litellm",
    "rows_from_otel",
    "rows_from_pairs",
    "rows_from_requests",
    "rows_from_table",
]

IMPORTERS = ("pairs", "requests", "batch", "litellm", "otel", "langfuse", "table")
"""What can be imported. A table of calls needs a mapping, or our own column names; a wide one is known by its names."""
OWN = "cascade"
"""What one of our own logs is called."""
_LOOKED_AT = 20
_BY_CALLS = {
    "litellm": rows_from_litellm,
    "otel": rows_from_otel,
    "langfuse": rows_from_langfuse,
}


def detect(path: Path | str) -> str | None:
    """Return which importer reads a file, told by its columns; None for our own logs and for unknown files.

    Raises:
        UsageError: there is no such file.
    """
    kind = known(path)
    return None if kind == OWN else kind


def known(path: Path | str) -> str | None:
    """Return the kind of a log: `OWN` for one of ours, else an importer's name; None if it is unknown."""
    if is_url(path):
        return OWN
    path = Path(path)
    found = itertools.islice(records(path, Dropped()), _LOOKED_AT)
    kind = next((name for record in found if (name := _kind(record)) is not None), None)
    # Our rows in CSV or in a JSON list are a table that needs no mapping.
    return "table" if kind == OWN and not looks_parquet(path) and not _in_lines(path) else kind


def _in_lines(path: Path) -> bool:
    return not table_suffix(path) and has_lines(path)


_KNOWN_BY: Mapping[str, tuple[frozenset[str], ...]] = {
    OWN: (frozenset({"step", "episode_id"}), frozenset({"step", "question", "source"})),
    "pairs": (PAIR_NAMES, ANSWER_NAMES),
    "requests": (REQUESTS_NAMES,),
    "batch": (RESULT_NAMES, frozenset({"custom_id", "body"})),
    "litellm": (LITELLM_NAMES,),
    "otel": (frozenset({"resourceSpans"}), frozenset({"resource_spans"})),
}
"""The names of which a record of each log has all of one set."""


def _kind(record: Record) -> str | None:
    names = record.fields.keys()
    kind = next((kind for kind, sets in _KNOWN_BY.items() if any(names >= one for one in sets)), None)
    if kind is not None:
        return kind
    if _is_span(record):
        return "otel"
    plain = {snake(name) for name in names}
    is_observation = {"id", "trace_id", "type"} <= plain and plain & {"start_time", "usage_details", "input", "output"}
    return "langfuse" if is_observation else None


def _is_span(record: Record) -> bool:
    has = attributes(record.fields.get("attributes"))
    return any(name.startswith("gen_ai.") for name in has)


def import_rows(
    path: Path | str,
    dropped: Dropped | None = None,
    *,
    kind: str | None = None,
    models: Sequence[str] = (),
    also: Sequence[Path | str] = (),
    roles: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
    told: Callable[[Sequence[str]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log; `kind` is one of `IMPORTERS`, told by the file itself by default.

    One of our own logs is read as it is, so that this turns any form into any other. `told` is called with how the
    columns of a wide table are read, in lines, before its first row. `models` are the steps of a ladder, the cheapest
    first, out of a log of chat requests with many models. `also` are the other files of a batch.

    Raises:
        UsageError: nobody knows the file, or an option does not go with it.
    """
    chosen = kind or known(path) or ("table" if columns or is_wide(path) else None)
    if chosen is None:
        raise UsageError(
            f"{path} is no log that is known by its columns. Say what it is with --from ({', '.join(IMPORTERS)}), or "
            f"which of its fields is which column of ours: --map question=FIELD --map answer=FIELD."
        )
    if chosen in {"requests", "batch"}:
        if roles:
            raise UsageError(f"{path} is a log of chat requests: choose its models with --models, not with roles.")
        if chosen == "batch":
            return rows_from_batch([path, *also], dropped, models=models, columns=columns, dataset=dataset)
    if also:
        raise UsageError(f"Only a batch is read from several files; {path} is none. Import the files one by one.")
    if chosen == "requests":
        return rows_from_requests(path, dropped, models=models, columns=columns, dataset=dataset)
    if models:
        raise UsageError(f"--models picks models of a log of chat requests; {path} is none. See --role and --map.")
    return _rows_of_calls(chosen, path, dropped, roles=roles, columns=columns, dataset=dataset, told=told)


def _rows_of_calls(
    chosen: str,
    path: Path | str,
    dropped: Dropped | None,
    *,
    roles: Mapping[str, str] | None,
    columns: Mapping[str, str] | None,
    dataset: str | None,
    told: Callable[[Sequence[str]], None] | None,
) -> Iterator[dict[str, Any]]:
    if chosen == "table":
        return rows_from_table(path, dropped, roles=roles, columns=columns, dataset=dataset, told=told)
    if chosen in _BY_CALLS:
        return _BY_CALLS[chosen](path, dropped, roles=roles, columns=columns, dataset=dataset)
    if chosen not in {"pairs", OWN}:
        raise UsageError(f"There is no importer {chosen}{did_you_mean(chosen, IMPORTERS)}")
    if roles or columns or dataset:
        raise UsageError(f"{path} says itself which model is which: it takes no roles, mapping or name.")
    return rows_from_pairs(path, dropped) if chosen == "pairs" else read_rows(path, dropped)


def read_log(
    path: Path | str, dropped: Dropped | None = None, where: Mapping[str, str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log of ours or of a foreign one that is known by its columns: what commands read logs with.

    Takes and raises what `files.read_rows` does.
    """
    kind = known(path)
    if kind in {None, OWN}:
        yield from read_rows(path, dropped, where)
        return
    wanted = checked_where(where)
    yield from (row for row in import_rows(path, dropped, kind=kind) if matches(row, wanted))
