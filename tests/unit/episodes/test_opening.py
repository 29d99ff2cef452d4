"""Opening a log: what is said where there is none, it is empty, or nothing in it was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

from cascade.episodes.opening import DEMO_LADDER, open_log, rows_of
from cascade.errors import UsageError
from cascade.logs.files import write_rows

ROWS = [
    {
        "episode_id": f"q{number}",
        "question": f"question {number}",
        "dataset": f"set {number % 7}",
        "split": "test" if number % 7 else "train",
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


def test_a_value_that_no_row_has_is_answered_with_the_commonest(log: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_log(log, {"dataset": "bar", "split": "dev"})
    assert str(caught.value) == (
        f"No row of {log} has dataset=bar; the column's values: set 0, set 1, set 2, set 3, set 4 and 2 more. "
        f"No row of {log} has split=dev; the column's values: test, train."
    )


def test_values_that_no_row_has_together_are_said_so(log: str) -> None:
    with pytest.raises(UsageError, match=r"has dataset=set 0 and split=test together, though"):
        open_log(log, {"dataset": "set 0", "split": "test"})


def test_a_long_value_is_cut(tmp_path: Path) -> None:
    write_rows(tmp_path / "long.jsonl", [{**ROWS[0], "question": "x" * 500}])
    with pytest.raises(UsageError, match=r"the column's values: x{60}…\.$"):
        open_log(str(tmp_path / "long.jsonl"), {"question": "y"})


@pytest.mark.parametrize("where", [None, {"dataset": "bar"}])
@pytest.mark.parametrize("text", ["", "\n\n"])
def test_an_empty_file_is_said_to_be_empty(tmp_path: Path, text: str, where: dict[str, str] | None) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"log\.jsonl is empty: it has no row of an episode log\.$"):
        open_log(str(path), where)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("demo-lader", "There is no file demo-lader; did you mean demo-ladder?"),
        ("mylog", "There is no file mylog; known: demo, demo-ladder, demo-requests"),
        ("demo.jsonl", "There is no file demo.jsonl."),
    ],
)
def test_a_name_that_is_no_log_is_answered_with_those_that_ship(given: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_log(given)
    assert str(caught.value).startswith(says)


def test_rows_of_the_demo_ladder_are_chosen_by_the_columns_of_the_log() -> None:
    assert open_log(DEMO_LADDER, {"episode_id": "fact-002"}).reads[0].log.n == 1
    with pytest.raises(UsageError):
        open_log(DEMO_LADDER, {"step": "1"})


def test_a_store_is_read_too(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from cascade.records.traces import Store

    url = f"sqlite:///{tmp_path / 'log.db'}"
    with Store.open(url) as store:
        store.append(ROWS)
    assert [row["episode_id"] for row in rows_of(url)] == [row["episode_id"] for row in ROWS]
    assert [row["dataset"] for row in rows_of(url, where={"episode_id": "q3"})] == ["set 3"]
