"""Names of conversations and turns for draws, the roles of conversations, and the part of delta that a look may spend.

While a cascade observes, whole conversations are drawn; while a policy serves, single turns. Draws are keyed with a
secret of the cascade that no client knows (`conformal.monitor`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from cascade.chat import ChatRequest
from cascade.conformal.monitor import uniform
from cascade.identity import name_key

Role = Literal["fit", "certify", "audit"]
GROUP_PREFIX = "group:"


def conversation_of(group: str | None, request: str) -> str:
    """Return the name of a conversation: the client's, or else one that makes the request a conversation of its own.

    Equal texts make no conversation: many clients may send the same, and the promise is about requests as they come.
    """
    return f"request:{request}" if group is None else f"{GROUP_PREFIX}{name_key(group)}"


def turn_of(name: str | None, chat: ChatRequest, request: str) -> str:
    """Return the name of a turn: a request that the client repeats under the same name is the same turn.

    A different request under that name is another turn, so no client can make one outcome stand for other requests.
    """
    if not name:
        return request
    return name_key(f"sha256 {hashlib.sha256(chat.canonical.encode()).hexdigest()} of {name}")


def goes_on(messages: Sequence[Mapping[str, Any]], examples: int = 0) -> bool:
    """Return whether a request contains an earlier reply, not counting its first `examples` messages."""
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
