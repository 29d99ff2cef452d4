"""Who wrote the history of a request: the guide, or a cheaper model.

A certificate from observed traffic covers only turns whose history the guide wrote, since it wrote all of them while
observing. So a digest of each history that a cheaper model's served message ends is recorded, and a request that
continues it goes to the guide.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

Messages = Sequence[Mapping[str, Any]]


def conversation_of(messages: Messages, group: str | None, examples: int = 0) -> str:
    """Return the name of a conversation: the client's own, or else a digest of its opening.

    The opening is everything before the first reply. Requests with the same opening count as one conversation, so that
    it is not on both sides of a certificate.

    Args:
        messages: the messages of the request, in OpenAI's form.
        group: the client's name for the conversation.
        examples: how many messages at the head of each request are the application's own, replies among them.
    """
    if group is not None:
        return f"group:{group}"
    reply = [place for place, one in enumerate(messages) if one.get("role") == "assistant" and place >= examples]
    return f"opening:{_digest(messages[: reply[0]] if reply else messages)}"


def histories(messages: Messages, group: str | None, examples: int = 0) -> list[str]:
    """Return the digests to look up among cheaply written ones: each history that ends with a reply, and the group."""
    found = [] if group is None else [f"group:{_digest([{'group': group}])}"]
    return found + [
        f"history:{_digest(messages[: place + 1])}"
        for place, message in enumerate(messages)
        if message.get("role") == "assistant" and place >= examples
    ]


def written(messages: Messages, served: Mapping[str, Any], group: str | None) -> list[str]:
    """Return the digests to record after a cheap model's message was served."""
    found = [] if group is None else [f"group:{_digest([{'group': group}])}"]
    return [*found, f"history:{_digest([*messages, served])}"]


def _digest(messages: Messages) -> str:
    said = [_said(message) for message in messages]
    text = json.dumps(said, ensure_ascii=False, sort_keys=True, default=str)
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def _said(message: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a message that are compared: clients may leave out null fields, and send ids of their own."""
    calls = [
        [call.get("function", {}).get("name"), call.get("function", {}).get("arguments")]
        for call in message.get("tool_calls") or ()
    ]
    return [message.get("role"), message.get("content") or "", calls, message.get("group")]
