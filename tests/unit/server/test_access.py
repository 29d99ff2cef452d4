"""Keys, and the addresses that need them."""

from __future__ import annotations

import hmac
from datetime import UTC, datetime, timedelta

import pytest

from cascade.config.schema import ServerConfig
from cascade.safety import redact
from cascade.server.auth import check, is_loopback, listening_problems, new_key
from cascade.server.errors import GatewayError

KEY, OTHER = new_key(), new_key()
KEYED = ServerConfig(keys=({"name": "app", "sha256": KEY.sha256}, {"name": "batch", "sha256": OTHER.sha256}))

PLAIN = ServerConfig()


def status(headers: dict[str, str], settings: ServerConfig) -> int:
    with pytest.raises(GatewayError) as caught:
        check(headers, settings)
    assert "sk-cascade" not in str(caught.value)
    return caught.value.status


def test_a_key_opens_and_is_known_by_its_name() -> None:
    assert check({"authorization": f"Bearer {KEY.key}"}, KEYED) == "app"
    assert check({"authorization": f"bearer  {OTHER.key} "}, KEYED) == "batch"


@pytest.mark.parametrize(
    ("headers", "settings", "refused"),
    [
        *(({"authorization": given}, KEYED, 401) for given in ("", "Bearer", "Bearer ", "Bearer \udcff\u20ac")),
        *(({"authorization": given}, KEYED, 401) for given in (f"Basic {KEY.key}", KEY.key, f"Bearer {KEY.key}x")),
        ({"authorization": f"Bearer {KEY.sha256}"}, KEYED, 401),
        # without keys this machine is served, by no name of somebody else
        *(({"host": host}, PLAIN, None) for host in ("localhost", "127.0.0.1", "localhost:8400", "[::1]:8400")),
        ({"host": "127.3.2.1:1"}, PLAIN, None),
        *(
            ({"host": host}, PLAIN, 403)
            for host in ("", "evil.example", "127.0.0.1.evil.example:8400", "10.0.0.1", "[")
        ),
        ({"host": "localhost@evil.example"}, PLAIN, 403),
        ({"host": "gateway.internal"}, ServerConfig(any_address=True), None),  # where the configuration says so
    ],
)
def test_who_is_served(headers: dict[str, str], settings: ServerConfig, refused: int | None) -> None:
    if refused is None:
        assert check(headers, settings) is None
    else:
        assert status(headers, settings) == refused


def test_every_key_is_compared_and_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []
    real = hmac.compare_digest

    def noted(left: str, right: str) -> bool:
        compared.append(right)
        return real(left, right)

    monkeypatch.setattr(hmac, "compare_digest", noted)
    check({"authorization": f"Bearer {KEY.key}"}, KEYED)
    assert compared == [KEY.sha256, OTHER.sha256]  # also after the one that fits


def test_keys_are_long_random_and_known_to_the_redaction() -> None:
    assert KEY.key != OTHER.key
    assert len(KEY.key) - len("sk-cascade-") == 43  # 256 bits
    assert KEY.key not in redact(f"it said {KEY.key}")


@pytest.mark.parametrize(
    ("settings", "refused"),
    [
        ({"host": "127.0.0.1"}, False),
        ({"host": "::1"}, False),
        ({"host": "0.0.0.0"}, True),
        ({"host": "::"}, True),
        ({"host": "example.com"}, True),
        ({"host": "0.0.0.0", "any_address": True}, False),
        ({"host": "0.0.0.0", "keys": ({"name": "a", "sha256": "0" * 64},)}, False),
    ],
)
def test_other_machines_are_listened_to_with_keys_or_on_demand(settings: dict[str, object], refused: bool) -> None:
    assert bool(list(listening_problems(ServerConfig(**settings)))) is refused


def test_what_is_no_address_of_this_machine() -> None:
    assert [host for host in ("127.0.0.2", "::1", "LOCALHOST", "0.0.0.0", "", "local") if is_loopback(host)] == [
        "127.0.0.2", "::1", "LOCALHOST",
    ]  # fmt: skip


def test_a_key_opens_until_the_end_of_its_last_day() -> None:
    today = datetime.now(UTC).date()
    for days, opens in ((-1, False), (1, True)):
        expires = (today + timedelta(days=days)).isoformat()
        settings = ServerConfig(keys=({"name": "app", "sha256": KEY.sha256, "expires": expires},))
        headers = {"x-api-key": KEY.key}
        if opens:
            assert check(headers, settings) == "app"
        else:
            assert status(headers, settings) == 401
