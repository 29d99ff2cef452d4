"""Convert calls of a foreign log to episodes: the calls of one trace, in the order in which they were made.

Logs interleave traces, so the calls are sorted in a temporary SQLite file, not in memory.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from cascade.checks import did_you_mean, hint_at
from cascade.errors import UsageError
from cascade.identity import identity
from cascade.logs.importers.sources import Record, records
from cascade.logs.importers.values import ALSO, SIGNALS, cast
from cascade.logs.rowcheck import OddValueError, odd
from cascade.logs.schema import COLUMNS, SCHEMA_VERSION, Dropped

ROLES = ("base", "guide", "judge")
"""The roles of a model in a cascade. A judge's calls are paid for, but give no answer."""
_OF_EPISODE = ("dataset", "split", "group", "segment", "question", "context", "gold")
"""The columns that are equal in all rows of an episode: the first call with a value decides."""


class LoggedCall(NamedTuple):
    """One call as a foreign log has it.

    `place` is its place in the file. `call_id` distinguishes it from its copies. `trace` is its trace (None: it is a
    trace by itself). `at_s` is its time. `columns` has its values under cascade's column names. `names` are the names
    of its model. `of_question`: the log has no id, so the question defines the trace.
    """

    place: str
    call_id: str | None
    trace: str | None
    at_s: float | None
    columns: dict[str, Any]
    names: tuple[str, ...] = ()
    of_question: bool = False


class Runs:
    """Separates the runs of one trace: the k-th copy of a call belongs to the k-th run. Keeps hashes, not names."""

    def __init__(self) -> None:
        self._seen = Counter[int]()

    def trace(self, trace: str, *of: Any) -> str:
        """Return the name of the run: the trace's own name for the first run; `of` distinguishes the calls of a run."""
        call = hash((trace, *of))
        self._seen[call] += 1
        return trace if self._seen[call] == 1 else f"{trace}#{self._seen[call]}"


