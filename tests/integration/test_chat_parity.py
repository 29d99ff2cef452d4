"""The same chat request through `local`, `openai_http` and `litellm`: the same tool calls and the same token counts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cascade.chat import ChatRequest, output_text
from cascade.errors import MissingExtraError, ModelFileError
from cascade.providers import weights
from cascade.providers.base import Provider
from cascade.providers.guard import Guard
from cascade.providers.litellm import LiteLLM
from cascade.providers.local import Local, load_xllamacpp, start_server
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience.portal import Deadline, run
from cascade.types import Question, Request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # six replies of a real model, on a busy machine
MODEL = "qwen2.5-coder-0.5b"
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city for some days.",
            "parameters": PARAMETERS,
        },
    }
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {
        "name": "intent",
        "schema": {
            "type": "object",
            "properties": {"intent": {"type": "string", "enum": ["card_lost", "refund", "other"]}},
            "required": ["intent"],
            "additionalProperties": False,
        },
    },
}
REQUESTS: dict[str, dict[str, Any]] = {
    "a tool": {
        "messages": [{"role": "user", "content": "What will the weather be in Vienna for 3 days? Use the tool."}],
        "tools": TOOLS,
        "tool_choice": "auto",
    },
    "a schema": {
        "messages": [{"role": "user", "content": "I have lost my card. What is my intent?"}],
        "response_format": SCHEMA,
    },
}


@pytest.mark.parametrize("name", REQUESTS)
async def test_every_way_to_one_model_gives_the_same_message_and_counts(
    name: str, server: Any, provider: Local
) -> None:
    chat = ChatRequest.from_openai({**REQUESTS[name], "temperature": 0, "seed": 1, "max_tokens": 64})
    asked = Request(MODEL, (), "base", "answer", 1, Question.of_chat(chat), 64, top_logprobs=1, chat=chat)
    ways: dict[str, Provider] = {
        "local": provider,
        "openai_http": OpenAIHTTP({"": Endpoint(f"{server.listening_address}/v1")}),
        "litellm": LiteLLM({"": Endpoint(f"{server.listening_address}/v1")}),
    }
    found = {}
    for way, asking in ways.items():
        made = await Guard(asking).complete(asked, Deadline.after(300.0))
        if asking is not provider:
            await asking.close()
        assert made.message is not None
        found[way] = (output_text(made.message), made.finish_reason, made.usage[:2], made.faults)
    assert found["openai_http"] == found["local"]
    assert found["litellm"] == found["local"]
    if "tools" in REQUESTS[name]:
        assert '"name":"get_weather"' in found["local"][0]
    else:
        assert found["local"][3] == ()


@pytest.fixture(scope="module")
def server() -> Any:
    try:
        load_xllamacpp()
        weights.find(MODEL)
    except (MissingExtraError, ModelFileError) as error:
        pytest.skip(str(error))
    return start_server(MODEL)


@pytest.fixture(scope="module")
def provider() -> Iterator[Local]:
    found = Local()
    yield found
    run(found.close())
