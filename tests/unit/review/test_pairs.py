"""Which outputs a person is shown: those that differ from the reference's, each distinct one once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cascade.api.judging import Judging
from cascade.errors import UsageError
from cascade.logs.columns import Row
from cascade.review.pairs import Compared, compare
from unit.review.booking import call, episode, write


def compared(rows: list[Row], matcher: str | None = None) -> Compared:
    return compare(lambda: rows, matcher)


def texts(rows: list[Row], matcher: str | None = None) -> list[tuple[str, str]]:
    return [(pair.output.text, pair.reference.text) for pair in compared(rows, matcher).pairs]


def test_an_output_that_is_spelled_otherwise_is_no_pair() -> None:
    same = episode(1, call(1, spelled='{"room":1.0}'), call(1))
    other = episode(2, call(7), call(2))
    assert len(texts([*same, *other])) == 1


def test_each_distinct_output_stands_in_one_pair() -> None:
    rows = episode(1, call(7), call(1))
    again = {**rows[0], "step": 2, "answer": '[{"name": "book", "arguments": {"room": 7.0}}]'}
    third = {**rows[0], "step": 3, "answer": json.dumps([{"name": "book", "arguments": {"room": 9}}])}
    found = compared([rows[0], again, third, *rows[1:]])
    assert [len(pair.equal) for pair in found.pairs] == [2, 1]
    (only,) = found.differing.values()
    assert len(only) == 3


def test_a_question_that_stands_twice_in_a_log_is_asked_once() -> None:
    rows = episode(1, call(7), call(1))
    twice = [*rows, *({**row, "episode_id": "again"} for row in rows)]
    assert len(compared(twice).differing) == 2
    assert (len(texts(twice)), compared(twice).requests) == (1, 1)


def test_the_comparator_decides() -> None:
    rows = [
        {**row, "answer": answer}
        for row, answer in zip(episode(1, call(1), call(1)), ("5 km", "5 m", "5 m"), strict=True)
    ]
    assert len(texts(rows, "exact")) == 1
    assert texts(rows, "number") == []


def test_where_the_reference_gave_nothing_there_is_no_pair() -> None:
    found = compared([*episode(1, call(7), call(1))[:1], *episode(2, call(7), call(2))])
    assert len(found.pairs) == 1
    assert (found.without_reference, found.requests) == (1, 1)


def test_of_a_ladder_the_last_model_is_the_reference() -> None:
    found = compared([row for row in episode(1, call(7), call(1)) if row["walk"] is None]).pairs
    assert [pair.reference.message for pair in found] == [json.dumps(call(1))]


def test_a_log_without_a_reference_is_refused() -> None:
    with pytest.raises(UsageError, match="has no reference"):
        compared([{**row, "horizon": 1} for row in episode(1, call(7), call(1))[:1]])


def test_hashes_in_the_place_of_texts_are_refused() -> None:
    rows = [{**row, "answer": "sha256:" + "a" * 64} for row in episode(1, call(7), call(1))]
    with pytest.raises(UsageError, match="hashes"):
        compared(rows)


def test_a_request_without_the_references_output_is_told_of(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", [*episode(1, call(7), call(1))[:1], *episode(2, call(7), call(2))])
    told: list[str] = []
    Judging(str(log)).read(told.append)
    assert told[-1] == "1 request without an output of the reference: not shown"
