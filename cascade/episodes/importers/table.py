"""Tables of one's own: CSV, lines of JSON or Parquet, with a mapping that says which column is which."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from cascade.checks import did_you_mean
from cascade.episodes.importers.calls import LoggedCall, checked_columns, checked_roles, episodes, field_of, mapped
from cascade.episodes.importers.sources import Record, records
from cascade.episodes.importers.values import moment, nano_usd, number
from cascade.episodes.lines import Dropped
from cascade.episodes.schema import COLUMNS, question_id
from cascade.errors import UsageError

SIGNALS = "signals."
ALSO = ("cost_usd", "latency_s")
"""What a column may stand for beside our own: an amount in USD, seconds."""
_LOOKED_AT = 100


def rows_from_table(
    source: Path | str,
    dropped: Dropped | None = None,
    *,
    roles: Mapping[str, str] | None = None,
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of episodes: each row of the table is one call.

    Args:
        source: the file.
        dropped: counts rows that are left out, and cells that say nothing.
        roles: which model is the "base", the "guide" or the "judge"; without it each call is a rung of a ladder, unless
            a column says which step it is of.
        columns: which column of the table stands for which of ours: `{"question": "prompt", "answer": "reply",
            "cost_usd": "price", "signals.certainty": "p"}`. Columns that have our names need no mapping. Rows of one
            episode_id, or of the same question where there is none, are one episode.
        dataset: what to call the questions; the file's name by default.

    Raises:
        UsageError: the mapping names a column that is not there; all of them in one message.
    """
    path, counted = Path(source), Dropped() if dropped is None else dropped
    parts = checked_roles(roles)
    rows = records(path, counted)
    first = list(itertools.islice(rows, _LOOKED_AT))
    chosen = _chosen(dict(columns or {}), first, path)
    calls = (_call(record, chosen, counted) for record in itertools.chain(first, rows))
    yield from episodes(calls, parts, counted, dataset or path.name.split(".")[0])


def _chosen(columns: dict[str, str], first: Sequence[Record], path: Path) -> dict[str, str]:
    """Return the mapping with the columns that need none, or raise UsageError with all that is wrong with it."""
    if not first:
        raise UsageError(f"{path} holds no row.")
    there = [*dict.fromkeys(name for record in first for name in record.fields)]
    plain = {name: field for name, field in columns.items() if not name.startswith(SIGNALS)}
    problems = []
    try:
        checked_columns(plain, ALSO)
    except UsageError as error:
        problems.append(str(error).removesuffix("."))
    problems += [
        f"the table has no column {field}{did_you_mean(field, there)}"
        for field in columns.values()
        if field not in there and all(field_of(record.fields, field) is None for record in first)
    ]
    known = {*COLUMNS, *ALSO} - {"schema_version"}
    own = {name: name for name in there if name in known or name.startswith(SIGNALS)}
    whole = own | columns
    if not problems and not whole.keys() & {"question", "episode_id"}:
        problems.append("no column stands for the question: add question=FIELD")
    if not problems and not whole.keys() & {"answer", "text", "correct"}:
        problems.append("no column stands for the answer: add answer=FIELD (or correct=FIELD)")
    if problems:
        raise UsageError(f"{path} cannot be read so: {'; '.join(problems)}.")
    return whole


def _call(record: Record, columns: Mapping[str, str], dropped: Dropped) -> LoggedCall:
    ours = {name: field for name, field in columns.items() if name in COLUMNS}
    made = mapped(record.fields, ours, record.place, dropped)
    signals = {
        name.removeprefix(SIGNALS): _number(record, name, field, dropped)
        for name, field in columns.items()
        if name.startswith(SIGNALS)
    }
    if signals:
        made["signals"] = {**made.get("signals", {}), **signals}
    if "cost_usd" in columns:
        cost = nano_usd(field_of(record.fields, columns["cost_usd"]))
        made |= {"cost_nano_usd": cost, "cost_source": "no price" if cost is None else "the table"}
    if "latency_s" in columns:
        seconds = _number(record, "latency_s", columns["latency_s"], dropped)
        made["latency_ms"] = None if seconds is None else seconds * 1000
    at = moment(made["created_at"]) if "created_at" in made else None
    trace = made.pop("episode_id", None)
    if trace is None and "question" in made:
        trace = question_id(made["question"], made.get("context"))
    names = tuple([made["model"]] if "model" in made else ())
    return LoggedCall(record.place, None, trace, None if at is None else at.seconds, made, names)


def _number(record: Record, name: str, field: str, dropped: Dropped) -> float | None:
    value = field_of(record.fields, field)
    made = number(value)
    if made is None and value is not None:
        dropped.note(f"{name} is no number, read as null", record.place)
    return made
