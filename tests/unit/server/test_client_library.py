"""The official client library against the server, on a loopback port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from cascade import errors
from cascade.providers.fake import FakeProvider, reply
from cascade.server.auth import new_key
from cascade.types import Request

from .served import ASK, listening, orchestrator
from .test_http import TOOLS
from .test_written import SURE, UNSURE

openai = pytest.importorskip("openai")

KEY = new_key()
INJECTION = 'a\n\ndata: [DONE]\n\nevent: x\r\ndata: {"error": {}}'


class City(BaseModel):
    name: str
    people: int


def script(request: Request) -> Any:
    """Answer by what is asked: the last message says how."""
    assert request.chat is not None
    said = request.chat.asked_text
    sure = [-0.01] * 40
    if said == "call a tool":
        days: Any = "3" if request.model == "small" else 3
        return reply("", tool_calls=[("get_weather", {"days": days})], logprobs=sure)
    if said == "write JSON":
        people = '"many"' if request.model == "small" else "2"
        return reply(f'{{"name": "Vienna", "people": {people}}}', logprobs=sure)
    if said == "inject":
        return reply(INJECTION, logprobs=sure)
    if said == "limit":
        return errors.RateLimitedError("slow down", retry_after_s=0)
    return UNSURE if request.model == "small" and said == "hard" else SURE


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    keys = [{"name": "app", "sha256": KEY.sha256}]
    with orchestrator(FakeProvider(script), server={"keys": keys}) as served, listening(served) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=address, api_key=KEY.key, max_retries=0) as made:
        yield made


def final(library: Any, whole: str, *, stream: bool, **asked: Any) -> Any:
    """Return a client library's last word on a request, asked as a whole or as a stream."""
    if not stream:
        return getattr(library, whole)(**asked)
    with library.stream(**asked) as events:
        for name in ("get_final_completion", "get_final_message", "get_final_response"):
            if hasattr(events, name):
                return getattr(events, name)()
    raise AssertionError("the stream has no end")


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


ERRORS = pytest.mark.parametrize(
    ("kind", "asked"),
    [
        ("NotFoundError", {"model": "nope", "messages": ASK}),
        ("BadRequestError", {"model": "cascade", "messages": []}),
        ("RateLimitError", {"model": "cascade", "messages": ask("limit")}),
    ],
)


def test_a_plain_answer(client: Any) -> None:
    found = client.chat.completions.create(model="cascade", messages=ASK)
    assert found.choices[0].message.content == "The Danube."
    assert (found.model, found.usage.total_tokens) == ("small", 110)


def test_headers_can_be_read_with_the_answer(client: Any) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="cascade", messages=ask("hard"), extra_headers={"x-cascade-explain": "1"}
    )
    assert raw.headers["x-cascade-served-by"] == "large"
    assert raw.parse().cascade["stopped"] == "horizon"


@pytest.mark.parametrize("text", ["easy", "hard", "inject"])
def test_a_stream(client: Any, text: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model="cascade", messages=ask(text), stream=True, stream_options={"include_usage": True}
        )
    )
    said = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert said == (INJECTION if text == "inject" else "The Danube.")
    assert chunks[-1].usage.prompt_tokens > 0
    assert chunks[-2].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("stream", [False, True])
def test_tools(client: Any, stream: bool) -> None:
    asked = {"model": "cascade", "messages": ask("call a tool"), "tools": TOOLS}
    found = final(client.chat.completions, "create", stream=stream, **asked)
    call = found.choices[0].message.tool_calls[0]
    assert (found.model, json.loads(call.function.arguments)) == ("large", {"days": 3})
    assert found.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_a_json_schema(client: Any, stream: bool) -> None:
    asked = {"model": "cascade", "messages": ask("write JSON"), "response_format": City}
    found = final(client.chat.completions, "parse", stream=stream, **asked)
    assert found.choices[0].message.parsed == City(name="Vienna", people=2)
    assert found.model == "large"  # the base's JSON breaks the schema


async def test_the_asynchronous_client(address: str) -> None:
    async with openai.AsyncOpenAI(base_url=address, api_key=KEY.key) as client:
        stream = await client.chat.completions.create(model="large", messages=ASK, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        both = await asyncio.gather(*(client.chat.completions.create(model="cascade", messages=ASK) for _ in range(8)))
    assert "".join(pieces) == "The Danube."
    assert {found.choices[0].message.content for found in both} == {"The Danube."}


def test_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["cascade", "small", "large", "base", "guide"]
    assert client.models.retrieve("large").owned_by == "provider"


@ERRORS
def test_errors_are_those_that_an_application_catches(client: Any, kind: str, asked: Any) -> None:
    with pytest.raises(getattr(openai, kind)) as caught:
        client.chat.completions.create(**asked)
    assert caught.value.code
    assert caught.value.response.headers["x-cascade-trace-id"]


def test_the_client_library_tries_again_what_may_be_tried_again_and_nothing_else(address: str) -> None:
    tries: list[int] = []
    with openai.OpenAI(base_url=address, api_key=KEY.key, max_retries=1) as client:
        client._client.event_hooks = {"response": [lambda response: tries.append(response.status_code)]}
        for text in ("limit", ""):
            with pytest.raises(openai.APIStatusError):
                client.chat.completions.create(model="cascade", messages=ask(text) if text else [])
    assert tries == [429, 429, 400]


def test_a_wrong_key(address: str) -> None:
    for key in ("not-it", KEY.sha256, "sk-cascade-" + "A" * 43):
        client = openai.OpenAI(base_url=address, api_key=key, max_retries=0)
        with client, pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="cascade", messages=ASK)
        assert key not in str(caught.value)
