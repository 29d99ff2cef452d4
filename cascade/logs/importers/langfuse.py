"""Langfuse exports: observations as JSON, lines of JSON, CSV or Parquet, pages of its API, and traces with theirs.

Both spellings of the fields are read: traceId, usageDetails (API and export from the page) and trace_id, usage_details
(export to a bucket). Langfuse separates kinds of tokens: the input is the sum of all kinds with "input" in their name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cascade.logs.importers.calls import LoggedCall, importer, mapped, note_unread
from cascade.logs.importers.chat import chat_columns, reply_of, request_in
from cascade.logs.importers.sources import AROUND, Record
from cascade.logs.importers.values import (
    loaded,
    mapping,
    moment,
    nano_usd,
    number,
    passed_ms,
    question_in,
    reply_in,
    snake,
    text,
    truth,
    whole,
)
from cascade.logs.schema import Dropped

_CALLS = frozenset({"GENERATION"})
_READ = {
    "total_cost": "cost_usd",
    "calculated_total_cost": "cost_usd",
    "latency": "latency_s",
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
}


def _calls(record: Record, columns: Mapping[str, str], dropped: Dropped) -> Iterator[LoggedCall]:
    place, fields = record.place, {snake(name): value for name, value in record.fields.items()}
    kind = str(fields.get("type") or "GENERATION").upper()
    if kind not in _CALLS:
        dropped.note("an observation that is not a model call, skipped", place)
        return
    if fields.get("level") == "ERROR":
        dropped.drop("a failed call", place)
        return
    note_unread(fields, _READ, place, dropped)
    for name, column in (("usage_details", "input_tokens"), ("cost_details", "cost_usd")):
        inside = {f"{name}.{kind}": value for kind, value in mapping(fields.get(name)).items()}
        note_unread(inside, dict.fromkeys(inside, column), place, dropped)
    around = {snake(name): value for name, value in mapping(fields.get(AROUND)).items()}
    start, end = moment(fields.get("start_time")), moment(fields.get("end_time"))
    latency_s = number(fields.get("latency"))
    made = {
        "question": question_in(fields.get("input")),
        "text": reply_in(fields.get("output")),
        "model": text(fields.get("provided_model_name")) or text(fields.get("model")),
        "latency_ms": passed_ms(start, end) if latency_s is None else round(latency_s * 1000, 3),
        "created_at": None if start is None else start.iso,
        "group": text(fields.get("session_id")) or text(around.get("session_id")),
        **_usage(fields),
        **_cost(fields),
    }
    made |= chat_columns(made, request_in(fields.get("input")), reply_of(fields.get("output")))
    own_id = text(fields.get("id"))
    scored = {**around, **record.fields, **fields, **_scores(around, own_id), **_scores(fields, own_id)}
    made |= mapped(scored, columns, place, dropped)
    trace = text(fields.get("trace_id")) or text(around.get("id"))
    at_s = None if start is None else start.seconds
    names = tuple([made["model"]] if made["model"] else ())
    yield LoggedCall(place, own_id, trace, at_s, made, names)


def _usage(fields: Mapping[str, Any]) -> dict[str, Any]:
    kinds = _counts(fields.get("usage_details")) or _counts(fields.get("usage"))
    sent = _sum([count for name, count in kinds.items() if "input" in name or name == "prompt_tokens"])
    said = _sum([count for name, count in kinds.items() if "output" in name or name == "completion_tokens"])
    return {
        "input_tokens": whole(fields.get("prompt_tokens")) if sent is None else sent,
        "output_tokens": whole(fields.get("completion_tokens")) if said is None else said,
        "cached_input_tokens": _sum([n for name, n in kinds.items() if "cached" in name or "cache_read" in name]),
        "reasoning_tokens": _sum([count for name, count in kinds.items() if "reasoning" in name]),
    }


def _counts(given: Any) -> dict[str, int]:
    return {snake(name): count for name, one in mapping(given).items() if (count := whole(one)) is not None}


def _sum(counts: list[int]) -> int | None:
    return sum(counts) if counts else None


def _cost(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost of a call. A total of 0 without details means that Langfuse knew no price."""
    details = mapping(fields.get("cost_details"))
    parts = [nano_usd(amount) for name, amount in details.items() if name != "total"]
    cost = nano_usd(details.get("total"))
    if cost is None and parts and None not in parts:
        cost = sum([part for part in parts if part is not None])
    if cost is None:
        totals = (nano_usd(fields.get(name)) for name in ("total_cost", "calculated_total_cost"))
        cost = next((total for total in totals if total), None)
    return {"cost_nano_usd": cost, "cost_source": "no price" if cost is None else "Langfuse"}


def _scores(fields: Mapping[str, Any], observation: str | None) -> dict[str, Any]:
    """Return the scores of the trace and of this observation, by name."""
    found = loaded(fields.get("scores"))
    if isinstance(found, Mapping):
        return dict(found)
    scores: dict[str, Any] = {}
    for one in found if isinstance(found, list) else ():
        score = {snake(name): value for name, value in one.items()} if isinstance(one, Mapping) else {}
        if score.get("name") and score.get("observation_id") in {None, observation}:
            said = score.get("string_value")
            scores[str(score["name"])] = score.get("value") if truth(said) is None else said
    return scores


rows_from_langfuse = importer(_calls)
"""One episode for each trace; each observation of type GENERATION is a call.

In `columns`, `{"correct": "correctness"}` takes a score of that name; fields are spelled as in the file (trace_id or
traceId).
"""
