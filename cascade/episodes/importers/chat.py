"""Calls that answered chat requests, as our logs have them: `context` is the request, `text` the message, as JSON."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, output_text
from cascade.chat_faults import message_faults
from cascade.checks import did_you_mean
from cascade.episodes.importers.values import loaded, number, whole
from cascade.episodes.lines import Dropped
from cascade.episodes.schema import CHAT, COLUMNS, SCHEMA_VERSION, token_row
from cascade.errors import UsageError
from cascade.policies.chat_signals import message_signals
from cascade.types import Completion, Question, Token, Usage

NO_CALL = "[]"
"""The accepted answer of a request that is to be answered without a tool call."""
_NO_CALL_KINDS = frozenset({"relevance", "irrelevance", "live_irrelevance"})
"""What the Berkeley Function Calling Leaderboard calls requests whose right answer is no call; their gold is null."""


def asked(request: ChatRequest) -> dict[str, Any]:
    """Return the columns of what was asked."""
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
    """Return the columns of a message that answers a request, with the signals that it would show live."""
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

    An empty list says that no tool is to be called, and so does null in a category of the Berkeley Function Calling
    Leaderboard whose requests none of the offered tools can answer.

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
    """Return the tokens of a choice with their log-probs; None where it has none."""
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
    """One model's answer to one chat request. `columns` makes what its row says; None where it cannot be read."""

    place: str
    request: str
    model: str
    cost_nano_usd: int | None
    columns: Callable[[], dict[str, Any] | None]


def ladder_rows(
    read: Callable[[Dropped], Iterable[LoggedAnswer]], models: Sequence[str], dropped: Dropped
) -> Iterator[dict[str, Any]]:
    """Yield the rows of ladders. The k-th answers of all models to a request are one episode.

    Args:
        read: reads the log, told where to count what it leaves out; it is called twice.
        models: the steps of the ladder, in their order; by default all models, by rising mean cost.
        dropped: told of answers that are left out.

    Raises:
        UsageError: the log does not have a model that is wanted, or the order of the models is not known.
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
            dropped.drop(f"an answer of {one.model} beside which not every other model has one", one.place)
            continue
        columns, step = one.columns(), ladder.index(one.model) + 1
        if columns is not None:
            episode = one.request if run == 1 else f"{one.request}#{run}"
            known = {"model": one.model, "source": one.model, "cost_nano_usd": one.cost_nano_usd}
            place = {"episode_id": episode, "step": step, "horizon": len(ladder), "candidate": 0}
            row = dict.fromkeys(COLUMNS) | columns | known | place | {"schema_version": SCHEMA_VERSION}
            if step < len(ladder) and (row["signals"] or {}).get("message_faults"):
                dropped.note(
                    "a message with a fault: no answer, since it is not served while a model is left", one.place
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
            f"The models are put in the order of their costs, and the log has no cost of {', '.join(unpriced)}. Say "
            f"which models make the cascade, the cheapest first: --models CHEAP,DEAR (it has {', '.join(there)})"
        )
    return tuple(sorted(there, key=lambda name: sum(known[name]) / len(known[name])))
