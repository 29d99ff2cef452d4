"""Limits on what a request may use of the server: places and bytes, which keys share, and its key's own limits.

Each process counts for itself, so with N replicas a key has N times its limits.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NoReturn

from cascade.config.schema import LimitsConfig, ServerConfig, ServerKeyConfig
from cascade.errors import ConfigError
from cascade.server.errors import GatewayError

_MINUTE_S = 60.0
ADMITTED = "cascade.admitted"
"""The name in a request's scope of the function to call once it is admitted."""


class Share:
    """An amount that keys share. Each may take at most as much as it leaves free, so none of them takes everything.

    >>> places = Share(100)
    >>> places.take("app", 50), places.take("app", 1), places.take("batch", 25), places.take("batch", 1)
    (True, False, True, False)
    """

    def __init__(self, total: int) -> None:
        self.total, self.used = total, 0
        self.by_key = Counter[str | None]()

    def take(self, key: str | None, amount: int, *, shares: bool = True) -> bool:
        """Take an amount if it is free; return whether it was taken.

        Without `shares` a key may take everything. A key that holds nothing may take any free amount.
        """
        free, has = self.total - self.used - amount, self.by_key[key]
        if free < 0 or (shares and has and has + amount > free):
            return False
        self.used += amount
        self.by_key[key] += amount
        return True

    def give_back(self, key: str | None, amount: int) -> None:
        """Give back an amount."""
        self.used -= amount
        self.by_key[key] -= amount


class Bucket:
    """A token bucket: it fills with so many units per minute, and holds at most the units of one minute.

    >>> now = 0.0
    >>> bucket = Bucket(60, lambda: now)
    >>> bucket.spend(61)
    >>> bucket.wait_s()
    2.0
    """

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self._most, self._clock = float(per_minute), clock
        self._level, self._at_s = self._most, clock()

    def wait_s(self) -> float:
        """Return the seconds until a unit is available; 0 if one is."""
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._most / _MINUTE_S)
        self._at_s = now_s
        return max(0.0, (1 - self._level) * _MINUTE_S / self._most)

    def resize(self, per_minute: int) -> None:
        """Fill at another rate from now on. The units in the bucket stay, up to those of one minute."""
        self.wait_s()
        self._most = float(per_minute)

    def spend(self, units: int) -> None:
        """Take units, even more than the bucket has: the next request waits until it has refilled."""
        self._level -= units


class Newcomers(dict[object, Callable[[], None]]):
    """Connections without an admitted request yet, with what closes each. Beyond `most`, the oldest is closed.

    >>> ended, newcomers = [], Newcomers(1)
    >>> newcomers.add(1, lambda: ended.append(1)), newcomers.add(2, lambda: ended.append(2))
    (None, None)
    >>> ended, newcomers.closed, len(newcomers)
    ([1], 1, 1)
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.closed = most, 0

    def add(self, connection: object, end: Callable[[], None]) -> None:
        """Add a connection."""
        self[connection] = end
        if len(self) > self.most:
            self.pop(next(iter(self)))()
            self.closed += 1


class Admission:
    """Admits the requests of a server; `names` are the models that a client may name.

    Attributes:
        places: one for each request under way.
        buffered: the bytes of their bodies.
        newcomers: connections without an admitted request, at most as many as requests may be under way.
        buckets: what each key has left of its limits per minute, by the key's name and the unit.
        reading: the thread that parses large bodies. A parser lets no other thread run; several would starve the loop.

    Raises:
        ConfigError: a key is limited to models that do not exist.
    """

    def __init__(
        self, settings: ServerConfig, names: Collection[str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.settings, self._clock = settings, clock
        self.places, self.buffered = Share(settings.max_requests), Share(settings.max_buffered_bytes)
        self.shares = len(settings.keys) > 1  # a single key shares with none
        self.newcomers = Newcomers(settings.max_requests)
        self.reading = ThreadPoolExecutor(1, "cascade-bodies")
        self.buckets: dict[tuple[str | None, str], Bucket] = {}
        wanted = [settings.limits, *(key.limits for key in settings.keys if key.limits is not None)]
        unknown = sorted({name for limits in wanted for name in limits.models or ()} - {*names})
        if unknown:
            raise ConfigError([f"server: limits.models names {', '.join(unknown)}; known: {', '.join(names)}"])

    def take_over(self, before: Admission) -> None:
        """Continue the counts of an earlier admission, whose requests are still under way."""
        most = self.places.total, self.buffered.total, self.newcomers.most
        self.places, self.buffered = before.places, before.buffered
        self.newcomers = before.newcomers
        self.places.total, self.buffered.total, self.newcomers.most = most
        limits = {key.name: key.limits or self.settings.limits for key in self.settings.keys}
        for (key, unit), bucket in before.buckets.items():
            per_minute = getattr(limits.get(key or "", self.settings.limits), f"{unit}_per_minute")
            if per_minute is not None:
                bucket.resize(per_minute)
        self.buckets, self.reading = before.buckets, before.reading

    def visit(self, owner: ServerKeyConfig | None) -> Visit:
        """Admit a request with a key. Raises GatewayError (429) if the key has sent too many in a minute."""
        limits = (owner and owner.limits) or self.settings.limits
        key = None if owner is None else owner.name
        if (requests := self.bucket(key, "requests", limits.requests_per_minute)) is not None:
            if wait_s := requests.wait_s():
                _refuse(f"This key sends more than {limits.requests_per_minute} requests per minute.", wait_s)
            requests.spend(1)
        return Visit(self, key, limits)

    def bucket(self, key: str | None, unit: str, per_minute: int | None) -> Bucket | None:
        """Return a key's bucket for a unit; None without a limit."""
        return None if per_minute is None else self.buckets.setdefault((key, unit), Bucket(per_minute, self._clock))


