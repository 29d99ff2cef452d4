"""Calls that answered chat requests, in cascade's columns: `context` is the request, `text` the message, as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, output_text
from cascade.chat_faults import message_faults
from cascade.checks import did_you_mean
from cascade.conformal.scope import DRAWN
from cascade.errors import UsageError
from cascade.logs.importers.values import loaded, number, text, whole
from cascade.logs.rowcheck import shown
from cascade.logs.schema import CHAT, COLUMNS, SCHEMA_VERSION, Dropped, token_row
from cascade.policies.signals import logprob_signals, message_signals
from cascade.types import Completion, Question, Token, Usage

NO_CALL = "[]"
"""The accepted answer of a request whose right answer has no tool call."""
_NO_CALL_KINDS = frozenset({"relevance", "irrelevance", "live_irrelevance"})
"""The Berkeley Function Calling Leaderboard's names of requests whose right answer has no call; their gold is null."""


def asked(request: ChatRequest) -> dict[str, Any]:
    """Return the columns of the request."""
    question = Question.of_chat(request)
    return {"question": question.text, "context": question.context}


def answered(
    request: ChatRequest,
    message: Mapping[str, Any],
    usage: Usage,
    *,
    finish_reason: str | None = None,
    tokens: Sequence[Token] | None = None,
) -> dict[str, Any]:
    """Return the columns of a message that answers a request, with the signals that it would have live."""
    said, finish = output_text(message), finish_reason or ("tool_calls" if message.get("tool_calls") else "stop")
    kept = None if tokens is None else tuple(tokens)
    faults = message_faults(request, message, finish)
    completion = Completion(text=said, finish_reason=finish, usage=usage, tokens=kept, message=message, faults=faults)
    replay = {
        "purpose": "answer",
        "sample": 0,
        "finish_reason": finish,
        "usage_estimated": usage.estimated,
        "tokens": None if kept is None else [token_row(token) for token in kept],
        CHAT: True,
    }
    return {
        "answer": said,
        "text": json.dumps(message, ensure_ascii=False),
        "signals": {**message_signals(request, completion), "replay": replay},
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
    }


def gold_in(given: Any, *, tools: bool, kind: str | None) -> tuple[str, ...]:
    """Return the accepted answers of a chat request, as texts: a JSON value is one answer, null is unknown.

    An empty list means that no tool should be called, and so does null in the categories of the Berkeley Function
    Calling Leaderboard whose requests none of the offered tools can answer.

    >>> gold_in([], tools=True, kind=None), gold_in(None, tools=True, kind="relevance")
    (('[]',), ('[]',))
    >>> gold_in("Danube", tools=False, kind=None), gold_in(None, tools=True, kind=None)
    (('Danube',), ())
    """
    gold = loaded(given)
    if gold is None or gold == "":
        return (NO_CALL,) if tools and kind in _NO_CALL_KINDS else ()
    return (gold if isinstance(gold, str) else json.dumps(gold, ensure_ascii=False),)


def tokens_in(choice: Mapping[str, Any]) -> tuple[Token, ...] | None:
    """Return the tokens of a choice with their log-probs; None if it has none."""
    held = choice.get("logprobs")
    listed = held.get("content") if isinstance(held, Mapping) else None
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) for one in listed):
        return None
    return tuple([Token(_spelled(one), _logprob(one), _alternatives(one)) for one in listed])


def _alternatives(one: Mapping[str, Any]) -> tuple[tuple[str, float], ...]:
    found = [
        (_spelled(other), _logprob(other)) for other in one.get("top_logprobs") or () if isinstance(other, Mapping)
    ]
    return tuple([(spelled, value) for spelled, value in found if value is not None])


def _spelled(one: Mapping[str, Any]) -> str:
    return str(one.get("token") or "")


def _logprob(one: Mapping[str, Any]) -> float | None:
    value = number(one.get("logprob"))
    return value if value is not None and value <= 0 else None


def usage_in(given: Any) -> Usage:
    """Return the token counts of a chat completion's usage; unknown is None."""
    found = given if isinstance(given, Mapping) else {}

    def detail(name: str, count: str) -> int | None:
        inside = found.get(name)
        return whole(inside.get(count)) if isinstance(inside, Mapping) else None

    return Usage(
        whole(found.get("prompt_tokens")),
        whole(found.get("completion_tokens")),
        detail("prompt_tokens_details", "cached_tokens"),
        detail("completion_tokens_details", "reasoning_tokens"),
    )


class LoggedAnswer(NamedTuple):
    """One model's answer to one chat request. `columns` makes the columns of its row; None if it cannot be read."""

    place: str
    request: str
    model: str
    cost_nano_usd: int | None
    columns: Callable[[], dict[str, Any] | None]


