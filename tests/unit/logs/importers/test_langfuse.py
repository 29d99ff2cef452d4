"""Langfuse exports: from its page, its API and its bucket."""

from __future__ import annotations

import csv
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.importers import known
from cascade.logs.importers.langfuse import rows_from_langfuse, snake
from cascade.logs.schema import Dropped

ASKED = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Which river?"}]


def observed(number: int = 1, **fields: Any) -> dict[str, Any]:
    """Make an observation as the API and the export from the page give it."""
    return {
        "id": f"obs-{number}",
        "traceId": "trace-1",
        "type": "GENERATION",
        "name": "answer",
        "startTime": f"2026-11-21T10:00:0{number}.000Z",
        "endTime": f"2026-11-21T10:00:0{number}.500Z",
        "completionStartTime": None,
        "model": "small",
        "modelParameters": {"temperature": 0},
        "input": ASKED,
        "output": {"role": "assistant", "content": "Danube"},
        "level": "DEFAULT",
        "statusMessage": None,
        "parentObservationId": None,
        "usageDetails": {
            "input": 30,
            "input_cached_tokens": 10,
            "output": 12,
            "output_reasoning_tokens": 2,
            "total": 54,
        },
        "costDetails": {"input": 0.00002, "output": 0.00004, "total": 0.00006},
        "latency": 0.5,
    } | fields


def bucket(number: int = 1) -> dict[str, Any]:
    """Make the same observation as the export to a bucket writes it."""
    plain = {snake(name): one for name, one in observed(number).items()}
    plain["provided_model_name"] = plain.pop("model")
    plain |= {"input": json.dumps(ASKED), "output": "Danube", "session_id": "talk", "total_cost": 0.00006}
    return plain | {
        "start_time": f"2026-11-21 10:00:0{number}.000000",
        "end_time": f"2026-11-21 10:00:0{number}.500000",
    }


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def rows(tmp_path: Path, *records: Any, dropped: Dropped | None = None, **options: Any) -> list[dict[str, Any]]:
    return list(rows_from_langfuse(write(tmp_path / "observations.jsonl", *records), dropped, **options))


def test_a_trace_is_an_episode(tmp_path: Path) -> None:
    path = write(tmp_path / "observations.jsonl", observed(2, model="large"), observed(1))
    assert known(path) == "langfuse"
    first, second = rows_from_langfuse(path, roles={"small": "base", "large": "guide"})
    expected = {
        "episode_id": "trace-1",
        "question": "Which river?",
        "step": 1,
        "candidate": 0,
        "source": "base",
        "model": "small",
        "answer": "Danube",
        "input_tokens": 40,
        "cached_input_tokens": 10,
        "output_tokens": 14,
        "reasoning_tokens": 2,
        "cost_nano_usd": 60_000,
        "cost_source": "Langfuse",
        "latency_ms": 500.0,
        "created_at": "2026-11-21T10:00:01.000+00:00",
    }
    assert {name: first[name] for name in expected} == expected
    assert (second["step"], second["candidate"], second["source"]) == (1, 1, "guide")


def test_every_export_holds_the_same(tmp_path: Path) -> None:
    (expected,) = rows(tmp_path, observed())
    (tmp_path / "page.json").write_text(json.dumps({"data": [observed()], "meta": {"page": 1, "totalPages": 1}}))
    (tmp_path / "list.json").write_text(json.dumps([observed()], indent=1))
    with (tmp_path / "table.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(observed()))
        table.writeheader()
        table.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in observed().items()})
    for name in ("page.json", "list.json", "table.csv"):
        assert known(tmp_path / name) == "langfuse"
        (row,) = rows_from_langfuse(tmp_path / name, dataset="observations")
        assert {**row, "text": expected["text"]} == expected
    (row,) = rows(tmp_path, bucket())
    assert row["group"] == "talk"
    assert {**row, "group": expected["group"]} == expected


