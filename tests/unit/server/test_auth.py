"""Keys, and the addresses that need them."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cascade.config.schema import ServerConfig
from cascade.safety import redact
from cascade.server.auth import check, is_loopback, listening_problems, new_key
from cascade.server.errors import GatewayError

KEY, OTHER = new_key(), new_key()
KEYED = ServerConfig(keys=({"name": "app", "sha256": KEY.sha256}, {"name": "batch", "sha256": OTHER.sha256}))
PLAIN, ANY = ServerConfig(), ServerConfig(any_address=True)


def expiring(days: int) -> ServerConfig:
    expires = (datetime.now(UTC).date() + timedelta(days=days)).isoformat()
    return ServerConfig(keys=({"name": "app", "sha256": KEY.sha256, "expires": expires},))


@pytest.mark.parametrize(
    ("headers", "settings", "result"),
    [
        ({"authorization": f"Bearer {KEY.key}"}, KEYED, "app"),
        ({"authorization": f"bearer  {OTHER.key} "}, KEYED, "batch"),
        *(({"authorization": text}, KEYED, 401) for text in ("", "Bearer", "Bearer ", "Bearer \udcff\u20ac")),
        *(({"authorization": text}, KEYED, 401) for text in (f"Basic {KEY.key}", KEY.key, f"Bearer {KEY.key}x")),
        ({"authorization": f"Bearer {KEY.sha256}"}, KEYED, 401),
        ({"x-api-key": KEY.key}, expiring(-1), 401),
        ({"x-api-key": KEY.key}, expiring(1), "app"),
        # without keys this machine is served, by no name of somebody else
        *(({"host": host}, PLAIN, None) for host in ("localhost", "127.3.2.1:1", "localhost:8400", "[::1]:8400")),
        *(
            ({"host": host}, PLAIN, 403)
            for host in ("", "evil.example", "127.0.0.1.evil.example:8400", "10.0.0.1", "[")
        ),
        ({"host": "localhost@evil.example"}, PLAIN, 403),
        ({"host": "gateway.internal"}, ANY, None),  # where the configuration says so
    ],
)
def test_who_is_served(headers: dict[str, str], settings: ServerConfig, result: Any) -> None:
    if not isinstance(result, int):
        assert check(headers, settings) == result
        return
    with pytest.raises(GatewayError) as caught:
        check(headers, settings)
    assert caught.value.status == result
    assert "sk-cascade" not in str(caught.value)


def test_every_key_is_compared_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, real = list[str](), hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda left, right: compared.append(right) or real(left, right))
    check({"authorization": f"Bearer {KEY.key}"}, KEYED)
    assert compared == [KEY.sha256, OTHER.sha256]  # also after the one that fits


def test_keys_are_long_random_and_known_to_the_redaction() -> None:
    assert KEY.key != OTHER.key
    assert len(KEY.key) - len("sk-cascade-") == 43  # 256 bits
    assert KEY.key not in redact(f"it is {KEY.key}")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        *(({"host": host}, False) for host in ("127.0.0.1", "127.0.0.2", "::1", "LOCALHOST")),
        *(({"host": host}, True) for host in ("0.0.0.0", "::", "example.com", "local")),
        ({"host": "0.0.0.0", "any_address": True}, False),
        ({"host": "0.0.0.0", "keys": ({"name": "a", "sha256": "0" * 64},)}, False),
    ],
)
def test_other_machines_are_listened_to_with_keys_or_on_demand(settings: dict[str, Any], refused: bool) -> None:
    assert bool(list(listening_problems(ServerConfig(**settings)))) is refused
    assert len(settings) > 1 or is_loopback(settings["host"]) is not refused
