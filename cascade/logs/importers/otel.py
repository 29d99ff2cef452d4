"""OpenTelemetry GenAI spans: OTLP as JSON (a document, or one a line, as collectors write it) or a console's spans.

Names are those of the semantic conventions of 2026 (`gen_ai.input.messages`) and of the three spellings before them:
a span event for each message, events with the whole prompt, an attribute for each message (`gen_ai.prompt.0.content`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from cascade.chat import ChatRequest
from cascade.logs.importers.calls import LoggedCall, importer, mapped, note_unread
from cascade.logs.importers.chat import Reply, chat_columns, reply_of, request_in
from cascade.logs.importers.sources import Record
from cascade.logs.importers.values import (
    Moment,
    attributes,
    loaded,
    moment,
    nano_usd,
    passed_ms,
    question_in,
    reply_in,
    text,
    whole,
)
from cascade.logs.schema import Dropped

_OPERATIONS = frozenset({"chat", "text_completion", "completion", "generate_content"})
_INPUTS = ("gen_ai.input.messages", "gen_ai.prompt", "gen_ai.request.messages")
_OUTPUTS = ("gen_ai.output.messages", "gen_ai.completion", "gen_ai.response.messages")
_INDEXED = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(role|content|tool_call_id|finish_reason)")
_INDEXED_CALL = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.tool_calls\.(\d+)\.(id|name|arguments)")
_INDEXED_TOOL = re.compile(r"llm\.request\.functions\.(\d+)\.(name|description|parameters)")
_TOOLS, _SYSTEM = "gen_ai.tool.definitions", "gen_ai.system_instructions"
_MESSAGE = re.compile(r"gen_ai\.(system|user|assistant|tool)\.message")
_COUNTS = {"input_tokens": "input_tokens", "output_tokens": "output_tokens"}
_COUNTS |= {"prompt_tokens": "input_tokens", "completion_tokens": "output_tokens"}
_READ = {f"gen_ai.usage.{name}": column for name, column in {**_COUNTS, "cost": "cost_usd"}.items()}
_ERROR_CODES = (2, "STATUS_CODE_ERROR", "ERROR")


def spans(record: Record) -> Iterator[Record]:
    """Yield the spans of a record, which may itself be a span."""
    if not any(name in record.fields for name in ("resourceSpans", "resource_spans")):
        yield record
        return
    number = 0
    for resource in _listed(record.fields, "resourceSpans", "resource_spans"):
        for scope in _listed(resource, "scopeSpans", "scope_spans", "instrumentationLibrarySpans"):
            for span in _listed(scope, "spans"):
                number += 1
                yield Record(f"{record.place}, span {number}", span)


def _listed(fields: Mapping[str, Any], *names: str) -> list[dict[str, Any]]:
    found: list[Any] = next((fields[name] for name in names if isinstance(fields.get(name), list)), [])
    return [one for one in found if isinstance(one, dict)]


def _calls(record: Record, columns: Mapping[str, str], dropped: Dropped) -> Iterator[LoggedCall]:
    for span in spans(record):
        call = _call(span, columns, dropped)
        if call is not None:
            yield call


def _call(span: Record, columns: Mapping[str, str], dropped: Dropped) -> LoggedCall | None:
    fields, place = span.fields, span.place
    has = attributes(fields.get("attributes"))
    if not _asks_a_model(has):
        dropped.note("a span that is not a model call, skipped", place)
        return None
    status = fields.get("status")
    code = status.get("code", status.get("status_code")) if isinstance(status, Mapping) else None
    if code in _ERROR_CODES or has.get("error.type"):
        dropped.drop("a failed call", place)
        return None
    note_unread(has, _READ, place, dropped)
    events = [(str(event.get("name")), attributes(event.get("attributes"))) for event in _listed(fields, "events")]
    start = _moment(fields, "startTimeUnixNano", "start_time_unix_nano", "start_time")
    end = _moment(fields, "endTimeUnixNano", "end_time_unix_nano", "end_time")
    asked, answered = text(has.get("gen_ai.request.model")), text(has.get("gen_ai.response.model"))
    made = {
        "question": _question(has, events),
        "text": _reply(has, events),
        "model": asked or answered,
        "latency_ms": passed_ms(start, end),
        "created_at": None if start is None else start.iso,
        "group": text(has.get("gen_ai.conversation.id")) or text(has.get("session.id")),
        **_usage(has),
        **_cost(has),
    }
    made |= chat_columns(made, _request(has, events), _message(has, events))
    made |= mapped({**has, **_evaluations(events)}, columns, place, dropped)
    at_s = None if start is None else start.seconds
    names = tuple([name for name in (asked, answered) if name])
    trace, own_id = _id(fields, "traceId", "trace_id"), _id(fields, "spanId", "span_id")
    return LoggedCall(place, f"{trace}/{own_id}" if own_id else None, trace, at_s, made, names)


def _asks_a_model(has: Mapping[str, Any]) -> bool:
    operation = has.get("gen_ai.operation.name") or has.get("llm.request.type")
    if operation is not None:
        return operation in _OPERATIONS
    return any(name in has for name in ("gen_ai.request.model", "gen_ai.response.model"))


def _id(fields: Mapping[str, Any], *names: str) -> str | None:
    context = fields.get("context")
    places = (fields, context if isinstance(context, Mapping) else {})
    return next((found for place in places for name in names if (found := text(place.get(name)))), None)


def _moment(fields: Mapping[str, Any], *names: str) -> Moment | None:
    return next((moment(fields[name]) for name in names if fields.get(name)), None)


def _usage(has: Mapping[str, Any]) -> dict[str, Any]:
    def first(*names: str) -> int | None:
        return next((count for name in names if (count := whole(has.get(f"gen_ai.usage.{name}"))) is not None), None)

    return {
        "input_tokens": first("input_tokens", "prompt_tokens"),
        "output_tokens": first("output_tokens", "completion_tokens"),
        "cached_input_tokens": first("cache_read.input_tokens", "cache_read_input_tokens", "cached_input_tokens"),
        "reasoning_tokens": first("reasoning.output_tokens", "reasoning_tokens"),
    }


def _cost(has: Mapping[str, Any]) -> dict[str, Any]:
    """Return the cost of a call: the conventions have no name for it, so two names in use are tried."""
    own = whole(has.get("cascade.cost.nano_usd"))
    cost = nano_usd(has.get("gen_ai.usage.cost")) if own is None else own
    return {"cost_nano_usd": cost, "cost_source": "no price" if cost is None else "the span"}


# --- messages ---

_Events = list[tuple[str, dict[str, Any]]]


def _question(has: Mapping[str, Any], events: _Events) -> str | None:
    whole_prompts = [places[name] for places in _places(has, events) for name in _INPUTS if places.get(name)]
    found = next((said for one in whole_prompts if (said := question_in(one)) is not None), None)
    if found is not None:
        return found
    one_by_one = [
        {"role": kind[1], "content": loaded(event.get("content"))}
        for name, event in events
        if (kind := _MESSAGE.fullmatch(name)) is not None
    ]
    return question_in(one_by_one) or question_in(_indexed(has, "prompt"))


def _reply(has: Mapping[str, Any], events: _Events) -> str | None:
    whole_replies = [places[name] for places in _places(has, events) for name in _OUTPUTS if places.get(name)]
    found = next((said for one in whole_replies if (said := reply_in(one)) is not None), None)
    if found is not None:
        return found
    choices = [loaded(event.get("message", event.get("content"))) for name, event in events if name == "gen_ai.choice"]
    return (reply_in(choices[0]) if choices else None) or reply_in(_indexed(has, "completion"))


def _request(has: Mapping[str, Any], events: _Events) -> ChatRequest | None:
    """Return the chat request of a span, with system instructions and tools, from any of the spellings."""
    places = _places(has, events)
    wholes = [one[name] for one in places for name in _INPUTS if one.get(name)]
    tools = next((one[_TOOLS] for one in places if one.get(_TOOLS)), None) or _indexed_tools(has)
    system = next((one[_SYSTEM] for one in places if one.get(_SYSTEM)), None)
    one_by_one = [
        {**event, "role": kind[1], "content": event.get("content")}
        for name, event in events
        if (kind := _MESSAGE.fullmatch(name)) is not None
    ]
    return request_in(wholes[0] if wholes else one_by_one or _indexed(has, "prompt"), tools, system)


def _message(has: Mapping[str, Any], events: _Events) -> Reply | None:
    wholes = [one[name] for one in _places(has, events) for name in _OUTPUTS if one.get(name)]
    choices = [event if "message" in event else {"message": event} for name, event in events if name == "gen_ai.choice"]
    reply = reply_of(wholes[0] if wholes else choices or _indexed(has, "completion"))
    listed = has.get("gen_ai.response.finish_reasons")
    if reply is None or reply.finish_reason is not None or not isinstance(listed, list) or not listed:
        return reply
    return reply._replace(finish_reason=text(listed[0]))


def _indexed_tools(has: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the tools from numbered attributes, such as llm.request.functions.0.name."""
    tools: dict[int, dict[str, Any]] = {}
    for name, value in has.items():
        if (found := _INDEXED_TOOL.fullmatch(name)) is not None:
            tools.setdefault(int(found[1]), {})[found[2]] = value
    return [tools[number] for number in sorted(tools)]


