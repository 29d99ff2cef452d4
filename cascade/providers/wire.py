"""The body of a chat completion request, with histories of other vendors' models in a form that a model accepts.

A vendor refuses a request whose history has parts that its own models did not write: ids of tool calls in another form,
thinking that is signed by another vendor, reasoning items. So ids are rewritten, the same for a call and its result,
and another vendor's thinking is left out; texts, tool calls and results are not changed. Messages for a model of an
unknown vendor are not changed.

Sources: Mistral's API takes ids of nine letters and digits; Anthropic's takes letters, digits, "_" and "-", and checks
the signatures of thinking blocks; OpenAI's takes ids of up to 40 characters and refuses unknown fields.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple

from cascade.errors import RefusedFieldError
from cascade.providers.base import added
from cascade.providers.fields import is_closed
from cascade.types import Request


def wire_body(request: Request, model: str) -> dict[str, Any]:
    """Return the JSON body of a chat completion request for OpenAI-compatible servers.

    An application's own request is sent unchanged, except for fields that the model is not sent (`fields`), for parts
    of its history that the model's vendor would refuse (`accepted`), and for fields that cascade needs and the request
    does not set (`added`).

    Raises:
        RefusedFieldError: the request has a field that may not be sent to any model.
    """
    chat = request.chat
    if chat is not None:
        if closed := [name for name in chat.options if is_closed(name)]:  # `Fields` refuses them before a call is made
            raise RefusedFieldError(f"Not passed on: {', '.join(closed)}. Leave them out.", fields=tuple(closed))
        return {"model": model, **chat.options, "messages": accepted(chat.messages, request.model), **added(request)}
    messages = [{"role": message.role, "content": sendable(message.content)} for message in request.messages]
    return {"model": model, "messages": messages, **added(request)}


def sendable(text: str) -> str:
    """Return a text that can be sent as UTF-8: pairs of surrogates become their character, halves question marks."""
    if text.isascii():
        return text
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
    return whole.encode("utf-8", "replace").decode("utf-8")


class _Vendor(NamedTuple):
    """The names of a vendor's models, the ids of tool calls that it accepts, and its own fields of thinking."""

    models: re.Pattern[str]
    ids: re.Pattern[str]
    own: frozenset[str]


_THINKING = frozenset({"thinking_blocks", "reasoning_content", "reasoning", "reasoning_details", "reasoning_items"})
_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""Fields of a message, and types of parts, with a model's thinking."""
_VENDORS = {
    "mistral": _Vendor(
        re.compile(r"mistral|mixtral|ministral|codestral|devstral|magistral|pixtral"),
        re.compile(r"[A-Za-z0-9]{9}"),
        frozenset({"thinking"}),
    ),
    "anthropic": _Vendor(
        re.compile(r"claude|anthropic"),
        re.compile(r"[A-Za-z0-9_-]{1,64}"),
        frozenset({"thinking_blocks", "reasoning_content", "thinking", "redacted_thinking"}),
    ),
    "openai": _Vendor(
        re.compile(r"(?:^|/)(?:gpt-|o[1-9](?:-|$)|chatgpt)"), re.compile(r".{1,40}"), frozenset({"reasoning_items"})
    ),
    "deepseek": _Vendor(re.compile(r"deepseek"), re.compile(r".{1,64}"), frozenset({"reasoning_content"})),
}


def vendor_of(model: str) -> str | None:
    """Return the vendor of a model name; None if unknown.

    >>> vendor_of("openai/gpt-4o-mini"), vendor_of("bedrock/anthropic.claude-3"), vendor_of("my-model")
    ('openai', 'anthropic', None)
    """
    return next((name for name, vendor in _VENDORS.items() if vendor.models.search(model.lower())), None)


def accepted(messages: Sequence[Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    """Return the messages of a conversation in a form that a model accepts; acceptable messages are unchanged.

    A signature does not show who signed it: thinking in the vendor's own form is kept.

    >>> said = {"role": "assistant", "content": "Hi", "thinking_blocks": [{"type": "thinking", "signature": "x"}]}
    >>> accepted([said], "gpt-4o"), accepted([said], "claude-sonnet-4-5") == [said]
    ([{'role': 'assistant', 'content': 'Hi'}], True)
    """
    name = vendor_of(model)
    return list(messages) if name is None else [_accepted(one, _VENDORS[name]) for one in messages]


def _accepted(message: Mapping[str, Any], vendor: _Vendor) -> Mapping[str, Any]:
    role = message.get("role")
    if role != "assistant":
        return _with_id(message, "tool_call_id", vendor) if role == "tool" else message
    foreign = _THINKING - vendor.own
    made = {field: value for field, value in message.items() if field not in foreign}
    content = made.get("content")
    if isinstance(content, list | tuple):
        thinking = _PARTS - vendor.own
        parts = [part for part in content if not (isinstance(part, Mapping) and str(part.get("type")) in thinking)]
        made["content"] = parts or None
    calls = made.get("tool_calls")
    if isinstance(calls, list | tuple):
        made["tool_calls"] = [_with_id(call, "id", vendor) for call in calls]
    return message if made == message else made


def _with_id(holder: Any, name: str, vendor: _Vendor) -> Any:
    """Return a call, or its result, with an id of the vendor's form."""
    given = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(given, str) or vendor.ids.fullmatch(given):
        return holder
    return {**holder, name: _new(given)}


def _new(given: str) -> str:
    """Return an id that every vendor accepts, the same for the same id."""
    return sha256(given.encode("utf-8", "replace")).hexdigest()[:9]
