"""LiteLLM's spend logs: rows of its table LiteLLM_SpendLogs, as JSON, lines of JSON, CSV or Parquet.

The columns are those of `schema.prisma` in litellm 1.106. Four things in them can mislead:

* `spend` is 0 if LiteLLM has no price. A call that used tokens and was not a cache hit then has an unknown cost.
* `messages` is empty for chat calls; the request is in `proxy_server_request`, if prompts are stored at all.
* A chat completion is kept whole, with messages, tools and schema, if prompts are stored.
* A long text is stored with its middle cut out and a mark in its place, which is noted here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cascade.logs.importers.calls import LoggedCall, importer, mapped, note_unread
from cascade.logs.importers.chat import chat_columns, reply_of, request_in
from cascade.logs.importers.sources import Record
from cascade.logs.importers.values import (
    loaded,
    mapping,
    moment,
    nano_usd,
    number,
    passed_ms,
    question_in,
    reply_in,
    text,
    whole,
)
from cascade.logs.schema import Dropped

_READ = {
    "spend": "cost_usd",
    "prompt_tokens": "input_tokens",
    "completion_tokens": "output_tokens",
    "request_duration_ms": "latency_ms",
}
_CHAT = ("completion", "responses", "anthropic_messages", "generate_content")
_CUT = "litellm_truncated"
_REDACTED = "redacted-by-litellm"


def _calls(record: Record, columns: Mapping[str, str], dropped: Dropped) -> Iterator[LoggedCall]:
    fields, place = record.fields, record.place
    metadata = mapping(fields.get("metadata"))
    kind = str(fields.get("call_type") or "completion")
    if not any(known in kind for known in _CHAT):
        dropped.drop(f"a call of another kind ({kind[:40]})", place)
        return
    if "failure" in {fields.get("status"), metadata.get("status")}:
        dropped.drop("a failed call", place)
        return
    note_unread(fields, _READ, place, dropped)
    fields = {**fields, "metadata": metadata}
    start, end = moment(fields.get("startTime")), moment(fields.get("endTime"))
    made = {
        "question": _plain(question_in(fields.get("messages")) or question_in(fields.get("proxy_server_request"))),
        "text": _plain(reply_in(fields.get("response"))),
        "model": text(fields.get("model")) or text(fields.get("model_group")),
        "latency_ms": number(fields.get("request_duration_ms")) or passed_ms(start, end),
        "created_at": None if start is None else start.iso,
        **_usage(fields, metadata),
    }
    made |= _cost(fields, made, dropped, place)
    for name in ("question", "text"):
        if _CUT in (made[name] or ""):
            dropped.note(f"a {name} whose middle LiteLLM cut out", place)
    made |= _as_chat(fields, made)
    made |= mapped(fields, columns, place, dropped)
    trace = text(fields.get("session_id")) or text(metadata.get("trace_id"))
    names = [text(fields.get(name)) for name in ("model", "model_group")]
    call_id = text(fields.get("request_id"))
    at_s = None if start is None else start.seconds
    yield LoggedCall(place, call_id, trace, at_s, made, tuple([name for name in names if name]))


def _as_chat(fields: Mapping[str, Any], made: Mapping[str, Any]) -> dict[str, Any]:
    """Return request and message of a chat completion that is logged completely."""
    bodies = [mapping(fields.get("proxy_server_request")), {"messages": loaded(fields.get("messages"))}]
    body = next((one for one in bodies if one.get("messages")), {})
    held = json.dumps([body, loaded(fields.get("response"))], default=str)
    if _CUT in held or _REDACTED in held:
        return {}
    return chat_columns(made, request_in(body), reply_of(fields.get("response")))


def _plain(said: str | None) -> str | None:
    return None if said is None or _REDACTED in said else said


def _usage(fields: Mapping[str, Any], metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the token counts; if a call has neither input nor output tokens, both counts are unknown."""
    used = mapping(metadata.get("usage_object"))
    extra = mapping(metadata.get("additional_usage_values"))
    sent, said = whole(fields.get("prompt_tokens")), whole(fields.get("completion_tokens"))
    if not sent and not said:
        sent = said = None
    cached = whole(mapping(used.get("prompt_tokens_details")).get("cached_tokens"))
    return {
        "input_tokens": sent,
        "output_tokens": said,
        "cached_input_tokens": whole(extra.get("cache_read_input_tokens")) if cached is None else cached,
        "reasoning_tokens": whole(mapping(used.get("completion_tokens_details")).get("reasoning_tokens")),
    }


def _cost(fields: Mapping[str, Any], made: Mapping[str, Any], dropped: Dropped, place: str) -> dict[str, Any]:
    spent = nano_usd(fields.get("spend"))
    from_cache = str(fields.get("cache_hit")).lower() == "true"
    if spent == 0 and not from_cache and (made["input_tokens"] or made["output_tokens"]):
        dropped.note("a spend of 0 for a call that used tokens: no price was known, so the cost is null", place)
        spent = None
    source = "no price" if spent is None else "LiteLLM's cache" if from_cache else "LiteLLM's price table"
    return {"cost_nano_usd": spent, "cost_source": source}


rows_from_litellm = importer(_calls)
"""One episode for each session (`session_id`), or for each call without one; roles name a `model` or `model_group`.

Failed calls, embeddings, images and repeated calls are left out.
"""
