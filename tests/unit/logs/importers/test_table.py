"""Tables of one's own, with a mapping that is checked as a whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.identity import question_id
from cascade.logs.importers.table import rows_from_table
from cascade.logs.schema import Dropped

TABLE = """prompt,reply,right,usd,seconds,p,who,when
Which river?,Inn,no,0.0001,0.5,0.25,small,2026-11-21T10:00:00Z
Which river?,Danube,yes,0.002,,,large,2026-11-21T10:00:05Z
Which lake?,,,,1,high,small,
"""
COLUMNS = {
    "question": "prompt",
    "answer": "reply",
    "correct": "right",
    "cost_usd": "usd",
    "latency_s": "seconds",
    "signals.certainty": "p",
    "model": "who",
    "created_at": "when",
}


def table(tmp_path: Path, text: str = TABLE) -> Path:
    path = tmp_path / "mine.csv"
    path.write_text(text)
    return path


def test_rows_of_one_question_are_one_episode(tmp_path: Path) -> None:
    dropped = Dropped()
    first, second, third = rows_from_table(table(tmp_path), dropped, columns=COLUMNS)
    expected = {
        "episode_id": question_id("Which river?", None),
        "dataset": "mine",
        "question": "Which river?",
        "step": 1,
        "candidate": 0,
        "source": "small",
        "answer": "Inn",
        "correct": False,
        "cost_nano_usd": 100_000,
        "cost_source": "the table",
        "latency_ms": 500.0,
        "signals": {"certainty": 0.25},
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["episode_id"], second["step"], second["correct"]) == (first["episode_id"], 2, True)
    assert (second["latency_ms"], second["signals"]) == (None, {"certainty": None})
    assert (third["candidate"], third["answer"], third["correct"]) == (0, None, None)
    assert (third["cost_nano_usd"], third["cost_source"]) == (None, "no price")
    assert dict(dropped.notes) == {"signals.certainty is no number, read as null": 1}


def test_an_amount_that_is_none_is_unknown_and_noted(tmp_path: Path) -> None:
    path, dropped = tmp_path / "mine.csv", Dropped()
    path.write_text("question,answer,price\nWhich river?,Inn,free\n", "utf-8")
    (row,) = rows_from_table(path, dropped, columns={"cost_usd": "price"})
    assert (row["cost_nano_usd"], row["cost_source"]) == (None, "no price")
    assert dict(dropped.notes) == {"cost_usd is no amount of USD, read as null": 1}


def test_roles_make_rounds(tmp_path: Path) -> None:
    first, second, _ = rows_from_table(table(tmp_path), columns=COLUMNS, roles={"small": "base", "large": "guide"})
    assert [(row["step"], row["candidate"], row["source"]) for row in (first, second)] == [
        (1, 0, "base"),
        (1, 1, "guide"),
    ]


def test_columns_that_have_our_names_need_no_mapping(tmp_path: Path) -> None:
    row = {"episode_id": 7, "question": "Which?", "step": 2, "candidate": 1, "source": "guide", "horizon": 4}
    row |= {
        "text": "Answer: Danube",
        "correct": True,
        "cost_nano_usd": 5,
        "signals": {"a": 1},
        "signals.b": 2,
        "odd": 1,
    }
    path = tmp_path / "mine.jsonl"
    path.write_text(json.dumps(row) + "\n")
    (made,) = rows_from_table(path, dataset="rivers")
    expected = {"episode_id": "7", "step": 2, "candidate": 1, "source": "guide", "horizon": 4, "dataset": "rivers"}
    expected |= {"answer": "Answer: Danube", "cost_nano_usd": 5, "signals": {"a": 1, "b": 2.0}}
    assert {name: made[name] for name in expected} == expected


def test_truth_alone_makes_a_candidate(tmp_path: Path) -> None:
    (row,) = rows_from_table(table(tmp_path, "id,ok\nq1,1\n"), columns={"episode_id": "id", "correct": "ok"})
    assert (row["episode_id"], row["candidate"], row["answer"], row["correct"]) == ("q1", 0, None, True)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"qestion": "prompt", "answr": "reply"}, ["mapped to qestion; did you mean question?", "nor to answr"]),
        ({"question": "promt", "answer": "rply"}, ["no column promt; did you mean prompt?", "no column rply"]),
        (
            {"cost": "usd"},
            ["did you mean cost_usd?. What a field can be mapped to: episode_id, walk, ", ", cost_usd, "],
        ),
        ({"qestion": "promt"}, ["mapped to qestion", "no column promt"]),
        ({"answer": "reply"}, ["no column is mapped to the question: add question=FIELD"]),
        ({"question": "prompt"}, ["no column is mapped to the answer: add answer=FIELD"]),
        ({"question": "prompt", "answer": "reply", "signals.p": "q"}, ["the table has no column q"]),
    ],
)
def test_all_that_is_wrong_with_a_mapping_is_reported_at_once(
    tmp_path: Path, columns: dict[str, str], said: list[str]
) -> None:
    with pytest.raises(UsageError) as raised:
        list(rows_from_table(table(tmp_path), columns=columns))
    for words in said:
        assert words in str(raised.value)


def test_a_table_without_rows_says_so(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no row"):
        list(rows_from_table(table(tmp_path, "a,b\n"), columns={"question": "a"}))


def test_a_long_table_is_read_to_its_end(tmp_path: Path) -> None:
    text = "question,answer\n" + "".join(f"q{i},a\n" for i in range(1_000))
    rows: list[dict[str, Any]] = list(rows_from_table(table(tmp_path, text)))
    assert [row["question"] for row in rows] == [f"q{i}" for i in range(1_000)]


def test_replicates_without_an_id_are_runs_of_their_own(tmp_path: Path) -> None:
    """They were merged into one ladder of four steps, at the sum of all costs."""
    lines = [
        {"question": "Who?", "model": model, "answer": "A", "correct": True, "cost_usd": cost}
        for _ in range(2)
        for model, cost in (("small", 0.001), ("large", 0.01))
    ]
    path, dropped = tmp_path / "own.jsonl", Dropped()
    path.write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    rows = list(rows_from_table(path, dropped))
    assert [(one["model"], one["step"]) for one in rows] == [("small", 1), ("large", 2)] * 2
    assert len({one["episode_id"] for one in rows}) == 2
    assert len({one["group"] for one in rows}) == 1
    assert sum(dropped.notes.values()) == 2
    assert "without an episode_id" in dropped.describe()


def test_columns_that_are_not_read_are_named(tmp_path: Path) -> None:
    """A table of calls whose model was not mapped was read in silence, with the models' rows as steps in any order."""
    told: list[str] = []
    list(rows_from_table(table(tmp_path), columns={"question": "prompt", "answer": "reply"}, told=told.extend))
    assert told[0] == "ignored: right, usd, seconds, p, who, when"
    assert told[1].startswith("no column is mapped to the model: the calls of a question are its steps in the order of")
    told.clear()
    list(rows_from_table(table(tmp_path), columns=COLUMNS, told=told.extend))
    (order,) = told
    assert order.startswith(
        "step 1, small, step 2, large: in the order of their mean costs (USD: small 0.0001, large 0.002)"
    )
    gold = {name: field for name, field in COLUMNS.items() if name != "correct"} | {"gold": "right"}
    list(rows_from_table(table(tmp_path), columns=gold, told=told.extend))
    assert told[1:] == [
        order,
        "which answers are right is decided by the accepted answer when the log is used (--matcher)",
    ]


def test_models_in_another_order_are_noted(tmp_path: Path) -> None:
    """Rows in random order made step 1 a mixture of the models, and `prove` said that nothing is saved."""
    rows = "prompt,reply,who\nA?,x,small\nA?,y,large\nB?,y,large\nB?,x,small\n"
    columns, dropped = {"question": "prompt", "answer": "reply", "model": "who"}, Dropped()
    list(rows_from_table(table(tmp_path, rows), dropped, columns=columns))
    assert "the models, and so the steps, are in another order than for the first question" in dropped.describe()
    sorted_rows, unnoted = "prompt,reply,who\nA?,x,small\nB?,x,small\nB?,y,large\nA?,y,large\n", Dropped()
    list(rows_from_table(table(tmp_path, sorted_rows), unnoted, columns=columns))
    assert unnoted.describe() == ""
