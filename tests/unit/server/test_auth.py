"""Keys, the addresses that need them, and wrong keys by address."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cascade.config.schema import ServerConfig
from cascade.safety import redact
from cascade.server.auth import MOST, PER_S, WrongKeys, check, is_loopback, listening_problems, new_key
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


class Clock:
    """Tells the time that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_of_wrong_keys_is_allowed_then_one_for_each_wait() -> None:
    clock = Clock()
    keys = WrongKeys(clock)
    assert [keys.wait_s("10.0.0.1") for _ in range(MOST)] == [None] * MOST
    wait_s = keys.wait_s("10.0.0.1")
    assert wait_s == pytest.approx(1 / PER_S)
    clock.now_s += wait_s / 2
    assert keys.wait_s("10.0.0.1") == pytest.approx(wait_s / 2)  # to ask again does not make it longer
    clock.now_s += wait_s / 2
    assert keys.wait_s("10.0.0.1") is None
    assert keys.wait_s("10.0.0.1") is not None


@pytest.mark.parametrize(
    ("first", "other", "together"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),  # one network
        ("2001:db8::1", "2001:db8:1::1", False),
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("", "no address", False),
    ],
)
def test_a_network_of_ipv6_is_one_address(
    first: str, other: str, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("secrets.token_bytes", lambda many: b"fixed" * (many // 5 + 1))  # no collision by chance
    keys = WrongKeys(Clock())
    for _ in range(MOST):
        keys.wait_s(first)
    assert (keys.wait_s(other) is not None) is together


def test_many_addresses_take_no_more_memory() -> None:
    keys = WrongKeys(Clock())
    for number in range(20_000):
        keys.wait_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(keys._level) + len(keys._at_s) == 8_192