def _places(has: Mapping[str, Any], events: _Events) -> list[Mapping[str, Any]]:
    return [has, *[event for _, event in events]]


def _indexed(has: Mapping[str, Any], kind: str) -> list[dict[str, Any]]:
    """Return the messages from numbered attributes, such as gen_ai.prompt.0.role."""
    messages: dict[int, dict[str, Any]] = {}
    for name, value in has.items():
        found = _INDEXED.fullmatch(name)
        if found is not None and found[1] == kind:
            messages.setdefault(int(found[2]), {})[found[3]] = loaded(value)
        called = _INDEXED_CALL.fullmatch(name)
        if called is not None and called[1] == kind:
            calls = messages.setdefault(int(called[2]), {}).setdefault("tool_calls", [])
            calls += [{} for _ in range(int(called[3]) + 1 - len(calls))]
            calls[int(called[3])][called[4]] = value
    default = "user" if kind == "prompt" else "assistant"
    return [{"role": default} | messages[number] for number in sorted(messages)]


def _evaluations(events: _Events) -> dict[str, Any]:
    """Return the results of evaluations by name: the label if there is one, else the number."""
    return {
        str(event["gen_ai.evaluation.name"]): event.get(
            "gen_ai.evaluation.score.label", event.get("gen_ai.evaluation.score.value")
        )
        for name, event in events
        if name == "gen_ai.evaluation.result" and "gen_ai.evaluation.name" in event
    }


rows_from_otel = importer(_calls)
"""One episode for each trace; each span of a model call is a call, of the requested or the answering model.

In `columns`, `{"correct": "correctness"}` takes the score of an evaluation of that name (event
`gen_ai.evaluation.result`).
"""
