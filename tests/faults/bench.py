"""The workbench of the fault tests: orchestrators that ask the loopback server or a script, and never wait."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from cascade import Answer, Orchestrator
from cascade.errors import ProviderError
from cascade.providers.fake import FakeProvider
from cascade.providers.litellm import load_litellm

from .bodies import QUESTION
from .server import FaultServer

KEY = "sk-test-0123456789abcdefghijklmn"
KEY_VARIABLE = "FAULTS_TEST_KEY"
PRICES = {"small": {"input": 1.0, "output": 2.0}, "large": {"input": 10.0, "output": 20.0}}
SMALL_COST = 100 * 1_000 + 10 * 2_000
"""What the server's usage costs at the small model's price, in nano-dollars."""

needs_litellm = [
    pytest.mark.litellm,
    pytest.mark.filterwarnings("ignore::UserWarning:pydantic.*"),
    pytest.mark.skipif(importlib.util.find_spec("litellm") is None, reason="litellm is not installed"),
]
PROVIDERS = ["openai_http", pytest.param("litellm", marks=needs_litellm)]


@dataclass
class Bench:
    """What a test works with. `prefix` is code that its subprocess runs first."""

    server: FaultServer
    patch: pytest.MonkeyPatch
    folder: Path
    log: pytest.LogCaptureFixture
    waits: list[float] = field(default_factory=list)
    prefix: str = ""
    _orchestrators: list[Orchestrator] = field(default_factory=list)

    def served(self, provider: str = "openai_http", **settings: Any) -> Orchestrator:
        """Return an orchestrator whose models live on the loopback server."""
        self.patch.setenv(KEY_VARIABLE, KEY)
        if provider == "litellm":
            load_litellm()  # its import takes seconds, which no deadline of a test allows for
        address = settings.pop("address", self.server.address)
        where = {"kind": provider, "api_base": address, "api_key_env": KEY_VARIABLE}
        return self._keep(Orchestrator.from_config({**_settings(), "provider": where, **settings}))

    def alone(self, mode: str | list[str], provider: str = "openai_http", **settings: Any) -> Orchestrator:
        """Return an orchestrator with one model only, which misbehaves: its errors reach the caller."""
        self.server.modes["small"] = mode
        return self.served(provider, **{"strategy": {"kind": "ladder", "models": ["base"]}, **settings})

    def scripted(self, script: Any, **settings: Any) -> tuple[Orchestrator, FakeProvider]:
        """Return an orchestrator that a script answers, and the script's record of requests."""
        fake = FakeProvider(script)
        config = {**_settings(), "provider": "fake", **settings}
        return self._keep(Orchestrator.from_config(config, providers={"fake": fake})), fake

    def answer(self, mode: str | list[str], provider: str = "openai_http", **settings: Any) -> Answer:
        """Ask while the base misbehaves and the guide is well."""
        self.server.modes["small"] = mode
        return self.served(provider, **settings).ask(QUESTION)

    def error(self, mode: str | list[str], kind: type[ProviderError], provider: str = "openai_http") -> Any:
        """Ask a lone model that misbehaves, and return the error, which must be exactly of that kind."""
        with pytest.raises(ProviderError) as caught:
            self.alone(mode, provider).ask(QUESTION)
        assert type(caught.value) is kind, f"{type(caught.value).__name__}: {caught.value}"
        return caught.value

    def close(self) -> None:
        """Close every orchestrator."""
        for orchestrator in self._orchestrators:
            orchestrator.close()

    def _keep(self, orchestrator: Orchestrator) -> Orchestrator:
        async def note(seconds: float) -> None:
            self.waits.append(seconds)
            await asyncio.sleep(0)

        for guard in orchestrator.runtime.guards.values():
            guard.sleep = note
        self._orchestrators.append(orchestrator)
        return orchestrator


def _settings() -> dict[str, Any]:
    models = {
        "base": {"model": "small", "price": PRICES["small"]},
        "guide": {"model": "large", "price": PRICES["large"]},
    }
    return {"models": models, "strategy": {"rounds": 2}, "timeouts": {"per_call_s": 20.0}}


@pytest.fixture
def bench(
    loopback: FaultServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> Iterator[Bench]:
    """Return a workbench, cleaned up after the test."""
    workbench = Bench(loopback, monkeypatch, tmp_path, caplog)
    yield workbench
    workbench.close()
