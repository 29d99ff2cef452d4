"""Tables of one's own: flat ones need no mapping, of others what is missing is asked for."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.schema import Dropped

pytest.importorskip("duckdb")

from unit.logs.reading import lines, picked, rows_of

HEAD = (
    "id,question,gold,small_answer,small_correct,small_cost_usd,small_logprob,large_answer,large_correct,large_cost_usd"
)
ROWS = (
    "q1,Which river runs through Vienna?,Danube,The Danube,true,0.0001,-0.12,The Danube,true,0.002",
    "q2,Which river runs through Graz?,Mur,The Inn,false,0.0001,-0.94,The Mur,true,0.002",
    "q3,Which river runs through Linz?,Danube,The Inn,0,0.0003,-1.5,The Danube,1,0.004",
)


def table(path: Path, *rows: str, head: str = HEAD) -> Path:
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_a_flat_table_is_read_by_its_documented_names(tmp_path: Path) -> None:
    told: list[str] = []
    rows = rows_of(table(tmp_path / "answers.csv", *ROWS), told=told)
    assert picked(rows, "episode_id", "step", "model", "answer", "correct", "cost_nano_usd") == [
        ("q1", 1, "small", "The Danube", True, 100_000),
        ("q1", 2, "large", "The Danube", True, 2_000_000),
        ("q2", 1, "small", "The Inn", False, 100_000),
        ("q2", 2, "large", "The Mur", True, 2_000_000),
        ("q3", 1, "small", "The Inn", False, 300_000),
        ("q3", 2, "large", "The Danube", True, 4_000_000),
    ]
    assert {row["dataset"] for row in rows} == {"answers"}
    assert {row["horizon"] for row in rows} == {2}
    assert [row["signals"] for row in rows[::2]] == [{"reply_mean_logprob": value} for value in (-0.12, -0.94, -1.5)]
    assert rows[0]["gold"] == ["Danube"]
    assert [line for line in told if "small_logprob" in line and "small_correct" in line]


def test_every_form_of_a_file_holds_the_same(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    source = table(tmp_path / "t.csv", *ROWS)
    expected = rows_of(source, dataset="t")
    records = [dict(zip(HEAD.split(","), row.split(","), strict=True)) for row in ROWS]
    lines(tmp_path / "t.jsonl", *records)
    (tmp_path / "t.json").write_text(json.dumps(records, indent=1))
    (tmp_path / "page.json").write_text(json.dumps({"data": records, "meta": {"page": 1}}))
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(source.read_bytes()))
    (tmp_path / "t.tsv").write_text(source.read_text().replace(",", "\t"))
    semicolons = tmp_path / "semi"
    semicolons.mkdir()
    (semicolons / "t.csv").write_text(source.read_text().replace(",", ";"))
    duckdb.sql(f"SELECT * FROM read_csv('{source}')").write_parquet(str(tmp_path / "t.parquet"))
    names = ("t.jsonl", "t.json", "page.json", "t.csv.gz", "t.tsv", "semi", "t.parquet")
    assert {name for name in names if rows_of(tmp_path / name, dataset="t") != expected} == set()


@pytest.mark.parametrize(
    ("head", "row", "columns", "lines_to_paste"),
    [
        # the names of a question or a model are not guessed (L10)
        ("question,llm,final_answer,cost", "q,m,a,1", {}, ["--map answer=final_answer", "--map model=llm"]),
        ("prompt,a_answer,b_answer", "q,x,y", {}, ["--map question=prompt"]),
        ("prompt,reply", "q,x", {}, ["--map question=prompt", "--map answer=reply", "--map model=FIELD"]),
        # a grade that would pass as a signal (L3)
        (
            "question,a_answer,a_score,b_answer",
            "q,x,1,y",
            {},
            ["--map a.correct=a_score", "--map a.signals.score=a_score"],
        ),
        ("question,a_answer,b_answer", "q,x,y", {"gold": "target"}, ["target"]),
        ("question,a_answer,b_answer", "q,x,y", {"golden": "a_answer"}, ["golden"]),
    ],
)
def test_what_is_missing_is_asked_for_with_a_line_to_paste(
    tmp_path: Path, head: str, row: str, columns: dict[str, str], lines_to_paste: list[str]
) -> None:
    with pytest.raises(UsageError) as error:
        rows_of(table(tmp_path / "t.csv", row, head=head), columns=columns)
    assert [line for line in lines_to_paste if line not in str(error.value)] == []


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("small_cost", "--map small.cost_usd=small_cost"),
        ("small_price", "--map small.cost_usd=small_price"),
        ("small_is_correct", "--map small.correct=small_is_correct"),
        ("small_score", "--map small.signals.score=small_score"),
        ("expected", "--map gold=expected"),
    ],
)
def test_a_column_that_is_not_read_has_a_line_for_what_its_name_means(tmp_path: Path, field: str, line: str) -> None:
    told: list[str] = []
    rows_of(table(tmp_path / "t.csv", "q,a,b,0.5", head=f"question,small_answer,large_answer,{field}"), told=told)
    assert [text for text in told if line in text]


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"small.correct": "small_score"}, (True, {})),
        ({"small.signals.score": "small_score", "small.correct": "ok"}, (False, {"score": 1.0})),
    ],
)
def test_a_mapping_settles_a_doubtful_column(tmp_path: Path, columns: dict[str, str], expected: Any) -> None:
    head = "question,small_answer,small_score,ok,large_answer"
    first, _ = rows_of(table(tmp_path / "t.csv", "q,a,1,no,b", head=head), columns=columns)
    assert (first["correct"], first["signals"] or {}) == expected


def test_nested_fields_are_mapped_by_their_paths(tmp_path: Path) -> None:
    record = {"in": {"text": "q?"}, "runs": {"s1": {"out": "a", "usd": 0.001}, "l": {"out": "b", "usd": 0.1}}}
    columns = {
        "question": "in.text",
        "s.answer": "runs.s1.out",
        "s.cost_usd": "runs.s1.usd",
        "l.answer": "runs.l.out",
    }
    path = lines(tmp_path / "t.jsonl", record)
    with pytest.raises(UsageError, match=r"runs\.l\.out"):
        rows_of(path, columns={"question": "in.text", "l.answer": "runs.l.oot", "s.answer": "runs.l.out"})
    rows = rows_of(path, columns=columns | {"l.cost_usd": "runs.l.usd"})
    assert picked(rows, "question", "model", "answer", "cost_nano_usd")[1] == ("q?", "l", "b", 100_000_000)


def test_ids_and_labels_stay_texts(tmp_path: Path) -> None:
    long, date = "12345678901234567890123", "2024-1-6"
    head = "id,question,gold,a_answer,b_answer"
    paths = [table(tmp_path / "t.csv", f"{long},q,{date},{date},007", head=head)]
    paths.append(tmp_path / "t.jsonl")
    paths[1].write_text(
        f'{{"id": {long}, "question": "q", "gold": "{date}", "a_answer": "{date}", "b_answer": "007"}}\n'
    )
    for path in paths:
        first, second = rows_of(path)
        assert (first["episode_id"], first["gold"], first["answer"], second["answer"]) == (long, [date], date, "007")


def test_calls_of_models_become_steps_by_their_costs(tmp_path: Path) -> None:
    calls = [
        {"model": model, "question": f"q{at}", "answer": f"{model}{at}", "cost_usd": cost}
        for at in range(3)
        for model, cost in (("large", 0.02), ("small", 0.001))
    ]
    rows = rows_of(lines(tmp_path / "calls.jsonl", *calls))
    assert picked(rows[:2], "step", "model", "answer") == [(1, "small", "small0"), (2, "large", "large0")] or sorted(
        picked(rows[:2], "step", "model", "answer")
    ) == [(1, "small", "small0"), (2, "large", "large0")]
    assert len({row["episode_id"] for row in rows}) == 3
    again = rows_of(lines(tmp_path / "again.jsonl", *calls, *calls))
    assert len({row["episode_id"] for row in again}) == 6
    assert {row["group"] for row in again} == {None}  # equal questions are one group where the log is read


def test_one_file_for_each_model_is_joined_on_the_question(tmp_path: Path) -> None:
    for model, right in (("small", 2), ("large", 3)):
        answers = [{"question": f"q{at}", "answer": f"{model}{at}", "correct": at < right} for at in range(3)]
        lines(tmp_path / model / "answers.jsonl", *random.Random(model).sample(answers, 3))
    rows = rows_of(tmp_path / "small" / "answers.jsonl", tmp_path / "large" / "answers.jsonl")
    assert sorted(picked(rows, "question", "step", "model", "answer")) == [
        (f"q{at}", step, model, f"{model}{at}") for at in range(3) for step, model in ((1, "small"), (2, "large"))
    ]
    assert [sum(row["correct"] for row in rows if row["model"] == model) for model in ("small", "large")] == [2, 3]


@pytest.mark.parametrize(
    ("roles", "expected"),
    [
        ({}, [(1, 0, "small"), (2, 0, "large")]),
        ({"small": "base", "large": "guide"}, [(1, 0, "base"), (1, 1, "guide")]),
        ({"small": "base", "large": "judge"}, [(1, 0, "base"), (1, None, "judge")]),
    ],
)
def test_roles_make_rounds_of_a_ladder(tmp_path: Path, roles: dict[str, str], expected: Any) -> None:
    rows = rows_of(table(tmp_path / "t.csv", ROWS[0]), roles=roles)
    assert picked(rows, "step", "candidate", "source") == expected


def test_costs_and_names_by_hand(tmp_path: Path) -> None:
    head = "question,a_answer,b_answer,b_cost_usd"
    dropped = Dropped()
    rows = rows_of(
        table(tmp_path / "t.csv", "q,x,y,0.5", head=head),
        dropped=dropped,
        costs={"a": 7, "b": 9, "c": 1},
        rename={"a": "openai/a", "d": "e"},
    )
    assert picked(rows, "model", "source", "cost_nano_usd", "cost_source") == [
        ("openai/a", "openai/a", 7, "given by hand"),
        ("b", "b", 500_000_000, "the table"),
    ]
    assert dropped.notes.total() == 3  # the costs of b and c, the name d


def test_a_model_without_values_was_not_asked_unless_a_later_one_was(tmp_path: Path) -> None:
    head = "question,a_answer,b_answer,c_answer"
    rows = rows_of(table(tmp_path / "t.csv", "q1,x,,", "q2,,y,", head=head))
    assert picked(rows, "question", "model", "answer") == [("q1", "a", "x"), ("q2", "a", None), ("q2", "b", "y")]


def test_bad_cells_become_null_and_are_counted(tmp_path: Path) -> None:
    dropped = Dropped()
    bad = "q4,Bad?,Mur,The Inn,maybe,free,0.94,x,no,nan"
    rows = rows_of(table(tmp_path / "t.csv", *ROWS, bad, "q5,short", "q6,a,b,c,d,e,f,g,h,i,j"), dropped=dropped)
    assert picked(rows[-2:], "correct", "cost_nano_usd", "signals") == [(None, None, None), (False, None, None)]
    assert dropped.count == 2
    assert dropped.notes.total() == 4  # a truth, two amounts, a log-prob above 0
