"""What is drawn of conversations and turns, the roles of conversations, and the part of delta that a look may spend.

While a cascade observes, whole conversations are drawn; while a policy serves, single turns. The key of the draws is a
secret of the server (`conformal.monitor`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cascade.chat import ChatRequest
from cascade.conformal.monitor import uniform
from cascade.identity import storable

Role = Literal["fit", "certify", "audit"]
GROUP_PREFIX = "group:"


def conversation_of(group: str | None, request: str) -> str:
    """Return the name of a conversation: the client's own; without one, each request is a conversation of its own.

    Many clients may ask the same, and the promise is on requests as they come.
    """
    return f"request:{request}" if group is None else f"{GROUP_PREFIX}{storable(group)}"


def turn_of(name: str | None, chat: ChatRequest, request: str) -> str:
    """Return the name of a turn: a request that is sent again under the client's name for it is the same turn.

    Another request under that name is another turn: no client can let an outcome stand for other requests.
    """
    if not name:
        return request
    return storable(f"sha256 {hashlib.sha256(chat.canonical.encode()).hexdigest()} of {name}")


def goes_on(messages: Sequence[Mapping[str, Any]], examples: int = 0) -> bool:
    """Return whether a request has an earlier reply, not counting those among its first messages, the `examples`."""
    return any(message.get("role") == "assistant" for message in messages[examples:])


def role_of(secret: bytes, conversation: str, certify: float) -> Role:
    """Return the role of all observed turns of a conversation; `certify` is the share of conversations that certify."""
    return "certify" if uniform(secret, "role", conversation) < certify else "fit"


def look_level(level: float, look: int) -> float:
    """Return the part of a level for the k-th look, from 1: level / (k (k + 1)); the parts add up to the level.

    >>> look_level(0.1, 1), round(sum(look_level(0.1, k) for k in range(1, 10_000)), 4)
    (0.05, 0.1)
    """
    if look < 1:
        raise ValueError(f"looks are counted from 1, not {look}")
    return level / (look * (look + 1))
