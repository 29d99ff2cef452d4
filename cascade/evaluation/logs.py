"""Open a log: cascade's own format, a known foreign one, a store, or a shipped log."""

from __future__ import annotations

import itertools
import os.path
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from cascade.checks import did_you_mean
from cascade.episodes.schema import COLUMNS, Dropped
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

DEMO = "demo"
DEMO_LADDER = "demo-ladder"
"""The demo log read as a ladder: the base outright, then the guide outright (`episodes.ladders`)."""
LADDER = "ladder:"
"""Prefix of a log of rounds of base and guide: it is read as a ladder."""
OFFERS = "offers:"
"""Prefix of such a log: it is read call by call, the base, the guide's verdict, and the guide outright."""
DEMO_REQUESTS = "demo-requests"
"""The log of chat requests that ships with the package (`cascade.demo.requests`)."""
SHIPPED = (DEMO, DEMO_LADDER, DEMO_REQUESTS)
_FILES = {DEMO: "demo_log.parquet", DEMO_REQUESTS: "demo_requests.parquet"}
"""The shipped logs' files in the folder `data`."""

WHOLE_BY = ("dataset", "split", "group", "question", "episode_id")
"""Columns by which whole episodes are chosen."""
PARTS_OF_EPISODES = frozenset(COLUMNS) - {*WHOLE_BY, "context", "gold", "schema_version"}
"""Columns whose values differ between the rows of one episode."""
_LOOKED_AT = 200_000
"""The number of rows in which an error message looks for a column's values."""
_NAMED = 5
"""The number of values that it names; it counts the others."""
_VALUE_CHARS = 60


@dataclass(frozen=True, slots=True)
class Log:
    """A log that was read: one table for each data set, and the rows as logged, for figures that need them.

    Attributes:
        tables: one for each data set.
        rows: reads the rows from the start.
        unlabelled: the log does not say which answers are right, so an answer counts as right if it equals the
            reference's output (`episodes.truth`), although nobody asked for that.
        unjudged: such a log has accepted answers, but no matcher was named to judge by them.
        matcher: the matcher that judged the answers, if one was named.
    """

    tables: tuple[EpisodeTable, ...]
    rows: Callable[[], Iterable[Mapping[str, Any]]]
    unlabelled: bool = False
    unjudged: bool = False
    matcher: str | None = None

    def compared(self, comparator: str | None = None) -> Log:
        """Return the same log with the reference's output as the truth, under a comparator.

        Args:
            comparator: a matcher's name; by default the one that the log was opened with, or the one of its requests.

        Raises:
            UsageError: it is not a log of rows, it has no reference, or the comparator does not exist.
        """
        wanted = comparator or self.matcher
        if all(table.truth is not None and wanted in {None, table.truth.comparator} for table in self.tables):
            return self
        return _compared(self.rows, wanted, Dropped())


def open_log(
    given: str,
    where: Mapping[str, str] | None = None,
    matcher: str | None = None,
    dropped: Dropped | None = None,
    *,
    reference: str | None = None,
    models: Sequence[str] = (),
) -> Log:
    """Read a log. If it does not say which answers are right, the reference's output is the truth.

    Args:
        given: a file, a store's URL, a shipped log ("demo", "demo-ladder", "demo-requests"), "ladder:" and one of these
            (a log of rounds of base and guide, read as a ladder), or "offers:" (the same, call by call).
        where: only rows that have these values in these columns are read.
        matcher: judges every answer again by its gold answers, or by the reference's output; a name for
            `matching.get_matcher`.
        dropped: counts everything that is left out.
        reference: its output is the truth, whatever the labels say: "guide", or a ladder's model, which then becomes
            the last one.
        models: only these models of a ladder's log, in this order; the last is the reference.

    Raises:
        UsageError: the log, a column or the matcher does not exist, or no episode is left.

    >>> open_log("demo").tables[0].n
    244
    """
    _check_columns(where or {})
    left_out = Dropped() if dropped is None else dropped
    from cascade.episodes.tabulate import tables_from_rows
    from cascade.episodes.truth import ladder_of_models

    _check_there(_as_read(given)[0])

    wanted = _ladder_wanted(reference, models)

    def rows() -> Iterator[Mapping[str, Any]]:
        logged = partial(_rows, given, where, models=models)
        return ladder_of_models(logged, wanted) if wanted else logged()

    if reference is not None:
        list(itertools.islice(_chosen(given, where or {}, left_out, models), 1))  # refuses a log without such rows
        return _compared(rows, matcher, left_out)
    read = rows() if wanted else _chosen(given, where or {}, left_out)
    judged = read if matcher is None else _judged(read, matcher)
    try:
        return Log(tuple(tables_from_rows(judged, left_out)), rows, matcher=matcher)
    except UsageError:
        if any(row["correct"] is not None or (row["gold"] and matcher is not None) for row in rows()):
            raise
        try:
            found = _compared(rows, matcher, compared := Dropped())
            found = replace(found, unlabelled=True, unjudged=any(row["gold"] for row in rows()))
        except UsageError:
            found = None  # no reference either: the error below says which labels are missing
        if found is None:
            raise
        left_out.rows, left_out.first = compared.rows, compared.first
        return found


def _judged(rows: Iterable[Mapping[str, Any]], matcher: str) -> Iterator[Mapping[str, Any]]:
    from cascade.matching import get_matcher, judge_rows

    return judge_rows(rows, get_matcher(matcher), overwrite=True)


