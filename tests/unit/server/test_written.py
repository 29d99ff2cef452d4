"""What the server writes: headers, chunks, counts."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from cascade.money import Price
from cascade.providers.fake import reply
from cascade.server.catalog import flag
from cascade.server.dialects import DONE, ChatCompletions, ServedMessage, event
from cascade.server.receipts import Metrics, Receipt, header_value
from cascade.types import Answer

from .served import ASK, orchestrator

GUIDE = Price.per_million(input=10.0, output=20.0)
SURE = reply("The Danube.", logprobs=[-0.01, -0.01], input_tokens=100, output_tokens=10)
UNSURE = reply("The Rhine?", logprobs=[-2.0, -2.0], input_tokens=100, output_tokens=10)


def answered(script: Any, **settings: Any) -> Answer:
    with orchestrator(script, **settings) as served:
        return served.chat(ASK)


def test_a_kept_answer_saves_what_the_guide_would_have_cost_on_its_tokens() -> None:
    answer = answered({"small": [SURE]})
    receipt = Receipt.of(answer, "t", GUIDE, cascaded=True)
    base, guide = 100 * 1_000 + 10 * 2_000, 100 * 10_000 + 10 * 20_000
    assert receipt == Receipt("t", "small", ("small",), base, guide - base)


def test_an_escalated_request_costs_the_base_s_call_more_than_the_guide_alone() -> None:
    receipt = Receipt.of(answered({"small": [UNSURE], "large": [SURE]}), "t", GUIDE, cascaded=True)
    assert receipt.served_by == "large"
    assert receipt.saved_nano_usd == -(100 * 1_000 + 10 * 2_000)


def test_what_is_not_known_is_left_out_of_the_headers() -> None:
    answer = answered({"small": [SURE]}, models={"base": "small", "guide": "large"})
    receipt = Receipt.of(answer, "t", None, cascaded=True)
    assert (receipt.cost_nano_usd, receipt.saved_nano_usd) == (None, None)
    assert receipt.headers() == [
        ("x-cascade-served-by", "small"),
        ("x-cascade-asked", "small"),
        ("x-cascade-trace-id", "t"),
    ]


def test_a_model_that_was_asked_alone_saves_nothing_and_says_nothing_of_it() -> None:
    assert Receipt.of(answered({"small": [SURE]}), "t", GUIDE, cascaded=False).saved_nano_usd is None


def test_amounts_are_exact_decimals_without_exponents() -> None:
    headers = dict(Receipt("t", cost_nano_usd=5, saved_nano_usd=-20_000_000).headers())
    assert headers["x-cascade-cost-usd"] == "0.000000005"
    assert headers["x-cascade-saved-usd"] == "-0.020000000"


@pytest.mark.parametrize(
    "name", ["a\r\nset-cookie: x=1", "a\nb", "a\x00b", "m\u00f6del", "\u2028", "x" * 999, "\ud800"]
)
def test_a_header_is_one_printable_line_whatever_a_model_is_called(name: str) -> None:
    assert re.fullmatch(r"[ -~]{1,1000}", header_value(name))


def test_what_is_explained_holds_no_text_of_a_candidate() -> None:
    answer = answered({"small": [UNSURE], "large": [SURE]})
    shown = Receipt.of(answer, "t", GUIDE, cascaded=True).extension(answer)
    assert "Rhine" not in json.dumps(shown)
    assert [step["models"] for step in shown["steps"]] == [["small"], ["large"]]
    assert shown["steps"][0]["decision"].endswith("asked on")


@pytest.mark.parametrize(("value", "on"), [("1", True), (" True ", True), ("0", False), ("", False), ("no", False)])
def test_flags(value: str, on: bool) -> None:
    assert flag({"x-cascade-bypass": value}, "x-cascade-bypass") is on


# --- completions ---


def chunks(data: bytes) -> list[Any]:
    """Read server-sent events as the standard has it; the last one must be [DONE]."""
    assert data.endswith(DONE)
    blocks = data.decode().removesuffix("\n\n").split("\n\n")
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks[:-1]]


@pytest.mark.parametrize("text", ["a\n\ndata: [DONE]\n\n", "\r\n\r\nevent: x", "\u2028\u2029\x85", 'a"}\n'])
def test_no_text_adds_an_event(text: str) -> None:
    data = event({"content": text})
    assert data.count(b"\n") == 2
    assert b"\r" not in data
    assert json.loads(data.removeprefix(b"data: ")) == {"content": text}


def test_an_answer_whose_text_was_not_sent_is_one_chunk_and_an_ending() -> None:
    found = chunks(b"".join(ChatCompletions({}, "t").ending(ServedMessage(answered({"small": [SURE]})), None)))
    assert [one["choices"][0]["delta"] for one in found] == [{"role": "assistant", "content": "The Danube."}, {}]
    assert found[-1]["choices"][0]["finish_reason"] == "stop"
    assert {one["id"] for one in found} == {"chatcmpl-t"}


def test_text_that_was_sent_is_not_sent_again() -> None:
    made = ChatCompletions({"stream_options": {"include_usage": True}}, "t")
    data = made.text("The ", "small") + made.text("Danube.", "small")
    found = chunks(data + b"".join(made.ending(ServedMessage(answered({"small": [SURE]})), {"cost_usd": "1"})))
    deltas = [one["choices"][0]["delta"] for one in found[:-1]]
    assert deltas == [{"role": "assistant", "content": "The "}, {"content": "Danube."}, {}]
    assert found[-2]["cascade"] == {"cost_usd": "1"}
    assert found[-1]["choices"] == []
    assert found[-1]["usage"]["completion_tokens"] == 10


def test_tool_calls_come_whole_and_numbered() -> None:
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("one", "two")]
    script = {"small": [reply("", tool_calls=[("one", {"a": "\n\n"}), ("two", {})], logprobs=[-0.1])]}
    with orchestrator(script) as served:
        answer = served.chat(ASK, tools=tools)
    first, last = chunks(b"".join(ChatCompletions({}, "t").ending(ServedMessage(answer), None)))
    delta = first["choices"][0]["delta"]
    assert (delta["role"], delta["content"]) == ("assistant", None)
    assert [(one["index"], one["function"]["name"]) for one in delta["tool_calls"]] == [(0, "one"), (1, "two")]
    assert last["choices"][0]["finish_reason"] == "tool_calls"


def test_log_probs_that_an_application_asks_for_come_back_in_openai_s_form() -> None:
    script = {"small": [reply("The Danube.", logprobs=[-0.25, float("-inf")])]}
    with orchestrator(script, policy={"kind": "fixed"}) as served:
        answer, plain = served.chat(ASK, logprobs=True), served.chat(ASK)
    found = ChatCompletions({}, "t").whole(ServedMessage(answer), None)["choices"][0]["logprobs"]["content"]
    assert [(one["token"], one["logprob"]) for one in found] == [("The", -0.25), ("Danube.", -9999.0)]
    assert found[0]["bytes"] == [84, 104, 101]
    assert ChatCompletions({}, "t").whole(ServedMessage(plain), None)["choices"][0]["logprobs"] is None


# --- counts ---


def samples(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}


def test_counts_are_what_happened() -> None:
    metrics = Metrics()
    metrics.count("cascade", 200, 0.02, Receipt("t", "small", cost_nano_usd=120_000, saved_nano_usd=1_080_000))
    metrics.count("cascade", 200, 3.0, Receipt("t", "large", faulty=("small",)))
    metrics.count("", 404, 0.001)
    metrics.first_text(0.5)
    found = samples(metrics.text(alarm=True))
    assert found['cascade_requests_total{model="cascade",served_by="small",status="200"}'] == 1
    assert found['cascade_requests_total{model="",served_by="",status="404"}'] == 1
    assert found['cascade_request_seconds_bucket{le="0.01"}'] == 1
    assert found['cascade_request_seconds_bucket{le="+Inf"}'] == found["cascade_request_seconds_count"] == 3
    assert found["cascade_cost_usd_total"] == 0.00012
    assert found["cascade_unknown_costs_total"] == 1
    assert found["cascade_saved_usd"] == 0.00108
    assert found['cascade_faulty_messages_total{model="small"}'] == 1
    assert found["cascade_first_text_seconds_count"] == found["cascade_alarm"] == 1


def test_a_label_is_one_line_whatever_a_model_is_called() -> None:
    metrics = Metrics()
    metrics.count('a"}\nb\\', 200, 0.1)
    line = next(line for line in metrics.text(alarm=False).splitlines() if "requests_total{" in line)
    assert line == r'cascade_requests_total{model="a\"}\nb\\",served_by="",status="200"} 1'
