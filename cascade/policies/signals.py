"""Signals, the numbers that a policy reads from a step: the table of all of them, and their computation from a reply.

The table has each name with its unit and range. Which strategy gives a signal, `GIVES` says, and
of a strategy of one's own its `StrategyConfig.signals`; `design/signals.md` agrees. An unknown signal is None.

In JSON, structure tokens are always sure and hide doubt, so the value tokens stand by themselves (`value_tokens`):
those that spell a string's letters, a number or a literal, and not a key, a brace or a comma.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cascade.policies.base import SHARED_PLACE
from cascade.types import Completion, Step, Token

if TYPE_CHECKING:
    from cascade.chat import ChatRequest


@dataclass(frozen=True, slots=True)
class Signal:
    """One named number of a step.

    Attributes:
        unit: its unit, in words.
        low, high: the least and greatest value that it can have; None = no bound.
        tracked: whether its values at earlier steps are worth a feature of their own: it says how good an answer is.
    """

    unit: str
    low: float | None
    high: float | None
    tracked: bool = False


SIGNALS: Final[Mapping[str, Signal]] = MappingProxyType(
    {
        "p_yes": Signal("probability", 0.0, 1.0, tracked=True),
        "answer_mean_logprob": Signal("nats per token, answer part", None, 0.0, tracked=True),
        "reply_mean_logprob": Signal("nats per token, whole reply", None, 0.0, tracked=True),
        "answer_min_logprob": Signal("nats, least likely token of the answer", None, 0.0),
        "reply_min_logprob": Signal("nats, least likely token of the reply", None, 0.0),
        "verdict_mass": Signal("probability of {Yes, No} together", 0.0, 1.0),
        "guide_agrees": Signal("1 the guide's answer is the base's, else 0", 0.0, 1.0),
        "agrees_with_earlier": Signal("share of earlier answers that are the same", 0.0, 1.0),
        "decided_action": Signal("1 keep the base's answer, 2 the guide's, 3 go on", 1.0, 3.0),
        "says_exit": Signal("1 stop, 0 go on", 0.0, 1.0),
        "reply_tokens": Signal("tokens of the whole reply", 0.0, None),
        "answer_chars": Signal("characters", 0.0, 2_000.0),
        "tool_calls": Signal("tool calls of the message", 0.0, None),
        "arguments": Signal("values in the arguments of the message's calls", 0.0, None),
        "arguments_quoted": Signal("share of these values that the messages of the request spell", 0.0, 1.0),
        "message_faults": Signal("faults of the message", 0.0, None),
        "model_skipped": Signal("1 the model lacks what the request needs", 0.0, 1.0),
        "reasoning_chars": Signal("characters", 0.0, None),
        "self_check": Signal("a model's own P(correct)", 0.0, 1.0, tracked=True),
        "gate": Signal("1 a check was passed, else 0", 0.0, 1.0, tracked=True),
        "judge_share": Signal("share of judges that said yes", 0.0, 1.0, tracked=True),
        "answer_share": Signal("share of samples that gave this answer", 0.0, 1.0, tracked=True),
        "answer_token_entropy": Signal("nats", 0.0, None, tracked=True),
        "answer_softmax_entropy": Signal("nats", 0.0, None, tracked=True),
        "other_run_uncertainty": Signal("unknown", None, None, tracked=True),
    }
)
"""Every signal of the strategies and the importers, the most informative first."""
OF_ANSWERS = frozenset(
    {
        "reply_tokens",
        "reply_mean_logprob",
        "reply_min_logprob",
        "answer_mean_logprob",
        "answer_min_logprob",
        "agrees_with_earlier",
    }
)
"""The signals of any model's answer (`logprob_signals`), and its agreement with the earlier ones."""
OF_MESSAGES = frozenset(
    {"answer_chars", "tool_calls", "arguments", "arguments_quoted", "message_faults", "model_skipped"}
)
"""The further signals of a message that answers a chat request (`strategies.form`)."""
_UNLISTED = Signal("unknown", None, None, tracked=True)
_ROLES = ("base_", "guide_")


def signal(name: str) -> Signal:
    """Return the entry of a signal. A signal that is not in the table, as in imports, has no unit or range.

    In imported steps of two candidates "base_" or "guide_" stands before the name.

    >>> signal("p_yes").high, signal("guide_self_check").unit, signal("certainty").unit
    (1.0, "a model's own P(correct)", 'unknown')
    """
    return SIGNALS.get(role_free(name), _UNLISTED)


def role_free(name: str) -> str:
    """Return the listed name of a signal, without the role before it that imported steps of two candidates have.

    >>> role_free("base_self_check"), role_free("base_rate")
    ('self_check', 'base_rate')
    """
    for role in _ROLES:
        if name not in SIGNALS and name.removeprefix(role) in SIGNALS:
            return name.removeprefix(role)
    return name


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
    """Return the tokens at the end of a reply that spell its answer; none if the reply does not contain it."""
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
    """Return the mean and the least log-prob of tokens, in nats; None for both if any log-prob is unknown."""
    if not tokens:
        return None, None
    known = [token.logprob for token in tokens if token.logprob is not None]
    total = sum(known)
    if len(known) < len(tokens) or not total > -math.inf:
        return None, None  # a mean over a part of the tokens would mislead
    return total / len(known), min(known)


