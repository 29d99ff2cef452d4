"""Draws depend on a secret and on names; all looks together spend a level once."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.modes import histories as modes_histories
from cascade.modes.draws import affordable_rate, is_drawn, look_level, place, role_of, spent_level
from cascade.modes.histories import conversation_of, histories, written

SECRET = b"of the server"
NAMES = [f"conversation {number}" for number in range(4_000)]


def test_a_draw_is_the_same_each_time_and_another_with_another_secret() -> None:
    drawn = [is_drawn(SECRET, name, "1", 0.2) for name in NAMES]
    assert drawn == [is_drawn(SECRET, name, "1", 0.2) for name in NAMES]
    assert drawn != [is_drawn(b"another", name, "1", 0.2) for name in NAMES]
    assert abs(sum(drawn) / len(drawn) - 0.2) < 0.03


def test_who_is_drawn_at_a_lower_rate_is_drawn_at_a_higher_one() -> None:
    low, high = ([is_drawn(SECRET, name, "1", rate) for name in NAMES] for rate in (0.1, 0.3))
    assert all(after for before, after in zip(low, high, strict=True) if before)


def test_roles_are_drawn_apart_from_the_draw() -> None:
    drawn = [name for name in NAMES if is_drawn(SECRET, name, "1", 0.5)]
    assert abs(sum(role_of(SECRET, name, 0.5) == "certify" for name in drawn) / len(drawn) - 0.5) < 0.05
    assert place(SECRET, "draw", "a", "b") != place(SECRET, "draw", "ab", "")


def test_all_looks_together_spend_a_level_once() -> None:
    assert [look_level(0.1, look) for look in (1, 2, 3)] == pytest.approx([0.05, 0.1 / 6, 0.1 / 12])
    assert sum(look_level(0.1, look) for look in range(1, 8)) == pytest.approx(spent_level(0.1, 7))
    with pytest.raises(ValueError, match="from 1"):
        look_level(0.1, 0)


def test_the_rate_is_lowered_beforehand_and_never_raised() -> None:
    assert affordable_rate(0.2, 1_000, 10.0, 200) == 0.2
    assert affordable_rate(0.2, 1_000, 10.0, 1_000) == 0.1
    assert affordable_rate(0.2, -5, 10.0, 1_000) == 0.0
    assert affordable_rate(0.2, 1_000, None, 1_000) == 0.2


def said(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


HEAD = [said("system", "Route."), said("user", "Where is it?"), said("assistant", "delivery")]


def test_turns_of_a_conversation_share_its_name_and_others_with_the_same_opening_do_not() -> None:
    opening = [said("user", "Hi")]
    second = [*opening, said("assistant", "Hello."), said("user", "My tent broke.")]
    third = [*second, said("assistant", "Oh."), said("user", "What now?")]
    other = [*second[:-1], said("user", "Where is my stove?")]
    assert conversation_of(second, None, "a") == conversation_of(third, None, "b") != conversation_of(other, None, "c")
    assert conversation_of(opening, None, "a") != conversation_of(opening, None, "b")  # two clients ask the same
    assert conversation_of(opening, "7", "a") == conversation_of(second, "7", "b") == "group:7"


def test_examples_of_the_application_open_no_conversation_and_are_no_history() -> None:
    one = [*HEAD, said("user", "a")]
    assert conversation_of(one, None, "1", len(HEAD)) != conversation_of(one, None, "2", len(HEAD))
    assert conversation_of(one, None, "1") == conversation_of(one, None, "2")
    assert histories(one, None, len(HEAD)) == []


def test_a_request_that_goes_on_from_what_was_written_is_found_and_another_is_not() -> None:
    asked = [*HEAD, said("user", "a")]
    on_record = set(written(asked, {"role": "assistant", "content": "repair", "refusal": None}, None))
    later = [*asked, said("assistant", "repair"), said("user", "b")]
    assert on_record & set(histories(later, None, len(HEAD)))
    other = [*asked, said("assistant", "returns"), said("user", "b")]
    assert not on_record & set(histories(other, None, len(HEAD)))
    in_parts = [{"role": one["role"], "content": [{"type": "text", "text": one["content"]}]} for one in later]
    assert on_record & set(histories(in_parts, None, len(HEAD)))
    assert set(written(asked, said("assistant", "x"), "g")) & set(histories([said("user", "trimmed")], "g"))


def test_each_history_has_the_digest_that_was_recorded_when_it_was_written() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    replies: list[Any] = [said("assistant", 'Ähm, \u2028 "x"'), {"role": "assistant", "tool_calls": [call]}]
    asked: list[Any] = [said("user", "a")]
    for reply in replies:
        recorded = written(asked, reply, None)
        asked += [reply, said("user", "b")]
        assert histories(asked, None)[-1:] == recorded


def test_each_message_of_a_long_history_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply ends a history: with 4,000 messages the server stood still for 3.5 s while it read them all again."""
    read, plain = list[object](), modes_histories._said
    monkeypatch.setattr(modes_histories, "_said", lambda message: read.append(message) or plain(message))
    turns = [said("user" if turn % 2 == 0 else "assistant", "a") for turn in range(1_000)]
    assert len(set(histories(turns, None))) == 500
    assert len(read) == 1_000


@pytest.mark.parametrize("calls", [5, "abc", ["x"], [{"function": None}], {"a": 1}])
def test_whatever_a_client_writes_for_a_call_is_a_history(calls: object) -> None:
    assert len(histories([{"role": "assistant", "tool_calls": calls}], None)) == 1
