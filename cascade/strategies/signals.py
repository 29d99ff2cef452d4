"""The numbers that a step shows to a policy. Every name is in `SIGNALS` and `design/signals.md`; unknown is None."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from cascade.policies import signals as listed
from cascade.text import normalize_answer
from cascade.types import Completion, Token

SIGNALS = listed.SIGNALS
"""What each signal is, and which strategy gives it. The table stands with the policies, which read signals."""
_ANSWER_LINE = re.compile(r"^[^\w\n]*(?:final\s+)?answer[^\w\n]*:[ \t*]*(.*)$", re.IGNORECASE | re.MULTILINE)
_REASONING_HEAD = re.compile(r"^\W*reasoning\W*:\s*", re.IGNORECASE)
_OPENERS = re.compile(
    r"^\W*(?:thought process|reasoning|answer|solution|let'?s (?:think|solve).*|step by step|n/?a|none|unknown)?\W*$",
    re.IGNORECASE,
)
_ALNUM = re.compile(r"[^\W_]")
MAX_ANSWER_CHARS = 2_000


def split_reply(text: str) -> tuple[str, str]:
    r"""Return (reasoning, answer) of a reply in the two-line form; a reply in another form is all answer.

    >>> split_reply("Reasoning: It flows there.\nAnswer: The Danube.")
    ('It flows there.', 'The Danube')
    """
    found = None
    for found in _ANSWER_LINE.finditer(text):  # noqa: B007 - the last one counts: a model may correct itself
        pass
    if found is None:
        lines = text.strip().splitlines()
        body = _REASONING_HEAD.sub("", "\n".join(lines[:-1]))
        return body.strip(), tidy(_REASONING_HEAD.sub("", lines[-1] if lines else ""))
    answer = found[1].strip() or text[found.end() :].strip().split("\n")[0]
    return _REASONING_HEAD.sub("", text[: found.start()]).strip(), tidy(answer)


def tidy(answer: str) -> str:
    """Return an answer without marks around it and the full stop behind it."""
    return answer.strip(' \t\r\n*`"“”').removesuffix(".").strip(' \t*`"“”')[:MAX_ANSWER_CHARS]


def is_answer(text: str) -> bool:
    """Whether a text can be an answer at all: one token such as ":" or "Thought process:" fools judges (F41).

    >>> is_answer("Danube"), is_answer(":"), is_answer("Thought process:")
    (True, False, False)
    """
    return _ALNUM.search(text) is not None and _OPENERS.match(text[:200]) is None


def logprob_signals(completion: Completion, answer: str) -> dict[str, float | None]:
    """Return mean and minimum log-prob (nats per token) of the whole reply and of its answer part."""
    tokens = completion.tokens or ()
    mean, least = _mean_min(tokens)
    answer_mean, answer_least = _mean_min(answer_tokens(tokens, answer))
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


def _mean_min(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    if not tokens:
        return None, None
    values = [token.logprob for token in tokens]
    known = [value for value in values if value is not None and value > -math.inf]
    if len(known) < len(values):
        return None, None  # a part of the picture is not the picture
    return sum(known) / len(known), min(known)


def agreement(answer: str, earlier: Sequence[str]) -> float | None:
    """Return the share of earlier answers that are the same answer; None if there are none."""
    if not earlier:
        return None
    key = normalize_answer(answer)
    return sum(normalize_answer(other) == key for other in earlier) / len(earlier)