def message_signals(request: ChatRequest, completion: Completion) -> dict[str, float | None]:
    """Return the signals of a message: log-probs of reply and values, characters, calls, arguments."""
    from cascade.chat import calls_of  # of a chat request alone

    numbers = logprob_signals(completion, "")
    tokens = completion.tokens or ()
    calls = calls_of(completion.message or {})
    in_json = bool(completion.message and (calls or request.wants_json))
    values = value_tokens(tokens) if in_json else tokens
    mean, least = mean_and_least(values)
    numbers |= {
        "answer_mean_logprob": mean,
        "answer_min_logprob": least,
        "answer_chars": float(min(len(completion.text), 2_000)),
        "tool_calls": float(len(calls)),
        "message_faults": float(len(completion.faults)),
        **_arguments(request, calls),
    }
    return numbers


def _arguments(request: ChatRequest, calls: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return how many arguments the calls give, and the share of their values that the request's messages spell."""
    from cascade.chat import arguments_of, text_of

    values = list(_leaves([arguments_of(call) for call in calls]))
    if not values:
        return {"arguments": 0.0, "arguments_quoted": None}
    said = " ".join([text_of(message.get("content")) for message in request.messages]).casefold()
    quoted = sum([value in said for value in values])
    return {"arguments": float(len(values)), "arguments_quoted": quoted / len(values)}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the values inside a JSON value as texts; 2.0 becomes "2"."""
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
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
    reader = _Reader()
    return [token for token in tokens if reader.take(token.text)]


class _Reader:
    """Reads JSON a character at a time and marks the characters that belong to values."""

    def __init__(self) -> None:
        self._stack: list[str] = []  # "{" before a key, ":" before a value of an object, "[" inside a list
        self._in_string = self._escaped = False

    def take(self, text: str) -> bool:
        """Read the next characters; return whether one of them belongs to a value."""
        return sum([self._is_value(char) for char in text]) > 0

    def _is_value(self, char: str) -> bool:
        """Read the next character; return whether it belongs to a value."""
        if self._in_string:
            return self._inside(char)
        if char == '"':
            self._in_string = True
        elif char in "{[":
            self._stack.append(char)
        elif char in "}]":
            self._stack = self._stack[:-1]
        elif char == ":" and self._stack[-1:] == ["{"]:
            self._stack[-1] = ":"
        elif char == "," and self._stack[-1:] == [":"]:
            self._stack[-1] = "{"
        else:
            return bool(self._stack) and self._stack[-1] in ":[" and (char.isalnum() or char in "+-.")
        return False

    def _inside(self, char: str) -> bool:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False
            return False
        return bool(self._stack) and self._stack[-1] in ":["


_OF_VERDICTS = frozenset({"p_yes", "verdict_mass"})
"""The signals from the log-probs of a verdict; a step that judges has no others."""


def missing_logprobs(step: Step, reads: Sequence[str]) -> tuple[str, ...]:
    """Return a warning for each model whose reply lacks log-probs that the policy decides by.

    `reads` names the signals that the policy reads.
    """
    judged = bool(step.calls) and all(call.request.purpose == "judge" for call in step.calls)
    missing = [
        name
        for name in reads
        if (name in _OF_VERDICTS if judged else "logprob" in name) and step.signals.get(name) is None
    ]
    if not missing:
        return ()
    silent = dict.fromkeys(call.request.model for call in step.calls if call.lacks_logprobs)
    return tuple(
        f"{model} sent no log-probs at step {step.number}, so the policy decided without {' and '.join(missing)}"
        for model in silent
    )


class Gives(NamedTuple):
    """The candidates and signals of a strategy's steps: `StrategyConfig.candidates` and `StrategyConfig.signals`."""

    candidates: tuple[str, ...]
    signals: frozenset[str]


_ANY_MODEL = OF_ANSWERS | OF_MESSAGES
GIVES: Mapping[str, Gives] = {
    "base_guide": Gives(
        ("base", "guide"),
        _ANY_MODEL | {"p_yes", "verdict_mass", "guide_agrees", "decided_action", "reasoning_chars"},
    ),
    "ladder": Gives((SHARED_PLACE,), _ANY_MODEL),
    "exit": Gives((SHARED_PLACE,), OF_ANSWERS | {"says_exit"}),
    "offers": Gives((SHARED_PLACE,), _ANY_MODEL | {"p_yes", "verdict_mass", "judge_share", "answer_share"}),
    "verified": Gives((SHARED_PLACE,), _ANY_MODEL | {"gate", "p_yes"}),
}
"""The candidates and signals of each built-in strategy, so that a fit does not import strategies."""
