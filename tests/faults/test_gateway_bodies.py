"""Bodies of every form, each value replaced by one of another kind: no client makes the server fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
from unit.server.served import asgi, orchestrator

from cascade.config.schema import ServerConfig
from cascade.providers.fake import FakeProvider, reply
from cascade.server.errors import GatewayError
from cascade.server.limits import parsed_object

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
TOOL = {"name": "f", "description": "It does.", "parameters": SCHEMA}
PICTURE = "data:image/png;base64,iVBORw0KGgo="
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "Hi"},
                                         {"type": "image_url", "image_url": {"url": PICTURE}}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        "tools": [{"type": "function", "function": TOOL}], "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}},
        "max_tokens": 10, "n": 1, "logprobs": True, "top_logprobs": 2, "user": "ann", "temperature": 0.5,
        "stop": ["x"], "stream": False, "stream_options": {"include_usage": True}, "parallel_tool_calls": True,
        "modalities": ["text"],
    },
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Hi"},
                                         {"type": "input_image", "image_url": PICTURE}]},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "3"},
        ],
        "instructions": "Be brief.", "tools": [{"type": "function", **TOOL}],
        "tool_choice": {"type": "function", "name": "f"}, "max_output_tokens": 10, "stream": False,
        "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}, "reasoning": {"effort": "low"},
        "include": ["message.output_text.logprobs"],
    },
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be brief."}], "max_tokens": 10,
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "Hi"}, {"type": "image", "source": {
                "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "3"}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"},
        "metadata": {"user_id": "ann"}, "stop_sequences": ["x"], "stream": False, "thinking": {"type": "disabled"},
    },
}  # fmt: skip
JUNK: tuple[Any, ...] = ([], [{}], None, 7, "x", {"type": []})


def paths(value: Any, so_far: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the way to every value inside."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in inside:
        yield (*so_far, name)
        yield from paths(inner, (*so_far, name))


def replaced(body: dict[str, Any], path: tuple[Any, ...], junk: Any) -> dict[str, Any]:
    made = deepcopy(body)
    at: Any = made
    for name in path[:-1]:
        at = at[name]
    at[path[-1]] = junk
    return made


WRITTEN = reply('{"name": "f", "arguments": {"a": 1}}', logprobs=[-0.1] * 9)
"""JSON where a request asks for it, and a tool call as text where it offers tools."""


@pytest.mark.parametrize("answer", [reply("", tool_calls=[("f", {"a": 1})], logprobs=[-0.1] * 9), WRITTEN])
@pytest.mark.parametrize("path", BODIES)
async def test_no_body_makes_the_server_fail(path: str, answer: Any) -> None:
    provider = FakeProvider(lambda _: answer)
    async with orchestrator(provider, budget={"total": 1e6}) as served, asgi(served) as client:
        whole = {"model": "cascade", **BODIES[path]}
        found = await client.post(path, json=whole)
        assert found.status_code == 200, found.text
        failed = []
        for way in paths(whole):
            for junk in JUNK:
                said = await client.post(path, content=_encoded(replaced(whole, way, junk)), headers=_JSON)
                if said.status_code not in {200, 400, 404, 502}:
                    failed.append((way, junk, said.text))
    assert not failed


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("18446744073709551615", True), ("-9223372036854775808", True), ('"123456789012345678901"', True),
        ("0.1234567890123456789", True), ("18446744073709551616", False), ("-9223372036854775809", False),
        ("9" * 300, False),
    ],
)  # fmt: skip
def test_a_whole_number_is_kept_to_the_digit_or_refused(written: str, kept: bool) -> None:
    """The reader of JSON makes 18446744073709551616 a float: the models would read another number than was sent."""
    body = f'{{"tools": [{written}]}}'.encode()
    if kept:
        assert parsed_object(body, ServerConfig()) == {"tools": [json.loads(written)]}
        return
    with pytest.raises(GatewayError, match="more than 64 bits"):
        parsed_object(body, ServerConfig())


_JSON = {"content-type": "application/json"}


def _encoded(value: Any) -> bytes:
    import orjson

    return orjson.dumps(value)