def ladder_rows(
    read: Callable[[Dropped], Iterable[LoggedAnswer]], models: Sequence[str], dropped: Dropped
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ladders. The k-th answers of all models to a request are one episode.

    `read` is called twice, and counts what it leaves out. The models are by default all, by rising mean cost.
    """
    counts, costs = defaultdict[str, Counter[str]](Counter), defaultdict[str, list[int | None]](list)
    for one in read(Dropped()):
        counts[one.request][one.model] += 1
        costs[one.model].append(one.cost_nano_usd)
    ladder = _ladder(models, costs)
    seen = Counter[tuple[str, str]]()
    for one in read(dropped):
        if one.model not in ladder:
            continue
        seen[one.request, one.model] += 1
        run = seen[one.request, one.model]
        if run > min(counts[one.request][model] for model in ladder):
            dropped.drop(f"an answer of {one.model} to a request that another model answered fewer times", one.place)
            continue
        columns, step = one.columns(), ladder.index(one.model) + 1
        if columns is not None:
            episode = one.request if run == 1 else f"{one.request}#{run}"
            known = {"model": one.model, "source": one.model, "cost_nano_usd": one.cost_nano_usd}
            place = {"episode_id": episode, "step": step, "horizon": len(ladder), "candidate": 0}
            row = dict.fromkeys(COLUMNS) | columns | known | place | {"schema_version": SCHEMA_VERSION}
            if step < len(ladder) and (row["signals"] or {}).get("message_faults"):
                dropped.note(
                    "a message with a fault: counted as no answer, since cascade asks the next model instead of "
                    "serving it",
                    one.place,
                )
                row |= {"candidate": None, "answer": None, "correct": None}
            yield row


def _ladder(wanted: Sequence[str], costs: Mapping[str, Sequence[int | None]]) -> tuple[str, ...]:
    there = sorted(costs)
    missing = [f"{name}{did_you_mean(name, there)}" for name in wanted if name not in there]
    if missing:
        raise UsageError(f"The log has no answer of {'; '.join(missing)} (it has {', '.join(there) or 'no model'})")
    if len(set(wanted)) < len(wanted):
        raise UsageError(f"--models names a model twice: {', '.join(wanted)}.")
    if wanted:
        return tuple(wanted)
    known = {name: [cost for cost in costs[name] if cost is not None] for name in there}
    unpriced = [name for name in there if not known[name]]
    if unpriced:
        raise UsageError(
            f"The models are ordered by cost, but the log has no cost of {', '.join(unpriced)}. Name the "
            f"models of the cascade, the cheapest first: --models CHEAP,DEAR (it has {', '.join(there)})"
        )
    return tuple(sorted(there, key=lambda name: sum(known[name]) / len(known[name])))


# --- The request to a model and its reply, in the formats of foreign logs, as a chat request and a message ---
#
# A single user text with a text as its answer is not read as a chat request but as a question and its answer.

_KEPT = ("tools", "functions", "response_format", "max_tokens", "max_completion_tokens", *DRAWN)
"""The options of a request that decide its reply, and so whether a certificate covers a live one."""
_EMPTY: tuple[Any, ...] = (None, "", [], {})
_SPOKEN = frozenset({"text", "input_text", "output_text"})
_CALLS = frozenset({"tool_call", "function_call", "tool_use"})
_ANSWERED = frozenset({"tool_call_response", "tool_result", "function_call_output"})


class Reply(NamedTuple):
    """A message that a model sent, why it ended, and its tokens if they are recorded."""

    message: Mapping[str, Any]
    finish_reason: str | None = None
    tokens: Sequence[Token] | None = None


def request_in(given: Any, tools: Any = None, system: Any = None) -> ChatRequest | None:
    """Return the chat request that was sent; None if there is none, or if it could not be sent again.

    `given` is a request's body or its messages, each in OpenAI's form or with parts (`gen_ai.input.messages`); `tools`
    and `system` are given if they are separate from it.
    """
    body = loaded(given)
    found = body if isinstance(body, Mapping) else {"messages": body}
    listed, options = (
        loaded(found.get("messages")),
        {name: found[name] for name in _KEPT if found.get(name) not in _EMPTY},
    )
    if not isinstance(listed, list) or not all(isinstance(one, Mapping) and one.get("role") for one in listed):
        return None
    offered = [one for message in listed if (one := _tool_in(message)) is not None]
    first = [] if system is None else [{"role": "system", "parts": loaded(system)}]
    messages = [said for one in (*first, *listed) if _tool_in(one) is None for said in messages_in(one)]
    if not options.get("tools") and (every := loaded(tools) or offered):
        options["tools"] = [_openai_tool(one) for one in every if isinstance(one, Mapping)]
    try:
        return ChatRequest(messages, options)
    except UsageError:
        return None


def reply_of(given: Any) -> Reply | None:
    """Return a model's message, from a completion, its choices, messages, or a message; None if there is none."""
    found = loaded(given)
    if isinstance(found, Mapping) and isinstance(found.get("choices"), list):
        found = found["choices"]
    one = found[0] if isinstance(found, list) and found else found
    if isinstance(one, str) and one.strip():
        return Reply({"role": "assistant", "content": one})
    if not isinstance(one, Mapping):
        return None
    message = loaded(one.get("message")) if "message" in one else one
    if not isinstance(message, Mapping) or not ({"role", "content", "tool_calls", "parts"} & message.keys()):
        return None
    said = messages_in({"role": "assistant", **message})
    return Reply(said[0], text(one.get("finish_reason")), tokens_in(one)) if said else None


def chat_columns(made: Mapping[str, Any], request: ChatRequest | None, reply: Reply | None) -> dict[str, Any]:
    """Return the columns that differ if a call is a chat request and its answer; for other calls, their signals."""
    if request is None or reply is None or is_short(request, reply.message):
        return _of_tokens(made, reply)
    read, cached = made.get("input_tokens"), made.get("cached_input_tokens")
    usage = Usage(read, made.get("output_tokens"), cached, made.get("reasoning_tokens"))
    said = answered(request, reply.message, usage, finish_reason=reply.finish_reason, tokens=reply.tokens)
    return {**asked(request), **said}


def _of_tokens(made: Mapping[str, Any], reply: Reply | None) -> dict[str, Any]:
    """Return the signals that a plain reply's log-probs give live; an empty mapping if it has none."""
    if reply is None or reply.tokens is None:
        return {}
    said = text(reply.message.get("content")) or ""
    usage = Usage(made.get("input_tokens"), made.get("output_tokens"))
    completion = Completion(
        text=said, finish_reason=reply.finish_reason or "stop", usage=usage, tokens=tuple(reply.tokens)
    )
    return {"signals": logprob_signals(completion, said)}


def is_short(request: ChatRequest, message: Mapping[str, Any] | None = None) -> bool:
    """Whether a request is a question: one text of a user, answered by a text if the message is given."""
    one = request.messages[0]
    plain = len(request.messages) == 1 and one.get("role") == "user" and isinstance(one.get("content"), str)
    forms = any(request.options.get(name) for name in ("tools", "response_format"))
    return plain and not forms and not (message or {}).get("tool_calls")


# --- messages ---


def messages_in(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a message in OpenAI's form. A message whose parts answer several tool calls is one message for each."""
    role = {"human": "user", "ai": "assistant", "model": "assistant"}.get(str(given["role"]), str(given["role"]))
    parts = given.get("parts")
    if isinstance(parts, list):
        return _of_parts(role, [one for one in parts if isinstance(one, Mapping)])
    kept = {name: loaded(given[name]) if name == "tool_calls" else given[name] for name in _FIELDS & given.keys()}
    calls = kept.get("tool_calls")
    if isinstance(calls, list) and calls:
        kept["tool_calls"] = [_openai_call(one, at) for at, one in enumerate(calls, 1) if isinstance(one, Mapping)]
    else:
        kept.pop("tool_calls", None)
    if role == "tool" and "tool_call_id" not in kept and text(given.get("id")):
        kept["tool_call_id"] = given["id"]
    return [{"role": role, "content": kept.pop("content", None), **kept}]


_FIELDS = frozenset({"content", "tool_calls", "tool_call_id", "name", "refusal"})


def _of_parts(role: str, parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages of a message's parts: texts, then calls; answers of tools are separate messages."""
    said = [str(one.get("content", one.get("text"))) for one in parts if one.get("type") in _SPOKEN]
    calls = [one for one in parts if one.get("type") in _CALLS]
    answers = [one for one in parts if one.get("type") in _ANSWERED]
    found: list[dict[str, Any]] = []
    for one in answers:
        held = next((one[name] for name in ("response", "result", "content") if one.get(name) is not None), "")
        found.append({"role": "tool", "tool_call_id": one.get("id"), "content": shown(held)})
    if said or calls:
        message: dict[str, Any] = {"role": role, "content": "\n".join(said) if said else None}
        if calls:
            message["tool_calls"] = [_openai_call(one, at) for at, one in enumerate(calls, 1)]
        found.append(message)
    return found


def _openai_call(one: Mapping[str, Any], at: int) -> dict[str, Any]:
    """Return a tool call in OpenAI's form, from there or from {name, arguments | args | input, id}."""
    inside = one.get("function")
    named = inside if isinstance(inside, Mapping) else one
    given: Any = next((named[name] for name in ("arguments", "args", "input") if named.get(name) is not None), {})
    function = {"name": named.get("name"), "arguments": shown(given)}
    return {"id": text(one.get("id")) or f"call_{at}", "type": "function", "function": function}


def _openai_tool(one: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool in OpenAI's form, from there or from {name, description, parameters | input_schema}."""
    if isinstance(one.get("function"), Mapping):
        return {"type": "function", "function": dict(one["function"])}
    schema = loaded(one.get("parameters") or one.get("input_schema"))
    function = {"name": one.get("name"), "description": one.get("description"), "parameters": schema}
    return {"type": "function", "function": {name: value for name, value in function.items() if value}}


def _tool_in(message: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the tool among the messages, as Langfuse's callback for LangChain writes it; None if there is none."""
    held = loaded(message.get("content")) if message.get("role") == "tool" else None
    return held if isinstance(held, Mapping) and "tool_call_id" not in message and "function" in held else None
