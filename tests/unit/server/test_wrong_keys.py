"""Wrong keys by address: how many, for how long, and in how much memory."""

from __future__ import annotations

import pytest

from cascade.server.auth import MOST, PER_S, WrongKeys


class Clock:
    """Tells the time that a test sets."""

    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_burst_is_allowed_then_one_for_each_wait() -> None:
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
    sizes = {len(keys._level) + len(keys._at_s)}
    for number in range(20_000):
        keys.wait_s(f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    sizes.add(len(keys._level) + len(keys._at_s))
    assert sizes == {8_192}
