"""100,000 asks with faults of every kind among them: no error escapes, nothing grows."""

from __future__ import annotations

import gc
import random
import resource
from pathlib import Path

import pytest

from cascade import Orchestrator
from cascade.errors import CascadeError, ProviderUnavailableError, RateLimitedError, RefusedError
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Request

ASKS = 100_000
STATM = Path("/proc/self/statm")
FAULTS: tuple[Reply, ...] = (
    ProviderUnavailableError("down"),
    RateLimitedError("slow down", retry_after_s=120.0),
    RefusedError("no"),
    {"choices": []},
    {"choices": None},
    {"error": {"message": "overloaded", "code": 503}},
    reply("", finish_reason="content_filter"),
    reply("Reasoning: cut", finish_reason="length"),
    reply("Yes and no"),
    reply("Yes", p_yes=float("nan")),
)


def _resident_bytes() -> int:
    return int(STATM.read_text("ascii").split()[1]) * resource.getpagesize()


async def _at_once(_seconds: float) -> None:
    """Wait no time."""


@pytest.mark.long
@pytest.mark.skipif(not STATM.exists(), reason="memory is read from /proc")
def test_a_hundred_thousand_asks_with_five_percent_faults() -> None:
    chance = random.Random(0)

    def script(request: Request) -> Reply:
        if chance.random() < 0.05:
            return chance.choice(FAULTS)
        return (
            reply("Yes", p_yes=chance.random()) if request.purpose == "judge" else reply("Reasoning: r\nAnswer: Danube")
        )

    config = {"models": {"base": "openai/gpt-4o-mini", "guide": "openai/gpt-4o"}, "provider": "fake"}
    orchestrator = Orchestrator.from_config(config, providers={"fake": FakeProvider(script, keep=0)})
    for guard in orchestrator.runtime.guards.values():
        guard.sleep = _at_once
    answered = failed = 0
    before = 0
    for number in range(ASKS):
        if number == ASKS // 10:
            gc.collect()
            before = _resident_bytes()
        try:
            answered += orchestrator.ask(f"question {number}").text is not None
        except CascadeError:
            failed += 1
    gc.collect()
    assert answered > 0.95 * ASKS
    assert answered + failed > 0.99 * ASKS
    assert _resident_bytes() < 1.05 * before
