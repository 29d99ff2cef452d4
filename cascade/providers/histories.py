"""Histories: what a model accepts of a conversation that others wrote, and the marks that show who wrote what.

A vendor refuses a request whose history has parts that its own models did not write: tool-call ids in another form,
thinking that another vendor signed, reasoning items. So ids are rewritten, in the same way for a call and its result,
and thinking goes back only to its writer; texts, tool calls and results are not changed. Where a result can only be
text, an image in it moves to the next message.

A signature does not show who made it, and nothing is kept between requests. So a message that a server hands out
carries its writer's mark where clients preserve it: before signatures and call ids, or in a field of its own. The mark
is removed before a model is asked. A message without a mark came from elsewhere, and its form decides.

Sources: Mistral's API takes ids of nine letters and digits; Anthropic's takes letters, digits, "_" and "-", and checks
the signatures of thinking blocks; OpenAI's takes ids of up to 40 characters and only text in a tool's result, and
refuses unknown fields; DeepSeek's refuses a turn with tool calls that has no field `reasoning_content`, but takes an
empty one; Gemini's refuses calls without its signature, but takes a fixed text in its place
(ai.google.dev/gemini-api/docs/thought-signatures).
"""

from __future__ import annotations

import json
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any, NamedTuple

from cascade.chat import objects_in
from cascade.text import decoded


class _Vendor(NamedTuple):
    """The names of a vendor's models, the call ids that it accepts, its own thinking, and a field that it requires.

    `signs` are the fields added to the first tool call of a turn without a signature.
    """

    models: re.Pattern[str]
    ids: re.Pattern[str]
    own: frozenset[str]
    insists: str | None = None
    signs: Mapping[str, Any] | None = None


_THINKING = frozenset({"thinking_blocks", "reasoning_content", "reasoning", "reasoning_details", "reasoning_items"})
_PARTS = frozenset({"thinking", "redacted_thinking", "reasoning"})
"""The fields of a message, and the types of parts, that hold a model's thinking."""
_SIGNED = frozenset({"thinking_blocks", "reasoning_details", "reasoning_items"})
"""The fields that only one vendor has: other thinking in the same message is from that vendor, too."""
_VENDORS = {
    "mistral": _Vendor(
        re.compile(r"mistral|mixtral|ministral|codestral|devstral|magistral|pixtral"),
        re.compile(r"[A-Za-z0-9]{9}"),
        frozenset({"thinking"}),
    ),
    "anthropic": _Vendor(
        re.compile(r"claude|anthropic"),
        re.compile(r"[A-Za-z0-9_-]{1,64}"),
        frozenset({"thinking_blocks", "thinking", "redacted_thinking"}),
    ),
    "openai": _Vendor(
        re.compile(r"(?:^|/)(?:gpt-|o[1-9](?:-|$)|chatgpt)"), re.compile(r".{1,40}"), frozenset({"reasoning_items"})
    ),
    "deepseek": _Vendor(
        re.compile(r"deepseek"), re.compile(r".{1,64}"), frozenset({"reasoning_content"}), "reasoning_content"
    ),
    "gemini": _Vendor(
        re.compile(r"gemini"),
        re.compile(r".+"),
        frozenset(),
        signs={"extra_content": {"google": {"thought_signature": "skip_thought_signature_validator"}}},
    ),
}
_CALL_SEALS = frozenset({"extra_content", "provider_specific_fields"})
"""The fields of a tool call that hold its signature: in Gemini's form for OpenAI's clients, and in litellm's."""
_MARK = re.compile(r"by-[0-9a-f]{6}-")
_MARK_CHARS = 10
_WRITTEN_BY, _ASIDE = "written_by", "provider_specific_fields"
_OF_ITS_FORM = "by-000000-"
"""The mark of thinking that a client sent in the form of one vendor's API, and that so belongs to that vendor."""
_SEALS = ("signature", "data", "encrypted_content")
"""The fields of a thinking block that only its writer can make."""


