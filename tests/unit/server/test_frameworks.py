"""LangChain and pydantic-ai pointed at the server, unchanged; skipped where they are not installed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cascade.providers.fake import FakeProvider

from .served import listening, orchestrator
from .test_client_library import City, script

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with orchestrator(FakeProvider(script)) as served, listening(served) as address:
        yield address


def test_langchain(url: str) -> None:
    langchain = pytest.importorskip("langchain_openai")

    def get_weather(days: int) -> str:
        """The weather of some days."""
        return str(days)

    for responses in (False, True):
        model = langchain.ChatOpenAI(
            base_url=f"{url}/v1", api_key="none", model="cascade", use_responses_api=responses, max_retries=0
        )
        assert model.invoke("easy").text == "The Danube."
        assert "".join(chunk.text for chunk in model.stream("hard")) == "The Danube."
        assert model.with_structured_output(City).invoke("write JSON") == City(name="Vienna", people=2)
        calls: Any = model.bind_tools([get_weather]).invoke("call a tool").tool_calls
        assert [(call["name"], call["args"]) for call in calls] == [("get_weather", {"days": 3})]


async def test_pydantic_ai(url: str) -> None:
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    openai = OpenAIProvider(f"{url}/v1", api_key="none")
    for model in (OpenAIChatModel("cascade", provider=openai), OpenAIResponsesModel("cascade", provider=openai)):
        agent = pydantic_ai.Agent(model)
        assert (await agent.run("easy")).output == "The Danube."
        async with agent.run_stream("hard") as stream:
            assert await stream.get_output() == "The Danube."
        shaped = pydantic_ai.Agent(model, output_type=pydantic_ai.NativeOutput(City))
        assert (await shaped.run("write JSON")).output == City(name="Vienna", people=2)
