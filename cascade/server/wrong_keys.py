"""Limits how often an address may send a wrong key, in bounded memory and constant time.

A right key always passes, so one client cannot lock out others behind the same proxy. The limit protects the log and
the network; nobody can guess a key of 256 bits.
"""

from __future__ import annotations

import hashlib
import ipaddress
import secrets
import time
from array import array
from collections.abc import Callable

MOST = 20
"""The number of wrong keys allowed at once."""
PER_S = MOST / 60.0
"""Seconds after which this number of wrong keys is allowed again."""
_PLACES = 4_096
_IPV6_PREFIX = 64
"""The prefix length of an IPv6 network; the owner of one address usually has all of it."""


class WrongKeys:
    """Counts wrong keys by address, in a table of leaky buckets of fixed size; colliding addresses share a bucket.

    Args:
        clock: returns seconds, from any start.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._salt = clock, secrets.token_bytes(16)
        self._level, self._at_s = array("d", bytes(8 * _PLACES)), array("d", bytes(8 * _PLACES))

    def wait_s(self, address: str) -> float | None:
        """Count a wrong key; return how long its address has to wait, None if it does not.

        >>> keys = WrongKeys(lambda: 0.0)
        >>> [keys.wait_s("10.0.0.1") for _ in range(MOST)] == [None] * MOST, keys.wait_s("10.0.0.1")
        (True, 3.0)
        """
        now_s, place = self._clock(), self._place(address)
        level = max(0.0, self._level[place] - (now_s - self._at_s[place]) * PER_S)
        full = level + 1 > MOST
        self._level[place], self._at_s[place] = level + (not full), now_s
        return round((level + 1 - MOST) / PER_S, 3) if full else None

    def _place(self, address: str) -> int:
        digest = hashlib.blake2b(_network(address).encode(), key=self._salt, digest_size=8).digest()
        return int.from_bytes(digest) % _PLACES


def _network(address: str) -> str:
    """Return an IPv4 address, or the network of an IPv6 address; any other text unchanged."""
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ipaddress.ip_network((int(found), _IPV6_PREFIX), strict=False))
