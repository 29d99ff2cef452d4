"""Convert an untrusted payload to a `Completion`; each check is a function named for what it refuses.

Each function implements one or a few cases of `design/faults.md` (the F numbers) and has a test that fails without it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, TypeAlias, TypeGuard

from cascade.budget.tokens import bound_tokens, estimate_prompt, estimate_tokens
from cascade.chat import ENDINGS, ChatRequest, calls_of, function_of, output_text, part_texts, refusal_of, tool_call
from cascade.errors import BadResponseError, EmptyCompletionError, RefusedError, from_status, quote
from cascade.providers.base import Payload
from cascade.text import same_model, without_halves
from cascade.types import Completion, Iteration, Request, Token, Usage

MAX_TEXT_CHARS = 1_000_000
"""Longer answers are cut: no current model writes them, so they are a fault or an attack (F29)."""
MAX_TOKEN_COUNT = 10**9
"""A larger number is not a token count (F21)."""
MOST_ADDED_TOKENS = 10_000
"""The most tokens that a server may add to a prompt: its own instructions, a template."""
MOST_PART_TOKENS = 100_000
"""The most tokens that an image or a file counts as. gpt-4o-mini counts 2,833 + 8 × 5,667 for the largest image."""
MOST_REASONING_TOKENS = 200_000
_MORE_TOKENS = 1_000
DECISION = "decision"
"""The `object` of a payload whose one token stands for P(yes) (`decision`)."""
MOST_LEVELS = 100
"""The deepest nesting of a message; copying, encoding and comparing must end (F116)."""

# Lone surrogates cannot be stored as UTF-8; NUL cannot be stored in PostgreSQL.
_UNSTORABLE = re.compile("[\ud800-\udfff\x00]")


def read_completion(payload: Payload, request: Request, latency_s: float, secrets: tuple[str, ...] = ()) -> Completion:
    """Check a payload and return its completion; no error contains one of `secrets`.

    Raises:
        ProviderError: the class that fits the fault; `usage` is what was charged anyway.
    """
    notes: list[str] = []
    raise_error_inside(payload, request, secrets)
    if not isinstance(payload.get("choices"), list):
        raise BadResponseError(f"{request.model} sent no list of choices.", model=request.model)
    choice = first_choice(payload["choices"], notes)
    if choice is None:
        usage, problem = read_usage(payload.get("usage"), request, "", notes), "sent a completion without a choice."
        raise EmptyCompletionError(f"{request.model} {problem}", model=request.model, usage=usage)
    raise_error_inside(choice, request, secrets)
    message = choice["message"]
    reply = None if request.chat is None else whole_message(message, request)
    text = content_text(message.get("content"), notes) if reply is None else output_text(reply)
    usage = read_usage(payload.get("usage"), request, "" if payload.get("object") == DECISION else text, notes)
    finish = ending(choice.get("finish_reason"), request, usage)
    if reply is None:
        raise_refusal(message, text, finish, request, usage)
    own = {} if request.chat is None else request.chat.options
    alternatives = (request.top_logprobs or 0) > 1 or bool(own.get("logprobs") and own.get("top_logprobs"))
    return Completion(
        text=storable(text, notes),
        finish_reason=finish,
        usage=usage,
        tokens=read_tokens(choice.get("logprobs"), notes, alternatives),
        model=echoed_model(payload, request, notes, secrets),
        request_id=as_storable(payload["id"])[:200] if isinstance(payload.get("id"), str) else None,
        latency_s=latency_s,
        notes=tuple(notes),
        message=reply,
        faults=() if request.chat is None or reply is None else _faults(request.chat, reply, finish),
        fingerprint=_short_text(payload, "system_fingerprint"),
        tier=_short_text(payload, "service_tier") or _short_text(fields_of(payload.get("usage")), "service_tier"),
        details={} if usage.estimated else _details(payload.get("usage")),
        iterations=() if usage.estimated else read_iterations(payload["usage"]),
    )


def _faults(chat: ChatRequest, reply: Mapping[str, Any], finish: str) -> tuple[str, ...]:
    from cascade.chat_faults import message_faults

    return message_faults(chat, reply, finish)


def _short_text(payload: Mapping[str, Any], name: str) -> str | None:
    """Return a short text field of the payload, such as the model's build or the service tier; None if absent."""
    text = payload.get(name)
    return as_storable(text)[:100] if isinstance(text, str) and text else None


