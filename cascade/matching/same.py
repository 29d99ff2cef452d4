"""Which comparator a request asks for, and what is equal for answers that are the same under it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from cascade.chat import ChatRequest
from cascade.matching.base import KeyedComparator
from cascade.matching.json_value import JsonMatcher
from cascade.matching.label import LabelMatcher, labels_of
from cascade.matching.text import TextMatcher
from cascade.matching.tool_calls import ToolCallsMatcher
from cascade.text import normalize_answer

_TEXT, _LABEL, _JSON, _TOOL_CALLS = TextMatcher(), LabelMatcher(), JsonMatcher(), ToolCallsMatcher()
_FREE_TEXT = (
    "Outputs are compared word by word. Long free text hardly ever has the same words: choose the comparator "
    "embedding, or judge."
)
_WORDS = (
    "Answers without a tool call count as the same, however they are worded. Where the words matter, choose "
    "tool_calls:words=compared."
)


class Chosen(NamedTuple):
    """The comparator of a request: its name, the object, and what to be warned of, None for nothing."""

    name: str
    comparator: KeyedComparator
    warning: str | None = None


def default_for(request: ChatRequest | None) -> Chosen:
    """Return the comparator that a request asks for: tools `tool_calls`, an enum `label`, a schema `json`, else `text`.

    >>> default_for(ChatRequest([{"role": "user", "content": "Hi"}], {"response_format": {"type": "json_object"}})).name
    'json'
    """
    if request is None:
        return Chosen("text", _TEXT)
    if request.tools:
        return Chosen("tool_calls", _TOOL_CALLS, None if request.wants_json else _WORDS)
    if labels_of(request):
        return Chosen("label", _LABEL)
    if request.wants_json:
        return Chosen("json", _JSON)
    return Chosen("text", _TEXT, _FREE_TEXT)


def answer_key(answer: str, request: ChatRequest | None) -> str:
    """Return what is equal for answers that are the same: live, on a log, in votes and in audits alike.

    Args:
        answer: the answer; of a chat request its message as `chat.output_text` gives it.
        request: the chat request that it answers, None where a question was asked in cascade's own words.

    >>> answer_key("The Danube.", None)
    'danube'
    """
    return normalize_answer(answer) if request is None else _remembered(answer, request)


def agreement(answer: str, earlier: Sequence[str], request: ChatRequest | None = None) -> float | None:
    """Return the share of earlier answers that are the same answer; None if there are none."""
    if not earlier:
        return None
    key = answer_key(answer, request)
    return sum(answer_key(other, request) == key for other in earlier) / len(earlier)


@lru_cache(maxsize=1_024)
def _remembered(answer: str, request: ChatRequest) -> str:
    return default_for(request).comparator.key(answer, request)
