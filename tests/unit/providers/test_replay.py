"""What a model said then, it says again, to the letter; what it never said is an error."""

from __future__ import annotations

import json
import math
import re
import sys
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.engine import RunPlan, RunTerms, run
from cascade.errors import BadRequestError, CascadeError, MissingExtraError, RateLimitedError
from cascade.logs.files import write_rows
from cascade.logs.schema import rows
from cascade.plans.base import ModelUse
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import wire_body
from cascade.providers.guard import Guard
from cascade.providers.histories import accepted, vendor_of
from cascade.providers.reading import read_completion
from cascade.providers.replay import Replay
from cascade.resilience.event_loop import Deadline
from cascade.resilience.event_loop import run as run_now
from cascade.types import Answer, Completion, Question, Request, Token, Usage
from unit.builders import PRICES, RIVER, base_guide, by_purpose, drive, request, yes_no
from unit.scripted import ThresholdPolicy

BASE = Completion(
    "Reasoning: It flows.\nAnswer: Danube", "stop", Usage(40, 9, 8, 2), (Token("Answer:", -0.1), Token(" Danube", -0.5))
)


def logged(base: Completion, judge: Completion, rounds: int = 1) -> Answer:
    strategy = base_guide(ModelUse("small"), ModelUse("large"), rounds=rounds)
    script = by_purpose({"base": base, "judge": judge, "direct": base})
    return drive(run(RIVER, RunPlan(strategy, ThresholdPolicy(0.0)), RunTerms(PRICES)), script)


def replayed(answer: Answer, request: Request) -> Completion:
    return run_now(Guard(Replay.of(rows(answer))).complete(request, Deadline()))


def alike(completion: Completion) -> Completion:
    """Return what a log keeps: no latency, name or notes; what `details` say of cached tokens stands in `usage`."""
    return completion._replace(latency_s=0.0, model=None, notes=(), details={})


@pytest.mark.parametrize(
    "base",
    [
        BASE,
        BASE._replace(tokens=None),
        BASE._replace(usage=Usage(40, 9)),
        BASE._replace(tokens=(Token("Answer:", None), Token(" Danube", -0.5))),
        BASE._replace(tokens=(Token("Answer:", -math.inf), Token(" Danube", -0.5))),
        BASE._replace(text="Answer: Dan", finish_reason="length"),
        BASE._replace(text='Answer: naïve 🙂 \u2028 "quoted"'),
    ],
)
def test_a_call_comes_back_to_the_letter(base):
    answer = logged(base, yes_no(0.25, "No, Inn"))
    for call in answer.calls:
        assert call.completion is not None
        assert alike(replayed(answer, call.request)) == alike(call.completion)


def test_an_impossible_alternative_stays_impossible():
    answer = logged(BASE, yes_no(1.0))
    again = drive(
        run(RIVER, RunPlan(base_guide(ModelUse("small"), ModelUse("large"), rounds=1), ThresholdPolicy(0.0))),
        lambda request: replayed(answer, request),
    )
    assert again.steps[0].signals == answer.steps[0].signals


def test_an_estimated_usage_is_estimated_again():
    answer = logged(BASE._replace(usage=Usage(40, 9, estimated=True)), yes_no(0.9))
    assert replayed(answer, answer.calls[0].request).usage.estimated


OTHERS = [{"question": Question("Another?")}, {"question": Question(RIVER.text, "a text")}]


@pytest.mark.parametrize(
    "changed",
    [{"step": 2}, {"role": "guide"}, {"purpose": "direct"}, {"sample": 1}, {"max_tokens": 64}, {"model": "x"}, *OTHERS],
)
async def test_a_call_that_was_never_made_is_an_error(changed):
    answer = logged(BASE, yes_no(0.9))
    other = answer.calls[0].request._replace(**changed)
    with pytest.raises(BadRequestError):
        replayed(answer, other)
    with pytest.raises(BadRequestError):
        await Replay.of(rows(answer)).complete(other, 1.0)