def _details(usage: Any) -> dict[str, dict[str, int]]:
    """Return the valid counts of a plausible usage, by kind."""
    by_kind = {}
    for name in ("prompt_tokens_details", "completion_tokens_details"):
        raw = usage.get(name)
        if not isinstance(raw, dict):
            continue
        if counts := {as_storable(str(kind))[:100]: count for kind, count in raw.items() if is_count(count)}:
            by_kind[name] = counts
    return by_kind


def raise_error_inside(payload: Any, request: Request, secrets: tuple[str, ...] = ()) -> None:
    """Raise the error for an error object that came with status 200, according to its code (F19)."""
    if not isinstance(payload, dict):
        raise BadResponseError(f"{request.model} sent {type(payload).__name__}, not an object.", model=request.model)
    error = payload.get("error")
    if not error:
        return
    fields = error if isinstance(error, dict) else {"message": str(error)}
    text = f"{fields.get('message') or ''} ({fields.get('type') or fields.get('code') or 'no type'})"
    raise from_status(status_of(fields), text, model=request.model, secrets=secrets)


_STATUS_WORDS = {
    "rate_limit": 429,
    "insufficient_quota": 429,
    "authentication": 401,
    "permission": 403,
    "invalid_request": 400,
    "exceed_context": 400,
    "context_length": 400,
    "not_found": 404,
    "overloaded": 503,
    "server_error": 500,
    "timeout": 408,
}


def status_of(error: Mapping[str, Any]) -> int:
    """Return the HTTP status that an error object means, 500 if it does not say."""
    for field in ("code", "status", "type"):
        value = error.get(field)
        if isinstance(value, int) and 400 <= value < 600:
            return value
        if isinstance(value, str):
            if value.isascii() and value.isdigit() and len(value) == 3 and 400 <= int(value) < 600:
                return int(value)
            for word, status in _STATUS_WORDS.items():
                if word in value:
                    return status
    return 500


def first_choice(choices: list[Any], notes: list[str]) -> Mapping[str, Any] | None:
    """Return the valid choice with the lowest index; note surplus, duplicate and unusable ones (F14, F30)."""
    valid = [c for c in choices if isinstance(c, dict) and isinstance(c.get("message"), dict)]
    if len(valid) < len(choices):
        notes.append(f"{len(choices) - len(valid)} of {len(choices)} choices were unusable")
    if not valid:
        return None
    if len(valid) == 1:
        return valid[0]
    notes.append(f"{len(valid)} choices came where 1 was requested")

    def index(choice: Mapping[str, Any]) -> int:
        position = choice.get("index")
        return position if isinstance(position, int) else MAX_TOKEN_COUNT

    return min(valid, key=index)


def ending(finish: object, request: Request, usage: Usage) -> str:
    """Return why a reply ended, in OpenAI's words; "unknown" if the server does not say.

    Raises:
        BadResponseError: it ended for another reason, such as "error" or "abort", so that it may be cut (F27).
    """
    if not isinstance(finish, str) or not finish:
        return "unknown"
    reason = ENDINGS.get(finish.lower())
    if reason is None:
        word = quote(as_storable(finish))[:40]
        raise BadResponseError(f"{request.model} ended its reply with {word!r}.", model=request.model, usage=usage)
    return reason


def raise_refusal(message: Mapping[str, Any], text: str, finish: object, request: Request, usage: Usage) -> None:
    """Refuse an answer that a filter withheld or that is empty (F16)."""
    plain = message.get("refusal") is None and isinstance(message.get("content"), str)  # as in most replies
    if finish == "content_filter" or (not plain and refusal_of(message).strip()):
        raise RefusedError(f"{request.model} or its filter declined to answer.", model=request.model, usage=usage)
    if not text.strip() and finish != "length":
        raise RefusedError(f"{request.model} sent an empty answer.", model=request.model, usage=usage)


