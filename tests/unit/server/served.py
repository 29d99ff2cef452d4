"""A cascade behind the server, for tests: in this process over ASGI, or on a loopback port in a thread."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
from patience import PATIENCE_S
from uvicorn import Server

from cascade import Orchestrator
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider
from cascade.server.app import Gateway, application
from cascade.server.lifecycle import listener
from cascade.types import Request

ASK = [{"role": "user", "content": "Which river flows through Vienna?"}]
WAIT_S = PATIENCE_S
CONFIG: Mapping[str, Any] = {
    "models": {
        "base": {"model": "small", "price": {"input": 1.0, "output": 2.0}},
        "guide": {"model": "large", "price": {"input": 10.0, "output": 20.0}},
    },
    "provider": "fake",
    "strategy": {"kind": "ladder", "models": ["base", "guide"]},
    "policy": {"kind": "threshold", "signal": "reply_mean_logprob", "threshold": 0.5},
    "traces": "off",
}
"""The base is kept where its log-probs are above −0.5: `reply(…, logprobs=[−2, …])` sends a request to the guide."""
POOL = 5
_PATIENT = f"""
import os, signal; os.cpu_count = lambda: {POOL - 4}
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup starts a process with it ignored, and then the server leaves it so
from cascade.records import link; link.LIMIT_S = 60.0
from cascade.records.database import Database; set_up = Database._set_up
Database._set_up = lambda store, file: (set_up(store, file), file.execute("PRAGMA synchronous = OFF"))
from cascade.cli.main import main; main()
"""
"""`cascade`, with so many threads in asyncio's pool, for which a store that is slow on a busy machine does not fail."""


def orchestrator(script: Any = None, **settings: Any) -> Orchestrator:
    provider = script if hasattr(script, "complete") else FakeProvider(script)
    return Orchestrator.from_config({**CONFIG, **settings}, providers={"fake": provider})


def asgi(served: Orchestrator, **headers: str) -> httpx.AsyncClient:
    """Return a client of the application, without a socket."""
    transport = httpx.ASGITransport(application(served), client=("127.0.0.1", 1))
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


@asynccontextmanager
async def living(served: Orchestrator | Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of the application, which starts before and is shut down after the block, as in a server."""
    app = served if isinstance(served, Gateway) else application(served)
    events, replies = asyncio.Queue[Any](), asyncio.Queue[Any]()
    life = asyncio.create_task(app({"type": "lifespan", "asgi": {}, "state": {}}, events.get, replies.put))
    await events.put({"type": "lifespan.startup"})
    assert (await replies.get())["type"] == "lifespan.startup.complete"
    transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        yield client
    await events.put({"type": "lifespan.shutdown"})
    assert (await replies.get())["type"] == "lifespan.shutdown.complete"
    await life


async def post(
    script: Any = None, body: Mapping[str, Any] | None = None, *, settings: Any = None, **headers: str
) -> Any:
    """Return the response to one chat request of the model `cascade`."""
    async with orchestrator(script, **(settings or {})) as served, asgi(served) as client:
        request = {"model": "cascade", "messages": ASK, **(body or {})}
        return await client.post("/v1/chat/completions", json=request, headers=headers)


@contextmanager
def listening(served: Orchestrator) -> Iterator[str]:
    """Run uvicorn in a thread, on a free port, and yield its address."""
    started = threading.Event()

    class Announcing(Server):
        async def startup(self, sockets: Any = None) -> None:
            await super().startup(sockets)
            started.set()

    config = listener(application(served))
    config.port = 0
    server = Announcing(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert started.wait(WAIT_S)
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@contextmanager
def started(path: Path, *options: str, within: Sequence[str] = (), **ends: Any) -> Iterator[tuple[Any, str]]:
    """Run `cascade serve` on a configuration, by a command `within`; yield the process and its address."""
    command = [*within, sys.executable, "-c", _PATIENT, "serve", "-c", str(path), *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **ends) as process:
        try:
            yield process, "http://" + process.stderr.readline().partition("http://")[2].partition("/")[0]
        finally:
            process.kill()


def write(path: Path, **settings: Any) -> Path:
    """Write a configuration, by default on a free port; return its path."""
    path.write_text(json.dumps({**CONFIG, "server": {"port": 0}, **settings}), "utf-8")
    return path


class Gated(FakeProvider):
    """Answers once it is let go, and notes calls that were cancelled while they waited."""

    def __init__(self, script: Any = None, *, after_words: int = 0) -> None:
        super().__init__(script)
        self.after_words = after_words
        self.waiting, self.cancelled = threading.Event(), threading.Event()
        self._gone = False
        self._calls: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    def go(self) -> None:
        """Let every call go, those that wait and those to come; from any thread."""
        self._gone = True
        for loop, event in self._calls:
            loop.call_soon_threadsafe(event.set)

    async def _wait(self) -> None:
        event = asyncio.Event()
        self._calls.append((asyncio.get_running_loop(), event))
        self.waiting.set()
        try:
            if not self._gone:
                await event.wait()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def complete(self, request: Request, timeout_s: float) -> Payload:
        await self._wait()
        return await super().complete(request, timeout_s)

    async def stream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        count = 0
        async for chunk in super().stream(request, timeout_s):
            if count == self.after_words:
                await self._wait()
            count += 1
            yield chunk