def test_parquet_with_maps_bytes_and_times_holds_the_same(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    one = bucket()
    columns = {
        name: pa.array([one[name]], pa.binary() if name == "output" else None) for name in ("id", "type", "output")
    }
    columns |= {
        name: pa.array([one[name]]) for name in ("trace_id", "provided_model_name", "input", "session_id", "level")
    }
    for name, kind in {"usage_details": pa.int64(), "cost_details": pa.float64()}.items():
        columns[name] = pa.array([list(one[name].items())], pa.map_(pa.string(), kind))
    for name in ("start_time", "end_time"):
        columns[name] = pa.array([datetime.fromisoformat(one[name])], pa.timestamp("us"))
    pq.write_table(pa.table(columns), tmp_path / "observations.parquet")
    assert known(tmp_path / "observations.parquet") == "langfuse"
    assert list(rows_from_langfuse(tmp_path / "observations.parquet")) == rows(tmp_path, one)


def test_a_traces_own_page_gives_its_observations_and_scores(tmp_path: Path) -> None:
    scores = [
        {"name": "correctness", "value": 1, "dataType": "BOOLEAN", "stringValue": "True", "observationId": None},
        {"name": "style", "value": 0.4, "dataType": "NUMERIC", "observationId": "obs-2"},
    ]
    trace = {"id": "trace-1", "sessionId": "talk", "scores": scores, "observations": [observed(1), observed(2)]}
    columns = {"correct": "correctness", "confidence": "style"}
    first, second = rows(tmp_path, trace, columns=columns)
    assert (first["group"], first["correct"], first["confidence"]) == ("talk", True, None)
    assert (second["correct"], second["confidence"]) == (True, 0.4)


@pytest.mark.parametrize("score", [1, [1], "[1]", "True", ["correct"]])
def test_a_score_beside_the_observation_is_one_too(tmp_path: Path, score: Any) -> None:
    (row,) = rows(tmp_path, observed(Correctness=score), columns={"correct": "Correctness"})
    assert row["correct"] is True


def test_a_score_that_is_not_plainly_right_or_wrong_is_unknown(tmp_path: Path) -> None:
    dropped = Dropped()
    (row,) = rows(
        tmp_path, observed(scores={"correctness": [0.7]}), dropped=dropped, columns={"correct": "correctness"}
    )
    assert row["correct"] is None
    assert dropped.notes["correct is no true or false, read as null"] == 1


@pytest.mark.parametrize(
    ("fields", "cost"),
    [
        ({"costDetails": {"input": 0.00002, "output": 0.00004}}, 60_000),
        ({"costDetails": {}, "calculatedTotalCost": 0.00006}, 60_000),
        ({"costDetails": None, "totalCost": "0.00006"}, 60_000),
        ({"costDetails": {"total": 0}}, 0),
        ({"costDetails": {}, "calculatedTotalCost": 0}, None),
        ({"costDetails": {"input": None, "output": 0.1}}, None),
        ({"costDetails": {}}, None),
    ],
)
def test_a_cost_is_what_langfuse_knows(tmp_path: Path, fields: dict[str, Any], cost: int | None) -> None:
    (row,) = rows(tmp_path, observed(**fields))
    assert (row["cost_nano_usd"], row["cost_source"]) == (cost, "no price" if cost is None else "Langfuse")


@pytest.mark.parametrize(
    ("fields", "sent", "said"),
    [
        ({"usage": {"input": 40, "output": 14, "total": 54, "unit": "TOKENS"}}, 40, 14),
        ({"usage": {"promptTokens": 40, "completionTokens": 14}}, 40, 14),
        ({"promptTokens": 40, "completionTokens": 14}, 40, 14),
        ({}, None, None),
    ],
)
def test_older_counts_of_tokens_are_read(
    tmp_path: Path, fields: dict[str, Any], sent: int | None, said: int | None
) -> None:
    (row,) = rows(tmp_path, observed(usageDetails={}, **fields))
    assert (row["input_tokens"], row["output_tokens"]) == (sent, said)


def test_other_observations_are_noted_and_failed_ones_dropped(tmp_path: Path) -> None:
    dropped = Dropped()
    found = rows(
        tmp_path,
        observed(1),
        observed(2, type="SPAN"),
        observed(3, type="EVENT"),
        observed(4, level="ERROR"),
        dropped=dropped,
    )
    assert len(found) == 1
    assert dict(dropped.notes) == {"an observation that is not a model call, skipped": 2}
    assert dict(dropped.rows) == {"a failed call": 1}


def test_a_missing_latency_is_the_time_between_start_and_end(tmp_path: Path) -> None:
    (row,) = rows(tmp_path, observed(latency=None))
    assert row["latency_ms"] == 500.0
    (row,) = rows(tmp_path, observed(latency=None, endTime=None))
    assert row["latency_ms"] is None
