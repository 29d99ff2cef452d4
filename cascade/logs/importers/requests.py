"""Tables of chat requests with the outputs of several models: a row for each request, model and run.

The columns `messages_json`, `tools_json`, `response_format_json`, `output_text`, `tool_calls_json` and `gold_json`
contain JSON. `tool_calls_json` is a list of calls, `[]` for an answer without a call, null if the output could not be
read as calls.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.logs.importers.calls import checked_columns, mapped, note_unread
from cascade.logs.importers.chat import LoggedAnswer, answered, asked, gold_in, ladder_rows
from cascade.logs.importers.sources import Record, records
from cascade.logs.importers.values import loaded, nano_usd, number, text, truth, whole
from cascade.logs.schema import Dropped
from cascade.types import Usage

_READ = {name: name for name in ("cost_nano_usd", "cost_usd", "latency_s", "input_tokens", "output_tokens", "correct")}


def rows_from_requests(
    source: Path | str,
    dropped: Dropped | None = None,
    *,
    models: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
    dataset: str | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ladders of the models. The k-th runs of all models on a request are one episode.

    The file is read twice. The models are the steps of the ladder, by default all, by rising mean cost; `columns` takes
    further columns from fields: `{"segment": "category"}`.

    Raises:
        UsageError: a model or a column is missing, or the order of the models is unknown.
    """
    path, fields = Path(source), checked_columns(columns)
    name = dataset or path.name.split(".")[0]

    def read(dropped: Dropped) -> Iterator[LoggedAnswer]:
        for record in records(path, dropped):
            request, model = text(record.fields.get("request_id")), text(record.fields.get("model"))
            if request is None or model is None:
                dropped.drop("no request_id or model", record.place)
                continue
            made = partial(_columns, record, fields, name, dropped)
            yield LoggedAnswer(record.place, request, model, _cost(record.fields), made)

    yield from ladder_rows(read, models, Dropped() if dropped is None else dropped)


def _columns(record: Record, fields: Mapping[str, str], dataset: str, dropped: Dropped) -> dict[str, Any] | None:
    """Return the columns of a row of the table; None, and counted, if its request cannot be read."""
    found, request = record.fields, None
    tools, messages = loaded(found.get("tools_json")), loaded(found.get("messages_json"))
    if messages is not None:
        options = {"tools": tools, "response_format": loaded(found.get("response_format_json"))}
        try:
            request = ChatRequest(messages, {name: value for name, value in options.items() if value})
        except UsageError as error:
            dropped.drop(str(error), record.place)
            return None
    note_unread(found, _READ, record.place, dropped)
    seconds = number(found.get("latency_s"))
    row = {
        "dataset": dataset,
        "group": text(found.get("group")) or text(found["request_id"]),
        "gold": list(gold_in(found.get("gold_json"), tools=bool(tools), kind=text(found.get("category")))) or None,
        "correct": truth(found.get("correct")),
        "cost_source": "no price" if _cost(found) is None else "the table",
        "latency_ms": None if seconds is None else round(seconds * 1000, 3),
    }
    usage = Usage(whole(found.get("input_tokens")), whole(found.get("output_tokens")))
    message = _message(found)
    if request is not None:
        row |= asked(request)
    if request is not None and message is not None:
        row |= answered(request, message, usage, finish_reason=text(found.get("finish_reason")))
    else:
        row |= {"answer": text(found.get("output_text")), "input_tokens": usage.input_tokens}
        row |= {"output_tokens": usage.output_tokens}
    return row | mapped(found, fields, record.place, dropped)


def _cost(fields: Mapping[str, Any]) -> int | None:
    exact = whole(fields.get("cost_nano_usd"))
    return nano_usd(fields.get("cost_usd")) if exact is None else exact


def _message(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return an output as a message; None if it is not recorded."""
    calls, said = loaded(fields.get("tool_calls_json")), text(fields.get("output_text"))
    if isinstance(calls, list) and calls:
        return {"role": "assistant", "content": None, "tool_calls": list(map(_call, calls, range(1, len(calls) + 1)))}
    if said is None and calls is None:
        return None
    return {"role": "assistant", "content": said or ""}


def _call(call: Mapping[str, Any], at: int) -> dict[str, Any]:
    arguments = json.dumps(call.get("arguments") or {}, ensure_ascii=False)
    return {"id": f"call_{at}", "type": "function", "function": {"name": call.get("name"), "arguments": arguments}}
