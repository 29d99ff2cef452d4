"""Real models: loaded once, skipped with a reason where their weights are absent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cascade.errors import MissingExtraError, ModelFileError
from cascade.providers import weights
from cascade.providers.local import Local, load_xllamacpp, start_server
from cascade.resilience.event_loop import run

TINY = "smollm2-135m"
PAIR = ("qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")


def _need(*names: str) -> None:
    try:
        load_xllamacpp()
        for name in names:
            weights.find(name)
    except (MissingExtraError, ModelFileError) as error:
        pytest.skip(str(error))


def _address(server: Any) -> str:
    return f"{server.listening_address}/v1"


@pytest.fixture(scope="module")
def local() -> Iterator[Local]:
    """Return a provider that loads a model at its first call."""
    _need(TINY)
    provider = Local()
    yield provider
    run(provider.close())


@pytest.fixture(scope="module")
def tiny_server() -> Iterator[str]:
    """Return the address of a server of the tiny model."""
    _need(TINY)
    server = start_server(TINY)
    yield _address(server)
    del server


@pytest.fixture(scope="session")
def pair() -> Iterator[Local]:
    """Return a provider of the demo's two models."""
    _need(*PAIR)
    provider = Local()
    yield provider
    run(provider.close())


@pytest.fixture
def pair_servers() -> Iterator[tuple[str, str]]:
    """Return the addresses of fresh servers: a cache of earlier prompts changes the order of sums, and near-ties."""
    _need(*PAIR)
    base, guide = (start_server(name) for name in PAIR)
    yield _address(base), _address(guide)
    del base, guide
