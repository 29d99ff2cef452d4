"""What one vendor's model wrote is handed to another's in a form it accepts, and else left as it is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cascade.chat import ChatRequest
from cascade.providers.fields import accepted, vendor_of, wire_body
from unit.made import request


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
def test_ids_are_written_anew_and_a_result_still_belongs_to_its_call(model: str, given: str, form: str) -> None:
    _, said, result, _ = accepted(history(given), model)
    new = said["tool_calls"][0]["id"]
    assert re.fullmatch(form, new)
    assert result["tool_call_id"] == new
    assert accepted(history(given), model) == accepted(history(given), model)
    assert accepted(history(given + "b"), model)[1]["tool_calls"][0]["id"] != new
    assert said["tool_calls"][0]["function"] == history(given)[1]["tool_calls"][0]["function"]


def test_what_a_vendor_accepts_stays_as_it_is() -> None:
    blocks = [{"type": "thinking", "thinking": "Hm", "signature": "abc"}]
    assert accepted(history("toolu_1", thinking_blocks=blocks), "claude-x") == history(
        "toolu_1", thinking_blocks=blocks
    )
    assert accepted(history("call_1"), "gpt-4o") == history("call_1")
    odd = history("x" * 90, thinking_blocks=blocks, reasoning_content="Hm")
    assert accepted(odd, "a-model-of-ours") == odd


@pytest.mark.parametrize("model", ["gpt-4o", "mistral-small", "deepseek-chat"])
def test_another_vendors_thinking_is_left_out_and_nothing_else(model: str) -> None:
    parts = [{"type": "thinking", "thinking": "Hm", "signature": "abc"}, {"type": "text", "text": "Hi"}]
    given = [{"role": "assistant", "content": parts, "reasoning_details": [1], "name": "a"}]
    kept = parts if model == "mistral-small" else parts[1:]
    assert accepted(given, model) == [{"role": "assistant", "content": kept, "name": "a"}]
    assert given[0]["content"] == parts


def test_a_users_own_message_is_never_changed() -> None:
    given = [{"role": "user", "content": [{"type": "thinking", "text": "mine"}], "reasoning": "mine"}]
    assert accepted(given, "gpt-4o") == given


def test_each_model_of_a_ladder_gets_the_same_request_in_its_own_form() -> None:
    chat = ChatRequest(history("call_0123456789"), {"temperature": 0})
    sent = {model: wire_body(request(model=model, chat=chat), model) for model in ("gpt-4o", "mistral-large")}
    assert sent["gpt-4o"]["messages"] == history("call_0123456789")
    assert len(sent["mistral-large"]["messages"][2]["tool_call_id"]) == 9
    assert chat.messages[2]["tool_call_id"] == "call_0123456789"


def test_vendors_are_known_by_the_names_of_their_models() -> None:
    names = [
        "o3-mini",
        "openai/gpt-5",
        "vertex_ai/claude-opus",
        "codestral-latest",
        "qwen2.5-coder-0.5b",
        "deepseek-r1",
    ]
    assert [vendor_of(name) for name in names] == ["openai", "openai", "anthropic", "mistral", None, "deepseek"]
