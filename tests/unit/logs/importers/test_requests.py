"""Chat requests with the outputs of many models, and OpenAI's batches: what they say, and what of it is left out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cascade.api.logs import open_log
from cascade.chat import ChatRequest
from cascade.episodes.rows import reads_of
from cascade.errors import UsageError
from cascade.logs.importers import import_rows, known
from cascade.logs.importers.batch import rows_from_batch
from cascade.logs.importers.requests import rows_from_requests
from cascade.logs.schema import CHAT, ECHOED, Dropped, completion_of

MESSAGES = [{"role": "user", "content": "Weather in Wien?"}]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
CALL = '[{"arguments": {"city": "Wien"}, "name": "weather"}]'


def logged(request: str = "r1", model: str = "small", **fields: Any) -> dict[str, Any]:
    """Make a row of a table of requests."""
    row = dict.fromkeys(("response_format_json", "finish_reason", "gold_json", "group", "category", "latency_s"))
    row |= {"request_id": request, "model": model, "run": "1", "messages_json": json.dumps(MESSAGES)}
    row |= {"tools_json": json.dumps(TOOLS), "output_text": "…", "tool_calls_json": CALL, "correct": True}
    row |= {"input_tokens": 50, "output_tokens": 9, "cost_nano_usd": {"small": 10, "large": 90}.get(model)}
    return row | fields


def write(path: Path, *rows: dict[str, Any]) -> Path:
    """Write lines of JSON."""
    path.write_text("\n".join(map(json.dumps, rows)) + "\n")
    return path


class TestRequests:
    def test_a_row_is_what_a_live_chat_request_would_have_logged(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.jsonl", logged(model="large", latency_s=1.5), logged(gold_json=CALL, group="g"))
        assert known(log) == "requests"
        large, small = import_rows(log)
        request = ChatRequest(MESSAGES, {"tools": TOOLS})
        assert small["question"] == "Weather in Wien?"
        assert small["context"] == request.canonical
        assert [small[name] for name in ("step", "horizon", "candidate", "model")] == [1, 2, 0, "small"]
        assert [large[name] for name in ("step", "cost_nano_usd", "latency_ms")] == [2, 90, 1500.0]
        assert (small["group"], large["group"], small["gold"]) == ("g", "r1", [CALL])
        assert json.loads(small["answer"]) == json.loads(CALL)
        assert completion_of(small).message == json.loads(small["text"])
        assert small["signals"]["tool_calls"] == small["signals"]["arguments_quoted"] == 1
        assert small["signals"]["replay"][CHAT] is True
        assert reads_of([large, small])[0].log.bought.tolist() == [[True, True]]

    def test_models_pick_the_ladder_and_its_order(self, tmp_path: Path) -> None:
        log = write(tmp_path / "log.jsonl", *[logged(model=name) for name in ("large", "other", "small")])
        rows = list(rows_from_requests(log, models=["large", "small"]))
        assert [(row["model"], row["step"], row["horizon"]) for row in rows] == [("large", 1, 2), ("small", 2, 2)]
        with pytest.raises(UsageError, match="has no cost of other"):
            list(rows_from_requests(log))
        with pytest.raises(UsageError, match="did you mean small"):
            list(rows_from_requests(log, models=["smal", "large"]))
        opened = open_log(log, models="large,small")  # as a command does with --models
        assert opened.reads[0].facts.step_models == ("large", "small")

    def test_the_kth_runs_of_all_models_are_one_episode_and_further_ones_are_counted(self, tmp_path: Path) -> None:
        runs = [logged(model="large", run=str(run)) for run in range(3)] + [logged(run=str(run)) for run in range(2)]
        dropped = Dropped()
        rows = list(rows_from_requests(write(tmp_path / "log.jsonl", *runs), dropped))
        assert [(row["episode_id"], row["step"]) for row in rows] == [("r1", 2), ("r1#2", 2), ("r1", 1), ("r1#2", 1)]
        assert {row["group"] for row in rows} == {"r1"}
        assert sum(dropped.rows.values()) == 1

    def test_unknown_stays_null(self, tmp_path: Path) -> None:
        bare = logged(messages_json=None, output_text=None, tool_calls_json=None, correct=None, cost_nano_usd=None)
        (row,) = rows_from_requests(write(tmp_path / "log.jsonl", bare), models=["small"])
        assert [row[name] for name in ("question", "context", "answer", "text", "correct", "cost_nano_usd")] == [
            None
        ] * 6

    @pytest.mark.parametrize(
        ("calls", "said", "answer"),
        [("[]", "I cannot.", "I cannot."), (None, "weather(city=Wien)", "weather(city=Wien)"), ("[]", None, "")],
    )
    def test_an_answer_without_readable_calls_is_its_text(
        self, tmp_path: Path, calls: str | None, said: str | None, answer: str
    ) -> None:
        log = write(tmp_path / "log.jsonl", logged(tool_calls_json=calls, output_text=said))
        (row,) = rows_from_requests(log, models=["small"])
        assert row["answer"] == answer

    def test_a_message_with_a_fault_is_an_answer_of_the_last_step_alone_as_it_is_live(self, tmp_path: Path) -> None:
        wrong = '[{"arguments": {}, "name": "unknown"}]'
        rows = [logged(model=name, tool_calls_json=wrong) for name in ("small", "large")]
        small, large = rows_from_requests(write(tmp_path / "log.jsonl", *rows))
        assert [small[name] for name in ("candidate", "answer", "correct")] == [None, None, None]
        assert json.loads(small["text"])["tool_calls"]
        assert (large["candidate"], large["correct"]) == (0, True)

    def test_a_request_that_is_none_is_left_out_and_named(self, tmp_path: Path) -> None:
        dropped = Dropped()
        log = write(tmp_path / "log.jsonl", logged(messages_json='[{"role": "nobody"}]'))
        assert list(rows_from_requests(log, dropped, models=["small"])) == []
        assert "role must be one of" in dropped.describe()


def asked(custom_id: str = "r1", **fields: Any) -> dict[str, Any]:
    """Make a line of a batch's requests."""
    body = {"model": "gpt-4o-mini", "messages": MESSAGES, "tools": TOOLS, "temperature": 0}
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body} | fields


