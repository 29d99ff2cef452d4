"""Calls of a foreign log become episodes: those of one trace belong together, in the order in which they were made.

Logs mix their traces, so the calls are put in order in a temporary SQLite file, not in memory.
"""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cascade.checks import did_you_mean
from cascade.episodes.importers.sources import Record, records
from cascade.episodes.importers.values import ALSO, SIGNALS, cast
from cascade.episodes.lines import Dropped
from cascade.episodes.rowcheck import OddValueError, odd
from cascade.episodes.schema import COLUMNS, SCHEMA_VERSION, identity
from cascade.errors import UsageError

ROLES = ("base", "guide", "judge")
"""What a model may be in a cascade. A judge's calls are paid for, but answer nothing."""
_OF_EPISODE = ("dataset", "split", "group", "segment", "question", "context", "gold")
"""What is the same in all rows of an episode: the first call that tells decides."""


class LoggedCall(NamedTuple):
    """One call as a foreign log has it.

    `place` is its place in the file. `call_id` distinguishes it from its copies. `trace` is the trace it belongs to
    (None: it is a trace of its own). `at_s` is when it was made. `columns` holds its values under our column names.
    `names` are the names of its model. `of_question` says that the log has no id, so the trace is the question's own.
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


class RowsFrom(Protocol):
    """Reads a log of calls as episodes."""

    def __call__(
        self,
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
            dropped: counts calls that are left out, and what is odd about others.
            roles: which model is the "base", the "guide" or the "judge"; without it each call is a rung of a ladder.
            columns: which field of the log stands for which of our columns: `{"gold": "metadata.answer"}`.
            dataset: what to call the questions; the file's name by default.

        Raises:
            UsageError: there is no such role or column, or the file cannot be read.
        """
        ...


def importer(calls_of: Callable[[Record, Mapping[str, str], Dropped], Iterable[LoggedCall]]) -> RowsFrom:
    """Return what reads a log as episodes; `calls_of` gives the calls of one of its records, with `columns` mapped."""

    def rows_from(
        source: Path | str,
        dropped: Dropped | None = None,
        *,
        roles: Mapping[str, str] | None = None,
        columns: Mapping[str, str] | None = None,
        dataset: str | None = None,
    ) -> Iterator[dict[str, Any]]:
        path, counted = Path(source), Dropped() if dropped is None else dropped
        parts, fields = checked_roles(roles), checked_columns(columns)
        calls = (call for record in records(path, counted) for call in calls_of(record, fields, counted))
        yield from episodes(calls, parts, counted, dataset or path.name.split(".")[0])

    return rows_from


def checked_roles(roles: Mapping[str, str] | None) -> dict[str, str]:
    """Return which model plays which part, or raise UsageError for a part that there is not."""
    wrong = [f"{model}={role}{did_you_mean(role, ROLES)}" for model, role in (roles or {}).items() if role not in ROLES]
    if wrong:
        raise UsageError(f"A model must be base, guide or judge: {'; '.join(wrong)}")
    return dict(roles or {})


def checked_columns(columns: Mapping[str, str] | None, also: Iterable[str] = ()) -> dict[str, str]:
    """Return which field stands for which of our columns, or raise UsageError naming every other column."""
    known = {*COLUMNS, *also} - {"schema_version"}
    wrong = [f"{name}{did_you_mean(name, known)}" for name in columns or () if name not in known]
    if wrong:
        raise UsageError(f"Nothing can be mapped to {'; nor to '.join(wrong)}")
    return dict(columns or {})


