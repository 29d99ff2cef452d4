"""The numbers that a chat message shows to a policy, beside those of its log-probs.

Structure tokens of JSON are always sure and hide doubt, so the value tokens stand by themselves: those that spell a
string's letters, a number or a literal, and not a key, a brace or a comma.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cascade.chat import ChatRequest, arguments_of, calls_of, text_of
from cascade.policies.reply_signals import logprob_signals, mean_and_least
from cascade.types import Completion, Token


def message_signals(request: ChatRequest, completion: Completion) -> dict[str, float | None]:
    """Return the signals of a message: log-probs of reply and values, characters, calls, arguments.

    Args:
        request: what it answers.
        completion: the reply, with its message.
    """
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
    values = list(_leaves([arguments_of(call) for call in calls]))
    if not values:
        return {"arguments": 0.0, "arguments_quoted": None}
    said = " ".join([text_of(message.get("content")) for message in request.messages]).casefold()
    quoted = sum([value in said for value in values])
    return {"arguments": float(len(values)), "arguments_quoted": quoted / len(values)}


def _leaves(value: Any) -> Iterator[str]:
    """Yield the values of a JSON value as texts; whole numbers as such."""
    if isinstance(value, Mapping | list):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(item)
    elif isinstance(value, float) and value.is_integer():
        yield str(int(value))
    else:
        yield str(value).casefold()


def value_tokens(tokens: Sequence[Token]) -> list[Token]:
    """Return the tokens that spell the values of a JSON text, possibly inside other text such as a code fence.

    A token that holds a value's characters and structure too counts as a value: the model chose it whole.

    >>> written = ('{"', 'city', '": "', 'Wien', '", "n": ', '3', '}')
    >>> [token.text for token in value_tokens([Token(text, -0.1) for text in written])]
    ['Wien', '3']
    """
    reader = _Reader()
    return [token for token in tokens if reader.take(token.text)]


class _Reader:
    """Reads JSON a character at a time and tells which characters belong to values."""

    def __init__(self) -> None:
        self._stack: list[str] = []  # "{" before a key, ":" before a value of an object, "[" inside a list
        self._in_string = self._escaped = False

    def take(self, text: str) -> bool:
        """Take the next characters; return whether one of them spells a value."""
        return sum([self._is_value(char) for char in text]) > 0

    def _is_value(self, char: str) -> bool:
        """Take the next character; return whether it spells a value."""
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
