"""What a server of decision models can say: a good reply in each dialect, and one bad reply per fault."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from .bodies import good as good_chat

P_YES = 0.9
TOKENS = 100
USAGE = {"input_tokens": TOKENS, "output_tokens": 0, "total_tokens": TOKENS}
KINDS = {"openai": ("predicate", "probability"), "systemone": ("noul", "noul")}

Change = Callable[[dict[str, Any], str], Any]
"""Changes a good reply of a dialect, or returns another value, or the bytes to send."""


def dialect_of(body: Mapping[str, Any]) -> str | None:
    """Return the dialect of a request; None of a chat completion."""
    return "openai" if "input" in body else "systemone" if "state" in body else None


def good(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the faultless reply to a request."""
    dialect = dialect_of(body)
    kind, field = KINDS[str(dialect)]
    answer = {"type": kind, field: P_YES}
    answers: Any = [{"name": "right", **answer}] if dialect == "openai" else {"right": answer}
    return {"model": body["model"], "answers": answers, "usage": dict(USAGE)}


def answer_of(reply: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer in a good reply."""
    answers = reply["answers"]
    answer: dict[str, Any] = answers[0] if isinstance(answers, list) else answers["right"]
    return answer


def _with(**fields: Any) -> Change:
    return lambda reply, _dialect: {**reply, **fields}


def _without(name: str) -> Change:
    return lambda reply, _dialect: {key: value for key, value in reply.items() if key != name}


def _p_yes(value: Any) -> Change:
    def change(reply: dict[str, Any], dialect: str) -> dict[str, Any]:
        answer_of(reply)[KINDS[dialect][1]] = value
        return reply

    return change


def _in_answer(**fields: Any) -> Change:
    def change(reply: dict[str, Any], _dialect: str) -> dict[str, Any]:
        answer_of(reply).update(fields)
        return reply

    return change


def _untold(reply: dict[str, Any], dialect: str) -> dict[str, Any]:
    del answer_of(reply)[KINDS[dialect][1]]
    return reply


def _misnamed(reply: dict[str, Any], _dialect: str) -> dict[str, Any]:
    answers = reply["answers"]
    if isinstance(answers, list):
        answers[0]["name"] = "wrong"
        return reply
    return {**reply, "answers": {"wrong": answers["right"]}}


def _two(reply: dict[str, Any], _dialect: str) -> dict[str, Any]:
    answers = reply["answers"]
    return {**reply, "answers": answers * 2 if isinstance(answers, list) else {**answers, "again": answers["right"]}}


def _twice(reply: dict[str, Any], dialect: str) -> bytes:
    """Return an answer that names its P(yes) twice."""
    field = KINDS[dialect][1]
    return json.dumps(reply).replace(f'"{field}": {P_YES}', f'"{field}": 0.1, "{field}": {P_YES}').encode()


def _other_dialect(reply: dict[str, Any], dialect: str) -> dict[str, Any]:
    return good({"model": reply["model"], "state" if dialect == "openai" else "input": ""})


DECISIONS: dict[str, Change] = {
    "ok": lambda reply, _: reply,
    "sure": _p_yes(1),
    "sure_no": _p_yes(0.0),
    "tiny": _p_yes(5e-324),
    "envelope": lambda reply, _: {"success": True, "errors": [], "result": reply},
    "dated_echo": lambda reply, _: {**reply, "model": f"{reply['model']}-2026-09-22"},
    "no_echo": _without("model"),
    "refusal": lambda reply, _: (answer_of(reply).update(type="refusal"), reply)[1],
    "no_answers": _without("answers"),
    "null_answers": _with(answers=None),
    "empty_answers": lambda reply, _: {**reply, "answers": type(reply["answers"])()},
    "text_answers": _with(answers="right"),
    "untold": _untold,
    "misnamed": _misnamed,
    "mistyped": _in_answer(type="score"),
    "untyped": _in_answer(type=None),
    "two_answers": _two,
    "twice": _twice,
    "text": _p_yes("0.9"),
    "true": _p_yes(True),
    "null": _p_yes(None),
    "list": _p_yes([0.9]),
    "nan": _p_yes(float("nan")),
    "infinite": _p_yes(float("inf")),
    "percent": _p_yes(1.7),
    "negative": _p_yes(-0.1),
    "gigantic": _p_yes(10**400),
    "no_success": lambda reply, _: {"success": False, "result": reply},
    "text_success": lambda reply, _: {"success": "true", "result": reply},
    "result_is_text": lambda reply, _: {"success": True, "result": json.dumps(reply)},
    "other_model": _with(model="another-decider"),
    "model_is_list": lambda reply, _: {**reply, "model": [reply["model"]]},
    "other_dialect": _other_dialect,
    "chat": lambda reply, _: good_chat({"model": reply["model"], "messages": [{"content": ""}], "logprobs": True}),
    "cut": lambda reply, _: json.dumps(reply)[:-9].encode(),
    "no_usage": _without("usage"),
    "null_usage": _with(usage=None),
    "zero_usage": _with(usage={"input_tokens": 0, "output_tokens": 0}),
    "half_usage": _with(usage={"input_tokens": TOKENS}),
    "negative_usage": _with(usage={**USAGE, "input_tokens": -1}),
    "text_usage": _with(usage={**USAGE, "input_tokens": "100"}),
    "error_429": lambda _reply, _dialect: {"error": {"message": "Slow down.", "code": 429}},
}


def decided(mode: str, body: Mapping[str, Any]) -> bytes:
    """Return the reply of a mode as bytes."""
    reply = DECISIONS[mode](good(body), str(dialect_of(body)))
    return reply if isinstance(reply, bytes) else json.dumps(reply).encode()
