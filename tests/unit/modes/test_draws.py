"""Draws depend on a secret and on names; all looks together spend a level once."""

from __future__ import annotations

import pytest

from cascade.modes.draws import affordable_rate, in_canary, is_drawn, look_level, place, role_of, spent_level
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


def test_roles_and_canaries_are_drawn_apart_from_the_draw() -> None:
    drawn = [name for name in NAMES if is_drawn(SECRET, name, "1", 0.5)]
    assert abs(sum(role_of(SECRET, name, 0.5) == "certify" for name in drawn) / len(drawn) - 0.5) < 0.05
    assert abs(sum(in_canary(SECRET, name, 0.5) for name in drawn) / len(drawn) - 0.5) < 0.05
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


def test_turns_of_a_conversation_share_its_name_and_other_openings_do_not() -> None:
    opening = [said("user", "My tent broke.")]
    later = [*opening, said("assistant", "Oh."), said("user", "What now?")]
    assert conversation_of(opening, None) == conversation_of(later, None)
    assert conversation_of(opening, None) != conversation_of([said("user", "Hi")], None)
    assert conversation_of(opening, "7") == conversation_of([said("user", "Hi")], "7") == "group:7"


def test_examples_of_the_application_open_no_conversation_and_are_no_history() -> None:
    one, other = ([*HEAD, said("user", text)] for text in ("a", "b"))
    assert conversation_of(one, None, len(HEAD)) != conversation_of(other, None, len(HEAD))
    assert conversation_of(one, None) == conversation_of(other, None)
    assert histories(one, None, len(HEAD)) == []


def test_a_request_that_goes_on_from_what_was_written_is_found_and_another_is_not() -> None:
    asked = [*HEAD, said("user", "a")]
    on_record = set(written(asked, {"role": "assistant", "content": "repair", "refusal": None}, None))
    later = [*asked, said("assistant", "repair"), said("user", "b")]
    assert on_record & set(histories(later, None, len(HEAD)))
    other = [*asked, said("assistant", "returns"), said("user", "b")]
    assert not on_record & set(histories(other, None, len(HEAD)))
    assert set(written(asked, said("assistant", "x"), "g")) & set(histories([said("user", "trimmed")], "g"))
