"""Tables of calls, read by the names of their columns: no mapping, and no order of the rows, is needed."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.importers import import_rows, read_log
from cascade.logs.importers.table import rows_from_table
from cascade.logs.importers.values import nano_usd
from cascade.logs.schema import Dropped

CALLS = [
    {"engine": model, "Prompt": f"{n} + {n}?", "completion": said, "costUSD": cost, "is_correct": said == str(2 * n)}
    for n in range(4)
    for model, said, cost in (("large", str(2 * n), 0.002), ("small", "4", 0.0001))
]


def lines(tmp_path: Path, rows: list[dict[str, Any]]) -> Path:
    path = tmp_path / "calls.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
    return path


@pytest.mark.parametrize("seed", range(3))
def test_the_models_are_steps_by_their_costs_whatever_the_order_of_the_rows(tmp_path: Path, seed: int) -> None:
    rows, told, dropped = Random(seed).sample(CALLS, len(CALLS)), list[str](), Dropped()
    made = list(import_rows(lines(tmp_path, rows), dropped, told=told.extend))
    assert told[0] == (
        "read: engine (the model), Prompt (the question), completion (its answer), is_correct (whether it is right), "
        "costUSD (its cost in USD)"
    )
    assert told[1].startswith("step 1, small, step 2, large: in the order of their mean costs")
    episodes = [list(group) for _, group in itertools.groupby(made, key=lambda row: row["episode_id"])]
    assert [[(row["step"], row["model"], row["horizon"]) for row in one] for one in episodes] == [
        [(1, "small", 2), (2, "large", 2)]
    ] * 4
    found = {(row["question"], row["model"]): (row["answer"], row["correct"], row["cost_nano_usd"]) for row in made}
    assert found == {
        (row["Prompt"], row["engine"]): (row["completion"], row["is_correct"], nano_usd(row["costUSD"])) for row in rows
    }
    assert dropped.describe() == ""


def test_bodies_of_chat_requests_are_kept_whole(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which river?"}]
    tools = [{"type": "function", "function": {"name": "look_up", "parameters": {"type": "object", "properties": {}}}}]
    rows = [
        {
            "request": {"model": model, "messages": messages, "tools": tools, "temperature": 0},
            "response": {
                "choices": [{"message": {"role": "assistant", "content": said}, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 20, "completion_tokens": 2},
            },
            "cost": cost,
        }
        for model, said, cost in (("large", "Danube", 0.002), ("small", "Inn", 0.0001))
    ]
    first, second = import_rows(lines(tmp_path, rows))
    assert (first["model"], first["answer"], first["input_tokens"], first["output_tokens"]) == ("small", "Inn", 20, 2)
    assert (second["model"], second["answer"], second["question"]) == ("large", "Danube", "Which river?")
    context = json.loads(first["context"])
    assert (context["messages"], context["tools"], context["temperature"]) == (messages, tools, 0)
    assert json.loads(first["text"]) == {"role": "assistant", "content": "Inn"}


def test_messages_and_tools_in_cells_of_a_csv_file_are_a_chat_request(tmp_path: Path) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Which river?"}]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
    path, told = tmp_path / "calls.csv", list[str]()
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["model", "messages", "response", "note", "tools"])
        writer.writerow(["small", json.dumps(messages), "Inn", "x", json.dumps(tools)])
    (row,) = import_rows(path, told=told.extend)
    assert (row["question"], row["answer"]) == ("Which river?", "Inn")
    assert json.loads(row["context"])["tools"] == tools
    assert "ignored: note" in told


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"label": "incorrect"},
            "label may be whether it is right, or the accepted answer: add --map correct=label or",
        ),
        (
            {"input": "a"},
            "Prompt and input may each be the question: add --map question=Prompt or --map question=input",
        ),
        ({"output": "a"}, "output and completion may each be its answer: add --map answer=output or"),
    ],
)
def test_names_that_may_mean_two_things_are_refused_with_the_mapping(
    tmp_path: Path, more: dict[str, str], said: str
) -> None:
    rows = [{name: value for name, value in row.items() if name != "is_correct"} | more for row in CALLS]
    path = lines(tmp_path, rows)
    with pytest.raises(UsageError) as raised:
        list(import_rows(path))
    assert f"cannot be read by its column names: {said}" in str(raised.value)
    what, _, field = str(raised.value).partition("--map ")[2].split()[0].rstrip(".").partition("=")
    assert len(list(import_rows(path, columns={what: field}))) == len(CALLS)


def test_a_label_that_is_no_truth_is_the_accepted_answer(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "is_correct"} | {"label": "Danube"} for row in CALLS]
    assert {tuple(row["gold"]) for row in import_rows(lines(tmp_path, rows))} == {("Danube",)}


def test_questions_told_apart_by_an_id_may_have_one_text(tmp_path: Path) -> None:
    rows = [row | {"Prompt": "Which river?", "question_id": n // 2} for n, row in enumerate(CALLS)]
    made = list(import_rows(lines(tmp_path, rows)))
    assert [(row["episode_id"], row["model"]) for row in made] == [
        (str(n), model) for n in range(4) for model in ("small", "large")
    ]


def test_a_model_that_answers_a_question_twice_makes_two_runs(tmp_path: Path) -> None:
    dropped = Dropped()
    made = list(rows_from_table(lines(tmp_path, CALLS[:2] * 2), dropped))
    assert [(row["model"], row["step"]) for row in made] == [("small", 1), ("large", 2)] * 2
    assert len({row["episode_id"] for row in made}) == 2
    assert "read as another run" in dropped.describe()


def test_without_costs_the_order_of_the_rows_counts(tmp_path: Path) -> None:
    rows = [{name: value for name, value in row.items() if name != "costUSD"} for row in CALLS]
    assert [row["model"] for row in import_rows(lines(tmp_path, rows))] == ["large", "small"] * 4


def test_a_command_that_reads_logs_asks_to_import_it_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"a row for each question or call\. Import it first"):
        list(read_log(lines(tmp_path, CALLS)))


@pytest.mark.parametrize("part", ["dataset", "segment"])
def test_an_id_names_two_questions_in_two_data_sets_or_segments(tmp_path: Path, part: str) -> None:
    """Joined, a small model's answer in one would be judged beside the large one's in the other."""
    rows = [
        {"question_id": "17", part: "a", "model": "small", "question": "Capital of Peru?", "answer": "Lima"},
        {"question_id": "17", part: "b", "model": "large", "question": "Capital of Chile?", "answer": "Santiago"},
        {"question_id": "17", part: "b", "model": "small", "question": "Capital of Chile?", "answer": "Lima"},
    ]
    found = list(import_rows(lines(tmp_path, [row | {"correct": True} for row in rows])))
    assert [(row["question"], row["model"], row[part]) for row in found] == [
        ("Capital of Peru?", "small", "a"),
        ("Capital of Chile?", "large", "b"),
        ("Capital of Chile?", "small", "b"),
    ]
    assert len({row["episode_id"] for row in found}) == 2
    assert found[1]["episode_id"] == found[2]["episode_id"]


def test_a_call_without_a_segment_belongs_to_the_only_question_of_its_id(tmp_path: Path) -> None:
    rows = [row | {"question_id": n // 2, "segment": "a" if n % 2 else None} for n, row in enumerate(CALLS)]
    dropped = Dropped()
    found = list(import_rows(lines(tmp_path, rows), dropped))
    assert len({row["episode_id"] for row in found}) == 4
    assert {row["segment"] for row in found} == {"a"}
    assert dropped.describe() == ""
    rows[0]["question_id"] = rows[3]["question_id"]
    rows[3]["segment"] = "b"
    rows.append(rows[3] | {"segment": "c"})
    list(import_rows(lines(tmp_path, rows), dropped))
    assert "no data set or segment, while other calls with this id have several" in dropped.describe()


def test_a_call_that_names_no_model_is_no_step_where_the_models_are(tmp_path: Path) -> None:
    rows = [*CALLS, CALLS[0] | {"engine": None, "completion": "of nobody"}]
    dropped = Dropped()
    found = list(import_rows(lines(tmp_path, rows), dropped))
    assert len(found) == len(CALLS)
    assert "of nobody" not in {row["answer"] for row in found}
    assert "a call that names no model, where the models are the steps (1)" in dropped.describe()


def test_an_answer_that_is_an_object_is_kept_as_json(tmp_path: Path) -> None:
    rows = [row | {"completion": {"city": row["completion"], "in": ["Zürich"]}} for row in CALLS]
    found = list(import_rows(lines(tmp_path, rows)))
    assert {row["answer"] for row in found} == {f'{{"city": "{said}", "in": ["Zürich"]}}' for said in "0246"}


def test_a_positive_log_prob_is_no_signal(tmp_path: Path) -> None:
    rows = [row | {"mean_logprob": -0.5 + n} for n, row in enumerate(CALLS)]
    dropped, told = Dropped(), list[str]()
    found = list(import_rows(lines(tmp_path, rows), dropped, told=told.extend))
    assert [row["signals"]["reply_mean_logprob"] for row in found].count(-0.5) == 1
    assert [row["signals"]["reply_mean_logprob"] for row in found].count(None) == len(CALLS) - 1
    assert f"mean_logprob is above 0, which no log-prob is, read as null ({len(CALLS) - 1})" in dropped.describe()


@pytest.mark.parametrize(
    ("times", "iso"),
    [
        (("1730455202.5", "1730455201.25"), "2024-11-01T10:00:01.250+00:00"),
        ((1730455202.5, 1730455201.25), "2024-11-01T10:00:01.250+00:00"),
        (("2024-11-01T10:00:02Z", "2024-11-01T10:00:01Z"), "2024-11-01T10:00:01Z"),
    ],
)
def test_the_calls_of_a_question_are_in_the_order_of_their_times(tmp_path: Path, times: Any, iso: str) -> None:
    rows = [{"question": "Which?", "answer": said, "created_at": at} for said, at in zip("ba", times, strict=True)]
    found = list(rows_from_table(lines(tmp_path, rows)))
    assert [(row["answer"], row["step"]) for row in found] == [("a", 1), ("b", 2)]
    assert found[0]["created_at"] == iso


def test_a_time_that_cannot_be_read_is_counted(tmp_path: Path) -> None:
    dropped = Dropped()
    rows = [{"question": "Which?", "answer": said, "created_at": at} for said, at in (("b", "noon"), ("a", "10:00"))]
    found = list(rows_from_table(lines(tmp_path, rows), dropped))
    assert [(row["answer"], row["created_at"]) for row in found] == [("b", None), ("a", None)]
    assert "created_at is no time, read as null: the calls of this question are in the order of the rows (2)" in (
        dropped.describe()
    )
