"""The comparator of a request, the normal form of an answer, and keys that are equal for answers that are the same."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cascade.chat import ChatRequest
from cascade.errors import UsageError
from cascade.text import encode_sorted

if TYPE_CHECKING:
    from cascade.matching.base import KeyedComparator

_FREE_TEXT = (
    "Outputs are compared word by word. Long free text hardly ever has the same words: choose the comparator "
    "judge or function."
)
_WORDS = (
    "Answers without a tool call count as the same, however they are worded. Where the words matter, choose "
    "tool_calls:words=compared."
)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
# All punctuation but the decimal point and the sign of a number: 3.5 is not 35, and -5 is not 5.
_PUNCTUATION = re.compile(r"(?!(?<=\d)\.(?=\d)|(?<![\w.])[-−](?=\d))[^\w\s]|_")
_REMEMBERED_CHARS = 2_000
"""Results for longer answers are not cached, to limit the memory."""


class DefaultComparator(NamedTuple):
    """The comparator of a request: its name, the object, and a warning or None."""

    name: str
    comparator: KeyedComparator
    warning: str | None = None


def default_for(request: ChatRequest | None) -> DefaultComparator:
    """Return the comparator of a request: with tools `tool_calls`, an enum `label`, a schema `json`, else `text`.

    >>> default_for(ChatRequest([{"role": "user", "content": "Hi"}], {"response_format": {"type": "json_object"}})).name
    'json'
    """
    if request is None:
        return _default("text")
    if request.tools:
        return _default("tool_calls", None if request.wants_json else _WORDS)
    if request.labels:
        return _default("label")
    return _default("json") if request.wants_json else _default("text", _FREE_TEXT)


@cache
def _default(name: str, warning: str | None = None) -> DefaultComparator:
    from cascade.matching.registry import get_comparator  # most programs compare texts in one way

    comparator: Any = get_comparator(name)
    return DefaultComparator(name, comparator, warning)


class RequestMatcher:
    """Compares each output by its own request's comparator (`default_for`), for logs with several kinds of requests.

    >>> RequestMatcher().same("The Danube.", "danube")
    True
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Raise UsageError: without the request there is no rule to compare an answer with an accepted one."""
        del answer, gold
        raise UsageError(
            f"{REQUEST} compares two outputs of one request; for accepted answers choose the matcher by their form: "
            "tool_calls, json, label or another."
        )

    def same(self, output: str, other: str, request: ChatRequest | None = None) -> bool | None:
        """Return whether two outputs are the same answer to the request."""
        return default_for(request).comparator.same(output, other, request)

    def key(self, output: str, request: ChatRequest | None = None) -> str:
        """Return a key that is equal for outputs that are the same."""
        return default_for(request).comparator.key(output, request)


REQUEST = "request"
"""The name of the comparator that each request chooses."""


def default_of(requests: Iterable[ChatRequest | None]) -> tuple[str, tuple[str, ...]]:
    """Return the comparator for requests, and warnings: the one that all choose, else `REQUEST`.

    >>> tools = {"tools": [{"type": "function", "function": {"name": "f"}}]}
    >>> default_of([None, ChatRequest([{"role": "user", "content": "Hi"}], tools)])[0]
    'request'
    """
    forms = {(form.name, form.warning) for form in map(default_for, requests)} or {(default_for(None).name, None)}
    names = {name for name, _ in forms}
    return names.pop() if len(names) == 1 else REQUEST, tuple(sorted(text for _, text in forms if text is not None))


def normalize_answer(text: str) -> str:
    """Return an answer in normal form: NFKC, casefolded, without punctuation, articles and extra space.

    The rule is SQuAD's (Rajpurkar et al. 2016), with Unicode punctuation and width variants included, but for the
    decimal point and the sign of a number, which stay; an answer that is nothing but punctuation stays as it is. An
    answer that is a JSON object or list, such as tool calls, is compared by its value: blanks and the order of keys do
    not matter, and 5.0 is 5.

    >>> normalize_answer("The  Danube."), normalize_answer("1,851"), normalize_answer("?!")
    ('danube', '1851', '?!')
    >>> normalize_answer('{"b": 5.0, "a": "x"}')
    '{"a":"x","b":5}'
    """
    return remembered(text) if len(text) <= _REMEMBERED_CHARS else _normalized(text)


def _normalized(text: str) -> str:
    if text.lstrip()[:1] in {"{", "["}:
        with suppress(ValueError, RecursionError):  # else it is no JSON, and a text like any other
            return encode_sorted(_whole_numbers(json.loads(text)))
    folded = text.casefold() if text.isascii() else unicodedata.normalize("NFKC", text).casefold()
    bare = " ".join(_ARTICLES.sub(" ", _PUNCTUATION.sub("", folded)).split())
    return bare or text.strip()


def _whole_numbers(value: object) -> object:
    """Return a JSON value with whole floats as integers: 5.0 becomes 5."""
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


remembered = lru_cache(maxsize=1_024)(_normalized)
"""`normalize_answer` of a short text; a walk compares the same few answers over and over."""


def answer_key(answer: str, request: ChatRequest | None) -> str:
    """Return a key that is equal for answers that are the same, for live use, logs, votes and audits alike.

    Args:
        answer: the answer; for a chat request its message in the form of `chat.output_text`.
        request: the chat request that it answers; None for a question in cascade's own prompt.

    >>> answer_key("The Danube.", None)
    'danube'
    """
    return normalize_answer(answer) if request is None else _request_key(answer, request)


def agreement(answer: str, earlier: Sequence[str], request: ChatRequest | None = None) -> float | None:
    """Return the share of earlier answers that are the same answer; None if there are none."""
    if not earlier:
        return None
    key = answer_key(answer, request)
    return sum(answer_key(other, request) == key for other in earlier) / len(earlier)


@lru_cache(maxsize=1_024)
def _request_key(answer: str, request: ChatRequest) -> str:
    return default_for(request).comparator.key(answer, request)
