"""LiteLLM's spend logs, as its table holds them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from cascade.logs.importers import known
from cascade.logs.importers.litellm_spend import rows_from_litellm
from cascade.logs.schema import Dropped


def spent(number: int, **fields: Any) -> dict[str, Any]:
    """Make a row of LiteLLM_SpendLogs, with what it stores for a chat call when it is told to store prompts."""
    body = {"model": "small", "messages": [{"role": "user", "content": "Which river runs through Vienna?"}]}
    reply = {"role": "assistant", "content": "The Danube."}
    choice = {"finish_reason": "stop", "index": 0, "message": reply}
    details = {"prompt_tokens_details": {"cached_tokens": 8}, "completion_tokens_details": {"reasoning_tokens": 2}}
    return {
        "request_id": f"chatcmpl-{number}",
        "call_type": "acompletion",
        "api_key": "88dc28d0f030c55ed4ab77ed8faf098196cb1c05df778539800c9f1243fe6b4b",
        "spend": 2.1e-05,
        "total_tokens": 52,
        "prompt_tokens": 40,
        "completion_tokens": 12,
        "startTime": f"2026-11-21T10:00:0{number}.000Z",
        "endTime": f"2026-11-21T10:00:0{number}.850Z",
        "request_duration_ms": 850,
        "completionStartTime": f"2026-11-21T10:00:0{number}.850Z",
        "model": "gpt-4o-mini-2024-07-18",
        "model_id": "d3b0",
        "model_group": "small",
        "custom_llm_provider": "openai",
        "user": "",
        "metadata": {"status": "success", "usage_object": {"total_tokens": 52, **details}},
        "cache_hit": "False",
        "request_tags": [],
        "end_user": "",
        "messages": {},
        "response": {"id": f"chatcmpl-{number}", "object": "chat.completion", "choices": [choice]},
        "session_id": "session-1",
        "status": "success",
        "proxy_server_request": body,
    } | fields


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_a_session_is_an_episode(tmp_path: Path) -> None:
    path = write(tmp_path / "spend.jsonl", spent(2, model_group="large", spend=0.0004), spent(1))
    assert known(path) == "litellm"
    first, second = rows_from_litellm(path, roles={"small": "base", "large": "guide"})
    assert (first["episode_id"], first["step"], first["candidate"], first["source"]) == ("session-1", 1, 0, "base")
    assert (second["step"], second["candidate"], second["source"]) == (1, 1, "guide")
    expected = {
        "question": "Which river runs through Vienna?",
        "answer": "The Danube.",
        "model": "gpt-4o-mini-2024-07-18",
        "dataset": "spend",
        "input_tokens": 40,
        "cached_input_tokens": 8,
        "output_tokens": 12,
        "reasoning_tokens": 2,
        "cost_nano_usd": 21_000,
        "cost_source": "LiteLLM's price table",
        "latency_ms": 850.0,
        "created_at": "2026-11-21T10:00:01.000+00:00",
    }
    assert {name: first[name] for name in expected} == expected
    assert first["correct"] is None
    assert second["cost_nano_usd"] == 400_000


def test_the_log_probs_of_a_plain_reply_are_signals(tmp_path: Path) -> None:
    row = spent(1)
    tokens = [{"token": "4", "logprob": -0.5}, {"token": "2", "logprob": -0.1}]
    row["response"]["choices"][0] |= {
        "message": {"role": "assistant", "content": "42"},
        "logprobs": {"content": tokens},
    }
    (read,) = rows_from_litellm(write(tmp_path / "spend.jsonl", row))
    assert read["text"] == "42"
    assert read["signals"]["reply_mean_logprob"] == pytest.approx(-0.3)
    assert read["signals"]["answer_min_logprob"] == pytest.approx(-0.5)


def test_a_table_with_json_in_its_cells_is_the_same(tmp_path: Path) -> None:
    rows = [spent(1), spent(2, session_id=None)]
    with (tmp_path / "spend.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, fieldnames=list(rows[0]))
        table.writeheader()
        for row in rows:
            table.writerow({k: json.dumps(v) if isinstance(v, dict | list) else v for k, v in row.items()})
    assert known(tmp_path / "spend.csv") == "litellm"
    assert list(rows_from_litellm(tmp_path / "spend.csv")) == list(
        rows_from_litellm(write(tmp_path / "spend.jsonl", *rows))
    )


def test_a_call_of_no_session_is_an_episode(tmp_path: Path) -> None:
    rows = list(rows_from_litellm(write(tmp_path / "s.jsonl", spent(1, session_id=None), spent(2, session_id=""))))
    assert [row["episode_id"] for row in rows] == ["chatcmpl-1", "chatcmpl-2"]


def test_a_trace_in_the_metadata_is_one_too(tmp_path: Path) -> None:
    metadata = json.dumps({"trace_id": "t", "status": "success"})
    (row,) = rows_from_litellm(write(tmp_path / "s.jsonl", spent(1, session_id=None, metadata=metadata)))
    assert (row["episode_id"], row["cached_input_tokens"]) == ("t", None)


@pytest.mark.parametrize(
    ("fields", "cost", "source"),
    [
        ({"spend": 0.0}, None, "no price"),
        ({"spend": 0.0, "cache_hit": "True"}, 0, "LiteLLM's cache"),
        ({"spend": None}, None, "no price"),
        ({"spend": -1}, None, "no price"),
        ({"spend": 0, "prompt_tokens": 0, "completion_tokens": 0}, 0, "LiteLLM's price table"),
    ],
)
def test_a_spend_of_nothing_is_not_always_free(
    tmp_path: Path, fields: dict[str, Any], cost: int | None, source: str
) -> None:
    dropped = Dropped()
    (row,) = rows_from_litellm(write(tmp_path / "s.jsonl", spent(1, **fields)), dropped)
    assert (row["cost_nano_usd"], row["cost_source"]) == (cost, source)
    noted = "a spend of 0 for a call that used tokens: no price was known, so the cost is null"
    assert (noted in dropped.notes) == (fields == {"spend": 0.0})


def test_calls_that_are_none_are_dropped_by_kind(tmp_path: Path) -> None:
    dropped = Dropped()
    path = write(
        tmp_path / "s.jsonl",
        spent(1),
        spent(2, call_type="aembedding"),
        spent(3, status="failure"),
        spent(4, metadata={"status": "failure"}),
        spent(1),
        spent(
            5,
            call_type="anthropic_messages",
            response={"role": "assistant", "content": [{"type": "text", "text": "Inn"}]},
        ),
    )
    rows = list(rows_from_litellm(path, dropped))
    assert [row["answer"] for row in rows] == ["The Danube.", "Inn"]
    assert dict(dropped.rows) == {
        "a call of another kind (aembedding)": 1,
        "a failed call": 2,
        "the same call a second time": 1,
    }


def test_a_log_without_texts_still_has_its_costs(tmp_path: Path) -> None:
    dropped = Dropped()
    bare = {"messages": "{}", "response": "{}", "proxy_server_request": "{}"}
    (row,) = rows_from_litellm(write(tmp_path / "s.jsonl", spent(1, **bare)), dropped)
    assert (row["question"], row["answer"], row["candidate"], row["cost_nano_usd"]) == (None, None, 0, 21_000)
    assert dict(dropped.notes) == {"question is null": 1}


def test_cut_and_redacted_texts_are_not_taken_for_what_was_said(tmp_path: Path) -> None:
    cut = "The Dan... (litellm_truncated skipped 9000 chars. …) ... ube."
    choices = [{"index": 0, "message": {"role": "assistant", "content": cut}}]
    hidden = {"messages": [{"role": "user", "content": "redacted-by-litellm"}]}
    dropped = Dropped()
    path = write(tmp_path / "s.jsonl", spent(1, response={"choices": choices}, proxy_server_request=hidden))
    (row,) = rows_from_litellm(path, dropped)
    assert (row["question"], row["answer"]) == (None, cut)
    assert dropped.notes["a text whose middle LiteLLM cut out"] == 1


def test_fields_can_be_mapped(tmp_path: Path) -> None:
    metadata = {"spend_logs_metadata": {"answer": "Danube", "right": True}, "status": "success"}
    path = write(tmp_path / "s.jsonl", spent(1, metadata=metadata, end_user="u7"))
    columns = {"gold": "metadata.spend_logs_metadata.answer", "correct": "metadata.spend_logs_metadata.right"}
    columns |= {"group": "end_user"}
    (row,) = rows_from_litellm(path, columns=columns, dataset="rivers")
    assert (row["gold"], row["correct"], row["group"], row["dataset"]) == (["Danube"], True, "u7", "rivers")
