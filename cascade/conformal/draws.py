"""Random draws by a keyed hash of names: of requests to audit, to observe and to judge.

A draw depends on the key and on names, never on a content or an outcome. So what is drawn is like the rest; nobody
without the key can predict it, and processes that share the key agree. Let a loss L be 0 or 1, and let a request be
drawn with probability q: the drawn losses of independent requests are then independent with the rate q·E[L]. So "the
risk is above r" is "the rate of drawn losses is above q·r" (`Promise.tested_risk`).

Reference: Angelopoulos et al., Learn then test (2021); `design/review.md`.
"""

from __future__ import annotations

import hmac

_BETWEEN = b"\x1f"


def uniform(key: bytes | str, *names: str) -> float:
    """Return a pseudorandom number in [0, 1) that only the key and the names decide.

    Numbers of different keys, or of different names, are independent.
    """
    secret, *message = (name if isinstance(name, bytes) else name.encode("utf-8", "replace") for name in (key, *names))
    return int.from_bytes(hmac.digest(secret, _BETWEEN.join(message), "sha256")[:8]) / 2**64


def is_drawn(key: bytes | str, rate: float, *names: str) -> bool:
    """Return whether names are drawn, with a probability of `rate` (0..1) over keys.

    What is drawn at one rate is also drawn at every higher rate.

    >>> is_drawn(b"key", 1.0, "request 1"), is_drawn(b"key", 0.0, "request 1"), is_drawn("key", 1e-12, "request 1")
    (True, False, False)
    """
    return uniform(key, *names) < rate
