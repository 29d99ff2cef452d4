"""Import a user's own tables: CSV, lines of JSON or Parquet. A row is one call, or a question with columns by model.

A table of calls has cascade's column names or a mapping; a wide table is read by its column names (`wide`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cascade.checks import did_you_mean
from cascade.episodes.importers import wide
from cascade.episodes.importers.calls import (
    LoggedCall,
    Runs,
    checked_columns,
    checked_roles,
    episodes,
    field_of,
    mapped,
)
from cascade.episodes.importers.sources import Record, records
from cascade.episodes.importers.values import ALSO, SIGNALS, moment
from cascade.episodes.schema import COLUMNS, Dropped, question_id
from cascade.errors import UsageError

_LOOKED_AT = 100


def rows_from_table(
    source: Path | str,
    dropped: Dropped | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
    told: Callable[[Sequence[str]], None] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes: each row of the table is one call, or a question with the calls of all models.

    Args:
        source: the file.
        dropped: counts rows that are left out, and cells without a usable value.
        roles: which model is the "base", the "guide" or the "judge"; without it each call is a rung of a ladder, unless
            a column gives its step.
        columns: the column of the table for each of cascade's: `{"question": "prompt", "answer": "reply",
            "cost_usd": "price", "signals.certainty": "p"}`. Columns with cascade's names need no mapping. Rows of one
            episode_id, or without one of the same question, are one episode; if a model then answers the same question
            again, another episode begins. In a wide table it names columns of the question, and those of a model as
            `small.answer`.
        dataset: the name of the questions; by default the file's name.
        told: called once at most, before the first row, with lines that say how the columns of a wide table are read,
            or which columns of a table of calls are not read.

    Raises:
        UsageError: the mapping names a missing column, or the names of a wide table are ambiguous; one message has all
            problems.
    """
    path, counted = Path(source), Dropped() if dropped is None else dropped
    parts, given = checked_roles(roles), dict(columns or {})
    rows = records(path, counted)
    first = list(itertools.islice(rows, _LOOKED_AT))
    whole, name = itertools.chain(first, rows), dataset or path.name.split(".")[0]
    found = wide.layout(wide.names_in(first), given)
    if found is None:
        chosen = _chosen(given, first, path)
        if told is not None and (lines := _notes(chosen, first, parts)):
            told(lines)
        read = (_call(record, chosen, counted) for record in whole)
        yield from episodes(read if parts else _runs(read, counted), parts, counted, name)
        return
    ordered = _checked_layout(found, parts, given, first, path)
    if told is not None:
        told(ordered.describe())
    made = wide.calls(ordered, whole, counted, as_ladder=not parts)
    yield from episodes(made, parts, counted, name)


def is_wide(path: Path | str) -> bool:
    """Whether a file is a table with a row for each question, by its column names."""
    return wide.layout(wide.names_in(itertools.islice(records(Path(path), Dropped()), _LOOKED_AT))) is not None


def _checked_layout(
    found: wide.Layout, roles: Mapping[str, str], given: Mapping[str, str], first: Sequence[Record], path: Path
) -> wide.Layout:
    """Return how a wide table is read, its models in order; raise UsageError that lists all ambiguities."""
    there = wide.names_in(first)
    problems = [
        *found.problems,
        *wide.role_problems(found, roles),
        *(_missing(field, there) for field in given.values() if not _is_there(field, first)),
    ]
    if problems:
        raise UsageError(f"{path} cannot be read by its column names: {'; '.join(problems)}.")
    return replace(found, order=None) if roles else wide.by_cost(found, records(path, Dropped()))


def _is_there(field: str, first: Sequence[Record]) -> bool:
    return any(field in record.fields or field_of(record.fields, field) is not None for record in first)


def _missing(field: str, there: Sequence[str]) -> str:
    return f"the table has no column {field}{did_you_mean(field, there)}"


def _chosen(columns: dict[str, str], first: Sequence[Record], path: Path) -> dict[str, str]:
    """Return the mapping, including columns that need none; raise UsageError that lists all problems."""
    if not first:
        raise UsageError(f"{path} has no row.")
    there = wide.names_in(first)
    plain = {name: field for name, field in columns.items() if not name.startswith(SIGNALS)}
    problems = []
    try:
        checked_columns(plain, ALSO)
    except UsageError as error:
        problems.append(str(error).removesuffix("."))
    problems += [_missing(field, there) for field in columns.values() if not _is_there(field, first)]
    known = {*COLUMNS, *ALSO} - {"schema_version"}
    own = {name: name for name in there if name in known or name.startswith(SIGNALS)}
    whole = own | columns
    if not problems and not whole.keys() & {"question", "episode_id"}:
        problems.append("no column is mapped to the question: add question=FIELD")
    if not problems and not whole.keys() & {"answer", "text", "correct"}:
        problems.append("no column is mapped to the answer: add answer=FIELD (or correct=FIELD)")
    if problems:
        raise UsageError(f"{path} cannot be read with this mapping: {'; '.join(problems)}.")
    return whole


def _notes(chosen: Mapping[str, str], first: Sequence[Record], roles: Mapping[str, str]) -> list[str]:
    """Return which columns of a table of calls are not read, and what follows for models and right answers."""
    used = {field.split(".")[0] for field in chosen.values()} | {*chosen.values()}
    ignored = [name for name in wide.names_in(first) if name not in used]
    lines = [f"ignored: {', '.join(ignored)}"] if ignored else []
    if not roles and not chosen.keys() & {"model", "source", "step"}:
        lines.append(
            "no column is mapped to the model: the calls of a question are its steps in the order of the rows, so that "
            "step 1 may be another model for each question; --map model=FIELD changes that"
        )
    if "gold" in chosen and "correct" not in chosen:
        lines.append(wide.BY_GOLD)
    return lines


def _call(record: Record, columns: Mapping[str, str], dropped: Dropped) -> LoggedCall:
    made = mapped(record.fields, columns, record.place, dropped)
    at = moment(made["created_at"]) if "created_at" in made else None
    trace = made.pop("episode_id", None)
    unnamed = trace is None and "question" in made
    if unnamed:
        trace = question_id(made["question"], made.get("context"))
    names = tuple([made["model"]] if "model" in made else ())
    return LoggedCall(record.place, None, trace, None if at is None else at.seconds, made, names, of_question=unnamed)


_AGAIN = "a model answers a question again, without an episode_id: read as another run"


def _runs(calls: Iterable[LoggedCall], dropped: Dropped) -> Iterator[LoggedCall]:
    """Yield the calls; without an episode_id, a model's k-th call on a question belongs to the k-th run."""
    runs = Runs()
    for call in calls:
        columns = call.columns
        if not call.of_question or call.trace is None or columns.get("model") is None or not _says_something(columns):
            yield call
            continue
        trace = runs.trace(call.trace, *(columns.get(name) for name in ("model", "walk", "step", "candidate")))
        if trace != call.trace:
            dropped.note(_AGAIN, call.place)
        yield call._replace(trace=trace)


def _says_something(columns: Mapping[str, Any]) -> bool:
    return any(columns.get(name) is not None for name in ("answer", "text", "correct"))
