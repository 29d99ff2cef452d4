"""The truth of rows, filled in as they pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.schema import COLUMNS
from cascade.matching import get_matcher, judge_rows

EXACT = get_matcher("exact")


def judged(*rows: dict[str, Any], **options: Any) -> list[Any]:
    return [row["correct"] for row in judge_rows(rows, EXACT, **options)]


def test_correct_is_filled_in_and_nothing_else() -> None:
    row = dict.fromkeys(COLUMNS) | {"answer": "The Danube.", "gold": ["Danube"], "cost_nano_usd": 5, "extra": 1}
    before = dict(row)
    assert list(judge_rows([row], EXACT)) == [{**before, "correct": True}]
    assert row == before


@pytest.mark.parametrize(
    "row",
    [
        {"answer": None, "gold": ["Danube"], "correct": None},
        {"answer": "Danube", "gold": None, "correct": None},
        {"answer": "Danube", "gold": [], "correct": None},
        {"text": "a sampled verdict"},
        {},
    ],
)
def test_a_row_that_cannot_be_judged_stays_as_it_is(row: dict[str, Any]) -> None:
    (after,) = judge_rows([row], EXACT, overwrite=True)
    assert after == row
    assert after is not row


def test_a_known_truth_is_kept_unless_it_is_to_be_judged_again() -> None:
    rows = [{"answer": "Danube", "gold": ["Danube"], "correct": said} for said in (False, True, None)]
    assert judged(*rows) == [False, True, True]
    assert judged(*rows, overwrite=True) == [True, True, True]


def test_gold_may_be_a_text_or_numbers() -> None:
    rows = ({"answer": "42", "gold": "42"}, {"answer": "42", "gold": [41, 42]}, {"answer": "0.5", "gold": 0.5})
    assert judged(*rows) == [True] * 3


def test_rows_stream() -> None:
    pulled = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal pulled
        while True:
            pulled += 1
            yield {"answer": "a. b", "gold": ["b"]}

    stream = judge_rows(endless(), EXACT)
    assert [next(stream)["correct"] for _ in range(3)] == [True] * 3
    assert pulled == 3


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"answer": 5, "gold": ["5"]}, r"row 2: the answer is not a text but int"),
        ({"answer": "5", "gold": [True]}, r"row 2: gold must be a list of texts"),
        ({"answer": "5", "gold": {"a": 1}, "episode_id": "q7"}, r"row 2 \(q7\): gold must be"),
        ({"answer": "5", "gold": [None]}, r"row 2: gold"),
    ],
)
def test_a_row_of_another_form_is_named(row: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        judged({"answer": "a", "gold": ["a"]}, row)
