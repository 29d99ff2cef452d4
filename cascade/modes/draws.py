"""Random draws of requests and of their roles by a keyed hash, and the part of delta that each look may spend.

A draw depends on a secret of the server and on the names of the conversation and the turn, never on the content. So
clients cannot predict which requests are drawn, and replicas that share the secret agree.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Literal

Role = Literal["fit", "certify"]
_BETWEEN = b"\x1f"


def place(secret: bytes, purpose: str, *names: str) -> float:
    """Return a pseudorandom number in [0, 1) that depends only on the names; draws for two purposes are independent."""
    said = _BETWEEN.join([purpose.encode(), *(name.encode("utf-8", "replace") for name in names)])
    return int.from_bytes(hmac.new(secret, said, hashlib.sha256).digest()[:8], "big") / 2**64


def is_drawn(secret: bytes, conversation: str, turn: str, rate: float) -> bool:
    """Return whether a turn of a conversation is drawn, at a rate from 0 to 1.

    >>> is_drawn(b"secret", "conversation", "1", 1.0), is_drawn(b"secret", "conversation", "1", 0.0)
    (True, False)
    """
    return place(secret, "draw", conversation, turn) < rate


def role_of(secret: bytes, conversation: str, certify: float) -> Role:
    """Return the role of all drawn rows of a conversation; `certify` is the share of conversations that certify."""
    return "certify" if place(secret, "role", conversation) < certify else "fit"


def look_level(level: float, look: int) -> float:
    """Return the part of a level for the k-th look, from 1: level / (k (k + 1)); the parts add up to the level.

    >>> look_level(0.1, 1), round(sum(look_level(0.1, k) for k in range(1, 10_000)), 4)
    (0.05, 0.1)
    """
    if look < 1:
        raise ValueError(f"looks are counted from 1, not {look}")
    return level / (look * (look + 1))


def spent_level(level: float, looks: int) -> float:
    """Return the part of a level that the first k looks have spent: level · k / (k + 1).

    >>> spent_level(0.1, 0), spent_level(0.1, 1), round(spent_level(0.1, 3), 3)
    (0.0, 0.05, 0.075)
    """
    return level * looks / (looks + 1)


def affordable_rate(rate: float, left_nano_usd: int | None, row_nano_usd: float | None, requests: float) -> float:
    """Return the rate at which requests are drawn until the next update.

    A drawn row is never dropped for its cost; the rate is lowered beforehand instead.

    Args:
        rate: the share that is wanted.
        left_nano_usd: the money left for drawn rows, without those under way; None for no limit.
        row_nano_usd: the cost of a drawn row's extra calls; None while no row is known.
        requests: how many requests are expected until the budget is renewed.

    >>> affordable_rate(0.2, 1_000, 10.0, 1_000), affordable_rate(0.2, None, 10.0, 1_000)
    (0.1, 0.2)
    """
    if left_nano_usd is None or not row_nano_usd or requests <= 0:
        return rate
    return min(rate, max(0, left_nano_usd) / (row_nano_usd * requests))
