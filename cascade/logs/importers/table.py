"""Import a user's own tables: CSV, lines of JSON or Parquet. A row is one call, or a question with columns by model.

Both are read by their column names, a table of calls by those of `tall`, a wide one by those of `wide`; a mapping says
otherwise.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.checks import did_you_mean
from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.importers import wide
from cascade.logs.importers.calls import (
    LoggedCall,
    Runs,
    checked_columns,
    checked_roles,
    episodes,
    field_of,
    mapped,
)
from cascade.logs.importers.chat import Reply, chat_columns, reply_of, request_in
from cascade.logs.importers.sources import Record, records
from cascade.logs.importers.tall import Columns, Steps, is_tall, recognised, steps_by_cost
from cascade.logs.importers.values import ALSO, SIGNALS, Moment, answer_in, moment, question_in, text
from cascade.logs.schema import COLUMNS, Dropped

_LOOKED_AT = 100
_TOOLS = "tools"
"""The column with the tools that a chat request offers, where they are not in the request."""


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
            "cost_usd": "price", "signals.certainty": "p"}`. Columns with cascade's names, and with those that are usual
            in tables of calls, need no mapping. Rows of one episode_id, or without one of the same question, are one
            episode; if a model then answers the same question again, another episode begins. Without an episode_id the
            models are steps in the order of their mean costs, if all have costs. In a wide table it names columns of
            the question, and those of a model as `small.answer`.
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
        chosen, by_name = _chosen(given, first, path)
        steps = None if parts or not _by_question(chosen) else steps_by_cost(chosen, records(path, Dropped()))
        if told is not None and (lines := _notes(chosen, by_name, first, parts, steps)):
            told(lines)
        read: Iterable[LoggedCall] = (_call(record, chosen, counted) for record in whole)
        read = read if parts else _runs(read, counted)
        yield from episodes(read if steps is None else steps.placed(read, counted), parts, counted, name)
        return
    ordered = _checked_layout(found, parts, given, first, path)
    if told is not None:
        told(ordered.describe())
    made = wide.calls(ordered, whole, counted, as_ladder=not parts)
    yield from episodes(made, parts, counted, name)


def is_table(path: Path | str) -> bool:
    """Whether a file is a wide table, or a table of calls, by its column names."""
    first = list(itertools.islice(records(Path(path), Dropped()), _LOOKED_AT))
    names = wide.names_in(first)
    return wide.layout(names) is not None or is_tall(names, first)


def _by_question(columns: Mapping[str, str]) -> bool:
    """Whether the rows of a question are one episode, in which each model is a step."""
    return "model" in columns and not columns.keys() & {"episode_id", "step", "walk", "candidate"}


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


def _chosen(columns: dict[str, str], first: Sequence[Record], path: Path) -> tuple[dict[str, str], Columns]:
    """Return the whole mapping, and its part that was recognised by names; raise UsageError with all problems."""
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
    by_name = recognised(there, first, own | columns)
    problems += by_name.problems
    whole = {**by_name.read, **own, **columns}
    if not problems and not whole.keys() & {"question", "episode_id"}:
        problems.append("no column is mapped to the question: add question=FIELD")
    if not problems and not whole.keys() & {"answer", "text", "correct"}:
        problems.append("no column is mapped to the answer: add answer=FIELD (or correct=FIELD)")
    if problems:
        how = "with this mapping" if columns else "by its column names"
        raise UsageError(f"{path} cannot be read {how}: {'; '.join(problems)}.")
    return whole, by_name


def _notes(
    chosen: Mapping[str, str], by_name: Columns, first: Sequence[Record], roles: Mapping[str, str], steps: Steps | None
) -> list[str]:
    """Return how the columns of a table of calls are read, and what follows for models and right answers."""
    used = {field.split(".")[0] for field in chosen.values()} | {*chosen.values()}
    if any(_said(row.fields, chosen).request is not None for row in first):
        used.add(_TOOLS)
    ignored = [name for name in wide.names_in(first) if name not in used]
    lines = [Columns(chosen).describe()] if by_name.read else []
    lines += [] if steps is None else [steps.describe()]
    lines += [f"ignored: {', '.join(ignored)}"] if ignored else []
    if not roles and not chosen.keys() & {"model", "source", "step"}:
        lines.append(
            "no column is mapped to the model: the calls of a question are its steps in the order of the rows, so that "
            "step 1 may be another model for each question; --map model=FIELD changes that"
        )
    if "gold" in chosen and "correct" not in chosen:
        lines.append(wide.BY_GOLD)
    return lines


def _call(record: Record, columns: Mapping[str, str], dropped: Dropped) -> LoggedCall:
    request, reply, texts = _said(record.fields, columns)
    asked_as = columns.get("question_id")
    apart = {"question_id", "created_at", *texts}
    own = {name: field for name, field in columns.items() if name not in apart}
    made = mapped(record.fields, own, record.place, dropped)
    wide.check_logprobs(made, own, record.place, dropped)
    at = _time(record, columns.get("created_at"), dropped)
    if at is not None:
        held = field_of(record.fields, columns["created_at"])
        made["created_at"] = held if isinstance(held, str) and "-" in held else at.iso
    made |= {name: said for name, said in texts.items() if said is not None}
    if request is not None:
        chat = chat_columns(made, request, reply)
        made = {**made, **chat, "signals": {**chat.get("signals", {}), **made.get("signals", {})}} if chat else made
    trace = made.pop("episode_id", None)
    unnamed = trace is None and "question" in made
    if unnamed:
        named = None if asked_as is None else text(field_of(record.fields, asked_as))
        trace = question_id(made["question"], made.get("context")) if named is None else named
    names = tuple([made["model"]] if "model" in made else ())
    return LoggedCall(record.place, None, trace, None if at is None else at.seconds, made, names, of_question=unnamed)


_NO_TIME = "is no time, read as null: the calls of this question are in the order of the rows"


def _time(record: Record, field: str | None, dropped: Dropped) -> Moment | None:
    held = None if field is None else field_of(record.fields, field)
    if held is None or held == "":
        return None
    found = moment(held)
    if found is None:
        dropped.note(f"{field} {_NO_TIME}", record.place)
    return found


class _Said(NamedTuple):
    """The chat request and the message of a row, if it has them, and their texts by column."""

    request: ChatRequest | None
    reply: Reply | None
    texts: Mapping[str, str | None]


def _said(fields: Mapping[str, Any], columns: Mapping[str, str]) -> _Said:
    held, said = (field_of(fields, columns[name]) if name in columns else None for name in ("question", "answer"))
    request, texts = request_in(held, fields.get(_TOOLS)), dict[str, str | None]()
    if request is not None or isinstance(held, list | Mapping):
        texts["question"] = question_in(held)
    if isinstance(said, list | Mapping):
        texts["answer"] = answer_in(said)
    return _Said(request, reply_of(said), texts)


_ONE_CALL = ("dataset", "segment", "model", "walk", "step", "candidate")
_AGAIN = "a model answers a question again, without an episode_id: read as another run"


def _runs(calls: Iterable[LoggedCall], dropped: Dropped) -> Iterator[LoggedCall]:
    """Yield the calls; without an episode_id, a model's k-th call on a question belongs to the k-th run."""
    runs = Runs()
    for call in calls:
        columns = call.columns
        if not call.of_question or call.trace is None or columns.get("model") is None or not _says_something(columns):
            yield call
            continue
        trace = runs.trace(call.trace, *(columns.get(name) for name in _ONE_CALL))
        if trace != call.trace:
            dropped.note(_AGAIN, call.place)
        yield call._replace(trace=trace)


def _says_something(columns: Mapping[str, Any]) -> bool:
    return any(columns.get(name) is not None for name in ("answer", "text", "correct"))
