"""Wide tables: a row for each question, columns for each model, and no mapping.

0.5.0 refused them ("no column is mapped to the question: add question=FIELD").
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cases import each

from cascade.errors import UsageError
from cascade.logs.importers import import_rows, read_log
from cascade.logs.importers.table import rows_from_table
from cascade.logs.importers.wide import layout, said_of_model
from cascade.logs.schema import Dropped

ROWS: list[dict[str, Any]] = [
    {
        "id": "q1",
        "prompt": "Which river?",
        "topic": "geo",
        "label": "Danube",
        "large_answer": "Danube",
        "large_cost": 0.002,
        "large_correct": True,
        "small_answer": "Inn",
        "small_cost_usd": 0.0001,
        "small_correct": False,
        "small_logprob": -0.25,
    },
    {
        "id": "q2",
        "prompt": "Which lake?",
        "topic": "geo",
        "label": "Traun",
        "large_answer": None,
        "large_cost": None,
        "large_correct": None,
        "small_answer": "Traun",
        "small_cost_usd": 0.0002,
        "small_correct": True,
        "small_logprob": None,
    },
]


def written(folder: Path, form: str, rows: Sequence[dict[str, Any]] = ROWS) -> Path:
    path = folder / f"mine.{form}"
    if form == "jsonl":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    elif form == "csv":
        lines = [",".join("" if cell is None else str(cell) for cell in row.values()) for row in rows]
        path.write_text("\n".join([",".join(rows[0]), *lines]) + "\n")
    else:
        arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
        parquet.write_table(arrow.Table.from_pylist(list(rows)), path)
    return path


def imported(path: Path, **how: Any) -> tuple[list[dict[str, Any]], list[str], Dropped]:
    told: list[str] = []
    dropped = Dropped()
    rows = list(import_rows(path, dropped, kind="table", told=told.extend, **how))
    return rows, told, dropped


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_wide_table_needs_no_mapping(tmp_path: Path, form: str) -> None:
    rows, told, dropped = imported(written(tmp_path, form))
    first, second, third = rows
    expected: dict[str, Any] = {
        "episode_id": "q1",
        "question": "Which river?",
        "gold": ["Danube"],
        "dataset": "mine",
        "step": 1,
        "horizon": 2,
        "candidate": 0,
        "source": "small",
        "model": "small",
        "answer": "Inn",
        "correct": False,
        "cost_nano_usd": 100_000,
        "cost_source": "the table",
        "signals": {"reply_mean_logprob": -0.25},
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["step"], second["source"], second["correct"], second["cost_nano_usd"]) == (
        2,
        "large",
        True,
        2_000_000,
    )
    assert (third["episode_id"], third["step"], third["horizon"], third["source"]) == ("q2", 1, 2, "small")
    assert third["signals"] == {"reply_mean_logprob": None}
    assert dict(dropped.notes) == {"large has no answer, truth or cost, so it was not asked": 1}
    assert told == [
        "columns of the question: prompt (the question), label (the accepted answer), id (the question's id)",
        (
            "step 1, small: small_answer (its answer), small_correct (whether it is right), small_cost_usd (its cost "
            "in USD), small_logprob (signal reply_mean_logprob, the mean log-prob of its reply's tokens)"
        ),
        "step 2, large: large_answer (its answer), large_correct (whether it is right), large_cost (its cost in USD)",
        (
            "the models are in the order of their mean costs (USD: small 0.0001, large 0.002); --role MODEL=base and "
            "--role MODEL=guide change that"
        ),
        "ignored: topic",
    ]


def test_roles_place_the_models(tmp_path: Path) -> None:
    rows, told, _ = imported(written(tmp_path, "jsonl"), roles={"small": "base", "large": "guide"})
    assert [(row["step"], row["candidate"], row["source"]) for row in rows[:2]] == [(1, 1, "guide"), (1, 0, "base")]
    assert not [line for line in told if "step" in line or "stand in" in line]


@each(
    "name, model, what",
    [
        ("small_answer", "small", "answer"),
        ("gpt-4o-mini_output", "gpt-4o-mini", "answer"),
        ("Llama 3.1 response", "Llama 3.1", "answer"),
        ("haiku.reply", "haiku", "answer"),
        ("largeCostUSD", "large", "cost_usd"),
        ("DeepSeekAnswer", "DeepSeek", "answer"),
        ("small_is_correct", "small", "correct"),
        ("small_right", "small", "correct"),
        ("small_OK", "small", "correct"),
        ("small_cost_nano_usd", "small", "cost_nano_usd"),
        ("small_latency_ms", "small", "latency_ms"),
        ("small_answer_min_logprob", "small", "signals.answer_min_logprob"),
        ("small_confidence", "small", "signals.confidence"),
        ("small_score", "small", "signals.score"),
    ],
)
def test_the_names_of_columns_are_understood(name: str, model: str, what: str) -> None:
    assert said_of_model(name) == (model, what)


@pytest.mark.parametrize("name", ["answer", "cost", "topic", "_answer", "smallanswer", "notes_long"])
def test_other_names_speak_of_no_model(name: str) -> None:
    assert said_of_model(name) is None


@each("question", ["question", "Prompt", "input", "query"])
@each("gold", ["gold", "expected", "reference", "label", "answer_key", "correct_answer", "gold_label"])
def test_common_spellings_of_the_question_and_the_accepted_answer(question: str, gold: str) -> None:
    found = layout([question, gold, "a_answer", "b_answer", "c_answer"])
    assert found is not None
    assert found.question == {"question": question, "gold": gold}
    assert [one.name for one in found.models] == ["a", "b", "c"]
    assert (found.problems, found.ignored) == ((), {})


def test_a_prefix_without_an_answer_is_not_a_model_and_is_reported() -> None:
    found = layout(["prompt", "a_answer", "a_correct", "b_answer", "total_cost", "topic_label", "parse_ok"])
    assert found is not None
    assert [one.name for one in found.models] == ["a", "b"]
    assert list(found.ignored) == ["total_cost", "topic_label", "parse_ok"]
    assert "parse_ok (there is no parse_answer)" in "\n".join(found.describe())
    assert "no column says which answers of b are right" in "\n".join(found.describe())


def test_a_column_called_as_a_model_holds_its_answers() -> None:
    found = layout(
        ["prompt", "gpt-4o-mini", "gpt-4o", "gpt-4o-mini_correct", "gpt-4o_correct", "output", "output_cost"]
    )
    assert found is not None
    assert {one.name: one.columns["answer"] for one in found.models} == {
        "gpt-4o-mini": "gpt-4o-mini",
        "gpt-4o": "gpt-4o",
    }
    labelled = layout(["prompt", "topic", "topic_label", "a_answer", "b_answer"])
    assert labelled is not None
    assert [one.name for one in labelled.models] == ["a", "b"]


def test_a_table_of_routerbench_needs_no_mapping(tmp_path: Path) -> None:
    """Its scores and costs were ignored, and the import ended well: every answer unjudged, every cost unknown."""
    path = tmp_path / "routerbench.csv"
    path.write_text(
        "sample_id,prompt,eval_name,gpt-4,mistral-7b,gpt-4|model_response,mistral-7b|model_response,"
        "gpt-4|total_cost,mistral-7b|total_cost,oracle_model_to_route_to\n"
        "a.1,Which river?,mmlu,1.0,0.0,Danube,Inn,0.002,0.0001,gpt-4\n"
        "a.2,Which lake?,mtbench,0.75,1.0,Traun,Traun,0.002,0.0001,mistral-7b\n"
    )
    dropped = Dropped()
    rows = list(rows_from_table(path, dropped))
    found = [(one["step"], one["model"], one["answer"], one["correct"], one["cost_nano_usd"]) for one in rows]
    assert found == [
        (1, "mistral-7b", "Inn", False, 100_000),
        (2, "gpt-4", "Danube", True, 2_000_000),
        (1, "mistral-7b", "Traun", True, 100_000),
        (2, "gpt-4", "Traun", None, 2_000_000),
    ]
    assert [one["segment"] for one in rows] == ["mmlu", "mmlu", "mtbench", "mtbench"]
    assert dropped.notes == {"gpt-4 is no true or false, read as null": 1}


def test_doubt_under_any_name_is_a_signal_of_its_model() -> None:
    found = layout(["prompt", "gpt-4o_answer", "gpt-4o-mini_answer", "gpt-4o-mini_semantic_entropy", "topic_entropy"])
    assert found is not None
    assert "signals.semantic_entropy" in found.models[1].columns
    assert list(found.ignored) == ["topic_entropy"]


@pytest.mark.parametrize(
    "names",
    [
        ["question", "answer", "model"],
        ["question", "reply", "total_cost"],
        ["question", "answer", "correct", "model_answer"],
        ["step", "question", "a_answer", "b_answer"],
        [],
    ],
)
def test_a_table_of_calls_is_not_wide(names: list[str]) -> None:
    assert layout(names) is None


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (
            "prompt,question,a_answer,b_answer",
            ["prompt and question may each be the question", "--map question=prompt or"],
        ),
        ("prompt,gold,label,a_answer,b_answer", ["gold and label may each be the accepted answer"]),
        (
            "prompt,a_answer,a_output,b_answer",
            ["its answer, for a: add --map a.answer=a_answer or --map a.answer=a_out"],
        ),
        ("prompt,a_answer,a_cost,a_cost_usd", ["a_cost and a_cost_usd may each be its cost in USD, for a"]),
        (
            "prompt,a_answer,b_answer,answer",
            ["answer is ambiguous beside columns of a and b: add --map gold=answer if"],
        ),
        ("text_id,a_answer,b_answer", ["no column is mapped to the question: add --map question=FIELD"]),
        ("prompt,query,a_answer,a_reply", ["may each be the question", "its answer, for a"]),
    ],
)
def test_what_the_names_leave_open_is_one_message(tmp_path: Path, header: str, said: list[str]) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{header}\n{','.join('x' for _ in header.split(','))}\n")
    with pytest.raises(UsageError) as raised:
        list(rows_from_table(path))
    for words in said:
        assert words in str(raised.value)


def test_a_mapping_settles_what_is_open(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("prompt,question,a_answer,a_output,b_answer,answer\nlong,short,1,one,2,3\n")
    rows, told, _ = imported(path, columns={"question": "question", "gold": "answer", "a.answer": "a_output"})
    assert [(row["question"], row["gold"], row["answer"]) for row in rows] == [
        ("short", ["3"], "one"),
        ("short", ["3"], "2"),
    ]
    assert "ignored: prompt (--map says question=question), a_answer" in told


def test_a_role_or_a_mapping_of_what_is_not_there_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, "csv")
    with pytest.raises(UsageError, match=r"no model smal; did you mean small.*no column lable; did you mean label"):
        list(rows_from_table(path, roles={"smal": "base"}, columns={"gold": "lable"}))


def test_the_same_question_again_is_another_run_in_the_same_group(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,a_answer,b_answer\nWhich?,1,2\nWhich?,3,4\n")
    rows, _, dropped = imported(path)
    assert len({row["episode_id"] for row in rows}) == 2
    assert len({row["group"] for row in rows}) == 1
    assert [row["step"] for row in rows] == [1, 2, 1, 2]
    assert dropped.notes.total() == 1


def test_a_gap_in_a_ladder_keeps_the_later_models_in_their_steps(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,a_answer,b_answer,c_answer\nWhich?,1,,3\nWho?,1,,\n,,,\nWhat?,,,\n")
    rows, _, dropped = imported(path)
    assert [(row["step"], row["source"], row["answer"]) for row in rows] == [
        *[(1, "a", "1"), (2, "b", None), (3, "c", "3")],
        (1, "a", "1"),
    ]
    assert {row["horizon"] for row in rows} == {3}
    assert dict(dropped.rows) == {"no model has an answer, a truth or a cost": 2}
    (note, many), *_ = dropped.notes.items()
    assert (note.startswith("b has no answer, truth or cost, though a later model has: "), many) == (True, 1)


def test_cells_that_say_nothing_are_unknown_and_noted(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text("question,a_answer,a_cost,a_logprob,a_correct\nWhich?,1,free,0.9,0.7\n")
    (row,), _, dropped = imported(path)
    assert (row["cost_nano_usd"], row["cost_source"], row["correct"]) == (None, "no price", None)
    assert row["signals"] == {"reply_mean_logprob": None}
    assert dropped.notes["a_cost is no amount of USD, read as null"] == 1
    assert dropped.notes["a_logprob is above 0, which no log-prob is, read as null"] == 1
    assert dropped.notes.total() == 3


def test_messages_are_read_for_what_was_asked_and_answered(tmp_path: Path) -> None:
    row = {"input": [{"role": "user", "content": "Which?"}], "a_output": {"role": "assistant", "content": "That"}}
    (made,), _, _ = imported(written(tmp_path, "jsonl", [row | {"expected": 4}]))
    assert (made["question"], made["answer"], made["gold"]) == ("Which?", "That", ["4"])


def test_a_conversation_is_kept_whole_and_holds_its_turns_together(tmp_path: Path) -> None:
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which river?"}]
    rows = [
        {"messages": [*turns, *more], "conversation_id": "c7", "a_answer": "Inn", "a_logprob": -0.5, "b_answer": "Mur"}
        for more in ([], [{"role": "assistant", "content": "Where?"}, {"role": "user", "content": "Which river?"}])
    ]
    made, told, dropped = imported(written(tmp_path, "jsonl", rows))
    assert told[0] == "columns of the question: messages (the question), conversation_id (group)"
    assert [json.loads(row["context"])["messages"] for row in made[::2]] == [row["messages"] for row in rows]
    assert {row["question"] for row in made} == {"Which river?"}
    assert [json.loads(row["text"])["content"] for row in made] == ["Inn", "Mur"] * 2
    assert [row["signals"]["reply_mean_logprob"] for row in made] == [-0.5, None] * 2
    assert len({row["episode_id"] for row in made}) == 2
    assert {row["group"] for row in made} == {"c7"}
    assert not dropped.describe()


def test_objects_by_the_models_names_are_read_as_columns(tmp_path: Path) -> None:
    rows = [
        {
            "prompt": "Which?",
            "dear": {"answer": "Mur", "cost": 0.2, "finish": "stop"},
            "cheap": {"answer": "Inn", "cost": 0.1, "logprob": -0.5},
            "metadata": {"answer_format": "text"},
        }
    ]
    made, told, _ = imported(written(tmp_path, "jsonl", rows))
    assert [(row["model"], row["answer"], row["cost_nano_usd"]) for row in made] == [
        ("cheap", "Inn", 100_000_000),
        ("dear", "Mur", 200_000_000),
    ]
    assert made[0]["signals"] == {"reply_mean_logprob": -0.5}
    assert "ignored: dear.finish, metadata" in told
    known = list(import_rows(written(tmp_path, "jsonl", rows)))
    assert len(known) == 2


def test_a_table_separated_by_semicolons_is_read(tmp_path: Path) -> None:
    path = tmp_path / "excel.csv"
    path.write_text("Prompt;Small Answer;Small Cost;Large Answer;Large Cost\nA, or B?;A;0.1;B;0.2\n", "utf-8-sig")
    made, _, dropped = imported(path)
    assert [(row["question"], row["answer"]) for row in made] == [("A, or B?", "A"), ("A, or B?", "B")]
    assert not dropped.describe()


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_a_command_that_is_given_a_wide_table_says_how_to_bring_it_in(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, form)
    with pytest.raises(UsageError, match=f"a row for each question.*: cascade import {path} -o episodes.jsonl"):
        list(read_log(path))


def test_a_repeated_id_is_in_the_group_of_its_first_row_in_other_words_too(tmp_path: Path) -> None:
    """Only the words of the question made the group, so a split could cut between two runs of one id."""
    other = ROWS[0] | {"prompt": "Which river is it?"}
    rows = list(rows_from_table(written(tmp_path, "jsonl", [*ROWS, other])))
    groups = {row["episode_id"]: row["group"] for row in rows}
    assert set(groups) == {"q1", "q2", "q1#2"}
    assert groups["q1#2"] == groups["q1"] != groups["q2"]
    sets = [row | {"segment": f"set {number}"} for number, row in enumerate([ROWS[0], other])]
    assert len({row["group"] for row in rows_from_table(written(tmp_path, "jsonl", sets))}) == 2
    alone = {row["episode_id"]: row["group"] for row in rows_from_table(written(tmp_path, "jsonl"))}
    assert alone == {name: groups[name] for name in ("q1", "q2")}
