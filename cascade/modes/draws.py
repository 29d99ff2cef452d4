"""Random draws of conversations, turns and roles by a keyed hash, and the part of delta that each look may spend.

A draw depends on a secret of the server and on names, never on the content. So clients cannot predict what is drawn,
and replicas that share the secret agree. While a cascade observes, whole conversations are drawn; while a policy
serves, single turns.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from typing import Any, Literal

Role = Literal["fit", "certify", "audit"]
_BETWEEN = b"\x1f"


def uniform(secret: bytes, purpose: str, *names: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on the names; draws for two purposes are independent."""
    message = _BETWEEN.join([purpose.encode(), *(name.encode("utf-8", "replace") for name in names)])
    return int.from_bytes(hmac.new(secret, message, hashlib.sha256).digest()[:8], "big") / 2**64


def is_drawn(secret: bytes, rate: float, *names: str) -> bool:
    """Return whether the conversation, or the turn of a conversation, with these names is drawn, at a rate from 0 to 1.

    >>> is_drawn(b"secret", 1.0, "conversation"), is_drawn(b"secret", 0.0, "conversation", "turn 1")
    (True, False)
    """
    return uniform(secret, "draw", *names) < rate


def conversation_of(group: str | None, request: str) -> str:
    """Return the name of a conversation: the client's own; without one, each request is a conversation of its own.

    Many clients may ask the same, and the promise is on requests as they come.
    """
    return f"request:{request}" if group is None else f"group:{group}"


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
