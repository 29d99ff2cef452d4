"""What was sent before is not sent again, and what differs is."""

from __future__ import annotations

from typing import Any

import pytest

from cascade.config import load
from cascade.errors import ProviderUnavailableError
from cascade.orchestrator import Orchestrator
from cascade.providers.fake import FakeProvider, reply
from cascade.providers.replay import Memo
from cascade.types import Message, Question, Request

ASKED = Request("m", (Message("user", "Hi"),), "base", "answer", 1, Question("Hi"), 10)


async def test_the_same_call_is_made_once_whatever_its_role_and_step() -> None:
    inner = FakeProvider(lambda _: reply("Answer: a"))
    memo = Memo(inner)
    first = await memo.complete(ASKED, 1.0)
    assert await memo.complete(ASKED._replace(role="m", step=2, purpose="direct"), 1.0) == first
    assert len(inner.requests) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"model": "other"},
        {"messages": (Message("user", "Ho"),)},
        {"max_tokens": 11},
        {"top_logprobs": 1},
        {"sample": 1},
        {"temperature": 0.5},
        {"seed": 3},
    ],
)
async def test_another_call_is_made(change: dict[str, Any]) -> None:
    inner = FakeProvider(lambda _: reply("Answer: a"))
    memo = Memo(inner)
    await memo.complete(ASKED, 1.0)
    await memo.complete(ASKED._replace(**change), 1.0)
    assert len(inner.requests) == 2


async def test_a_drawn_answer_of_another_step_is_drawn_anew() -> None:
    inner = FakeProvider(lambda _: reply("Answer: a"))
    memo = Memo(inner)
    for step in (1, 2):
        await memo.complete(ASKED._replace(temperature=1.0, step=step), 1.0)
    assert len(inner.requests) == 2


async def test_a_failed_call_is_made_again() -> None:
    inner = FakeProvider({"m": [ProviderUnavailableError("down", model="m"), reply("Answer: a")]})
    memo = Memo(inner)
    with pytest.raises(ProviderUnavailableError):
        await memo.complete(ASKED, 1.0)
    assert (await memo.complete(ASKED, 1.0))["choices"]
    assert len(inner.requests) == 2


async def test_closing_forgets_and_closes() -> None:
    inner = FakeProvider(lambda _: reply("Answer: a"))
    memo = Memo(inner)
    await memo.complete(ASKED, 1.0)
    await memo.close()
    await memo.complete(ASKED, 1.0)
    assert inner.closed
    assert len(inner.requests) == 2


def test_a_remembered_call_costs_what_the_call_cost() -> None:
    inner = FakeProvider(lambda _: reply("Answer: a", input_tokens=7, output_tokens=3))
    price = {"input": 1.0, "output": 2.0}
    config = load(
        {
            "models": {"only": {"model": "m", "price": price}},
            "strategy": {"kind": "ladder", "models": ["only"]},
            "policy": {"kind": "fixed"},
            "provider": "fake",
            "traces": "off",
        }
    )
    memo = Memo(inner)
    costs = [Orchestrator.from_config(config, providers={"fake": memo}).ask("Hi").cost_nano_usd for _ in range(2)]
    assert costs == [7 * 1_000 + 3 * 2_000] * 2
    assert len(inner.requests) == 1
