"""Open a log by its name: cascade's own format, a known foreign one, a store, or a shipped log."""

from __future__ import annotations

import os.path
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from importlib import resources
from os import PathLike
from pathlib import Path

from cascade.checks import did_you_mean
from cascade.episodes.reading import Reading, read
from cascade.errors import UsageError
from cascade.logs.columns import Calls, Row
from cascade.logs.files import opened_log
from cascade.logs.schema import COLUMNS, Dropped
from cascade.records.address import is_url

DEMO = "demo"
DEMO_LADDER = "demo-ladder"
"""The base and the guide of the demo log, asked outright, as a ladder (`design/demo-log.md`)."""
DEMO_REQUESTS = "demo-requests"
"""The log of chat requests that ships with the package (`cascade.demo.requests`)."""
SHIPPED = {DEMO: "demo_log.parquet", DEMO_LADDER: "demo_ladder.parquet", DEMO_REQUESTS: "demo_requests.parquet"}
"""The files of the logs that ship with the package, by the logs' names."""

_SMALL_BYTES = {".jsonl": 1 << 21, ".csv": 1 << 20, ".parquet": 1 << 18}
"""By ending: the largest file whose rows are kept in memory."""

_WHOLE_BY = ("dataset", "split", "group", "segment", "user", "question", "episode_id")
"""Columns by which whole episodes can be chosen."""
_PARTS = frozenset(COLUMNS) - {*_WHOLE_BY, "context", "gold", "schema_version"}
"""Columns whose values differ between the rows of one episode."""


def open_log(
    log: str,
    where: Mapping[str, str] | None = None,
    dropped: Dropped | None = None,
    *,
    matcher: str | None = None,
    reference: str | None = None,
    models: Sequence[str] = (),
) -> Reading:
    """Read a log. If it does not say which answers are right, the reference's output is the truth.

    Args:
        log: a file, a store's URL, or a shipped log ("demo", "demo-ladder", "demo-requests").
        where: only rows that have these values in these columns are read.
        dropped: counts everything that is left out.
        matcher: judges every answer again (`reading.read`).
        reference: its output is the truth, whatever the labels say.
        models: only these models of a ladder's log, in this order; the last is the reference.

    Raises:
        UsageError: the log, a column or the matcher does not exist, or no episode is left.

    >>> open_log("demo").datasets[0].log.n
    244
    """
    _check_columns(where or {})
    check_there(log)
    counts = Dropped() if dropped is None else dropped
    counting = iter([counts])  # what is left out is counted the first time that the log is read
    with _file(log) as path:  # a small file is read only once: duckdb takes 0.1 s to start
        small = path.is_file() and path.stat().st_size <= _SMALL_BYTES.get(path.suffix, 0)

    @cache
    def listed() -> tuple[Row, ...]:
        return tuple(rows_of(log, where, next(counting, None), models))

    def rows() -> Iterator[Row]:
        return map(dict, listed()) if small else rows_of(log, where, next(counting, None), models)

    def columns() -> Calls | Iterable[Row]:
        """Return the columns of a large file, without its texts, or the rows of any other log."""
        if small or models or is_url(log):
            return rows()
        with _file(log) as path, opened_log(path, next(counting, None), where) as opened:
            return opened.columns()

    try:
        return read(rows, counts, matcher=matcher, reference=reference, models=models, columns=columns)
    except UsageError:
        if not counts.count and next(iter(rows_of(log, where)), None) is None:
            filters = " and ".join([f"{column}={value}" for column, value in (where or {}).items()])
            lack = f"No row of {log} has {filters}." if filters else f"{log} is empty: it has no row of an episode log."
            raise UsageError(lack) from None
        raise


def rows_of(
    log: str, where: Mapping[str, str] | None = None, dropped: Dropped | None = None, models: Sequence[str] = ()
) -> Iterator[Row]:
    """Yield a log's rows; `models` is the order of a foreign log's models, the cheapest first."""
    if is_url(log):
        from cascade.records.traces import Store

        with closing(Store(log, read_only=True)) as store:
            yield from store.read(where)
        return
    with _file(log) as path, opened_log(path, dropped, where, models) as opened:
        yield from opened.rows()


@contextmanager
def _file(name: str) -> Iterator[Path]:
    """Yield the path of the file of a log, given its name."""
    if name not in SHIPPED:
        yield Path(name)
        return
    with resources.as_file(resources.files("cascade").joinpath("data", SHIPPED[name])) as path:
        yield path


def _check_columns(where: Mapping[str, str]) -> None:
    """Raise UsageError if a column does not exist, or if choosing by it would cut episodes apart."""
    unknown = [name for name in where if name not in COLUMNS]
    problems = [f"There is no column {name}{did_you_mean(name, _WHOLE_BY)}." for name in unknown]
    if cutting := sorted(_PARTS & where.keys()):
        problems.append(
            f"Choosing by {', '.join(cutting)} would cut episodes apart, and a part of an episode shows nothing about "
            f"a policy. Choose whole episodes, by {', '.join(_WHOLE_BY[:-1])} or {_WHOLE_BY[-1]}."
        )
    if problems:
        raise UsageError(" ".join(problems))


def check_there(log: str) -> None:
    """Raise UsageError, with a suggestion, if a name is neither a file nor a store nor a shipped log."""
    if not (log in SHIPPED or is_url(log) or os.path.lexists(log)):
        raise UsageError(f"There is no file {log}{'' if Path(log).suffix else did_you_mean(log, SHIPPED)}.")


def file_of(log: str | PathLike[str]) -> Path | None:
    """Return the path of a log's file, given its name; None if it is a shipped log, a store, or missing."""
    name = str(log)
    return None if name in SHIPPED or is_url(name) or not Path(name).is_file() else Path(name)
