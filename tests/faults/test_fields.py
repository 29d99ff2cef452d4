"""What a client writes into a body chooses no address, key, header, model, price, limit or callback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import each
from unit.server.served import asgi

from cascade import Orchestrator
from cascade.errors import BudgetExceededError, ConfigError, RefusedFieldError, UsageError
from cascade.providers.fields import OPENAI_OWN, OPTIONAL, STANDARD, is_closed

from .server import FaultServer

KEY = "sk-upstream-0123456789abcdef"
HI = [{"role": "user", "content": "Hi"}]
AWAY = "http://away.invalid/v1"  # replaced by the address of a server that must never be reached
BODIES = json.loads(Path(__file__).parent.parent.joinpath("unit/server/client_bodies.json").read_text("utf-8"))
"""Recorded from the libraries by tools/client_bodies.py."""
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
HOSTILE: dict[str, Any] = {
    # tried from outside on version 0.6
    "api_base": AWAY,
    "base_url": AWAY,
    "extra_headers": {"x-forwarded-host": AWAY},
    "extra_body": {"max_tokens": 100_000, "n": 50, "model": "dear"},
    "fallbacks": ["openai/dear"],
    "mock_response": "a forged answer",
    "litellm_logging_obj": {},
    # addresses and keys
    "api_version": "2024-06-01",
    "proxies": {"http": AWAY},
    "webhook_url": AWAY,
    "provider_specific_header": {"custom_llm_provider": "openai", "extra_headers": {"x": "y"}},
    "api_key": "sk-another",
    "aws_secret_access_key": "key",
    "headers": {"authorization": "Bearer sk-another"},
    "organization": "another",
    # models, prices and limits
    "model_list": [{"model_name": "small", "litellm_params": {"model": "openai/dear", "api_base": AWAY}}],
    "provider": {"order": ["dear"], "allow_fallbacks": True},
    "input_cost_per_token": 0,
    "plugins": [{"id": "web"}],
    "web_search_options": {},
    "max_new_tokens": 100_000,
    "best_of": 50,
    "prediction": {"type": "content", "content": "x" * 10_000},
    "timeout": 100_000,
    "num_retries": 9,
    # callbacks and forged answers
    "mock_tool_calls": [{"id": "a", "type": "function", "function": {"name": "pay", "arguments": "{}"}}],
    "success_callback": ["langfuse"],
    "litellm_metadata": {"user_api_key": "x"},
    "guardrails": [],
    "id": "forged",
    "ssl_verify": False,
    # unknown fields, and the names above in other forms
    "a_field_of_tomorrow": 1,
    "API_BASE": AWAY,
    " api_base": AWAY,
    "api-base": AWAY,
}
TOOLS: dict[str, Any] = {
    "mcp": {"type": "mcp", "server_label": "x", "server_url": AWAY, "require_approval": "never"},
    "search": {"type": "web_search_20250305", "name": "web_search", "max_uses": 50},
    "code": {"googleSearch": {}, "type": "function", "function": {"name": "a", "parameters": {}}},
    "image": {"type": "image_generation"},
    "inside": {"type": "function", "function": {"name": "a", "googleSearch": {}}},
}
FUNCTIONS: list[list[dict[str, Any]]] = [[{"googleSearch": {}}], [{"type": "mcp", "server_url": AWAY}]]
MALFORMED: dict[str, Any] = {
    "response_format": "x",
    "functions": {"a": 1},
    "tools": [{"type": "function", "function": "x"}],
    "audio": [1],
    "max_tokens": 10**400,
}
PARTS: list[Any] = [
    {"type": "image_url"},
    {"type": "image_url", "image_url": {"url": 1}},
    {"type": "file", "file": "x"},
    {"type": "input_audio", "input_audio": None},
    7,
]
FETCHED = (
    {"type": "file", "file": {"file_id": f"{AWAY}/a.pdf"}},
    {"type": "file", "file": {"file_data": f"{' ' * 70}{AWAY}/a.pdf"}},
)
IMAGE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": f"{AWAY}/cat.png"}}]}]


@pytest.fixture(scope="module")
def upstream() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


@pytest.fixture(scope="module")
def away() -> Iterator[FaultServer]:
    with FaultServer() as server:
        yield server


def config(provider: str, address: str, **base: Any) -> dict[str, Any]:
    price = {"input": 1, "output": 1_000}
    names = ("openai/small", "openai/large") if provider == "litellm" else ("small", "large")
    models = {
        role: {"model": name, "price": price, "api_base": address, "api_key_env": "UPSTREAM_KEY", "max_tokens": 50}
        for role, name in zip(("base", "guide"), names, strict=True)
    }
    return {
        "models": {**models, "base": {**models["base"], **base}},
        "provider": provider,
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": {"kind": "fixed", "depth": 1},
        "budget": {"per_question": 20},
        "traces": "off",
    }


@pytest.fixture(params=["openai_http", pytest.param("litellm", marks=pytest.mark.litellm)])
def served(request: Any, upstream: FaultServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Orchestrator]:
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    with Orchestrator.from_config(config(request.param, upstream.address)) as orchestrator:
        yield orchestrator


def body_of(path: str, extra: dict[str, Any], *, stream: bool) -> dict[str, Any]:
    request: dict[str, Any] = {"input": "Hi"} if path == "/v1/responses" else {"messages": HI}
    limit = {"max_tokens": 40} if path == "/v1/messages" else {}
    return {"model": "cascade", "stream": stream, **request, **limit, **extra}


def placed(value: Any, away: FaultServer) -> Any:
    return json.loads(json.dumps(value).replace(AWAY, away.address))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_no_field_of_a_body_takes_a_key_or_a_cap_along(served, upstream, away, path, stream):
    before = upstream.count()
    passed = []
    async with asgi(served) as client:
        for name, value in HOSTILE.items():
            response = await client.post(path, json=body_of(path, {name: placed(value, away)}, stream=stream))
            error = response.json()["error"]
            if response.status_code != 400 or (path != "/v1/messages" and error["param"] != name):
                passed.append((name, response.status_code, error))
    assert passed == []
    assert upstream.count() == before
    assert (away.requests, away.paths) == ([], [])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("tool", sorted(TOOLS))
async def test_tools_that_run_elsewhere_are_refused(served, upstream, away, path, stream, tool):
    before = upstream.count()
    if path == "/v1/responses" and tool in ("code", "inside"):
        pytest.skip("a function of this form has its name elsewhere: the dialect reads the function alone")
    async with asgi(served) as client:
        extra = {"tools": [placed(TOOLS[tool], away)]}
        response = await client.post(path, json=body_of(path, extra, stream=stream))
    assert (response.status_code, upstream.count(), away.paths) == (400, before, [])


def test_the_sdk_refuses_what_the_gateway_refuses(served, upstream):
    before = upstream.count()
    for name, value in HOSTILE.items():
        with pytest.raises(UsageError):  # of which RefusedFieldError is one; others name what to use instead
            served.chat(HI, **{name: value})
    assert upstream.count() == before


def test_an_error_names_every_refused_field(served):
    with pytest.raises(RefusedFieldError) as caught:
        served.chat(HI, api_base=AWAY, seed=1, store=True, a_field_of_tomorrow=1)
    assert caught.value.fields == ("api_base", "a_field_of_tomorrow")


def test_a_field_that_is_null_is_neither_refused_nor_sent_nor_missed(served, upstream):
    answer = served.chat(HI, prediction=None, a_field_of_tomorrow=None)
    assert not {"prediction", "a_field_of_tomorrow"} & upstream.requests[-1].keys()
    assert not any("prediction" in warning for warning in answer.warnings)


@pytest.mark.parametrize("row", BODIES, ids=[f"{row['client']} {row['number']}" for row in BODIES])
async def test_the_default_bodies_of_client_libraries_are_answered(served, upstream, row):
    async with asgi(served) as client:
        response = await client.post(f"/v1{row['path']}", json={**row["body"], "model": "cascade"})
    assert response.status_code == 200, (row["client"], response.text)
    assert upstream.keys[-1] == f"Bearer {KEY}"
    limits = [upstream.requests[-1].get(name) for name in ("max_tokens", "max_completion_tokens")]
    assert max(limit for limit in limits if limit is not None) <= (row["body"].get("max_tokens") or 50)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
async def test_a_vendor_s_fields_are_left_out_for_a_server_of_one_s_own_and_a_header_says_so(
    served, upstream, path, stream
):
    extra = {"prompt_cache_key": "k", "safety_identifier": "s", "service_tier": "flex", "seed": 3}
    async with asgi(served) as client:
        response = await client.post(path, json=body_of(path, extra, stream=stream))
    assert response.status_code == 200, response.text
    unsent = response.headers["x-cascade-fields-not-sent"]
    assert unsent == "prompt_cache_key, safety_identifier, service_tier"
    sent = upstream.requests[-1]
    assert sent["seed"] == 3
    assert sent.keys().isdisjoint(unsent.split(", "))


def test_the_operator_opens_a_field_for_one_model(upstream, monkeypatch):
    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    with Orchestrator.from_config(config("openai_http", upstream.address, allow_fields=["min_p", "store"])) as served:
        answer = served.chat(HI, min_p=0.1, store=False)
    assert upstream.requests[-1]["min_p"] == 0.1
    assert upstream.requests[-1]["store"] is False
    assert len([note for note in answer.warnings if "min_p" in note or "store" in note]) == 2  # the guide has neither


@each("name", [name for name in HOSTILE if is_closed(name)])
def test_the_operator_cannot_open_what_chooses_an_address_a_key_or_a_price(name):
    with pytest.raises(ConfigError):
        Orchestrator.from_config(config("openai_http", "http://127.0.0.1:1/v1", allow_fields=[name]))


@pytest.mark.litellm
def test_a_field_that_would_steer_litellm_is_refused_even_if_it_is_opened(upstream, monkeypatch):
    from cascade.providers.litellm import load_litellm

    load_litellm()
    from litellm.types.utils import all_litellm_params

    monkeypatch.setenv("UPSTREAM_KEY", KEY)
    opened = sorted(name for name in all_litellm_params if not is_closed(name))
    before = upstream.count()
    with Orchestrator.from_config(config("litellm", upstream.address, allow_fields=opened)) as served:
        for name in opened:
            with pytest.raises(RefusedFieldError):
                served.chat({"messages": HI, name: "x"})
    assert upstream.count() == before


@pytest.mark.litellm
@pytest.mark.parametrize(
    "model", ["anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash", "bedrock/amazon.nova-pro-v1:0"]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_litellm_fetches_no_address_of_a_message(model, stream, away):
    settings = config("litellm", "http://127.0.0.1:1/v1")
    settings["models"]["base"] = {"model": model, "price": {"input": 1, "output": 1}}
    with Orchestrator.from_config(settings) as served:
        async with asgi(served) as client:
            body = {"model": "cascade", "messages": placed(IMAGE, away), "stream": stream}
            response = await client.post(PATHS[0], json=body)
    assert (response.status_code, away.paths) == (400, [])


@pytest.mark.litellm
@pytest.mark.parametrize("part", FETCHED)
@pytest.mark.parametrize("model", ["openai/small", "anthropic/claude-sonnet-4-5", "gemini/gemini-2.5-flash"])
@pytest.mark.parametrize("own", [True, False])
def test_litellm_fetches_no_file_of_a_message(part, model, own, upstream, away):
    settings = config("litellm", upstream.address)
    place = {"api_base": upstream.address} if own else {}
    settings["models"]["base"] = {"model": model, "price": {"input": 1, "output": 1}, **place}
    before = upstream.count()
    with Orchestrator.from_config(settings) as served, pytest.raises(UsageError):
        served.chat([{"role": "user", "content": [placed(part, away)]}])
    assert (upstream.count(), away.paths) == (before, [])


@pytest.mark.parametrize("functions", FUNCTIONS)
def test_functions_start_no_vendor_s_own_tools(served, upstream, functions):
    before = upstream.count()
    with pytest.raises(RefusedFieldError):
        served.chat(HI, functions=functions)
    assert upstream.count() == before


def test_a_malformed_request_is_the_client_s_fault_and_costs_nobody_money(served):
    """litellm fails on such a request as if its server were down, which opened the breaker for all clients."""
    for name, value in MALFORMED.items():
        with pytest.raises(UsageError):
            served.chat(HI, **{name: value})
    for part in PARTS:
        with pytest.raises(UsageError):
            served.chat([{"role": "user", "content": [part]}])
    assert served.chat(HI).text


@pytest.mark.litellm
def test_a_cap_counts_the_references_of_a_schema_as_they_are_written_out(served):
    both = {
        f"a{n}": {"type": "object", "properties": {k: {"$ref": f"#/$defs/a{n + 1}"} for k in "xy"}} for n in range(20)
    }
    root = {"type": "object", "properties": {"x": {"$ref": "#/$defs/a0"}}, "$defs": {**both, "a20": {"type": "string"}}}
    with pytest.raises(BudgetExceededError):
        served.chat(HI, tools=[{"type": "function", "function": {"name": "a", "parameters": root}}])


def test_the_lists_do_not_contradict_each_other():
    assert not STANDARD & OPTIONAL
    assert OPENAI_OWN <= OPTIONAL
    assert not [name for name in STANDARD | OPTIONAL if is_closed(name)]
    assert not (STANDARD | OPTIONAL) & HOSTILE.keys()


def test_every_field_of_openai_s_client_is_sent_left_out_or_refused_on_purpose():
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase

    envelope = {"messages", "model", "n", "stream_options"}
    refused = set(CompletionCreateParamsBase.__annotations__) - STANDARD - OPTIONAL - envelope
    assert refused == {"moderation", "prediction", "web_search_options"}
