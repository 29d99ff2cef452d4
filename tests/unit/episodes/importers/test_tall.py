"""Tables of calls, read by the names of their columns: no mapping, and no order of the rows, is needed."""

from __future__ import annotations

import csv
import itertools
import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cascade.episodes.importers import import_rows, read_log, rows_from_table
from cascade.episodes.importers.values import nano_usd
from cascade.episodes.schema import Dropped
from cascade.errors import UsageError

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
