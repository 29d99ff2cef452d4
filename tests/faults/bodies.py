"""What a server can say: good chat completions, and one bad body per fault."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

QUESTION = "Which river runs through Vienna?"
ANSWER = "Reasoning: It is on the river.\nAnswer: Danube"
USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


def is_judge(body: Mapping[str, Any]) -> bool:
    """Whether a request asks for a verdict."""
    return "You check the answers" in body["messages"][0]["content"]


def entry(token: str, logprob: Any, **top: Any) -> dict[str, Any]:
    """Return one token of a log-prob list."""
    alternatives = [{"token": text, "logprob": value} for text, value in (top or {token: logprob}).items()]
    return {"token": token, "logprob": logprob, "bytes": None, "top_logprobs": alternatives}


def verdict_logprobs(p_yes: float) -> list[dict[str, Any]]:
    """Return the log-probs of a guide that says Yes with probability `p_yes`."""
    verdict = "Yes" if p_yes >= 0.5 else "No"
    return [entry(verdict, math.log(max(p_yes, 1 - p_yes)), Yes=math.log(p_yes), No=math.log(1 - p_yes))]


def choice(text: Any, *, finish: Any = "stop", logprobs: Any = None, index: Any = 0, **message: Any) -> dict[str, Any]:
    """Return one choice of a chat completion."""
    fields = {"index": index, "message": {"role": "assistant", "content": text, **message}, "finish_reason": finish}
    return fields if logprobs is None else {**fields, "logprobs": {"content": logprobs}}


def chat(*choices: Mapping[str, Any], model: str = "small", usage: Any = USAGE, **more: Any) -> dict[str, Any]:
    """Return a chat completion; `usage=None` leaves it out."""
    body = {"id": "chat-1", "object": "chat.completion", "created": 1, "model": model, "choices": list(choices)} | more
    return body if usage is None else {**body, "usage": usage}


def good(body: Mapping[str, Any], **changes: Any) -> dict[str, Any]:
    """Return the faultless answer to a request: a Yes to a judge, the Danube to everybody else."""
    wants = body.get("logprobs")
    if is_judge(body):
        answer = choice("Yes", logprobs=verdict_logprobs(0.95) if wants else None)
    else:
        words = [entry(word, -0.1) for word in ANSWER.replace(" ", "| ").split("|")]
        answer = choice(ANSWER, logprobs=words if wants else None)
    return chat(answer, **{"model": body["model"], **changes})


def with_usage(**counts: Any) -> Any:
    """Return a mode whose usage is not what a usage should be."""
    return lambda body: good(body, usage={**USAGE, **counts})


def _first_logprob(value: Any) -> Any:
    """Return a mode whose first token has that log-prob, and so has its first alternative."""

    def mode(body: Mapping[str, Any]) -> dict[str, Any]:
        payload = good(body)
        for token in payload["choices"][0].get("logprobs", {}).get("content", [])[:1]:
            token["logprob"] = token["top_logprobs"][0]["logprob"] = value
            if value is ...:
                del token["logprob"], token["top_logprobs"][0]["logprob"]
        return payload

    return mode


def _no_logprobs(body: Mapping[str, Any]) -> dict[str, Any]:
    return good({**body, "logprobs": None})


def _answer(text: Any, **more: Any) -> Any:
    return lambda body: chat(choice(text, **more), model=body["model"])


def _error(code: Any, kind: str, message: str = "it went wrong") -> Any:
    return lambda _body: {"error": {"message": message, "type": kind, "code": code}}


CALL = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}


def _without(name: str) -> dict[str, Any]:
    return {key: value for key, value in CALL.items() if key != name}


def _call(call: Mapping[str, Any], content: Any = None, **more: Any) -> Any:
    """Return a mode that calls a tool in a form of its own."""
    return _answer(content, finish="tool_calls", tool_calls=[call], **more)


def _no_role(body: Mapping[str, Any]) -> dict[str, Any]:
    payload = chat(choice(None, finish="tool_calls", tool_calls=[CALL]), model=body["model"])
    del payload["choices"][0]["message"]["role"]
    return payload


LONG_LINE = "x" * 10_000_000
ODD = "Reasoning: \x00 \ud800 \u202eleft\u202c \u200bzero\nAnswer: \uff24anube\ud83d"
"""NUL, lone surrogates, right-to-left marks, a zero-width space, a full-width letter."""

PAYLOADS: dict[str, Any] = {
    "ok": good,
    "empty_choices": lambda body: chat(model=body["model"]),
    "no_choices": lambda _body: {"id": "chat-1", "object": "chat.completion", "model": "small", "usage": USAGE},
    "null_choices": lambda body: {**good(body), "choices": None},
    "null_content_filter": _answer(None, finish="content_filter"),
    "blank": _answer(" \n\t "),
    "refusal": _answer(None, refusal="I cannot help with that."),
    "finish_error": _answer("Reasoning: it is the Dan\nAnswer: Dan", finish="error"),
    "finish_abort": _answer("Reasoning: it is the Dan\nAnswer: Dan", finish="abort"),
    "error_in_choice": lambda body: chat(
        {**choice(ANSWER), "error": {"message": "overloaded", "code": 503}}, model=body["model"]
    ),
    "finish_cancelled": _answer("Answer: Dan", finish="cancelled"),
    "finish_safety": _answer("Answer: Dan", finish="SAFETY"),
    "length_in_capitals": _answer("Answer: Dan", finish="MAX_TOKENS"),
    "length": _answer("Reasoning: it is the Dan\nAnswer: Dan", finish="length"),
    "error_429_in_200": _error(429, "rate_limit_error"),
    "error_400_in_200": _error("context_length_exceeded", "invalid_request_error", "maximum context length is 8"),
    "error_401_in_200": _error("401", "authentication_error"),
    "error_503_in_200": _error(None, "overloaded_error"),
    "no_usage": lambda body: good(body, usage=None),
    "null_usage": lambda body: {**good(body), "usage": None},
    "negative_usage": with_usage(prompt_tokens=-100_000, completion_tokens=-5),
    "text_usage": with_usage(prompt_tokens="100"),
    "float_usage": with_usage(prompt_tokens=100.5),
    "nan_usage": with_usage(completion_tokens=math.nan),
    "huge_usage": with_usage(prompt_tokens=10**12),
    "reasoning_beside": with_usage(total_tokens=610, completion_tokens_details={"reasoning_tokens": 500}),
    "cache_beside_the_details": with_usage(cache_read_input_tokens=60),
    "parts_above_the_whole": with_usage(completion_tokens_details={"reasoning_tokens": 500}),
    "believed_by_nobody": with_usage(prompt_tokens=10**9, completion_tokens=10**9, total_tokens=2 * 10**9),
    "bool_usage": with_usage(completion_tokens=True),
    "list_usage": lambda body: good(body, usage=[1, 2]),
    "wrong_model_echo": lambda body: good(body, model="totally-different"),
    "near_model_echo": lambda body: good(body, model=f"{body['model']}-mini"),
    "dated_model_echo": lambda body: good(body, model=f"{body['model']}-2026-01-31"),
    "no_logprobs": _no_logprobs,
    "nan_logprob": _first_logprob(math.nan),
    "positive_logprob": _first_logprob(3.5),
    "minus_inf_logprob": _first_logprob(-math.inf),
    "missing_logprob": _first_logprob(...),
    "text_logprob": _first_logprob("-0.1"),
    "gigantic_logprob": _first_logprob(-(10**400)),
    "huge": _answer(LONG_LINE),
    "newlines": _answer("\n" * 900_000 + "Answer: Danube"),
    "odd_characters": _answer(ODD),
    "odd_names": lambda body: good(body, model="small\ud800", id="id\ud800"),
    "token_marks": _answer("Reasoning: " + "<|" * 20_000 + "|>" * 20_000 + "\nAnswer: Danube"),
    "unordered_choices": lambda body: chat(
        choice("Answer: Elbe", index=2), "not a choice", choice("Answer: Danube", index=0), {"index": 1}
    ),
    "duplicate_choices": lambda body: chat(choice("Answer: Danube"), choice("Answer: Elbe")),
    "call_arguments_object": _call({**CALL, "function": {"name": "add", "arguments": {"n": 1}}}),
    "call_arguments_null": _call({**CALL, "function": {"name": "add", "arguments": None}}),
    "call_no_type": _call(_without("type")),
    "call_no_id": _call(_without("id")),
    "call_integer_id": _call({**CALL, "id": 7}),
    "call_content_parts": _call(CALL, [{"type": "text", "text": "Dan"}, {"type": "text", "text": "ube"}]),
    "call_no_role": _no_role,
    "call_in_text": _answer('{"name": "add", "arguments": {"n": 1}}'),
    "odd_indices": lambda body: chat(choice("Answer: Elbe", index="one"), choice("Answer: Danube", index=0)),
}


def encode(payload: Any) -> bytes:
    """Return a payload as a server would send it: NaN as NaN, lone surrogates as escapes."""
    return json.dumps(payload).encode()