def importer(
    calls_of: Callable[[Record, Mapping[str, str], Dropped], Iterable[LoggedCall]],
) -> Callable[..., Iterator[dict[str, Any]]]:
    """Return a function that reads a log as episodes; `calls_of` yields a record's calls, with `columns` mapped."""

    def rows_from(
        source: Path | str,
        dropped: Dropped | None = None,
        *,
        roles: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
        dataset: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        """Yield the rows of episodes.

        Args:
            source: the file.
            dropped: counts calls that are left out, and oddities of others.
            roles: which model is the "base", the "guide" or the "judge"; without it each call is a rung of a ladder.
            columns: the field of the log for each of cascade's columns: `{"gold": "metadata.answer"}`.
            dataset: the name of the questions; by default the file's name.

        Raises:
            UsageError: a role or a column does not exist, or the file cannot be read.
        """
        path, counted = Path(source), Dropped() if dropped is None else dropped
        parts, fields = checked_roles(roles), checked_columns(columns)
        calls = (call for record in records(path, counted) for call in calls_of(record, fields, counted))
        yield from episodes(calls, parts, counted, dataset or path.name.split(".")[0])

    return rows_from


def checked_roles(roles: Mapping[str, str] | None) -> dict[str, str]:
    """Return the role of each model; raise UsageError for an unknown role."""
    wrong = [f"{model}={role}{did_you_mean(role, ROLES)}" for model, role in (roles or {}).items() if role not in ROLES]
    if wrong:
        raise UsageError(f"A model must be base, guide or judge: {'; '.join(wrong)}")
    return dict(roles or {})


def checked_columns(columns: Mapping[str, str] | None, also: Iterable[str] = ()) -> dict[str, str]:
    """Return the field for each of cascade's columns; raise UsageError that names every unknown column."""
    known = {*COLUMNS, *also} - {"schema_version"}
    wrong = [f"{name}{hint_at(name, known)}" for name in columns or () if name not in known]
    if wrong:
        names = ", ".join(name for name in (*COLUMNS, *also) if name in known)
        raise UsageError(f"Nothing can be mapped to {'; nor to '.join(wrong)}. What a field can be mapped to: {names}")
    return dict(columns or {})


def mapped(
    fields: Mapping[str, Any], columns: Mapping[str, str], place: str, dropped: Dropped, *, by_field: bool = False
) -> dict[str, Any]:
    """Return cascade's columns, taken from a record by a mapping; columns without a mapping are left out.

    A field is a name, or a path of names: metadata.user. A column may also be `cost_usd`, `latency_s` (seconds) or
    `signals.NAME`. An invalid value becomes null, and is counted under its field's name if `by_field`, else its
    column's.
    """
    made: dict[str, Any] = {}
    for column, field in columns.items():
        try:
            value = cast(column, field_of(fields, field))
        except OddValueError as error:
            dropped.note(odd(column, error, field if by_field else column), place)
            value = None
        if value is not None or column.startswith(SIGNALS):
            made[column] = value
    return _ours(made, columns)


def note_unread(fields: Mapping[str, Any], columns: Mapping[str, str], place: str, dropped: Dropped) -> None:
    """Count the values that cannot be read and so become null; `columns` has the column that each field fills."""
    for field, column in columns.items():
        try:
            cast(column, fields.get(field))
        except OddValueError as error:
            dropped.note(odd(column, error, field), place)


def _ours(made: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return the values with amounts, seconds and signals converted to cascade's columns."""
    cost, seconds = (made.pop(name, None) for name in ALSO)
    if cost is not None:
        made["cost_nano_usd"] = cost
    if "cost_usd" in columns:
        made["cost_source"] = "no price" if cost is None else "the table"
    if seconds is not None:
        made["latency_ms"] = seconds * 1000
    signals = {name.removeprefix(SIGNALS): made.pop(name) for name in list(made) if name.startswith(SIGNALS)}
    return made | {"signals": {**made.get("signals", {}), **signals}} if signals else made


def field_of(fields: Mapping[str, Any], path: str) -> Any:
    """Return the value under a name or a path of names; None if there is none."""
    if path in fields:
        return fields[path]
    head, _, rest = path.partition(".")
    inside = fields.get(head)
    return field_of(inside, rest) if rest and isinstance(inside, Mapping) else None


def episodes(
    calls: Iterable[LoggedCall], roles: Mapping[str, str], dropped: Dropped, dataset: str
) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes, trace by trace in the log's order; within a trace by time, if all calls have one.

    Without roles each call is a step with one candidate, a rung of a ladder. With roles the k-th call of the base and
    the k-th of the guide are the candidates of step k. The number of possible steps is unknown: `horizon` is null.
    `group` is the question's hash if the log has no other, so that the same question, asked twice or as a
    near-duplicate, is never on both sides of a split.
    """
    # An unnamed database is in a file that is deleted when it is closed. A caller that reads only a part of the rows
    # leaves that to the garbage collector, which may run in another thread.
    with closing(sqlite3.connect("", check_same_thread=False)) as store:
        _fill(store, calls, dropped)
        ordered = store.execute(
            "SELECT trace, at_s, place, columns, names FROM calls "
            "JOIN (SELECT trace AS t, min(number) AS first FROM calls GROUP BY trace) ON t = trace "
            "ORDER BY first, number"
        )
        orders: dict[frozenset[str], list[str]] = {}
        for trace, rows in itertools.groupby(ordered, key=lambda row: row[0]):
            calls_made = list(rows)
            if all(row[1] is not None for row in calls_made):
                calls_made.sort(key=lambda row: row[1])
            found = [(row[2], json.loads(row[3]), json.loads(row[4])) for row in calls_made]
            for question, calls_of_question in _questions(json.loads(trace), found, dropped):
                for name, calls_of_one in _requests(question, calls_of_question):
                    if not roles:
                        _note_order(calls_of_one, orders, dropped)
                    yield from _episode(name, calls_of_one, roles, dropped, dataset)


def _note_order(calls: Sequence[_Found], orders: dict[frozenset[str], list[str]], dropped: Dropped) -> None:
    """Note it if the models of an episode come in another order than in the first one with the same models."""
    models = [columns["model"] for _, columns, _ in calls if columns.get("model") is not None]
    if len(models) == len(calls) and all(columns.get("step") is None for _, columns, _ in calls):
        order = list(dict.fromkeys(models))  # a model may be asked several times
        if order != orders.setdefault(frozenset(models), order):
            dropped.note(_ANOTHER_ORDER, calls[0][0])


_ANOTHER_ORDER = (
    "the models, and so the steps, are in another order than for the first question: sort the rows, the cheapest model "
    "first"
)


def _fill(store: sqlite3.Connection, calls: Iterable[LoggedCall], dropped: Dropped) -> None:
    store.execute("PRAGMA journal_mode = OFF")
    store.execute("CREATE TABLE calls (number INTEGER, id TEXT UNIQUE, trace TEXT, at_s REAL, place, columns, names)")
    for number, call in enumerate(calls):
        # JSON keeps half a pair of surrogates, which SQLite's texts cannot store.
        trace = json.dumps(call.trace or call.call_id or call.place)
        name = None if call.call_id is None else json.dumps(call.call_id)
        row = (number, name, trace, call.at_s, call.place, json.dumps(call.columns), json.dumps(call.names))
        if not store.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", row).rowcount:
            dropped.drop("the same call a second time", call.place)
    store.execute("CREATE INDEX by_trace ON calls (trace, number)")


_Found = tuple[str, dict[str, Any], list[str]]


_OWN_PART = (
    "no data set or segment, while other calls with this id have several: these calls are read as a question by "
    "themselves"
)


def _questions(trace: str, calls: list[_Found], dropped: Dropped) -> Iterator[tuple[str, list[_Found]]]:
    """Yield the calls of a trace by data set and segment: in two of them, one id names two questions.

    Calls that name none belong to the only question that there is.
    """
    for name in ("dataset", "segment"):
        parts: dict[str | None, list[_Found]] = {}
        for one in calls:
            parts.setdefault(one[1].get(name), []).append(one)
        if len(parts.keys() - {None}) > 1:
            for place, _, _ in parts.get(None, []):
                dropped.note(_OWN_PART, place)
            for number, part in enumerate(parts.values(), 1):
                yield from _questions(trace if number == 1 else f"{trace}/{number}", part, dropped)
            return
    yield trace, calls


def _requests(trace: str, calls: list[_Found]) -> Iterator[tuple[str, list[_Found]]]:
    """Yield the calls of a trace by their chat request: each turn of a conversation is an episode, the trace its group.

    If no call is a chat request, or all are the same one, the trace is one episode.
    """
    parts: dict[str | None, list[_Found]] = {}
    for one in calls:
        parts.setdefault(one[1].get("context"), []).append(one)
    if len(parts) == 1 or None in parts:
        yield trace, calls
        return
    for number, part in enumerate(parts.values(), 1):
        for _, columns, _ in part:
            if columns.get("group") is None:
                columns["group"] = trace
        yield trace if number == 1 else f"{trace}/{number}", part


def _episode(
    trace: str, calls: list[_Found], roles: Mapping[str, str], dropped: Dropped, dataset: str
) -> Iterator[dict[str, Any]]:
    head = {name: next((c[name] for _, c, _ in calls if c.get(name) is not None), None) for name in _OF_EPISODE}
    for place, columns, _ in calls[1:]:
        if not roles and columns.get("question") not in {None, head["question"]}:
            dropped.note("a question that differs from the first of its trace; the first is kept for all", place)
    if head["question"] is None:
        dropped.note("question is null", calls[0][0])
    head["dataset"] = head["dataset"] or dataset
    if head["group"] is None:
        head["group"] = identity(head["question"], head["context"]) if head["question"] is not None else trace
    made = [
        _with_answer(dict.fromkeys(COLUMNS) | {"episode_id": trace} | where | _of_call(columns) | head)
        for (_, columns, _), where in zip(calls, _placed(calls, roles, dropped), strict=True)
    ]
    _say_served(made)
    yield from (row | {"schema_version": SCHEMA_VERSION} for row in made)


def _of_call(columns: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in columns.items() if value is not None and name not in _OF_EPISODE}


def _placed(calls: list[_Found], roles: Mapping[str, str], dropped: Dropped) -> list[dict[str, Any]]:
    """Return each call's step, candidate and source; the calls of a walk are numbered by themselves."""
    placed: dict[int, dict[str, Any]] = {}
    of_walk: dict[str | None, list[int]] = {}
    for at, (_, columns, _) in enumerate(calls):
        of_walk.setdefault(columns.get("walk"), []).append(at)
    for members in of_walk.values():
        chosen = [calls[at] for at in members]
        places = _in_rounds(chosen, roles, dropped) if roles else _as_ladder(chosen)
        placed |= dict(zip(members, places, strict=True))
    return [placed[at] for at in range(len(calls))]


def _with_answer(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row with its text as its answer. A reply without an answer makes no candidate.

    A call whose reply is not recorded keeps its candidate, so its answer counts as unknown, not as absent.
    """
    if row["answer"] is None and row["text"] is not None:
        row["answer"] = row["text"].strip() or None
    silent = row["text"] is not None and row["answer"] is None and row["correct"] is None
    if row["candidate"] is None or silent:
        row["candidate"] = row["answer"] = row["correct"] = None
    return row


def _say_served(rows: Sequence[dict[str, Any]]) -> None:
    """Set `kept` for the only answer of a walk if the log does not say what was kept: it was served."""
    for walk in {row["walk"] for row in rows} - {None}:
        given = [row for row in rows if row["walk"] == walk and row["candidate"] is not None]
        if len(given) == 1 and given[0]["kept"] is None:
            given[0]["kept"] = True


def _as_ladder(calls: list[_Found]) -> list[dict[str, Any]]:
    return [
        {"step": step, "candidate": 0, "source": columns.get("model")} for step, (_, columns, _) in enumerate(calls, 1)
    ]


def _in_rounds(calls: list[_Found], roles: Mapping[str, str], dropped: Dropped) -> list[dict[str, Any]]:
    """Return each call's place: a second call of the base or the guide in a step opens the next step."""
    step, spoken, placed = 1, set[str](), []
    for place, columns, names in calls:
        role = next((roles[name] for name in names if name in roles), None)
        if role is None:
            dropped.note(f"the model {columns.get('model')} has no role: its calls are costs without an answer", place)
        if role in spoken:
            step, spoken = step + 1, set()
        if role in ROLES[:2]:
            spoken.add(role)
        candidate = ROLES.index(role) if role in ROLES[:2] else None
        placed.append({"step": step, "candidate": candidate, "source": role or columns.get("model")})
    return placed
