"""Foreign values become ours, or None: never a guess, never 0."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

from cascade.logs.importers.values import (
    cast,
    loaded,
    mapping,
    moment,
    nano_usd,
    number,
    passed_ms,
    question_in,
    reply_in,
    text,
    truth,
    whole,
)
from cascade.logs.rowcheck import OddValueError


@each(
    "amount, nano",
    [
        (0, 0),
        (0.0003925, 392_500),
        (8.759999999999999e-05, 87_600),
        ("1.5e-9", 2),
        ("2.5e-9", 2),
        ("3.5e-9", 4),
        (Decimal("0.000000001"), 1),
        (float("nan"), None),
        (float("inf"), None),
        (-0.01, None),
        (True, None),
        ("", None),
        (1e300, None),
    ],
)
def test_money_is_rounded_half_to_even_once(amount: Any, nano: int | None) -> None:
    assert nano_usd(amount) == nano


@given(st.integers(0, 10**15))
def test_an_exact_amount_stays_exact(nano: int) -> None:
    assert nano_usd(Decimal(nano).scaleb(-9)) == nano


@pytest.mark.parametrize("value", [None, "", "x", True, -1, 1.5, float("nan"), float("inf"), [], 10**400])
def test_what_is_no_count_is_none(value: Any) -> None:
    assert whole(value) is None


@pytest.mark.parametrize("value", [None, "", "x", True, float("nan"), "inf", [], 10**400])
def test_what_is_no_number_is_none(value: Any) -> None:
    assert number(value) is None


@pytest.mark.parametrize(
    ("value", "said"),
    [(True, True), ("TRUE", True), (1, True), ("1.0", True), ("[1]", True), (["no"], False), (0.0, False), (0.5, None)],
)
def test_only_plain_truth_values_are_read_as_truth(value: Any, said: bool | None) -> None:
    assert truth(value) is said


def test_texts_and_json() -> None:
    assert (text(""), text(7), text(False), text([])) == (None, "7", None, None)
    assert (loaded('{"a": NaN}'), loaded("{no"), loaded("12"), loaded("[" * 99_999)) == (
        {"a": None},
        "{no",
        "12",
        "[" * 99_999,
    )
    assert (mapping('{"a": 1}'), mapping("[1]"), mapping(None)) == ({"a": 1}, {}, {})


@pytest.mark.parametrize(
    "given_as",
    [
        "2026-11-21T10:00:00Z",
        "2026-11-21 10:00:00.000000",
        "2026-11-21T11:00:00+01:00",
        '"2026-11-21T10:00:00.000Z"',
        datetime(2026, 11, 21, 10),  # noqa: DTZ001 - a time without a zone is the case
        datetime(2026, 11, 21, 10, tzinfo=UTC),
        1795255200 * 10**9,
        str(1795255200 * 10**9),
    ],
)
def test_a_time_is_one_time_however_it_is_written(given_as: Any) -> None:
    found = moment(given_as)
    assert found is not None
    assert found.iso == "2026-11-21T10:00:00.000+00:00"


@pytest.mark.parametrize("value", [None, "", "yesterday", [], 10**40])
def test_what_is_no_time_is_none(value: Any) -> None:
    assert moment(value) is None


def test_time_does_not_run_backwards() -> None:
    early, late = moment("2026-11-21T10:00:00Z"), moment("2026-11-21T10:00:01.5Z")
    assert (passed_ms(early, late), passed_ms(late, early), passed_ms(None, late)) == (1500.0, None, None)


@pytest.mark.parametrize(
    ("column", "value", "made"),
    [
        ("step", "2", 2),
        ("confidence", "0.5", 0.5),
        ("correct", "yes", True),
        ("gold", '["a"]', ["a"]),
        ("gold", "[4]", ["[4]"]),
        ("gold", ["a", 1], ["a", "1"]),
        ("gold", 4, ["4"]),
        ("signals", '{"a": 1}', {"a": 1}),
        ("answer", 7, "7"),
        ("answer", "", None),
        ("step", None, None),
    ],
)
def test_a_cell_becomes_what_its_column_holds(column: str, value: Any, made: Any) -> None:
    assert cast(column, value) == made


@pytest.mark.parametrize(("column", "value"), [("step", "two"), ("step", 0), ("correct", "maybe"), ("answer", [1])])
def test_a_cell_that_says_something_else_is_odd(column: str, value: Any) -> None:
    with pytest.raises(OddValueError):
        cast(column, value)


# --- messages ---

USER = {"role": "user", "content": "Which river?"}


@each(
    "asked",
    [
        "Which river?",
        [USER],
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hello"}, USER],
        [USER, {"role": "assistant", "content": None, "tool_calls": []}, {"role": "tool", "content": "Danube"}],
        {"model": "m", "messages": [USER]},
        '{"messages": [{"role": "user", "content": "Which river?"}]}',
        [{"role": "user", "content": [{"type": "text", "text": "Which river?"}, {"type": "image_url", "url": {}}]}],
        [{"role": "user", "parts": [{"type": "text", "content": "Which river?"}]}],
        [USER, {"role": "user", "content": [{"type": "tool_result", "content": "Danube"}]}],
        {"input": "Which river?", "instructions": "Be short."},
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": "Which river?"}]}]},
        {"contents": [{"role": "user", "parts": [{"text": "Which river?"}]}]},
        {"prompt": "Which river?"},
        {"question": "Which river?"},
    ],
)
def test_the_question_is_the_last_thing_that_the_user_says(asked: Any) -> None:
    assert question_in(asked) == "Which river?"


@pytest.mark.parametrize(
    "answered",
    [
        "Danube",
        {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Danube"}, "finish_reason": "stop"}]},
        {"choices": [{"index": 0, "text": "Danube"}, {"index": 1, "text": "Inn"}]},
        {"role": "assistant", "content": "Danube"},
        {"role": "assistant", "content": [{"type": "thinking", "text": "…"}, {"type": "text", "text": "Danube"}]},
        {"output": [{"type": "reasoning", "summary": []}, {"role": "assistant", "content": [{"text": "Danube"}]}]},
        {"candidates": [{"content": {"role": "model", "parts": [{"text": "Danube"}]}, "finishReason": "STOP"}]},
        [{"role": "assistant", "parts": [{"type": "text", "content": " Danube "}], "finish_reason": "stop"}],
        {"completion": "Danube"},
        {"answer": "Danube"},
    ],
)
def test_the_reply_is_what_the_model_says(answered: Any) -> None:
    assert reply_in(answered) == "Danube"


@pytest.mark.parametrize(
    "value",
    [None, "", " ", {}, [], "{}", 7, {"choices": []}, {"role": "assistant", "content": None, "tool_calls": []}],
)
def test_nothing_said_is_none(value: Any) -> None:
    assert question_in(value) is None
    assert reply_in(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {"role": "assistant", "content": None, "tool_calls": [1]},
        {"choices": [{"message": {"content": None, "function_call": {"name": "search"}}}]},
        [{"role": "assistant", "parts": [{"type": "tool_call", "id": "1"}]}],
    ],
)
def test_a_reply_that_calls_a_tool_and_says_nothing_is_an_empty_reply(value: Any) -> None:
    """None stands for a reply that is not on record: whether that one was right is unknown."""
    assert reply_in(value) == ""


def test_a_text_too_deep_down_is_not_looked_for() -> None:
    deep: Any = "Danube"
    for _ in range(50):
        deep = {"content": deep}
    assert reply_in(deep) is None


@pytest.mark.parametrize("amount", ["1e9999999", "1e900000", "1e19", "-1e900000", "1e-9999999"])
def test_an_amount_of_any_size_is_read_at_once(amount: str) -> None:
    """1e9999999 was a traceback, and 1e900000 a number of a megabyte, which took 41 seconds."""
    tracemalloc.start()
    assert nano_usd(amount) in {None, 0}
    most_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most_bytes < 100_000


def test_a_large_count_keeps_its_last_digit() -> None:
    assert [whole(one) for one in (2**53 + 1, str(2**53 + 1), f" {2**53 + 1} ")] == [2**53 + 1] * 3
    assert (whole("9" * 30), whole(-1), whole("٣")) == (None, None, 3)
