"""Caps on what many requests spend together, in the SDK."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Mapping
from contextlib import aclosing, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade import Answer, Orchestrator
from cascade.budget.caps import Account, Hold, MemoryLedger, Refused
from cascade.chat import ChatRequest
from cascade.errors import (
    BudgetExceededError,
    CascadeError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StoreError,
    UsageError,
)
from cascade.providers.fake import FakeProvider, reply
from cascade.records import link
from cascade.records.link import StoreLink
from cascade.runtime import AskOptions
from unit.server.served import CONFIG, Gated

WAIT_S = PATIENCE_S
ASK = [{"role": "user", "content": "Which river?"}]
BASE, GUIDE = 1_000_000, 10_000_000
"""What a call costs in nano-dollars: so much a request, and nothing by the token."""
SURE = reply("The Danube.", logprobs=[-0.01, -0.01])
UNSURE = reply("The Rhine?", logprobs=[-2.0, -2.0])


def opened(script: Any, budget: dict[str, Any], provider: Any = None, output: float = 0) -> Orchestrator:
    config = CONFIG | {
        "models": {
            "base": {"model": "small", "price": {"input": 0, "output": output, "request": BASE / 1e9}},
            "guide": {"model": "large", "price": {"input": 0, "output": 0, "request": GUIDE / 1e9}},
        },
        "budget": {"wait_s": 0, **budget},
    }
    return Orchestrator.from_config(config, providers={"fake": provider or FakeProvider(script)})


def stands(served: Orchestrator, name: str = "all") -> Account:
    return served.runtime.spending.ledger.account(name)


def test_calls_are_booked_at_their_cost_until_the_cap():
    fake = FakeProvider({"small": [SURE]})
    with opened(None, {"caps": [{"usd": 0.0035}]}, fake) as served:
        for _ in range(3):
            served.chat(ASK)
        with pytest.raises(BudgetExceededError) as caught:
            served.chat(ASK)
        assert (caught.value.cap, caught.value.spent, caught.value.retry_after_s) == ("all", True, None)
        assert stands(served) == Account(3 * BASE, 0)
        assert served.runtime.spending is not None
        with pytest.raises(BudgetExceededError):  # at once, since no money that is held may come back
            served.runtime.spending.reserve(fake.requests[0], None, math.inf)
    assert len(fake.requests) == 3


def test_the_best_so_far_is_served_where_that_is_wanted_or_nothing():
    script, budget = {"small": [UNSURE], "large": [SURE]}, {"caps": [{"usd": 0.005}]}
    with opened(script, {**budget, "on_exhausted": "serve_best"}) as served:
        answer = served.chat(ASK)
        assert (answer.text, answer.stopped) == ("The Rhine?", "budget")
        assert stands(served) == Account(BASE, 0)
    with opened(script, budget) as served, pytest.raises(BudgetExceededError) as caught:
        served.chat(ASK)
    assert [call.cost_nano_usd for call in caught.value.calls] == [BASE]


def test_each_user_segment_and_model_has_an_account_and_what_a_client_calls_itself_lifts_no_cap():
    caps = [
        {"per": "segment", "window": "day", "usd": 0.002},
        {"per": "segment", "window": "day", "name": "poor", "usd": 0.001},
        {"per": "model", "name": "guide", "usd": 0.01},
        {"per": "user", "usd": 0.002},
        {"usd": 0.015},
    ]
    with opened({"small": [SURE, SURE, SURE, UNSURE], "large": [SURE]}, {"caps": caps}) as served:
        for segment, calls in (("poor", 1), ("new", 2)):
            for _ in range(calls):
                served.chat(ASK, segment=segment, user=segment)
            for names, cap in (({"segment": segment}, "segment day"), ({"user": "new"}, "user"))[:calls]:
                with pytest.raises(BudgetExceededError) as caught:
                    served.chat(ASK, **names)
                assert caught.value.cap == cap
        with pytest.raises(BudgetExceededError) as caught:  # the guide alone costs what its segment may
            served.chat(ASK, segment="newer")
        assert (caught.value.cap, stands(served)) == ("segment day", Account(4 * BASE, 0))


def test_a_model_s_cap_counts_its_calls_alone():
    caps = [
        {"per": "model", "name": "guide", "usd": 0.01},
        {"per": "model", "name": "small", "window": "month", "usd": 1},
    ]
    with opened({"small": [UNSURE], "large": [SURE]}, {"caps": caps}) as served:
        served.chat(ASK)
        with pytest.raises(BudgetExceededError) as caught:
            served.chat(ASK)
        assert (caught.value.cap, stands(served, "model:large")) == ("model", Account(GUIDE, 0))
        assert [account.spent for _, account in served.runtime.balances().values()] == [2 * BASE, GUIDE]


@pytest.mark.parametrize(
    ("failure", "cost"), [(ProviderUnavailableError("gone", retryable=False), GUIDE), (UsageError("a URL"), 0)]
)
def test_a_failure_that_is_not_billed_costs_nothing(failure, cost):
    with opened({"small": [failure], "large": [SURE]}, {"caps": [{"usd": 1}]}) as served:
        with nullcontext() if cost else pytest.raises(UsageError):
            served.chat(ASK)
        assert stands(served) == Account(cost, 0)


async def test_many_at_once_never_pass_the_cap_and_every_call_is_booked():
    fake = FakeProvider(lambda request: UNSURE if request.model == "small" else SURE)
    async with opened(None, {"caps": [{"usd": 0.1}, {"window": "day", "usd": 1}]}, fake) as served:
        results = await asyncio.gather(*(served.achat(ASK) for _ in range(40)), return_exceptions=True)
        assert {type(result) for result in results if isinstance(result, BaseException)} == {BudgetExceededError}
        billed = sum(BASE if request.model == "small" else GUIDE for request in fake.requests)
        assert stands(served) == Account(billed, 0)
        assert 0.09e9 < billed <= 0.1e9


@pytest.mark.parametrize("finishes", [False, True])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_caller_who_leaves_before_the_next_try_began_pays_nothing(stream, finishes):
    waiting, wakes = asyncio.Event(), asyncio.Event()

    async def sleep(_: float) -> None:
        waiting.set()
        await wakes.wait()

    fake = FakeProvider({"small": [ProviderUnavailableError("down")]})
    async with opened(None, {"caps": [{"usd": 1}]}, fake) as served:
        served.runtime.finishes = finishes
        for guard in served.runtime.guards.values():
            guard.shared, guard.sleep = True, sleep
        asking = served.astream(ASK)
        task = asyncio.create_task(anext(asking) if stream else served.achat(ASK))  # type: ignore[arg-type]
        await waiting.wait()
        await turns()
        assert stands(served) == Account(0, BASE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        wakes.set()
        await turns()
        assert (stands(served), len(fake.requests)) == (Account(0, 0), 1)


async def turns() -> None:
    """Let other tasks run on."""
    for _ in range(20):
        await asyncio.sleep(0)


MOST, COST = BASE + 8_000_000, BASE + 4_000
"""What a call costs at most, which may write 4,000 tokens, and what it costs that writes two."""


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("by", ["client", "deadline"])
async def test_in_a_server_a_call_goes_on_and_is_booked_at_its_cost(stream, by):
    """Ten streams with max_tokens 20000 that hung up were booked at $4.01, and cost $.0035."""
    provider = Gated({"small": [SURE]}, after_words=1)
    async with opened(None, {"caps": [{"usd": 0.1}], "unsettled_per_key": 0.02}, provider, output=2) as served:
        served.runtime.finishes = True

        async def ask(limit_s: float | None = None) -> str | None:
            chat = ChatRequest(ASK, {"max_tokens": 4_000})
            asking = served.runtime.start(chat, AskOptions(model="small", key="app", deadline_s=limit_s))
            if not stream:
                return (await asking.answer()).text
            async with aclosing(asking.served()) as events:
                return [event.text async for event in events if isinstance(event, Answer)].pop()

        async def settled() -> int:
            async with asyncio.timeout(WAIT_S):
                while stands(served).held:  # noqa: ASYNC110
                    await asyncio.sleep(0)
            return stands(served).spent

        for calls in (1, 2):
            provider.waiting.clear()
            limit_s = 0.05
            while not provider.waiting.is_set():  # a busy machine may let the deadline pass before the call begins
                task = asyncio.create_task(ask(limit_s if by == "deadline" else None))
                while not (provider.waiting.is_set() or task.done()):  # noqa: ASYNC110
                    await asyncio.sleep(0)
                limit_s *= 2
            if by == "client":
                task.cancel()
            await asyncio.wait([task])
            assert task.cancelled() or isinstance(task.exception(), ProviderTimeoutError)
            assert stands(served) == Account(0, calls * MOST)
        with pytest.raises(BudgetExceededError) as caught:  # what others may spend would be held, too
            await ask()
        assert (caught.value.cap, caught.value.spent) == ("unsettled_per_key", True)
        provider.go()
        assert await settled() == 2 * COST
        assert await ask() == "The Danube."
        assert await settled() == 3 * COST


async def test_a_caller_who_leaves_a_call_under_way_pays_the_hold():
    begun = asyncio.Event()

    class Hangs(FakeProvider):
        async def complete(self, request: Any, timeout_s: float) -> Any:
            begun.set()
            await asyncio.Event().wait()

    async with opened(None, {"caps": [{"usd": 1}]}, Hangs()) as served:
        task = asyncio.create_task(served.achat(ASK))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert stands(served) == Account(BASE, 0)


async def test_a_stream_that_is_left_is_booked_in_full():
    async with opened({"small": [SURE]}, {"caps": [{"usd": 1}]}) as served:
        events = served.astream(ASK)
        await anext(events)
        assert stands(served) == Account(0, BASE)
        await events.aclose()
        assert stands(served) == Account(BASE, 0)
        async for _ in served.astream(ASK):
            pass
        assert stands(served) == Account(2 * BASE, 0)


async def test_processes_that_share_a_store_share_the_caps_and_its_clock(tmp_path):
    budget = {"caps": [{"window": "day", "usd": 0.0025}], "store": f"sqlite:///{tmp_path}/ledger.db"}
    with opened({"small": [SURE]}, budget) as first, opened({"small": [SURE]}, budget) as second:
        for spending in (first.runtime.spending, second.runtime.spending):
            spending.ledger._database.skew_s = -3 * 86_400.0  # their own clocks are three days fast
        await first.achat(ASK)
        await second.achat(ASK)
        with pytest.raises(BudgetExceededError):
            await first.achat(ASK)
        assert stands(second, *spending.caps.of({"all": None}, spending.ledger.now_s())) == Account(2 * BASE, 0)


async def test_a_call_waits_for_money_that_others_may_not_need():
    class Slow(FakeProvider):
        async def complete(self, request: Any, timeout_s: float) -> Any:
            await asyncio.sleep(0.05)
            raise ProviderUnavailableError("gone", retryable=False, billed="no")

    async with opened(None, {"caps": [{"usd": BASE / 1e9}], "wait_s": 10}, Slow()) as served:
        both = await asyncio.gather(*(served.achat(ASK) for _ in range(2)), return_exceptions=True)
        assert all(isinstance(result, CascadeError) for result in both)
        assert stands(served) == Account(0, 0)


class Elsewhere(MemoryLedger):
    """A ledger that is asked in a thread, answers once it is let go, and can be out of reach."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.called, self.settled = threading.Event(), threading.Event(), threading.Event()
        self.down = False
        self.go.set()

    def reserve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | Refused:
        self.called.set()
        assert self.go.wait(WAIT_S)
        if self.down:
            raise StoreError("down", retryable=True)
        return super().reserve(amount, caps, expires_s)

    def carve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | None:
        return None

    def settle(self, hold: Hold, cost: int | None) -> bool:
        done = super().settle(hold, cost)
        self.settled.set()
        return done


