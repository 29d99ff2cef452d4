"""Draws depend on a secret and on names; all looks together spend a level once."""

from __future__ import annotations

import pytest

from cascade.conformal.monitor import is_drawn
from cascade.modes.draws import conversation_of, goes_on, look_level, role_of
from cascade.modes.state import CascadeState

SECRET = b"of the server"
NAMES = [f"conversation {number}" for number in range(4_000)]


def test_roles_are_drawn_apart_from_the_draw() -> None:
    drawn = [name for name in NAMES if is_drawn(SECRET, 0.5, name)]
    assert abs(sum(role_of(SECRET, name, 0.5) == "certify" for name in drawn) / len(drawn) - 0.5) < 0.05


def test_all_looks_together_spend_a_level_once() -> None:
    assert [look_level(0.1, look) for look in (1, 2, 3)] == pytest.approx([0.05, 0.1 / 6, 0.1 / 12])
    assert sum(look_level(0.1, look) for look in range(1, 8)) == pytest.approx(0.0875)
    with pytest.raises(ValueError, match="from 1"):
        look_level(0.1, 0)


def test_each_look_spends_by_the_delta_of_its_time() -> None:
    state = CascadeState("cascade").looked(0.2).looked(0.1)
    assert (state.looks, state.spent) == (2, pytest.approx(0.2 / 2 + 0.1 / 6))
    assert CascadeState.loads(state.dumps(), 0).spent == state.spent


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


HEAD = [said("system", "Route."), said("user", "Where is it?"), said("assistant", "delivery")]


def test_a_conversation_has_the_clients_name_and_requests_without_one_are_apart() -> None:
    assert conversation_of("7", "a") == conversation_of("7", "b") == "group:7"
    assert conversation_of(None, "a") != conversation_of(None, "b")  # two clients may ask the same


def test_examples_of_the_application_are_no_earlier_reply() -> None:
    assert not goes_on([*HEAD, said("user", "a")], len(HEAD))
    assert goes_on([*HEAD, said("user", "a")])
    assert goes_on([*HEAD, said("user", "a"), said("assistant", "b"), said("user", "c")], len(HEAD))