def test_of_two_rows_of_the_same_call_the_first_counts():
    first, second = (list(rows(logged(BASE._replace(text=f"Answer: {name}"), yes_no(0.9)))) for name in ("Inn", "Oder"))
    payload = run_now(Replay.of([*first, *second]).complete(request(), 1.0))
    assert payload["choices"][0]["message"]["content"] == "Answer: Inn"


def test_without_duckdb_it_says_what_to_install(tmp_path, monkeypatch):
    write_rows(tmp_path / "log.jsonl", [])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(MissingExtraError, match="duckdb"):
        Replay.open(str(tmp_path / "log.jsonl"))


def test_a_log_of_many_forms_is_replayed(tmp_path):
    pytest.importorskip("duckdb")
    answer = logged(BASE, yes_no(0.9))
    for name in ("log.parquet", "log.jsonl.gz"):
        write_rows(tmp_path / name, rows(answer))
        assert Replay.open(str(tmp_path / name)).calls == Replay.of(rows(answer)).calls


@pytest.mark.parametrize(
    "row",
    [
        None,  # no file
        {"a": 1},
        {"question": "x"},
        *({"schema_version": version, "signals": {}} for version in ("2", [1])),
        {"question": "x", "signals": 7, "step": 1, "source": "base"},
        {"question": 7, "signals": {}, "step": [1], "source": {}},
        {"question": "x", "step": 1, "source": "base", "text": None},
        {"question": "x", "step": 1, "source": "base", "text": "x", "signals": {"replay": {"tokens": [7]}}},
    ],
)
def test_a_log_of_another_shape_is_a_usage_error(row, tmp_path):
    if row is not None:
        (tmp_path / "odd.jsonl").write_text(json.dumps(row))
    with pytest.raises(CascadeError):
        Replay.open(str(tmp_path / "odd.jsonl"))
    run_now(Replay({}).close())  # which gives nothing back


def history(call_id: str, **more: Any) -> list[dict[str, Any]]:
    call = {"id": call_id, "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    return [
        {"role": "user", "content": "Add."},
        {"role": "assistant", "content": None, "tool_calls": [call], **more},
        {"role": "tool", "tool_call_id": call_id, "content": "2"},
        {"role": "user", "content": "Again."},
    ]


@pytest.mark.parametrize(
    ("model", "given", "form"),
    [
        ("mistral/mistral-large", "call_0123456789", r"[A-Za-z0-9]{9}"),
        ("openai/gpt-4o", "x" * 60, r".{1,40}"),
        ("claude-sonnet-4-5", "call:1.2", r"[A-Za-z0-9_-]+"),
    ],
)
def test_ids_are_written_anew_and_a_result_still_belongs_to_its_call(model, given, form):
    _, message, result, _ = accepted(history(given), model)
    new = message["tool_calls"][0]["id"]
    assert re.fullmatch(form, new)
    assert result["tool_call_id"] == new
    assert accepted(history(given), model) == accepted(history(given), model)
    assert accepted(history(given + "b"), model)[1]["tool_calls"][0]["id"] != new
    assert message["tool_calls"][0]["function"] == history(given)[1]["tool_calls"][0]["function"]


def test_what_a_vendor_accepts_stays_as_it_is():
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": "abc"}]
    assert accepted(history("toolu_1", thinking_blocks=blocks), "claude-x") == history(
        "toolu_1", thinking_blocks=blocks
    )
    assert accepted(history("call_1"), "gpt-4o") == history("call_1")
    odd = history("x" * 90, thinking_blocks=blocks, reasoning_content="Hm")
    assert accepted(odd, "a-model-of-ours") == odd


@pytest.mark.parametrize("model", ["gpt-4o", "mistral-small", "deepseek-chat"])
def test_another_vendors_thinking_is_left_out_and_nothing_else(model):
    parts = [{"type": "thinking", "thinking": "Hm", "signature": "abc"}, {"type": "text", "text": "Hi"}]
    given = [{"role": "assistant", "content": parts, "reasoning_details": [1], "name": "a"}]
    content = parts if model == "mistral-small" else parts[1:]
    assert accepted(given, model) == [{"role": "assistant", "content": content, "name": "a"}]
    assert given[0]["content"] == parts


