"""Draw a known share of the requests for people to judge, by a keyed hash that depends on no outcome.

Let a loss L be 0 or 1, and let a request be drawn with probability q. The drawn losses D·L of independent requests are
then independent with the rate q·E[L]. So "the risk is above r" is "the rate of drawn losses is above q·r"
(`Promise.tested_risk`), and the exact binomial tests it. A drawn request without a judgement counts as a loss, so that
a missing one never helps, whatever the reason.

Reference: Angelopoulos et al., Learn then test (2021); `design/review.md`.
"""

from __future__ import annotations

import hashlib
from fractions import Fraction

from cascade.checks import refuse, share_problems

_BITS = 64


def is_drawn(key: str, name: str, rate: float) -> bool:
    """Return whether the request with this name is drawn, with probability `rate` over keys.

    A request that is drawn at one rate is also drawn at every higher rate.

    >>> is_drawn("a key", "request 1", 1.0), is_drawn("a key", "request 1", 1e-12)
    (True, False)
    """
    check_rate(rate)
    place = hashlib.blake2b(name.encode(), key=hashlib.sha256(key.encode()).digest(), digest_size=_BITS // 8).digest()
    return bool(int.from_bytes(place) < Fraction(repr(float(rate))) * 2**_BITS)


def check_rate(rate: float) -> None:
    """Raise UsageError if a rate is not above 0 and at most 1."""
    refuse([*share_problems(ends=True, label_rate=rate), *(["label_rate must be above 0"] if rate == 0 else [])])
