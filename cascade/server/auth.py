"""The server's own keys: what each opens, and where none is needed.

A key is 256 random bits, so it cannot be guessed from its SHA-256, and no salt or slow hash is needed: those protect
passwords, which people choose. The configuration holds only the hash.
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
from uuid import UUID, uuid4

from cascade.config.schema import ServerConfig, ServerKeyConfig
from cascade.server.errors import GatewayError

PREFIX = "sk-cascade-"
"""The start of every key, by which `cascade.safety` recognizes keys and removes them from logs and errors."""
JUDGES = ("feedback", "admin")
"""Scopes whose feedback may count for a certificate."""
SCOPES: Mapping[str, tuple[str, ...]] = {
    "/v1/feedback": ("ask", *JUDGES),
    "/v1/cascades": ("view", "admin"),
    "POST /v1/cascades": ("admin",),
    "/v1/budgets": ("admin",),
    "/metrics": ("metrics", "admin"),
    "/ui": ("view", "admin"),
    "/ui/review": ("review", "admin"),
    "/ui/review/press": ("review", "admin"),
}
"""The scopes that open a path, or a method of it. The paths of dialects need `ask`; any key opens all others."""


class NewKey(NamedTuple):
    """A new key. It is shown once; the configuration holds its `sha256`."""

    key: str
    sha256: str


def new_key() -> NewKey:
    """Return a new key of 256 random bits."""
    key = PREFIX + secrets.token_urlsafe(32)
    return NewKey(key, _hashed(key))


def _hashed(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()


def check(headers: Mapping[str, str], settings: ServerConfig) -> ServerKeyConfig | None:
    """Return the key that a request carries; None if the server has no keys.

    A server without keys answers only requests that name a loopback host, unless it may listen anywhere. So it refuses
    requests of a web page whose host name points at 127.0.0.1.

    Raises:
        GatewayError: the key is missing, wrong or expired (401), or the host is not this machine (403).
    """
    if not settings.keys:
        if not settings.any_address and not is_loopback(_host(headers.get("host", ""))):
            raise GatewayError(
                403, "This server has no keys and answers requests to localhost only.", code="wrong_host"
            )
        return None
    scheme, _, token = headers.get("authorization", "").partition(" ")
    token = token if scheme.lower() == "bearer" else headers.get("x-api-key", "")
    hashed = _hashed(token.strip())
    matching = [key for key in settings.keys if hmac.compare_digest(hashed, key.sha256)]  # in constant time
    if not matching:
        message = "The key is missing or wrong. Send one of the server's keys: Authorization: Bearer … or x-api-key: …"
        raise GatewayError(401, message, code="invalid_api_key")
    key = matching[-1]
    if key.expires is not None and key.expires < datetime.now(UTC).date():
        raise GatewayError(401, f"The key {key.name} has expired ({key.expires}).", code="expired_api_key")
    return key


def allows(settings: ServerConfig, key: ServerKeyConfig | None, *scopes: str) -> bool:
    """Return whether a key has one of these scopes. A server without keys allows everything."""
    return not settings.keys or (key is not None and not {*scopes}.isdisjoint(key.scopes))


def new_trace(key: ServerKeyConfig | None) -> str:
    """Return the id of a new trace, a random UUID whose last 48 bits are a signature with the key.

    So every replica knows, without a store, whose trace it is, and no client can claim the trace of another key.
    """
    head = uuid4().bytes[:_HEAD_BYTES]
    digits = (head + _signed(key, head)).hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def owns(key: ServerKeyConfig | None, trace_id: str) -> bool:
    """Return whether a trace was begun by a request with this key.

    >>> owns(None, new_trace(None)), owns(None, "0197")
    (True, False)
    """
    try:
        trace = UUID(trace_id).bytes
    except ValueError:
        return False
    return hmac.compare_digest(trace[_HEAD_BYTES:], _signed(key, trace[:_HEAD_BYTES]))


_HEAD_BYTES = 10


def _signed(key: ServerKeyConfig | None, head: bytes) -> bytes:
    secret = "" if key is None else key.sha256  # 256 bits that only the configuration and the key's owner have
    return hmac.digest(secret.encode(), b"trace" + head, "sha256")[: 16 - _HEAD_BYTES]


def listening_problems(settings: ServerConfig) -> Iterable[str]:
    """Yield the reasons why the server may not listen on the configured address."""
    if not settings.keys and not settings.any_address and not is_loopback(settings.host):
        yield (
            f"server.host: {settings.host} can be reached from other machines, and there are no keys; make one with "
            "cascade serve --new-key NAME, or set any_address: true if a proxy in front of the server checks access"
        )


def is_loopback(host: str) -> bool:
    """Return whether a host is a loopback host, which no other machine can reach.

    >>> is_loopback("localhost"), is_loopback("127.0.0.1"), is_loopback("::1"), is_loopback("0.0.0.0")
    (True, True, True, False)
    """
    try:
        return host.lower() == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _host(header: str) -> str:
    """Return the host of a Host header, without its port; "" if there is none."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
