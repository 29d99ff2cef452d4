"""The way to a store: its limit, what becomes of late results, and when a store that failed is asked again."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from patience import PATIENCE_S, until

from cascade.errors import BudgetExceededError, StoreError
from cascade.records import link
from cascade.records.link import StoreLink


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(link, "time", made)
    return made


@pytest.fixture
def way(clock: Clock) -> StoreLink:
    return StoreLink("budget", PATIENCE_S)


def fails() -> Any:
    raise StoreError("gone", retryable=True)


def refuses() -> Any:
    raise BudgetExceededError("too much")


async def test_a_store_that_failed_is_left_alone_and_then_asked_by_one(way, clock):
    with pytest.raises(StoreError):
        await way.call(fails)
    assert (way.problem, way.failures, way.rests) == ("gone", 1, True)
    asked = list[int]()
    with pytest.raises(StoreError, match="gone"):
        await way.call(asked.append, 1)
    clock.now_s = link.AGAIN_S
    go = threading.Event()
    trying = asyncio.create_task(way.call(go.wait, PATIENCE_S))
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="gone"):  # one tries, the others do not wait for it
        await way.call(asked.append, 2)
    go.set()
    assert await trying
    await way.call(asked.append, 3)
    assert (asked, way.problem, way.failures, way.rests) == ([3], None, 1, False)


async def test_a_no_is_an_answer_and_a_failure_beside_a_success_is_no_outage(way, clock):
    with pytest.raises(StoreError):
        await way.call(fails)
    clock.now_s = link.AGAIN_S
    with pytest.raises(BudgetExceededError):
        await way.call(refuses)
    assert way.problem is None
    go = threading.Event()
    slow = asyncio.create_task(way.call(lambda: go.wait(PATIENCE_S) and fails()))
    await asyncio.sleep(0)
    assert await way.call(lambda: 1) == 1
    go.set()
    with pytest.raises(StoreError):
        await slow
    assert (way.problem, way.failures) == (None, 2)


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_late_call_is_a_failure_unless_its_caller_was_in_a_hurry(way, hurried):
    go, late = threading.Event(), list[str]()
    way.limit_s = PATIENCE_S if hurried else 0.01
    with pytest.raises(StoreError) as caught:
        await way.call(lambda: go.wait(PATIENCE_S) and "hold", within_s=0.01, late=late.append)
    assert caught.value.retryable
    assert (way.problem is None, way.failures) == (hurried, 1)
    go.set()
    until(lambda: late == ["hold"])  # what came too late is given back


async def test_what_has_not_begun_is_taken_back_unless_it_must_be_done(way):
    go, done = threading.Event(), list[str]()
    waiting = [asyncio.create_task(way.call(go.wait, PATIENCE_S)) for _ in range(link._THREADS)]
    await asyncio.sleep(0)
    for name, always in (("dropped", False), ("kept", True)):
        with pytest.raises(StoreError):
            await way.call(done.append, name, within_s=0.01, always=always)
    go.set()
    await asyncio.gather(*waiting)
    until(lambda: done == ["kept"])


async def test_a_failure_that_nobody_waited_for_counts_too(way):
    go = threading.Event()
    leaving = asyncio.create_task(way.call(lambda: go.wait(PATIENCE_S) and fails()))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    go.set()
    until(lambda: way.problem == "gone")
