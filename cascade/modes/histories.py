"""Tracks which model wrote the history of a conversation: the guide, or a cheaper model.

A certificate from observed traffic covers only turns whose history the guide wrote, since it wrote all of them while
observing. So a digest of each history that a cheaper model's served message ends is recorded, and a request that
continues it goes to the guide.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from cascade.chat import calls_of, function_of, part_texts, text_of

Messages = Sequence[Mapping[str, Any]]
NAMED = "group:"
"""The start of the name of a conversation that the client named."""


def conversation_of(messages: Messages, group: str | None, request: str, examples: int = 0) -> str:
    """Return the name of a conversation, of which one drawn request certifies and one audited request counts.

    A look joins later turns to the first turn that they continue (`continued`).

    It is the client's own name, if there is one. Otherwise a request without an earlier reply is a conversation of its
    own: many clients may ask the same, and the promise is on requests as they come. Later turns are named by a digest
    of the messages before the second reply, which they share.

    Args:
        messages: the messages of the request, in OpenAI's form.
        group: the client's name for the conversation.
        request: a name of this request alone.
        examples: how many messages at the head of each request are the application's own, replies among them.
    """
    if group is not None:
        return f"{NAMED}{group}"
    replies = [place for place, one in enumerate(messages) if one.get("role") == "assistant" and place >= examples]
    if not replies:
        return f"request:{request}"
    return f"opening:{_digest(messages[: replies[1]] if len(replies) > 1 else messages)}"


def histories(messages: Messages, group: str | None, examples: int = 0) -> list[str]:
    """Return the digests to look up among cheaply written ones: each history that ends with a reply, and the group."""
    found = [] if group is None else [f"group:{_digest([{'group': group}])}"]
    so_far = hashlib.sha256(b"[")  # each message is hashed once, though each history begins with all messages before it
    for place, message in enumerate(messages):
        so_far.update((b", " if place else b"") + _encoded(_said(message)))
        if message.get("role") == "assistant" and place >= examples:
            ended = so_far.copy()
            ended.update(b"]")
            found.append(f"history:{ended.hexdigest()}")
    return found


def written(messages: Messages, served: Mapping[str, Any], group: str | None) -> list[str]:
    """Return the digests to record after a cheap model's message was served."""
    found = [] if group is None else [f"group:{_digest([{'group': group}])}"]
    return [*found, f"history:{_digest([*messages, served])}"]


def continued(ended: Mapping[str, str], begun: Mapping[str, str]) -> dict[str, str]:
    """Return which first turn each unnamed conversation of later turns continues, as far as the texts tell.

    Many clients may begin alike, and nothing tells them apart. So of those that do, as many are paired as there are,
    in the order of their names' digests: each first turn has at most one continuation.

    Args:
        ended: the last digest in `histories` of a first turn and its reply, by the name of its conversation.
        begun: the first digest in `histories` of later turns, by the name of their conversation.

    >>> continued({"request:1": "a", "request:2": "b"}, {"opening:3": "b", "opening:4": "c"})
    {'opening:3': 'request:2'}
    """
    free: dict[str, list[str]] = defaultdict(list)
    for name in sorted(ended, key=shuffled):
        free[ended[name]].append(name)
    return {name: free[begun[name]].pop() for name in sorted(begun, key=shuffled) if free[begun[name]]}


def shuffled(name: str) -> str:
    """Return a key that puts random names into an order which does not depend on when they were made."""
    return hashlib.sha256(name.encode()).hexdigest()


def _digest(messages: Messages) -> str:
    return hashlib.sha256(_encoded([_said(message) for message in messages])).hexdigest()


def _encoded(said: list[Any]) -> bytes:
    return json.dumps(said, ensure_ascii=False, sort_keys=True, default=str).encode("utf-8", "replace")


def _said(message: Mapping[str, Any]) -> list[Any]:
    """Return the parts of a message that are compared: clients may leave out null fields, and send ids of their own."""
    calls = [function_of(call) for call in calls_of({"tool_calls": message.get("tool_calls")})]
    return [
        message.get("role"),
        _content(message.get("content")),
        [[one.get("name"), one.get("arguments")] for one in calls],
        message.get("group"),
    ]


def _content(content: Any) -> Any:
    """Return a message's content; if it is a list of texts alone, the one text that they make."""
    parts = part_texts(content)
    return content or "" if None in parts else text_of(content)