def content_text(content: object, notes: list[str]) -> str:
    """Return the text of a message's content. Parts that are not text are noted."""
    if isinstance(content, str):
        return content
    texts = part_texts(content)
    unread = sum(text is None for text in texts)
    if unread:
        notes.append(f"{unread} of {len(texts)} parts of the content are not text and were left out")
    return "".join([text for text in texts if text is not None])


def read_usage(raw: object, request: Request, text: str, notes: list[str]) -> Usage:
    """Return the reported usage, or an estimate marked as such (F20, F21).

    A usage that is missing or not a count is estimated high, and so are 0 output tokens for a reply with text. An
    implausible usage (`is_believable`) is replaced by the most that the request allowed: the charge is then unknown,
    but bounded.
    """
    if isinstance(raw, dict):
        prompt, completion = raw.get("prompt_tokens"), raw.get("completion_tokens")
        # A prompt never has 0 tokens: some clients fill in zeros if the server sent nothing.
        if is_count(prompt) and prompt and is_count(completion):
            counted = counted_usage(raw, prompt, completion)
            if counted is not None and not counted.output_tokens and text:
                notes.append("usage of 0 tokens for a reply with text: estimated")
                counted = counted._replace(output_tokens=estimate_tokens(text), estimated=True)
            runs = [run.usage for run in read_iterations(raw)]
            if counted is not None and all(is_believable(run, request) for run in runs or [counted]):
                return counted
            notes.append(f"usage of {prompt} and {completion} tokens is not believable, so the cost is unknown")
            return Usage(bound_tokens(request), request.max_tokens, estimated=True)
    notes.append("usage missing or not a count: estimated")
    return Usage(estimate_prompt(request), estimate_tokens(text), estimated=True)


def counted_usage(raw: Mapping[str, Any], prompt: int, completion: int) -> Usage | None:
    """Return the counts of a usage, with the parts of prompt and completion; None if they contradict each other.

    Most servers count reasoning within the completion, and tokens read from or written to a cache within the prompt.
    Some count reasoning, or the tokens of a cache, separately, as their total shows.
    """
    counts = {"prompt": prompt, "completion": completion}
    for kind, names in _COUNTS.items():
        for name, value in (fields_of(raw.get(kind)) if kind else raw).items():
            if value is None or (part := names.get(name)) is None:
                continue
            if not is_count(value) or counts.setdefault(part, value) != value:
                return None
    total, cached, written, reasoning = map(counts.get, ("total", "cached", "written", "reasoning"))
    in_cache, thought = (cached or 0) + (written or 0), reasoning or 0
    total = total or prompt + completion
    for whole_prompt, whole_completion in (
        (prompt, completion),
        (prompt, completion + thought),
        (prompt + in_cache, completion),
        (prompt + in_cache, completion + thought),
    ):
        parts_fit = in_cache <= whole_prompt and thought <= whole_completion
        if parts_fit and total == whole_prompt + whole_completion:
            hour = _for_an_hour(raw, written)
            return Usage(whole_prompt, whole_completion, cached, reasoning, False, written, hour)
    return None


def read_iterations(raw: Mapping[str, Any]) -> tuple[Iteration, ...]:
    """Return the runs that a vendor made for one call, as Anthropic reports them; an invalid count is unknown."""
    listed = raw.get("iterations")
    return tuple(_iteration(fields_of(run)) for run in listed) if isinstance(listed, list) else ()


