"""Signals, the numbers that a policy reads from a step, and their computation from a reply. An unknown signal is None.

`design/signals.md` lists them all with unit and range; the settings of a strategy say which it gives.

In JSON, the tokens of the structure are always sure and hide doubt, so the value tokens are taken by themselves
(`value_tokens`): those that spell a string's letters, a number or a literal, but not a key, a brace or a comma.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from cascade.types import Completion, Token

if TYPE_CHECKING:
    from cascade.chat import ChatRequest

_LOGPROBS = ("reply_mean_logprob", "reply_min_logprob", "answer_mean_logprob", "answer_min_logprob")
OF_ANSWERS = frozenset({"reply_tokens", *_LOGPROBS, "agrees_with_earlier"})
"""The signals of any model's answer (`logprob_signals`), and its agreement with the earlier ones."""
OF_MESSAGES = frozenset(
    {"answer_chars", "tool_calls", "arguments", "arguments_quoted", "message_faults", "model_skipped"}
)
"""The further signals of a message that answers a chat request (`plans.reply`)."""
OF_TRUST = {
    "log-prob": frozenset(_LOGPROBS),
    "judge": frozenset({"p_yes", "judge_share"}),
    "check": frozenset({"gate"}),
    "self-check": frozenset({"self_check"}),
    "samples": frozenset({"answer_share"}),
}
"""The signals that say how good an answer is, by their source; the others come with every answer."""
_OF_VERDICTS = frozenset({"p_yes", "verdict_mass"})
BY_PURPOSE: Mapping[str, frozenset[str]] = {
    "sample": frozenset({"answer_share"}),
    "judge": _OF_VERDICTS,
    "verify": _OF_VERDICTS,
    "check": frozenset({"gate"}),
    "decide": frozenset({"decided_action"}),
    "exit": frozenset({"says_exit"}),
}
"""The signals that a node adds to those of answers, by its purpose."""
OF_ROUNDS = frozenset({"guide_agrees", "reasoning_chars"})
"""The signals of a verdict with which the guide also answers."""
LIVE = OF_ANSWERS.union(OF_MESSAGES, OF_ROUNDS, {"judge_share", "prompt_tokens"}, *BY_PURPOSE.values())
"""All signals that a strategy of the package gives."""
_LONGEST = 2_000
"""The most characters of an answer that count."""
_JSON = re.compile(
    r""""(?P<text>(?:[^"\\]|\\.)*)"?(?P<key>\s*:)?|(?P<open>[{[])|(?P<close>[]}])|(?P<literal>[\w+.-]+)(?P<name>\s*:)?""",
    re.DOTALL,
)


def not_live(names: Iterable[str]) -> list[str]:
    """Return the signals that no strategy of the package gives; a policy that reads one cannot be served.

    >>> not_live(["score", "p_yes"])
    ['score']
    """
    return sorted({*names} - LIVE)


def about_live(names: Iterable[str]) -> str:
    """Return a sentence about signals that are `not_live`, and about the live ones that say how good an answer is."""
    trust = ", ".join(sorted(frozenset().union(*OF_TRUST.values()) & LIVE))
    return f"no strategy of the package gives {', '.join(names)} live, as it gives {trust}"


def logprob_signals(completion: Completion, answer: str) -> dict[str, float | None]:
    """Return mean and minimum log-prob (nats per token) of the whole reply and of its answer part."""
    tokens = completion.tokens or ()
    numbers = (*mean_and_least(tokens), *mean_and_least(answer_tokens(tokens, answer)))
    length = float(completion.usage.output_tokens or 0) or None
    return {"reply_tokens": length, **dict(zip(_LOGPROBS, numbers, strict=True))}


def answer_tokens(tokens: Sequence[Token], answer: str) -> Sequence[Token]:
    """Return the tokens of a reply that spell its answer where it last occurs; none if the reply does not contain it.

    The last token comes first: existing logs added log-probs in this order, on which the last bit of a sum depends.
    """
    text, within = "".join([token.text for token in tokens]), list[Token]()
    start, end = text.rfind(answer) if answer else len(text), len(text)
    for token in reversed(tokens) if start >= 0 else ():
        if end <= start:
            break
        end -= len(token.text)
        if end < start + len(answer):
            within.append(token)
    return within


def mean_and_least(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return the mean and the least log-prob of tokens, in nats; None for both if any log-prob is unknown."""
    if not tokens:
        return None, None
    logprobs = [token.logprob for token in tokens if token.logprob is not None]
    total = sum(logprobs)
    if len(logprobs) < len(tokens) or not total > -math.inf:
        return None, None  # a mean over a part of the tokens would mislead
    return total / len(logprobs), min(logprobs)


def message_signals(request: ChatRequest, completion: Completion) -> dict[str, float | None]:
    """Return the signals of a message: log-probs of reply and values, characters, calls, arguments."""
    from cascade.chat import calls_of  # only for chat requests

    tokens, calls = completion.tokens or (), calls_of(completion.message or {})
    in_json = bool(completion.message and (calls or request.wants_json))
    mean, least = mean_and_least(value_tokens(tokens) if in_json else tokens)
    return {
        **logprob_signals(completion, ""),
        "answer_mean_logprob": mean,
        "answer_min_logprob": least,
        "answer_chars": float(min(len(completion.text), _LONGEST)),
        "tool_calls": float(len(calls)),
        "message_faults": float(len(completion.faults)),
        **_arguments(request, calls),
    }


def _arguments(request: ChatRequest, calls: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return how many arguments the calls give, and the share of their values that the request's messages spell."""
    from cascade.chat import arguments_of, text_of

    values = list(_leaves([arguments_of(call) for call in calls]))
    if not values:
        return {"arguments": 0.0, "arguments_quoted": None}
    text = " ".join([text_of(message.get("content")) for message in request.messages]).casefold()
    return {"arguments": float(len(values)), "arguments_quoted": sum([value in text for value in values]) / len(values)}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the values inside a JSON value as texts; 2.0 becomes "2"."""
    if isinstance(value, Mapping | list):
        for entry in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(entry)
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    else:
        yield str(value).casefold()


def value_tokens(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens that spell the values of a JSON text, possibly inside other text such as a code fence.

    A token with both structure and characters of a value counts as a value, since the model chose it as a whole.

    >>> written = ('{"', 'city', '": "', 'Wien', '", "n": ', '3', '}')
    >>> [token.text for token in value_tokens([Token(text, -0.1) for text in written])]
    ['Wien', '3']
    """
    text = "".join([token.text for token in tokens])
    depth, of_values = 0, bytearray(len(text))
    for match in _JSON.finditer(text):
        depth = max(depth + (match["open"] is not None) - (match["close"] is not None), 0)
        if depth and match["key"] is None and match["name"] is None:
            start, end = match.span("text" if match["literal"] is None else "literal")
            of_values[start:end] = bytes([1]) * (end - start)
    ends = [*accumulate(len(token.text) for token in tokens)]
    return [token for token, end in zip(tokens, ends, strict=True) if any(of_values[end - len(token.text) : end])]