@lru_cache(maxsize=1_024)
def vendor_of(model: str) -> str | None:
    """Return the vendor of a model name; None if unknown.

    >>> vendor_of("openai/gpt-4o-mini"), vendor_of("bedrock/anthropic.claude-3"), vendor_of("my-model")
    ('openai', 'anthropic', None)
    """
    return next((name for name, vendor in _VENDORS.items() if vendor.models.search(model.lower())), None)


@lru_cache(maxsize=1_024)
def mark_of(model: str) -> str:
    """Return the mark of a model's messages, the same for models that can read each other's thinking.

    These are the models of a vendor at one host; a model of an unknown vendor reads only its own.

    >>> mark_of("gpt-5") == mark_of("openai/gpt-5-mini"), mark_of("gpt-5") == mark_of("azure/gpt-5")
    (True, False)
    """
    host, slash, _ = model.partition("/")
    vendor = vendor_of(model)
    writer = model if vendor is None else f"{vendor} at {host if slash else vendor}"
    return f"by-{sha256(writer.encode()).hexdigest()[:6]}-"


def thinking_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a message that hold a model's thinking."""
    return {name: message[name] for name in sorted(_THINKING) if message.get(name)}


def with_mark(message: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return a message that a model wrote, with the model's mark if it holds thinking.

    >>> with_mark({"content": "A"}, "m"), with_mark({"reasoning": "B"}, "m")["written_by"] == mark_of("m")
    ({'content': 'A'}, True)
    """
    thinking, mark = thinking_of(message), mark_of(model)
    if not thinking:
        return message
    copy = {**message, **{name: _resealed(value, lambda seal: mark + seal) for name, value in thinking.items()}}
    if isinstance(copy.get(_ASIDE), Mapping):  # litellm repeats thinking there
        copy[_ASIDE] = {name: value for name, value in copy[_ASIDE].items() if name not in _THINKING}
    calls = copy.get("tool_calls")
    if isinstance(calls, list) and calls:
        return {**copy, "tool_calls": [_with_id(call, "id", lambda id_text: mark + id_text) for call in calls]}
    return {**copy, _WRITTEN_BY: mark}


def packed(message: Mapping[str, Any], model: str) -> str | None:
    """Return a message's thinking as one text, for a format with room for only a signature; None if there is none."""
    thinking = thinking_of(message)
    text = json.dumps(thinking, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return mark_of(model) + urlsafe_b64encode(text).decode() if thinking else None


def unpacked(text: object) -> dict[str, Any] | None:
    """Return the message fields of packed thinking: {} if the text was changed, None for a foreign signature.

    >>> unpacked(packed({"reasoning": "Hm"}, "m")) == {"reasoning": "Hm", "written_by": mark_of("m")}, unpacked("EqQB")
    (True, None)
    """
    inside = packed_json(text)
    if inside is None:
        return None
    fields = decoded(inside)
    thinking = thinking_of(fields) if isinstance(fields, Mapping) else {}
    return {**thinking, _WRITTEN_BY: str(text)[:_MARK_CHARS]} if thinking else {}


def packed_json(text: object) -> bytes | None:
    """Return the content of a text with a mark, which is JSON if cascade wrote it; None for any other text."""
    if not isinstance(text, str) or _MARK.match(text) is None:
        return None
    try:
        return urlsafe_b64decode(text[_MARK_CHARS:].encode())
    except ValueError:
        return b""


def taken_back(turn: Mapping[str, Any], block: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a turn with a thinking block that a client sent back: unpacked, or else added to the field `name`."""
    fields = unpacked(next((block[seal] for seal in _SEALS if block.get(seal)), None))
    own = {name: [*turn.get(name, []), dict(block)], _WRITTEN_BY: _OF_ITS_FORM}
    return {**turn, **(own if fields is None else fields)}


def accepted(messages: Sequence[Mapping[str, Any]], model: str) -> list[Mapping[str, Any]]:
    """Return the messages of a conversation in a form that a model accepts; acceptable messages are unchanged.

    Thinking goes only to its writer, as it was written. Without a mark, thinking in the vendor's own form is kept.

    >>> said = {"role": "assistant", "content": "Hi", "thinking_blocks": [{"type": "thinking", "signature": "x"}]}
    >>> accepted([said], "gpt-4o"), accepted([said], "claude-sonnet-4-5") == [said]
    ([{'role': 'assistant', 'content': 'Hi'}], True)
    """
    vendor, mark = _VENDORS.get(vendor_of(model) or ""), mark_of(model)
    copies = [copy for message in messages if (copy := _accepted(message, vendor, mark)) is not None]
    return [*_images_after(copies)] if vendor is _VENDORS["openai"] else copies


_BUDGET = re.compile(r"claude-3|(?:opus|sonnet|haiku)-4(?:-[015])?(?:[-@]20\d{6}|$)")
"""Anthropic's models that think up to a budget, and must begin each turn with tool calls by thinking."""


def cannot_think(messages: Sequence[Mapping[str, Any]], model: str) -> bool:
    """Return whether a model would refuse to think, since another model, or no thinking, began the current turn.

    >>> calls = {"role": "assistant", "tool_calls": [{"id": "c"}]}
    >>> cannot_think([calls], "claude-sonnet-4-5"), cannot_think([calls], "claude-opus-5")
    (True, False)
    """
    turns = [message for message in messages if message.get("role") in ("user", "assistant")]
    last: Mapping[str, Any] = turns[-1] if turns else {}
    if not last.get("tool_calls") or not _BUDGET.search(model):
        return False
    return not any(turn.get("thinking_blocks") for turn in accepted([last], model))


def without_thinking(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return messages without the fields of thinking."""
    left_out = {*_THINKING, _WRITTEN_BY, _ASIDE}
    return [{name: value for name, value in message.items() if name not in left_out} for message in messages]


_BLANKS = re.compile(r"(?:\\[nrt]| )+")
"""White space in ASCII JSON: spaces, and the escapes of line breaks and tabs."""


def conversation_of(messages: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a digest of a conversation up to its first thinking, which its later turns share; None without thinking.

    Some clients change white space in what they send back, so the digest ignores it. A different conversation
    that begins with the same words has other thinking, and so another digest, or none.
    """
    end = next((at for at, message in enumerate(messages, 1) if _thinks(message)), None)
    if end is None:
        return None
    return sha256(_BLANKS.sub(" ", json.dumps(messages[:end], sort_keys=True)).encode()).hexdigest()


def _thinks(message: Mapping[str, Any]) -> bool:
    return bool(thinking_of(message) or _PARTS & {str(part.get("type")) for part in objects_in(message.get("content"))})


def _images_after(messages: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield messages, with images and files of tool results moved to a user message after them."""
    images: list[Any] = []
    for message in messages:
        content, result = message.get("content"), message.get("role") == "tool"
        if images and not result:
            yield {"role": "user", "content": images}
            images = []
        if result and isinstance(content, list | tuple) and not all(map(_is_text, content)):
            images += [{"type": "text", "text": f"Of the result of {message.get('tool_call_id')}:"}]
            images += [part for part in content if not _is_text(part)]
            texts = [part for part in content if _is_text(part)]
            message = {**message, "content": texts or "It is in the next message of the user."}  # noqa: PLW2901
        yield message
    if images:
        yield {"role": "user", "content": images}


def _is_text(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "text"


def _accepted(message: Mapping[str, Any], vendor: _Vendor | None, mark: str) -> Mapping[str, Any] | None:
    role = message.get("role")
    if role != "assistant":
        return _with_id(message, "tool_call_id", _form(vendor)) if role == "tool" else message
    by = next((match.group() for text in _places(message) if (match := _MARK.match(text))), None)
    if by is None and vendor is None:
        return message
    may_be_own = by == mark or (by in (None, _OF_ITS_FORM) and vendor is not None)
    fields, parts = _sent(message, vendor, own=by == mark) if may_be_own else (frozenset[str](), frozenset[str]())
    left_out = {*(_THINKING - fields), _WRITTEN_BY, *(() if may_be_own else (_ASIDE,))}
    copy = {field: value for field, value in message.items() if field not in left_out}
    copy |= {name: _resealed(copy[name], _bare) for name in fields & copy.keys() if by is not None}
    content = copy.get("content")
    if isinstance(content, list | tuple):
        foreign = _PARTS - parts
        texts = [part for part in content if not (isinstance(part, Mapping) and str(part.get("type")) in foreign)]
        copy["content"] = texts or None
    calls = copy.get("tool_calls")
    if isinstance(calls, list | tuple):
        copy["tool_calls"] = [_with_id(call, "id", _form(vendor)) for call in _sealed(calls, vendor, own=may_be_own)]
    if vendor is not None and vendor.insists is not None and calls and not copy.get(vendor.insists):
        copy[vendor.insists] = ""
    if copy == message:
        return message
    says = any(value for field, value in copy.items() if field != "role")
    return copy if says or "content" not in message or message["content"] == "" else None


def _sealed(calls: Sequence[Any], vendor: _Vendor | None, *, own: bool) -> Sequence[Any]:
    """Return tool calls with the signatures that the vendor requires, and without those of other vendors."""
    signs = None if vendor is None else vendor.signs
    if not own or (vendor is not None and signs is None):
        calls = [
            {name: value for name, value in call.items() if name not in _CALL_SEALS}
            if isinstance(call, Mapping)
            else call
            for call in calls
        ]
    if signs is None or not calls or any(_CALL_SEALS & call.keys() for call in objects_in(calls)):
        return calls
    return [{**calls[0], **signs} if isinstance(calls[0], Mapping) else calls[0], *calls[1:]]


def _sent(message: Mapping[str, Any], vendor: _Vendor | None, *, own: bool) -> tuple[frozenset[str], frozenset[str]]:
    """Return the thinking that a model is sent, as fields and types of parts: its own, or in its vendor's form."""
    if own or vendor is None:
        return _THINKING, _PARTS
    foreign = any(message.get(name) for name in _SIGNED - vendor.own)
    return frozenset() if foreign else _THINKING & vendor.own, _PARTS & vendor.own


def _places(message: Mapping[str, Any]) -> Iterator[str]:
    """Yield the texts of a message that may begin with a mark."""
    blocks = [block for name in _THINKING & message.keys() for block in objects_in(message[name])]
    texts = [message.get(_WRITTEN_BY), *(block.get(name) for block in blocks for name in _SEALS)]
    texts += [call.get("id") for call in objects_in(message.get("tool_calls"))]
    return (text for text in texts if isinstance(text, str))


def _resealed(value: Any, change: Any) -> Any:
    """Return thinking blocks with changed seals, and any other value as it is."""
    if not isinstance(value, list | tuple):
        return value
    return [
        {**block, **{name: change(block[name]) for name in _SEALS if isinstance(block.get(name), str) and block[name]}}
        if isinstance(block, Mapping)
        else block
        for block in value
    ]


def _bare(text: str) -> str:
    """Return a text without a mark."""
    return _MARK.sub("", text, count=1) if _MARK.match(text) else text


def _form(vendor: _Vendor | None) -> Any:
    """Return a function that writes ids for a vendor: without marks, and replaced if the vendor would refuse them."""

    def formed(id_text: str) -> str:
        bare = _bare(id_text)
        if vendor is None or vendor.ids.fullmatch(bare):
            return bare
        return sha256(bare.encode("utf-8", "replace")).hexdigest()[:9]  # every vendor accepts it; equal ids stay equal

    return formed


def _with_id(holder: Any, name: str, change: Any) -> Any:
    """Return a call, or its result, with another id."""
    id_text = holder.get(name) if isinstance(holder, Mapping) else None
    if not isinstance(id_text, str) or change(id_text) == id_text:
        return holder
    return {**holder, name: change(id_text)}