def _iteration(run: Mapping[str, Any]) -> Iteration:
    names = ("input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [run.get(name, 0 if name.startswith("cache") else None) for name in names]
    read, output, cached, written = [count if is_count(count) else None for count in counts]
    input_tokens = None if read is None or cached is None or written is None else read + cached + written
    usage = Usage(input_tokens, output, cached, None, False, written, _for_an_hour(run, written))
    return Iteration(_short_text(run, "type") or "message", _short_text(run, "model"), usage)


def _for_an_hour(raw: Mapping[str, Any], written: int | None) -> int | None:
    """Return how many of the tokens written to a cache are kept for an hour; None if not reported, or impossible."""
    if written is None:
        return None
    details = fields_of(raw.get("prompt_tokens_details"))
    split = fields_of(details.get("cache_creation_token_details") or raw.get("cache_creation"))
    short, hour = (split.get(f"ephemeral_{time}_input_tokens") for time in ("5m", "1h"))
    return hour if is_count(short) and is_count(hour) and short + hour == written else None


_COUNTS: Mapping[str, Mapping[str, str]] = {
    "": {
        "total_tokens": "total",
        "cache_read_input_tokens": "cached",
        "prompt_cache_hit_tokens": "cached",
        "cache_creation_input_tokens": "written",
        "reasoning_tokens": "reasoning",
        "input_tokens": "prompt",
        "output_tokens": "completion",
    },
    "prompt_tokens_details": {
        "cached_tokens": "cached",
        "cache_write_tokens": "written",
        "cache_creation_tokens": "written",
    },
    "completion_tokens_details": {"reasoning_tokens": "reasoning"},
}
"""The names under which servers report a part of a usage, in the usage itself and in its details."""


def fields_of(value: object) -> Mapping[str, Any]:
    """Return the fields of an object; none of anything else."""
    return value if isinstance(value, dict) else {}


def is_count(value: object) -> TypeGuard[int]:
    """Return whether a value is a plausible number of tokens (F21)."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_TOKEN_COUNT


def is_believable(usage: Usage, request: Request) -> bool:
    """Return whether the token counts of a usage are plausible for a request.

    A server may add its own prompt, count slightly differently, and let a model reason beyond `max_tokens`. Above
    `MOST_ADDED_TOKENS`, twice `max_tokens` and `MOST_REASONING_TOKENS` it is a fault. The bytes of a request do not
    bound the tokens of an image or a file in it, which may be compressed, or given only by a URL or an id.
    """
    reasoning, added = usage.reasoning_tokens or 0, (usage.input_tokens or 0) - MOST_ADDED_TOKENS
    return (
        (added <= 0 or added <= bound_tokens(request) + MOST_PART_TOKENS * _parts_beside_text(request))
        and (usage.output_tokens or 0) - reasoning <= 2 * request.max_tokens + _MORE_TOKENS
        and reasoning <= MOST_REASONING_TOKENS
    )


def _parts_beside_text(request: Request) -> int:
    """Return how many parts of a request are not text."""
    messages = () if request.chat is None else request.chat.messages
    return sum(part_texts(message.get("content")).count(None) for message in messages)


def storable(text: str, notes: list[str]) -> str:
    """Return the text in a storable form: bounded, without NUL and lone surrogates (F29)."""
    if len(text) > MAX_TEXT_CHARS:
        notes.append(f"text cut from {len(text)} to {MAX_TEXT_CHARS} characters")
        text = text[:MAX_TEXT_CHARS]
    if not is_storable(text):
        notes.append("NUL or lone surrogates replaced")
        text = as_storable(text)
    return text


def is_storable(text: str) -> bool:
    """Return whether a text has neither NUL nor lone surrogates; most text is ASCII, which is fast to check."""
    return "\x00" not in text and (text.isascii() or _UNSTORABLE.search(text) is None)


def as_storable(text: str) -> str:
    """Return a text without NUL and lone surrogates."""
    return text if is_storable(text) else without_halves(text)


def whole_message(message: Mapping[str, Any], request: Request) -> dict[str, Any]:
    """Return a message in OpenAI's form, with texts that can be stored; refuse one that is nested too deep (F116).

    Some servers leave out roles, or ids and types of calls, or write arguments as objects or content as parts. A call
    that is not an object is left as it is; `chat_faults` reports it.
    """
    try:
        reply = {as_storable(str(name)): _storable_value(value, MOST_LEVELS) for name, value in message.items()}
    except ValueError as error:
        raise BadResponseError(f"{request.model} sent a message that {error}.", model=request.model) from None
    reply["role"] = "assistant"
    if isinstance(reply.get("content"), list):
        reply |= {"refusal": refusal} if (refusal := refusal_of(reply)) else {}
        reply["content"] = "".join([text for text in part_texts(reply["content"]) if text is not None]) or None
    if isinstance(reply.get("tool_calls"), list):
        reply["tool_calls"] = [_call(position, call) for position, call in enumerate(reply["tool_calls"])]
    return reply


def _call(position: int, call: Any) -> Any:
    """Return a tool call in OpenAI's form: with an id, a type, and arguments as text."""
    if not isinstance(call, dict):
        return call
    kind = call.get("type") if isinstance(call.get("type"), str) else "function"
    openai = {**call, "type": kind, "id": f"call_{position}" if call.get("id") in (None, "") else str(call["id"])}
    function = call.get("function")
    if kind == "function" and isinstance(function, dict) and not isinstance(function.get("arguments"), str):
        raw = function.get("arguments")
        openai["function"] = {**function, "arguments": "{}" if raw is None else json.dumps(raw, ensure_ascii=False)}
    return openai


def _storable_value(value: Any, levels: int) -> Any:
    """Return a JSON value whose texts can be stored, nested to a limited depth."""
    if isinstance(value, str):
        return as_storable(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if levels == 0:
        raise ValueError(f"is nested deeper than {MOST_LEVELS} levels")
    if isinstance(value, Mapping):
        return {as_storable(str(name)): _storable_value(inner, levels - 1) for name, inner in value.items()}
    return [_storable_value(inner, levels - 1) for inner in value]


def echoed_model(payload: Payload, request: Request, notes: list[str], secrets: tuple[str, ...] = ()) -> str | None:
    """Return the model's name in the reply, with secrets removed; note one that differs from the requested name.

    Prices use the configured name (F22). The returned name goes into traces and warnings.
    """
    echo = payload.get("model")
    if not isinstance(echo, str) or not echo:
        return None
    if echo == request.wire_model:
        return echo
    echo = quote(as_storable(echo), secrets)
    if not same_model(request.wire_model, echo):
        notes.append(f"asked for {request.model}, answered by {echo}")
    return echo


def read_tokens(raw: object, notes: list[str], alternatives: bool = False) -> tuple[Token, ...] | None:
    """Return the tokens with their log-probs; None if none came (F24). An invalid value is unknown (F25).

    A single alternative, usually the token itself, is read only if an application asked for it.
    """
    content = raw.get("content") if isinstance(raw, dict) else None
    if not isinstance(content, list) or not content:
        return None
    entries = [entry for entry in content if isinstance(entry, dict)]
    if not entries:
        return None
    values: Sequence[float | None] = _logprobs(entries)
    tops: Iterable[_Alternatives] = repeat(())
    if alternatives:
        values, tops = zip(*map(_with_alternatives, values, entries), strict=True)
    fields = zip(_texts(entries), values, tops, strict=False)
    tokens = list(map(tuple.__new__, repeat(Token), fields))  # a third faster than `Token`; replies have hundreds
    if len(tokens) > 1 and not tokens[-1].text:
        tokens.pop()  # the end mark, which some servers send only without streaming
    if bad := values.count(None):
        notes.append(f"{bad} of {len(tokens)} log-probs are not log-probabilities")
    return tuple(tokens)


_Alternatives: TypeAlias = tuple[tuple[str, float], ...]


def _with_alternatives(value: float | None, entry: dict[str, Any]) -> tuple[float | None, _Alternatives]:
    """Return a token's log-prob and its alternatives.

    An invalid alternative makes the token's own log-prob unknown: the others would look too sure.
    """
    top = entry.get("top_logprobs")
    if not isinstance(top, list) or not top:
        return value, ()
    alternatives = [alternative for alternative in top if isinstance(alternative, dict)]
    logprobs = _logprobs(alternatives)
    return (None, ()) if None in logprobs else (value, tuple(zip(_texts(alternatives), logprobs, strict=True)))


def _texts(entries: list[dict[str, Any]]) -> list[str]:
    """Return the texts of tokens in a storable form, "" if a token has none."""
    texts = [entry.get("token", "") for entry in entries]
    try:
        as_they_are = is_storable("".join(texts))  # one check for all of them
    except TypeError:
        as_they_are = False
    return texts if as_they_are else [as_storable(text) if isinstance(text, str) else "" for text in texts]


def _logprobs(entries: list[dict[str, Any]]) -> list[Any]:
    """Return the log-probabilities of tokens, floats; None for invalid ones."""
    return [
        value if type(value := entry.get("logprob")) is float and value <= 0.0 else logprob(value) for entry in entries
    ]


_ROUNDING = 1e-4
"""Float32 arithmetic makes log-probs of sure tokens slightly positive; a larger value is not rounding."""


def logprob(value: object) -> float | None:
    """Return a log-probability ≤ 0 (−inf allowed: p = 0), or None for anything that is not one (F25)."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return min(0.0, float(value)) if value <= _ROUNDING else None  # NaN is not below anything
    except OverflowError:  # JSON integers have no upper limit
        return None


# --- tool calls that a model wrote as text, as small open models do on any server ---
# Qwen's models write `{"name": …, "arguments": …}` in a code fence or in `<tool_call>` tags; llama.cpp's own reader
# takes only the tags. A text that does not call an offered tool stays text.

_FENCE, _TAG, _TAG_ENDS = "```", "<tool_call>", "</tool_call>"
_SEPARATORS = frozenset(" \t\r\n,;")
_decoder = json.JSONDecoder()


def with_tool_calls(payload: Payload, chat: ChatRequest) -> Payload:
    """Return a completion with tool calls in the client's form if the model wrote calls as text."""
    choices = payload.get("choices")
    if not chat.tools or not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        return payload
    message = choices[0].get("message")
    if not isinstance(message, Mapping) or calls_of(message) or not isinstance(message.get("content"), str):
        return payload
    offered = [function_of(tool).get("name") for tool in chat.tools]  # a client may send anything as a name
    calls = list(_written(message["content"]))
    if not calls or any(call.get("name") not in offered for call in calls):
        return payload
    rewritten = {**message, "content": None, "tool_calls": [tool_call(index, call) for index, call in enumerate(calls)]}
    finish = choices[0].get("finish_reason")
    first = {**choices[0], "message": rewritten, "finish_reason": "tool_calls" if finish == "stop" else finish}
    return {**payload, "choices": [first, *choices[1:]]}


def _between(text: str, begin: str, end: str) -> Iterator[str]:
    """Yield each part of a text between two marks. A regex would take quadratic time where an end mark is missing."""
    at = 0
    while (starts := text.find(begin, at)) >= 0 and (ends := text.find(end, starts + len(begin))) >= 0:
        yield text[starts + len(begin) : ends]
        at = ends + len(end)


def _written(text: str) -> Iterator[Mapping[str, Any]]:
    """Yield the calls in a text that contains nothing else; yield none for any other text."""
    fenced = (block.removeprefix("json") for block in _between(text, _FENCE, _FENCE))
    for block in [*_between(text, _TAG, _TAG_ENDS)] or [*fenced] or [text]:
        for value in _values(block.strip()):
            for call in value if isinstance(value, list) else [value]:
                if isinstance(call, Mapping) and isinstance(call.get("name"), str):
                    yield call


def _values(text: str) -> Iterator[Any]:
    """Yield the consecutive JSON values of a text that contains nothing else; yield none for any other text."""
    values, position = [], 0
    while position < len(text):
        try:
            value, end = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        values.append(value)
        while text[end : end + 1] in _SEPARATORS:
            end += 1
        position = end
    yield from values