@dataclass
class Visit:
    """What one request has taken. `end` gives it back, and may be called twice.

    Attributes:
        tokens: the tokens read and written for it, as far as providers reported them.
        sent: the bytes of the answer that were sent to its client so far.
    """

    admission: Admission
    key: str | None
    limits: LimitsConfig
    tokens: int = 0
    sent: int = 0
    _places: int = field(default=0, init=False)
    _bytes: int = field(default=0, init=False)

    def begin(self) -> None:
        """Take a place. Raises GatewayError if all are taken (503), or if the key is at one of its limits (429)."""
        admission, limits = self.admission, self.limits
        tokens = admission.bucket(self.key, "tokens", limits.tokens_per_minute)
        if tokens is not None and (wait_s := tokens.wait_s()):
            _refuse(f"This key reads and writes more than {limits.tokens_per_minute} tokens per minute.", wait_s)
        if limits.at_once is not None and admission.places.by_key[self.key] >= limits.at_once:
            _refuse(f"{limits.at_once} requests of this key are under way.")
        if not admission.places.take(self.key, 1, shares=admission.shares):
            self._full(admission.places, 1, f"{admission.places.used} requests are under way (server.max_requests)")
        self._places = 1

    def buffer(self, count: int) -> None:
        """Take room for more bytes of the body.

        Raises:
            GatewayError: the body is too large (413), or there is no room for it (503), or none for this key (429).
        """
        most = min(filter(None, (self.admission.settings.max_body_bytes, self.limits.max_body_bytes)))
        if self._bytes + count > most:
            raise GatewayError(413, f"The request has more than {most:,} bytes (max_body_bytes).", code="too_large")
        if not self.admission.buffered.take(self.key, count, shares=self.admission.shares):
            self._full(self.admission.buffered, count, "requests under way fill the memory (server.max_buffered_bytes)")
        self._bytes += count

    def refuse_model(self, name: object) -> None:
        """Refuse a model that the key may not name, whether it exists or not. Raises GatewayError (403)."""
        if self.limits.models is not None and name not in self.limits.models:
            listed = ", ".join(self.limits.models)
            message = f"This key may request only {listed} (limits.models)."
            raise GatewayError(403, message, code="model_not_allowed", param="model")

    def end(self) -> None:
        """Give back what the request has taken, and spend its tokens; if they are unknown, a quarter of its bytes."""
        spent = self.tokens or (self._places and (self._bytes + self.sent) // 4)
        if (tokens := self.admission.bucket(self.key, "tokens", self.limits.tokens_per_minute)) is not None:
            tokens.spend(spent)
        self.admission.places.give_back(self.key, self._places)
        self.admission.buffered.give_back(self.key, self._bytes)
        self._places = self._bytes = self.tokens = self.sent = 0

    def _full(self, share: Share, amount: int, what: str) -> NoReturn:
        if share.used + amount > share.total:
            raise GatewayError(503, f"{what[0].upper()}{what[1:]}.", code="overloaded", retry_after_s=1)
        _refuse("This key is using its full share of the server's capacity; the rest is for other keys.")


def _refuse(message: str, wait_s: float = 1.0) -> NoReturn:
    raise GatewayError(429, message, code="rate_limit_exceeded", retry_after_s=wait_s)