def with_ledger(served: Orchestrator, ledger: Elsewhere) -> Elsewhere:
    assert served.runtime.spending is not None
    served.runtime.spending = replace(served.runtime.spending, ledger=ledger, link=StoreLink("budget", WAIT_S))
    return ledger


@pytest.mark.parametrize("leaves", [True, False])
async def test_a_hold_whose_caller_left_before_it_was_made_or_that_comes_after_the_deadline_is_given_back(leaves):
    async with opened({"small": [SURE]}, {"caps": [{"usd": 1}]}) as served:
        ledger = with_ledger(served, Elsewhere())
        ledger.go.clear()
        if leaves:
            asking = asyncio.ensure_future(served.achat(ASK))
            assert await asyncio.to_thread(ledger.called.wait, WAIT_S)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
        else:
            for limit_s in (0.05, 1.0, 20.0):  # on a busy machine the shortest is over before the ledger is asked
                with pytest.raises(CascadeError) as caught:
                    await served.achat(ASK, deadline_s=limit_s)
                if ledger.called.is_set():
                    break
            assert isinstance(caught.value, StoreError)
        ledger.go.set()
        assert await asyncio.to_thread(ledger.settled.wait, WAIT_S)
        assert stands(served) == Account(0, 0)


async def test_while_the_ledger_is_out_of_reach_no_call_is_made_and_what_was_paid_for_is_served(monkeypatch):
    monkeypatch.setattr(link, "AGAIN_S", 0.01)
    fake = FakeProvider(lambda _: setattr(ledger, "down", True) or SURE)
    async with opened(None, {"caps": [{"usd": 1}]}, fake) as served:
        ledger = with_ledger(served, Elsewhere())
        assert (await served.achat(ASK)).text == "The Danube."
        assert stands(served) == Account(BASE, 0)
        with pytest.raises(StoreError, match="cannot be reached") as caught:
            await served.achat(ASK)
        assert caught.value.retryable
    assert len(fake.requests) == 1
