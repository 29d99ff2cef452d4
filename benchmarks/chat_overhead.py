"""What a chat request costs in `cascade` itself, and a call of `openai_http` against bare httpx. About 20 seconds.

The chat has 20 messages, 10 tools and a JSON schema, and goes through a ladder on the fake provider. The HTTP calls go
to one server on loopback, in a process of its own; bare httpx and `openai_http` take turns in blocks, so that a busy
machine slows both. `overhead.py` takes both figures in, with their limits.

    python benchmarks/chat_overhead.py

Install what it needs, in the clone: pip install -c constraints.txt -e ".[dev]"
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import openai

from cascade import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.fields import wire_body
from cascade.providers.openai_http import OpenAIHTTP
from cascade.providers.registry import Endpoint
from cascade.resilience.event_loop import run
from cascade.types import Message, Question, Request

_PROPERTIES = {"city": {"type": "string"}, "days": {"type": "integer"}, "unit": {"enum": ["c", "f"]}}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"get_weather_{number}",
            "description": "Returns the weather of a city for some days.",
            "parameters": {"type": "object", "properties": _PROPERTIES, "required": ["city"]},
        },
    }
    for number in range(10)
]
SCHEMA = {
    "type": "json_schema",
    "json_schema": {"name": "weather", "schema": {"type": "object", "properties": _PROPERTIES, "required": ["city"]}},
}
MESSAGES = [
    {"role": "system", "content": "You are a weather service. " * 10},
    *(
        {"role": role, "content": f"What will the weather be in Vienna on day {number}? " * 5}
        for number in range(9)
        for role in ("user", "assistant")
    ),
    {"role": "user", "content": "And in Graz, for three days?"},
]
SAYS = reply("", tool_calls=[("get_weather_3", {"city": "Graz", "days": 3, "unit": "c"})])

SERVER = """
import asyncio, sys
BODY = sys.argv[1].encode()
HEAD = b"HTTP/1.1 200 OK\\r\\ncontent-type: application/json\\r\\ncontent-length: %d\\r\\n\\r\\n" % len(BODY)
class Answers(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.held = transport, b""
    def data_received(self, data):
        self.held += data
        while b"\\r\\n\\r\\n" in self.held:
            head, _, rest = self.held.partition(b"\\r\\n\\r\\n")
            lines = [line for line in head.lower().split(b"\\r\\n") if line.startswith(b"content-length")]
            length = int(lines[0].split(b":")[1])
            if len(rest) < length:
                return
            self.held = rest[length:]
            self.transport.write(HEAD + BODY)
async def main():
    server = await asyncio.get_running_loop().create_server(Answers, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()
asyncio.run(main())
"""


def timed_us(call: Callable[[], object], count: int) -> list[float]:
    """Return the wall-clock times of calls in microseconds."""
    times = []
    for _ in range(count):
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1e6)
    return times


def chat(count: int = 3_000) -> dict[str, float]:
    """Time a chat through a ladder of two models that ends with the first."""
    config: dict[str, Any] = {
        "models": {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"},
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": {"kind": "fixed", "depth": 1},
        "provider": "fake",
        "traces": "off",
    }
    provider = FakeProvider({"openai/gpt-4o-mini": [SAYS]}, keep=0)  # what calls a function has a thread of its own
    with Orchestrator.from_config(config, providers={"fake": provider}) as cascade:

        def call() -> object:
            return cascade.chat(MESSAGES, tools=TOOLS, response_format=SCHEMA)

        timed_us(call, 200)
        times = sorted(timed_us(call, count))
    return {"chat_median_us": times[count // 2], "chat_p99_us": times[int(count * 0.99)]}


REQUEST = Request("small", (Message("user", "Which river?"),), "base", "answer", 1, Question("Which river?"), 64)


def http(rounds: int = 10, calls: int = 100) -> dict[str, float]:
    """Time the same call through bare httpx and through the provider, blocking and not."""
    body = json.dumps(reply("The Danube flows through Vienna.", logprobs=[-0.1] * 5))
    server = subprocess.Popen([sys.executable, "-c", SERVER, body], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None  # noqa: S101 - a pipe was asked for
        base = f"http://127.0.0.1:{int(server.stdout.readline())}/v1"
        return _blocking(base, rounds, calls) | asyncio.run(_async(base, rounds, calls))
    finally:
        server.kill()
        server.wait()


def _blocking(base: str, rounds: int, calls: int) -> dict[str, float]:
    blocks: dict[str, list[float]] = {"bare": [], "ours": []}
    provider, sent = OpenAIHTTP({"": Endpoint(base, "sk-none")}), wire_body(REQUEST, "small")
    with httpx.Client(timeout=10, trust_env=False, headers={"Authorization": "Bearer sk-none"}) as client:

        def bare() -> object:
            return client.post(f"{base}/chat/completions", json=sent).json()

        def ours() -> object:
            return run(provider.complete(REQUEST, 10.0))

        for _ in range(rounds + 1):  # the first is a warm-up
            blocks["bare"].append(statistics.median(timed_us(bare, calls)))
            blocks["ours"].append(statistics.median(timed_us(ours, calls)))
    run(provider.close())
    bare_us, ours_us = (statistics.median(blocks[name][1:]) for name in ("bare", "ours"))
    return {"httpx_median_us": bare_us, "openai_http_median_us": ours_us, "http_ratio": ours_us / bare_us}


async def _async(base: str, rounds: int, calls: int) -> dict[str, float]:
    provider, sent = OpenAIHTTP({"": Endpoint(base, "sk-none")}), wire_body(REQUEST, "small")
    client = httpx.AsyncClient(timeout=10, trust_env=False, headers={"Authorization": "Bearer sk-none"})
    official = openai.AsyncOpenAI(base_url=base, api_key="sk-none", max_retries=0)

    async def bare() -> object:
        return (await client.post(f"{base}/chat/completions", json=sent)).json()

    ways: dict[str, Callable[[], Awaitable[object]]] = {
        "httpx": bare,
        "openai_http": lambda: provider.complete(REQUEST, 10.0),
        "openai_client": lambda: official.chat.completions.create(**sent),
    }
    blocks: dict[str, list[float]] = {name: [] for name in ways}
    for name, call in list(ways.items()) * (rounds + 1):
        times = []
        for _ in range(calls):
            started = time.perf_counter()
            await call()
            times.append((time.perf_counter() - started) * 1e6)
        blocks[name].append(statistics.median(times))
    await asyncio.gather(provider.close(), client.aclose(), official.close())
    medians = {f"{name}_async_median_us": statistics.median(times[1:]) for name, times in blocks.items()}
    ours_us, bare_us = medians["openai_http_async_median_us"], medians["httpx_async_median_us"]
    medians["openai_client_ratio"] = medians["openai_client_async_median_us"] / ours_us
    return {**medians, "http_async_ratio": ours_us / bare_us}


if __name__ == "__main__":
    for name, value in (chat() | http()).items():
        print(f"  {name:28} {value:10.4g}")
