"""Decision models: the request for one probability, and the strict reader of the reply.

A decision model is sent data and a statement about it, and returns P(yes) for the price of the input. Vendors use two
dialects; an address does not show which, so the dialect is a setting. In each, the reader accepts one form of reply:
exactly one answer, with our name and type, a number in [0, 1], from the model that was asked. Any other reply is not a
verdict. A valid reply becomes a chat completion of one token with its log-probs, which `reading` checks like any other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from cascade.errors import BadRequestError, BadResponseError, RefusedError
from cascade.files import without_repeats
from cascade.providers.base import Payload
from cascade.providers.fields import sendable
from cascade.providers.reading import DECISION, fields_of, read_usage
from cascade.text import encode_sorted, same_model
from cascade.types import Message, Question, Request

NAME = "right"
"""The name of the question."""


class _Form(NamedTuple):
    """The last part of an address, the type of a yes-or-no question, and the field of P(yes) in an answer."""

    path: str
    type: str
    field: str


DIALECTS: Mapping[str, _Form] = {
    "openai": _Form("decisions", "predicate", "probability"),
    "systemone": _Form("systemone", "noul", "noul"),
}


def url(base: str, dialect: str) -> str:
    """Return the URL of a call: the address itself if it ends in a dialect's path, else that path below it.

    >>> url("https://api.openai.com/v1", "openai"), url("https://openrouter.ai/api/alpha/decisions", "systemone")
    ('https://api.openai.com/v1/decisions', 'https://openrouter.ai/api/alpha/decisions')
    """
    last = base.rstrip("/").rsplit("/", 1)[-1]
    named = last in {dialect.path for dialect in DIALECTS.values()}
    return base.rstrip("/") if named else f"{base.rstrip('/')}/{DIALECTS[dialect].path}"


def body(request: Request, dialect: str, model: str) -> dict[str, Any]:
    """Return the JSON body: the last message is the data, those before it are the statement about it.

    Raises:
        BadRequestError: the request is an application's own, which has no statement.
    """
    if not request.messages:
        raise BadRequestError(f"{request.model} is a decision model: it answers no requests.", model=request.model)
    *before, data = [sendable(message.content) for message in request.messages]
    question = {"type": DIALECTS[dialect].type, "instructions": "\n\n".join(before)}
    if dialect == "openai":
        return {"model": model, "input": data, "questions": [{"name": NAME, **question}]}
    return {"model": model, "state": data, "questions": {NAME: question}}


def described(dialect: str, examples: Sequence[tuple[Message, ...]]) -> dict[str, Any]:
    """Return what a certificate says about a judge: dialect, questions, and a hash of the bodies of some examples."""
    bodies = [body(Request("", messages, "", "judge", 1, Question("?"), 1), dialect, "") for messages in examples]
    rendered = encode_sorted(bodies).encode("utf-8", "replace")
    return {
        "dialect": dialect,
        "questions": bodies[0]["questions"],
        "rendering_sha256": sha256(rendered).hexdigest(),
    }


def parsed(text: bytes) -> Any:
    """Return the JSON value of a reply. Raises ValueError if there is none, or if an object has a name twice."""
    return json.loads(text, object_pairs_hook=without_repeats)


def completion(reply: Payload, request: Request, dialect: str) -> Payload:
    """Return a reply as a chat completion.

    Raises:
        RefusedError: the model declined to answer.
        BadResponseError: the reply is not a verdict. Both errors have the `usage` that the reply reports.
    """
    if reply.get("error"):
        return reply  # `reading` raises the error for the status in it
    inner = reply.get("result")
    whole = reply if inner is None else {**reply, "answers": None, **fields_of(inner)}
    usage = _named_as_in_chats(whole.get("usage"))
    about = {"model": request.model, "usage": read_usage(usage, request, "", [])}
    try:
        check_success(reply)
        check_model(whole, request)
        answer = only_answer(whole.get("answers"), dialect)
        refuses = answer.get("type") == "refusal"
        p_yes = 0.0 if refuses else probability(typed(answer, dialect).get(DIALECTS[dialect].field))
    except ValueError as error:
        raise BadResponseError(f"{request.model} sent no verdict: {error}.", status=200, **about) from None
    if refuses:
        raise RefusedError(f"{request.model} declined to judge.", **about)
    names = {name: whole[name] for name in ("id", "model") if name in whole}
    return {**names, "object": DECISION, "choices": [_chosen(p_yes)], "usage": usage}


def _chosen(p_yes: float) -> dict[str, Any]:
    """Return a choice with the token Yes or No and the log-probs of both; a word of probability 0 is left out."""
    known = {"Yes": p_yes, "No": 1.0 - p_yes}
    tops = {word: {"token": word, "logprob": math.log(share)} for word, share in known.items() if share > 0.0}
    word = max(known, key=known.__getitem__)
    logprobs = {"content": [{**tops[word], "top_logprobs": [*tops.values()]}]}
    message = {"role": "assistant", "content": word}
    return {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}


# --- each check raises ValueError for one kind of fault


def check_success(reply: Payload) -> None:
    """Refuse an envelope that reports something other than success."""
    if reply.get("success", True) is not True:
        raise ValueError("it does not report success")


def check_model(whole: Payload, request: Request) -> None:
    """Refuse a reply from another model, whose P(yes) has another scale."""
    echo = whole.get("model")
    if echo is not None and not (isinstance(echo, str) and same_model(request.wire_model, echo)):
        raise ValueError(f"{str(echo)[:100]!r} answered instead of {request.wire_model}")


def only_answer(answers: object, dialect: str) -> Mapping[str, Any]:
    """Return the only answer, which must have the question's name."""
    if dialect == "openai":
        named = (
            [(fields_of(answer).get("name"), answer) for answer in answers] if isinstance(answers, list | tuple) else []
        )
    else:
        named = list(fields_of(answers).items())
    if len(named) != 1:
        raise ValueError(f"it has {len(named)} answers to one question")
    if named[0][0] != NAME:
        raise ValueError("its answer has another name than the question")
    return fields_of(named[0][1])


def typed(answer: Mapping[str, Any], dialect: str) -> Mapping[str, Any]:
    """Return an answer, which must have the question's type."""
    if answer.get("type") != DIALECTS[dialect].type:
        raise ValueError("its answer has another type than the question")
    return answer


def probability(value: object) -> float:
    """Return a number in [0, 1]; NaN and booleans are refused."""
    if type(value) not in {int, float} or not 0 <= value <= 1:  # type: ignore[operator]
        raise ValueError("its P(yes) is not a number from 0 to 1")
    return float(value)  # type: ignore[arg-type]


def _named_as_in_chats(usage: object) -> object:
    """Return a usage with the names of chat completions added; a count that is missing gets no second name."""
    if not isinstance(usage, Mapping):
        return usage
    names = {"input_tokens": "prompt_tokens", "output_tokens": "completion_tokens"}
    names |= {f"{name}_details": f"{other}_details" for name, other in names.items()}
    return {**{other: usage[name] for name, other in names.items() if name in usage}, **usage}
