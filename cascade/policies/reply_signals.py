"""The numbers that a step shows to a policy. Every name is in `policies.signals` and `design/signals.md`.

Unknown is None.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cascade.types import Completion, Token


def logprob_signals(completion: Completion, answer: str) -> dict[str, float | None]:
    """Return mean and minimum log-prob (nats per token) of the whole reply and of its answer part."""
    tokens = completion.tokens or ()
    mean, least = mean_and_least(tokens)
    answer_mean, answer_least = mean_and_least(answer_tokens(tokens, answer))
    return {
        "reply_tokens": float(completion.usage.output_tokens or 0) or None,
        "reply_mean_logprob": mean,
        "reply_min_logprob": least,
        "answer_mean_logprob": answer_mean,
        "answer_min_logprob": answer_least,
    }


def answer_tokens(tokens: Sequence[Token], answer: str) -> Sequence[Token]:
    """Return the tokens at the end of a reply that spell its answer; none if they cannot be told."""
    if not tokens or not answer:
        return ()
    spelled = "".join([token.text for token in tokens])
    start = spelled.rfind(answer)
    if start < 0:
        return ()
    end = len(spelled)
    past = start + len(answer)
    part: list[Token] = []
    for token in reversed(tokens):
        begin = end - len(token.text)
        if begin < past and end > start:
            part.append(token)
        if begin <= start:
            break
        end = begin
    return part


def mean_and_least(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return the mean and the least log-prob of tokens, in nats; None for both where one of them is unknown."""
    if not tokens:
        return None, None
    values = [token.logprob for token in tokens]
    known = [value for value in values if value is not None and value > -math.inf]
    if len(known) < len(values):
        return None, None  # a part of the picture is not the picture
    return sum(known) / len(known), min(known)