def _ladder_wanted(reference: str | None, models: Sequence[str]) -> Sequence[str]:
    """Return the models of the ladder to make from a log; an empty sequence if the log is taken as it is."""
    from cascade.episodes.truth import GUIDE

    if reference in {None, GUIDE}:
        return models
    if models and models[-1] != reference:
        raise UsageError(f"--reference is {reference}, and --models ends with {models[-1]}: name the reference last.")
    return models or (str(reference),)


def _compared(rows: Callable[[], Iterable[Mapping[str, Any]]], comparator: str | None, dropped: Dropped) -> Log:
    """Return a log with the reference's output as the truth."""
    from cascade.episodes.tabulate import tables_from_rows
    from cascade.episodes.truth import labelled_by_reference

    found = labelled_by_reference(rows, comparator)
    tables = tables_from_rows(found.rows(dropped), dropped)
    told = [replace(table, truth=found.truths[table.dataset]) for table in tables]
    return Log(tuple(told), rows, matcher=comparator)


def _rows(
    given: str, where: Mapping[str, str] | None, dropped: Dropped | None = None, models: Sequence[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """Yield a log's rows, as they are or as a ladder."""
    from cascade.episodes.importers import read_log

    path, read_as = _as_read(given)
    with ExitStack() as stack:
        if path in _FILES:
            shipped = resources.files("cascade").joinpath("data", _FILES[path])
            path = str(stack.enter_context(resources.as_file(shipped)))
        read = read_log(path, dropped, where, models)
        yield from read if read_as is None else read_as(read)


def ladder_of(given: str) -> str:
    """Return the name under which a log of rounds is read as a ladder.

    >>> ladder_of("demo"), ladder_of("episodes.parquet")
    ('demo-ladder', 'ladder:episodes.parquet')
    """
    return DEMO_LADDER if given == DEMO else LADDER + given


_Reader: TypeAlias = Callable[[Iterable[Mapping[str, Any]]], Iterator[Mapping[str, Any]]]


def _as_read(given: str) -> tuple[str, _Reader | None]:
    """Return the log's own name, and the function that converts its rounds; None if they are read as they are."""
    if given != DEMO_LADDER and not given.startswith((LADDER, OFFERS)):
        return given, None
    from cascade.episodes.ladders import as_ladder, as_offers

    if given.startswith(OFFERS):
        return given.removeprefix(OFFERS), as_offers
    return DEMO if given == DEMO_LADDER else given.removeprefix(LADDER), as_ladder


def _chosen(
    given: str, where: Mapping[str, str], dropped: Dropped, models: Sequence[str] = ()
) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that have these values; if there are none, raise a UsageError that lists the values."""
    some = False
    for row in _rows(given, where, dropped, models):
        some = True
        yield row
    if not some and not dropped.count:
        raise UsageError(_nothing_chosen(given, where))


def _nothing_chosen(given: str, where: Mapping[str, str]) -> str:
    """Return the message for a choice that fits no row: it names the values that the chosen columns have."""
    from cascade.episodes.rowcheck import shown

    found: dict[str, Counter[str]] = {column: Counter() for column in where}
    some = False
    for row in itertools.islice(_rows(given, None), _LOOKED_AT):
        some = True
        for column, counts in found.items():
            counts[shown(row.get(column))] += 1
    if not some:
        return f"{given} is empty: it has no row of an episode log."
    said = [
        f"No row of {given} has {column}={where[column]}; the column's values: {_listed(counts)}."
        for column, counts in found.items()
        if where[column] not in counts
    ]
    together = " and ".join([f"{column}={value}" for column, value in where.items()])
    return " ".join(said) or f"No row of {given} has {together} together, though some rows have each."


def _listed(counts: Mapping[str, int]) -> str:
    """Return the commonest values of a column, shortened, and how many more there are."""
    first = sorted(counts, key=lambda value: -counts[value])[:_NAMED]
    named = ", ".join([value if len(value) <= _VALUE_CHARS else f"{value[:_VALUE_CHARS]}…" for value in first])
    more = len(counts) - len(first)
    return f"{named} and {more:,} more" if more else named


def _check_columns(where: Mapping[str, str]) -> None:
    """Raise UsageError if a column does not exist, or if choosing by it would cut episodes apart."""
    unknown = [name for name in where if name not in COLUMNS]
    cutting = sorted(set(where) & PARTS_OF_EPISODES)
    said = [f"There is no column {name}{did_you_mean(name, WHOLE_BY)}." for name in unknown]
    if cutting:
        said.append(
            f"Choosing by {', '.join(cutting)} would cut episodes apart, and a part of an episode shows nothing about "
            f"a policy. Choose whole episodes, by {', '.join(WHOLE_BY[:-1])} or {WHOLE_BY[-1]}."
        )
    if said:
        raise UsageError(" ".join(said))


def _check_there(given: str) -> None:
    """Raise UsageError, with a suggestion, if a name is neither a file nor a store nor a shipped log."""
    from cascade.episodes.files import is_url

    if given in SHIPPED or is_url(given) or Path(given).suffix:
        return  # the code that opens the file reports that it is missing
    if not os.path.lexists(given):
        raise UsageError(f"There is no file {given}{did_you_mean(given, SHIPPED)}.")
