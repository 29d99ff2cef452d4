"""A cascade that observes, for tests: two models that differ on hard messages, requests, and what its store holds."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx

from cascade.config import load
from cascade.errors import ProviderUnavailableError
from cascade.modes.state import CascadeState
from cascade.modes.store import ModeStore
from cascade.providers.fake import FakeProvider, reply

from .served import CONFIG, living, orchestrator


class Answers(FakeProvider):
    """The base is unsure where a message holds "hard", and differs from the guide there; it may be made worse."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []
        self.down: set[str] = set()
        self.worse = False
        self.build = "fp_1"
        self.then: Callable[[], None] | None = None
        """What happens once while a model answers."""

    async def complete(self, request: Any, timeout_s: float) -> Any:
        text = str(request.chat.messages[-1]["content"])
        self.called.append(request.model)
        if request.model in self.down:
            raise ProviderUnavailableError("it is down", model=request.model)
        hard = "hard" in text
        wrong = request.model == "small" and (hard or self.worse)
        payload = await self._reply(request, "no" if wrong else "yes", -2.0 if hard else -0.01, timeout_s)
        payload["system_fingerprint"] = self.build
        happens, self.then = self.then, None
        if happens is not None:
            happens()
        return payload

    async def _reply(self, request: Any, text: str, logprob: float, timeout_s: float) -> Any:
        fake = FakeProvider({request.model: [reply(text, logprobs=[logprob, logprob])]})
        return dict(await fake.complete(request, timeout_s))


class Gated(Answers):
    """One model answers once it is let go."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.gated, self.asks, self.free = model, asyncio.Event(), asyncio.Event()

    async def complete(self, request: Any, timeout_s: float) -> Any:
        if request.model == self.gated:
            self.asks.set()
            await self.free.wait()
        return await super().complete(request, timeout_s)


def settings(folder: Path, audit: float = 1.0, **modes: Any) -> dict[str, Any]:
    merged, audits = {"share": 1.0, "risk": 0.1, "confidence": 0.9, **modes}, {"probability": audit}
    return {"traces": {"store": f"sqlite:///{folder}/traces.db"}, "modes": merged, "audits": audits}


@asynccontextmanager
async def serving(folder: Path, provider: Answers, **others: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Serve until the block ends, drained as at SIGTERM."""
    with store_of(folder) as store:
        store.begin("cascade", b"of this test alone")
    async with living(orchestrator(provider, **{**settings(folder), **others})) as client:
        yield client


async def ask(client: httpx.AsyncClient, text: str, *history: Any, **headers: str) -> httpx.Response:
    messages = [*history, {"role": "user", "content": text}]
    return await client.post("/v1/chat/completions", json={"model": "cascade", "messages": messages}, headers=headers)


async def settled(client: httpx.AsyncClient) -> None:
    """Return once no drawn row is pending: each look at the state takes a turn of the loop."""
    while (await client.get("/v1/cascades")).json()["data"][0]["rows"]["pending"]:
        continue


def store_of(folder: Path) -> ModeStore:
    return ModeStore.shared(f"sqlite:///{folder}/traces.db")


def state_of(folder: Path) -> CascadeState:
    with store_of(folder) as store:
        return store.state("cascade")


def over(folder: Path) -> None:
    """Let the day pass after which named conversations may certify."""
    with closing(sqlite3.connect(folder / "traces.db")) as database, database:
        database.execute("UPDATE cascade_draws SET drawn_s = drawn_s - 86400")


def outcomes(folder: Path) -> list[tuple[str, str, bool | None]]:
    with store_of(folder) as store:
        return [
            ("audit" if row.role == "audit" else "observe", row.outcome, row.differs) for row in store.draws("cascade")
        ]


def text_of(number: int) -> str:
    return f"Is {number:05d} times {number + 7:05d} even? It is {'hard' if number % 4 == 0 else 'easy'}."


async def observed(folder: Path, provider: Answers, count: int = 320, first: int = 0) -> None:
    """Observe requests whose names, and so their roles in a look, are the same in every run.

    Unnamed requests get random names: the rows that fit, and with them the policy, would be others in every run.
    """
    async with serving(folder, provider) as client:
        names = ({"x-cascade-group": str(number), "x-cascade-turn": "1"} for number in range(first, first + count))
        asks = (ask(client, text_of(int(name["x-cascade-group"])), **name) for name in names)
        responses = await asyncio.gather(*asks)
    over(folder)
    assert {response.headers["x-cascade-served-by"] for response in responses} == {"large"}
    assert {response.headers["x-cascade-mode"] for response in responses} == {"observe"}


def config_of(folder: Path, **modes: Any) -> Any:
    return load({**CONFIG, **settings(folder, audit=0.1, **modes)})
