"""Who may ask: the server's own keys, and the addresses that it listens on without any.

A key is 256 random bits, so its SHA-256 cannot be guessed back, and no salt or slow hash is needed: those protect
passwords, which people choose. The configuration holds the hash alone.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import urlsplit

from cascade.config.schema import ServerConfig, ServerKeyConfig
from cascade.server.refusals import Refused

PREFIX = "sk-cascade-"
"""What a key begins with: `cascade.safety.keys` knows its shape, so that it is taken out of logs and errors."""
_BYTES = 32
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "/v1/feedback": ("ask", "view", "admin"),
    "/v1/cascades": ("view", "admin"),
    "/metrics": ("metrics", "admin"),
}


class NewKey(NamedTuple):
    """A key that was just made. It is shown once; `sha256` is what the configuration holds."""

    key: str
    sha256: str


def new_key() -> NewKey:
    """Return a new key of 256 random bits."""
    key = PREFIX + secrets.token_urlsafe(_BYTES)
    return NewKey(key, _hashed(key))


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def check(headers: Mapping[str, str], settings: ServerConfig) -> str | None:
    """Return the name of the key that a request bears; None where the server has no keys.

    A server without keys answers only requests that name a loopback host, unless it may listen anywhere: a web page
    that points a name of its own at 127.0.0.1 is refused.

    Raises:
        Refused: the key is missing, wrong or expired (401), or the host is not this machine (403).
    """
    if not settings.keys:
        if not settings.any_address and not is_loopback(_host(headers.get("host", ""))):
            raise Refused(403, "This server has no keys and answers requests to localhost only.", code="wrong_host")
        return None
    scheme, _, given = headers.get("authorization", "").partition(" ")
    given = given if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    key = _owner(_hashed(given.strip()), settings.keys)
    if key is None:
        said = "The key is missing or wrong. Send one of the server's keys: Authorization: Bearer … or x-api-key: …"
        raise Refused(401, said, code="invalid_api_key")
    if key.expires is not None and key.expires < datetime.now(UTC).date():
        raise Refused(401, f"The key {key.name} has expired ({key.expires}).", code="expired_api_key")
    return key.name


def scopes_for(path: str, *, asks: bool) -> tuple[str, ...]:
    """Return the scopes of which a path needs one; none where any key will do. Pages and switches ask by themselves.

    Args:
        path: of the request.
        asks: whether it asks models.
    """
    return ("ask",) if asks else _NEEDED.get(path, ())


def refuse_without(settings: ServerConfig, key: str | None, *scopes: str) -> None:
    """Refuse a key that has none of these scopes. A server without keys lets everybody do everything.

    Raises:
        Refused: (403) it has none.
    """
    held = {scope for one in settings.keys if one.name == key for scope in one.scopes}
    if settings.keys and not held & set(scopes):
        said = f"The key {key} lacks the scope {' or '.join(scopes)}: server.keys[].scopes."
        raise Refused(403, said, code="missing_scope")


def _owner(hashed: str, keys: Iterable[ServerKeyConfig]) -> ServerKeyConfig | None:
    """Return the key that has a hash, in the same time whichever it is."""
    found: ServerKeyConfig | None = None
    for one in keys:
        if hmac.compare_digest(hashed, one.sha256):
            found = one
    return found


def listening_problems(settings: ServerConfig) -> Iterable[str]:
    """Yield why a server may not listen where it is to."""
    if not settings.keys and not settings.any_address and not is_loopback(settings.host):
        yield (
            f"server.host: {settings.host} can be reached from other machines, and there are no keys; make one with "
            "cascade serve --new-key NAME, or write any_address: true where something in front checks who asks"
        )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other can reach it.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _host(header: str) -> str:
    """Return the host of a Host header, without its port; "" where there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
