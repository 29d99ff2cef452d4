"""Opening a log: what is said where there is none, it is empty, or nothing in it was chosen."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import Mock

import pytest

from cascade.episodes import opening
from cascade.episodes.opening import DEMO_LADDER, open_log, rows_of
from cascade.errors import UsageError
from cascade.logs.files import write_rows
from cascade.logs.schema import Dropped

ROWS = [
    {
        "episode_id": f"q{number}",
        "question": f"question {number}",
        "dataset": f"set {number % 7}",
        "split": "test" if number % 7 else "train",
        "segment": "ab"[number % 2],
        "step": 1,
        "horizon": 1,
        "candidate": 1,
        "source": "base",
        "answer": "x",
        "correct": True,
        "cost_nano_usd": 1,
    }
    for number in range(20)
]


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "log.jsonl"
    write_rows(path, ROWS)
    return str(path)


def test_values_that_no_row_has_together_are_said_so(log):
    with pytest.raises(UsageError, match=r"^No row of .*log\.jsonl has dataset=set 0 and split=test\.$"):
        open_log(log, {"dataset": "set 0", "split": "test"})
    assert sum(read.log.n for read in open_log(log, {"segment": "a"}).datasets) == 10


@pytest.mark.parametrize(("small", "openings"), [({".jsonl": 1 << 20}, 1), ({}, 5)])
def test_a_small_log_is_read_once_and_as_a_large_one_is(log, monkeypatch, small, openings):
    """Here it has no labels, so its rows are needed several times."""
    columns = dict.fromkeys(("correct", "text", "context")) | {"horizon": 2, "signals": {"p_yes": 0.5}}
    rows = [row | columns | {"step": step, "model": f"m{step}"} for row in ROWS[:9] for step in (1, 2)]
    write_rows(log, [rows[0] | {"cost_nano_usd": 10**14}, *rows[1:]])
    opens, dropped = Mock(wraps=opening.opened_log), Dropped()
    monkeypatch.setattr(opening, "opened_log", opens)
    monkeypatch.setattr(opening, "_SMALL_BYTES", small)
    read = open_log(log, dropped=dropped)
    assert (len([*read.rows()]), opens.call_count) == (18, openings)
    assert (read.unlabelled, len(read.datasets), read.datasets[0].log.n, dropped.notes.total()) == (True, 7, 2, 1)


@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_said_to_be_empty(tmp_path, text):
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"log\.jsonl is empty: it has no row of an episode log\.$"):
        open_log(str(path))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("demo-lader", "There is no file demo-lader; did you mean demo-ladder?"),
        ("mylog", "There is no file mylog; known: demo, demo-ladder, demo-requests"),
        ("demo.jsonl", "There is no file demo.jsonl."),
    ],
)
def test_a_name_that_is_no_log_is_answered_with_those_that_ship(given, says):
    with pytest.raises(UsageError) as caught:
        open_log(given)
    assert str(caught.value).startswith(says)


def test_rows_of_the_demo_ladder_are_chosen_by_the_columns_of_the_log():
    assert open_log(DEMO_LADDER, {"episode_id": "fact-002"}).datasets[0].log.n == 1
    with pytest.raises(UsageError):
        open_log(DEMO_LADDER, {"step": "1"})


def test_a_store_is_read_too(tmp_path):
    pytest.importorskip("sqlalchemy")
    from cascade.records.traces import Store

    url = f"sqlite:///{tmp_path / 'log.db'}"
    with Store(url) as store:
        store.append(ROWS)
    assert [row["episode_id"] for row in rows_of(url)] == [row["episode_id"] for row in ROWS]
    assert [row["dataset"] for row in rows_of(url, where={"episode_id": "q3"})] == ["set 3"]
