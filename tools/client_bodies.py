"""Record the bodies that official clients and libraries send by default, for tests/unit/server/client_bodies.json.

Run it in an environment of its own, since the libraries' requirements conflict with each other's releases:

    python -m venv clients
    clients/bin/pip install openai anthropic langchain-openai langchain-anthropic "pydantic-ai-slim[openai]" \
        instructor openai-agents llm
    clients/bin/python tools/client_bodies.py > tests/unit/server/client_bodies.json
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from typing import Any

BODIES: list[dict[str, Any]] = []
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TOOL = {"name": "add", "description": "Add.", "parameters": SCHEMA}
HI = "Say hello."


class Recorder(BaseHTTPRequestHandler):
    """Records each body, and answers 400, after which no library tries again."""

    def do_POST(self) -> None:
        """Record one request."""
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        BODIES.append({"path": self.path.split("?")[0].removeprefix("/v1"), "body": body})
        data = json.dumps({"error": {"message": "recorded", "type": "invalid_request_error"}}).encode()
        self.send_response(400)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def openai_client(base: str) -> list[Callable[[], Any]]:
    """Return calls of OpenAI's client."""
    from openai import OpenAI

    client = OpenAI(base_url=base, api_key="k", max_retries=0)
    messages: Any = [{"role": "user", "content": HI}]
    tools: Any = [{"type": "function", "function": TOOL}]
    return [
        lambda: client.chat.completions.create(model="m", messages=messages),
        lambda: client.chat.completions.create(model="m", messages=messages, stream=True),
        lambda: client.chat.completions.create(model="m", messages=messages, tools=tools, tool_choice="auto"),
        lambda: client.responses.create(model="m", input=HI),
        lambda: client.responses.create(model="m", input=HI, stream=True, store=False, reasoning={"effort": "low"}),
    ]


def anthropic_client(base: str) -> list[Callable[[], Any]]:
    """Return calls of Anthropic's client."""
    from anthropic import Anthropic

    client = Anthropic(base_url=base.removesuffix("/v1"), api_key="k", max_retries=0)
    messages: Any = [{"role": "user", "content": HI}]
    tools: Any = [{"name": "add", "description": "Add.", "input_schema": SCHEMA}]
    thinking: Any = {"type": "enabled", "budget_tokens": 1024}
    return [
        lambda: client.messages.create(model="m", max_tokens=99, messages=messages),
        lambda: client.messages.create(model="m", max_tokens=99, messages=messages, tools=tools, system="Be brief."),
        lambda: client.messages.create(model="m", max_tokens=2048, messages=messages, thinking=thinking, stream=True),
        lambda: client.messages.create(model="m", max_tokens=99, messages=messages, metadata={"user_id": "ann"}),
    ]


def langchain(base: str) -> list[Callable[[], Any]]:
    """Return calls of LangChain's two chat models."""
    from langchain_anthropic import ChatAnthropic
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(model="m", base_url=base, api_key="k", max_retries=0)  # type: ignore[arg-type]
    state = ChatOpenAI(model="m", base_url=base, api_key="k", max_retries=0, use_responses_api=True)  # type: ignore[arg-type]
    claude = ChatAnthropic(model="m", base_url=base.removesuffix("/v1"), api_key="k", max_retries=0)  # type: ignore[call-arg]
    schema = {"title": "reply", "description": "A reply.", **SCHEMA}
    return [
        lambda: chat.invoke(HI),
        lambda: list(chat.stream(HI)),
        lambda: chat.bind_tools([{"type": "function", "function": TOOL}]).invoke(HI),
        lambda: chat.with_structured_output(schema).invoke(HI),
        lambda: state.invoke(HI),
        lambda: claude.invoke(HI),
        lambda: list(claude.stream(HI)),
        lambda: claude.bind_tools([{"type": "function", "function": TOOL}]).invoke(HI),
    ]


def pydantic_ai(base: str) -> list[Callable[[], Any]]:
    """Return runs of pydantic-ai's agents."""
    from pydantic import BaseModel
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    class Reply(BaseModel):
        text: str

    provider = OpenAIProvider(base_url=base, api_key="k")
    models = (OpenAIChatModel("m", provider=provider), OpenAIResponsesModel("m", provider=provider))
    runs: list[Callable[[], Any]] = []
    for model in models:
        runs.append(lambda model=model: Agent(model).run_sync(HI))
        runs.append(lambda model=model: Agent(model, output_type=Reply, system_prompt="Be brief.").run_sync(HI))
    return runs


def instructor_client(base: str) -> list[Callable[[], Any]]:
    """Return calls of instructor."""
    import instructor
    from openai import OpenAI
    from pydantic import BaseModel

    class Reply(BaseModel):
        text: str

    def call(mode: Any) -> Any:
        client = instructor.from_openai(OpenAI(base_url=base, api_key="k", max_retries=0), mode=mode)
        messages: Any = [{"role": "user", "content": HI}]
        return client.chat.completions.create(model="m", messages=messages, response_model=Reply, max_retries=0)

    return [lambda mode=mode: call(mode) for mode in (instructor.Mode.TOOLS, instructor.Mode.JSON)]


def agents_sdk(base: str) -> list[Callable[[], Any]]:
    """Return runs of OpenAI's Agents SDK."""
    from agents import (
        Agent,
        OpenAIChatCompletionsModel,
        OpenAIResponsesModel,
        Runner,
        function_tool,
        set_tracing_disabled,
    )
    from openai import AsyncOpenAI

    set_tracing_disabled(disabled=True)
    client = AsyncOpenAI(base_url=base, api_key="k", max_retries=0)

    @function_tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    runs: list[Callable[[], Any]] = []
    for model in (OpenAIChatCompletionsModel("m", client), OpenAIResponsesModel("m", client)):
        agent = Agent(name="a", instructions="Be brief.", model=model, tools=[add])
        runs.append(lambda agent=agent: asyncio.run(Runner.run(agent, HI)))
    return runs


def llm_tool(base: str) -> list[Callable[[], Any]]:
    """Return prompts of simonw/llm."""
    from llm.default_plugins.openai_models import Chat

    model = Chat("m", key="k", model_name="m", api_base=base)
    return [lambda: model.prompt(HI, key="k").text(), lambda: model.prompt(HI, key="k", stream=False).text()]


CLIENTS = {
    "openai": openai_client,
    "anthropic": anthropic_client,
    "langchain-openai": langchain,
    "pydantic-ai-slim": pydantic_ai,
    "instructor": instructor_client,
    "openai-agents": agents_sdk,
    "llm": llm_tool,
}


def main() -> None:
    """Print every client's bodies as JSON."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorder)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ |= {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}
    recorded = []
    for name, calls in CLIENTS.items():
        for number, call in enumerate(calls(f"http://127.0.0.1:{server.server_port}/v1"), 1):
            BODIES.clear()
            try:
                call()
            except Exception as error:  # noqa: BLE001 - the server refuses every request
                if not BODIES:
                    print(f"{name} {number}: {error!r}", file=sys.stderr)
            if BODIES:
                recorded.append({"client": f"{name} {version(name)}", "number": number, **BODIES[0]})
    print("[\n" + ",\n".join(json.dumps(row, ensure_ascii=False) for row in recorded) + "\n]")


if __name__ == "__main__":
    main()