def mapped(
    fields: Mapping[str, Any], columns: Mapping[str, str], place: str, dropped: Dropped, *, by_field: bool = False
) -> dict[str, Any]:
    """Return our columns, as a mapping takes them from a record; a column of which it says nothing is left out.

    Args:
        fields: the record.
        columns: the field of each column. A field is a name, or a path of names: metadata.user. A column may also be
            `cost_usd`, `latency_s` (seconds) or `signals.NAME`.
        place: where the record stood.
        dropped: counts odd values, which are null.
        by_field: whether an odd value is counted under the name of its field, not of its column.
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


def _ours(made: dict[str, Any], columns: Mapping[str, str]) -> dict[str, Any]:
    """Return what was read with amounts, seconds and signals in our columns."""
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
    """Yield the rows of episodes, trace by trace as the log has them; in a trace by time, if all its calls have one.

    Without roles each call is a step with one candidate, a rung of a ladder. With roles the k-th call of the base and
    the k-th of the guide are the candidates of step k. How many steps there could have been is not known: `horizon` is
    null. `group` is the question's hash where the log has nothing better, so that the same question, asked twice or
    as a near-duplicate, is never on both sides of a split.
    """
    # An unnamed database lies in a file that is gone when it is closed. Whoever reads only a part of the rows leaves it
    # to the garbage collector, which may run in another thread.
    with closing(sqlite3.connect("", check_same_thread=False)) as store:
        _fill(store, calls, dropped)
        ordered = store.execute(
            "SELECT trace, at_s, place, columns, names FROM calls "
            "JOIN (SELECT trace AS t, min(number) AS first FROM calls GROUP BY trace) ON t = trace "
            "ORDER BY first, number"
        )
        for trace, rows in itertools.groupby(ordered, key=lambda row: row[0]):
            calls_made = list(rows)
            if all(row[1] is not None for row in calls_made):
                calls_made.sort(key=lambda row: row[1])
            found = [(row[2], json.loads(row[3]), json.loads(row[4])) for row in calls_made]
            for name, calls_of_one in _requests(json.loads(trace), found):
                yield from _episode(name, calls_of_one, roles, dropped, dataset)


def _fill(store: sqlite3.Connection, calls: Iterable[LoggedCall], dropped: Dropped) -> None:
    store.execute("PRAGMA journal_mode = OFF")
    store.execute("CREATE TABLE calls (number INTEGER, id TEXT UNIQUE, trace TEXT, at_s REAL, place, columns, names)")
    for number, call in enumerate(calls):
        # JSON keeps half a pair of surrogates, which SQLite's texts cannot hold.
        trace = json.dumps(call.trace or call.call_id or call.place)
        name = None if call.call_id is None else json.dumps(call.call_id)
        row = (number, name, trace, call.at_s, call.place, json.dumps(call.columns), json.dumps(call.names))
        if not store.execute("INSERT OR IGNORE INTO calls VALUES (?, ?, ?, ?, ?, ?, ?)", row).rowcount:
            dropped.drop("the same call a second time", call.place)
    store.execute("CREATE INDEX by_trace ON calls (trace, number)")


_Found = tuple[str, dict[str, Any], list[str]]


def _requests(trace: str, calls: list[_Found]) -> Iterator[tuple[str, list[_Found]]]:
    """Yield the calls of a trace by their chat request: each turn of a conversation is an episode, the trace its group.

    Where no call is a chat request, or all are the same one, the trace is one episode.
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
    """Return a row with its text as its answer. A reply without an answer is of no candidate.

    A call whose reply is not on record keeps its candidate, so that its answer is unknown and not absent.
    """
    if row["answer"] is None and row["text"] is not None:
        row["answer"] = row["text"].strip() or None
    silent = row["text"] is not None and row["answer"] is None and row["correct"] is None
    if row["candidate"] is None or silent:
        row["candidate"] = row["answer"] = row["correct"] = None
    return row


def _say_served(rows: Sequence[dict[str, Any]]) -> None:
    """Write into `kept` that the lone answer of a walk was served, where the log does not say what was kept."""
    for walk in {row["walk"] for row in rows} - {None}:
        given = [row for row in rows if row["walk"] == walk and row["candidate"] is not None]
        if len(given) == 1 and given[0]["kept"] is None:
            given[0]["kept"] = True


def _as_ladder(calls: list[_Found]) -> list[dict[str, Any]]:
    return [
        {"step": step, "candidate": 0, "source": columns.get("model")} for step, (_, columns, _) in enumerate(calls, 1)
    ]


def _in_rounds(calls: list[_Found], roles: Mapping[str, str], dropped: Dropped) -> list[dict[str, Any]]:
    """Return each call's place: a base or guide that has spoken in a step already opens the next one."""
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
