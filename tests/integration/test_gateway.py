"""The demo's two real models behind the server, asked with the official client libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from unit.server.served import CONFIG, listening

from cascade.orchestrator import Orchestrator
from cascade.providers.local import Local

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_500)]
BASE, GUIDE = "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b"
ASK = [{"role": "user", "content": "Which river flows through Vienna? Answer with one word."}]
SCHEMA = {
    "type": "object",
    "properties": {"river": {"type": "string"}},
    "required": ["river"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def url(pair: Local) -> Iterator[str]:
    models = {
        place: {"model": name, "price": {"input": 1, "output": 2}} for place, name in (("base", BASE), ("guide", GUIDE))
    }
    config: Any = {**CONFIG, "models": models, "provider": "local", "timeouts": {"per_call_s": 600}}
    with Orchestrator.from_config(config, providers={"local": pair}) as served, listening(served) as address:
        yield address


def test_openai(url: str) -> None:
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        found = client.chat.completions.create(model="cascade", messages=ASK, max_tokens=20)
        assert found.choices[0].message.content
        assert found.model in {BASE, GUIDE}
        stream = client.chat.completions.create(model=BASE, messages=ASK, max_tokens=20, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        text = {"format": {"type": "json_schema", "name": "river", "schema": SCHEMA, "strict": True}}
        answer = client.responses.create(model="cascade", input=ASK, max_output_tokens=40, text=text)
        assert "river" in answer.output_text
        assert answer.usage.output_tokens > 0


def test_anthropic(url: str) -> None:
    anthropic = pytest.importorskip("anthropic")
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        found = client.messages.create(model="cascade", max_tokens=20, messages=ASK)
        assert found.content[0].text
        assert found.usage.output_tokens > 0
        with client.messages.stream(model=BASE, max_tokens=20, messages=ASK) as stream:
            assert "".join(stream.text_stream)
