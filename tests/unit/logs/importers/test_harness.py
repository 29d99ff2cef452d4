"""Samples of EleutherAI's evaluation harness: a file for each model, as lm-eval 0.4 writes them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from cascade.errors import UsageError
from cascade.logs.importers import import_rows, known
from cascade.logs.schema import Dropped


def choice(doc_id: int, scores: list[float], right: float, **more: Any) -> dict[str, Any]:
    """One line of a task with options."""
    options = ["the Danube", "the Inn"]
    asked = {f"gen_args_{i}": {"arg_0": "Q: Which river?\nA:", "arg_1": f" {one}"} for i, one in enumerate(options)}
    line = {
        "doc_id": doc_id,
        "doc": {"question": f"Which river is number {doc_id}?", "answerKey": "A"},
        "target": "0",
        "arguments": asked,
        "resps": [[[str(one), "False"]] for one in scores],
        "filtered_resps": [[str(one), "False"] for one in scores],
        "filter": "none",
        "metrics": ["acc", "acc_norm"],
        "acc": right,
        "acc_norm": 1.0 - right,
    }
    return line | more


def written(doc_id: int, filtered: str, right: float, kind: str) -> dict[str, Any]:
    """One line of a task whose answers are written, under one filter."""
    return {
        "doc_id": doc_id,
        "doc": {"context": "no field that holds the question"},
        "target": "4",
        "arguments": [["What is 2 + 2?", {"until": ["\n"]}]],
        "resps": [["It is 4."]],
        "filtered_resps": [filtered],
        "filter": kind,
        "metrics": ["exact_match"],
        "exact_match": right,
    }


def files(folder: Path, **lines: list[dict[str, Any]]) -> list[Path]:
    made = []
    for model, of_model in lines.items():
        path = folder / model / "samples_rivers_2026-11-23T10-11-12.345678.jsonl"
        path.parent.mkdir()
        path.write_text("".join(f"{json.dumps(one)}\n" for one in of_model))
        made.append(path)
    return made


def test_the_samples_of_two_models_are_a_ladder(tmp_path: Path) -> None:
    small = [choice(0, [-1.0, -1.0 - math.log(3)], 1.0), choice(1, [-2.0, -1.0], 0.0), choice(2, [-1.0, -2.0], 1.0)]
    source, *also = files(tmp_path, small=small, large=[choice(1, [-1.0, -5.0], 1.0), choice(0, [-1.0, -5.0], 1.0)])
    dropped = Dropped()
    assert known(source) == "harness"
    rows = list(import_rows(source, dropped, also=also))
    found = [(one["question"], one["step"], one["model"], one["answer"], one["correct"]) for one in rows]
    assert found == [
        ("Which river is number 0?", 1, "small", "the Danube", True),
        ("Which river is number 0?", 2, "large", "the Danube", True),
        ("Which river is number 1?", 1, "small", "the Inn", False),
        ("Which river is number 1?", 2, "large", "the Danube", True),
    ]
    assert {(one["segment"], *one["gold"], one["horizon"], one["cost_nano_usd"]) for one in rows} == {
        ("rivers", "the Danube", 2, None)
    }
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert rows[0]["signals"]["choice_entropy"] == pytest.approx(entropy)
    assert dropped.rows == {"a question that not all models answered": 1}
    other = list(import_rows(source, also=also, columns={"correct": "acc_norm"}))
    assert [one["correct"] for one in other] == [not one["correct"] for one in rows]


def test_of_answers_read_by_several_filters_the_first_counts(tmp_path: Path) -> None:
    lines = [written(0, "[invalid]", 0.0, "strict-match"), written(0, "4", 1.0, "flexible-extract")]
    dropped = Dropped()
    source, *also = files(tmp_path, small=lines, large=lines[1:])
    rows = list(import_rows(source, dropped, also=also))
    assert [(one["question"], one["answer"], one["correct"]) for one in rows] == [
        ("What is 2 + 2?", "[invalid]", False),
        ("What is 2 + 2?", "4", True),
    ]
    assert dropped.count == 1


def test_one_file_is_no_ladder(tmp_path: Path) -> None:
    (source,) = files(tmp_path, small=[choice(0, [-1.0, -2.0], 1.0)])
    with pytest.raises(UsageError, match="two models or more together"):
        list(import_rows(source))