def test_a_users_own_message_is_never_changed():
    given = [{"role": "user", "content": [{"type": "thinking", "text": "mine"}], "reasoning": "mine"}]
    assert accepted(given, "gpt-4o") == given


def test_each_model_of_a_ladder_gets_the_same_request_in_its_own_form():
    chat = ChatRequest(history("call_0123456789"), {"temperature": 0})
    sent = {model: wire_body(request(model=model, chat=chat), model) for model in ("gpt-4o", "mistral-large")}
    assert sent["gpt-4o"]["messages"] == history("call_0123456789")
    assert len(sent["mistral-large"]["messages"][2]["tool_call_id"]) == 9
    assert chat.messages[2]["tool_call_id"] == "call_0123456789"


def test_vendors_are_known_by_the_names_of_their_models():
    names = [
        "o3-mini",
        "openai/gpt-5",
        "vertex_ai/claude-opus",
        "codestral-latest",
        "qwen2.5-coder-0.5b",
        "deepseek-r1",
    ]
    assert [vendor_of(name) for name in names] == ["openai", "openai", "anthropic", "mistral", None, "deepseek"]


def test_a_reply_is_a_payload_that_passes_every_check():
    answer = read_completion(reply("the Danube", input_tokens=7, model="small"), request(top_logprobs=1), 0.0)
    assert (answer.text, answer.finish_reason, answer.usage, answer.notes) == ("the Danube", "stop", Usage(7, 2), ())
    assert answer.tokens == (Token("the", -0.1), Token("Danube", -0.1))


@pytest.mark.parametrize(
    ("p_yes", "content"), [(0.75, "Yes"), (0.75, "Yes, so it is"), (0.25, "No, Inn"), (1.0, "Yes"), (0.0, "No")]
)
def test_p_yes_stands_in_the_first_token(p_yes, content):
    answer = read_completion(reply(content, p_yes=p_yes), request(top_logprobs=20), 0.0)
    top = {word: math.exp(logprob) for word, logprob in answer.tokens[0].top}
    assert top == {"Yes": pytest.approx(p_yes), "No": pytest.approx(1 - p_yes)}
    assert answer.tokens[0].text == content[: 3 if p_yes > 0.5 else 2]


def text(payload: object) -> str:
    return read_completion(payload, request(), 0.0).text  # type: ignore[arg-type]


ECHO = "Answer: you asked: Which river runs through Vienna?"


@pytest.mark.parametrize(
    ("script", "requests", "expected"),
    [
        ({"small": ["a", reply("b")], "large": ["c"]}, [{}] * 3 + [{"model": "large"}], ["a", "b", "b", "c"]),
        ({"base": ["a"]}, [{}], ["a"]),  # by the role
        (lambda sent_request: f"{sent_request.model} {sent_request.step}", [{"step": 3}], ["small 3"]),
        *((script, [{}, {"purpose": "judge"}], [ECHO, "Yes"]) for script in (None, {}, {"small": []})),
    ],
)
async def test_a_script_is_told_in_order_and_its_last_reply_repeats(script, requests, expected):
    fake = FakeProvider(script, keep=2)
    texts = [text(await fake.complete(request(**fields), 1.0)) for fields in requests]
    assert [actual[-len(wanted) :] for actual, wanted in zip(texts, expected, strict=True)] == expected
    assert (len(fake.requests), fake.closed) == (min(len(requests), 2), False)
    await fake.close()
    assert fake.closed


async def test_an_error_is_raised_as_a_fresh_copy_each_time():
    scripted = RateLimitedError("slow down", model="small", retry_after_s=2.0)
    fake = FakeProvider({"small": [scripted]})
    raised = []
    for _ in range(2):
        with pytest.raises(RateLimitedError) as caught:
            await fake.complete(request(model="small"), 1.0)
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert scripted not in raised
    assert scripted.__traceback__ is None
    assert [(str(error), error.retry_after_s) for error in raised] == [("slow down", 2.0)] * 2