def result(custom_id: str = "r1", model: str = "gpt-4o-mini-2024-07-18", **body: Any) -> dict[str, Any]:
    """Make a line of a batch's results."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "Sunny.", "refusal": None},
        "logprobs": {"content": [{"token": "Sunny", "logprob": -0.5, "bytes": [83], "top_logprobs": []}]},
        "finish_reason": "stop",
    }
    usage = {"prompt_tokens": 1000, "completion_tokens": 10, "prompt_tokens_details": {"cached_tokens": 0}}
    body = {"model": model, "created": 1711471533, "choices": [choice], "usage": usage} | body
    return {"id": "batch_req_1", "custom_id": custom_id, "response": {"status_code": 200, "body": body}, "error": None}


class TestBatch:
    def test_custom_id_joins_requests_and_results_of_each_model(self, tmp_path: Path) -> None:
        requests = write(tmp_path / "requests.jsonl", asked(gold=[], group="g"), asked("r2"))
        cheap = write(tmp_path / "cheap.jsonl", result("r2"), result())
        dear = write(tmp_path / "dear.jsonl", result(model="gpt-4o-2024-08-06"), result("r2", "gpt-4o-2024-08-06"))
        rows = list(import_rows(dear, also=[requests, cheap]))
        assert [(row["episode_id"], row["step"]) for row in rows] == [("r1", 2), ("r2", 2), ("r2", 1), ("r1", 1)]
        first = rows[-1]
        assert (first["dataset"], first["group"], first["gold"]) == ("requests", "g", ["[]"])
        assert first["context"] == ChatRequest(MESSAGES, {"tools": TOOLS, "temperature": 0}).canonical
        assert first["signals"]["reply_mean_logprob"] == -0.5
        assert first["signals"]["replay"][ECHOED] == "gpt-4o-mini-2024-07-18"
        assert first["cost_nano_usd"] == 156_000
        assert first["created_at"] == "2024-03-26T16:45:33.000+00:00"

    def test_failed_and_lost_results_are_counted(self, tmp_path: Path) -> None:
        failed = {"custom_id": "r1", "response": None, "error": {"code": "batch_expired", "message": "…"}}
        files = [write(tmp_path / "asked.jsonl", asked()), write(tmp_path / "b.jsonl", failed, result("r9"), result())]
        dropped = Dropped()
        assert len(list(rows_from_batch(files, dropped))) == 1
        assert sorted(dropped.rows) == [
            "a failed call, or a result that is no chat completion",
            "a result without its request",
        ]

    def test_a_missing_file_is_asked_for(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="results"):
            list(import_rows(write(tmp_path / "asked.jsonl", asked())))
        with pytest.raises(UsageError, match="requests"):
            list(import_rows(write(tmp_path / "results.jsonl", result())))


def test_other_logs_take_no_models_and_no_second_file(tmp_path: Path) -> None:
    log = write(tmp_path / "log.jsonl", {"question": "2 + 2?", "answer": "4", "model": "small"})
    with pytest.raises(UsageError, match="--models"):
        import_rows(log, kind="table", models=["small"])
    with pytest.raises(UsageError, match="several files"):
        import_rows(log, kind="table", also=[log])
