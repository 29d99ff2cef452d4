"""Calls on the background loop end on time, whatever they do, and are cancelled when nobody waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade.errors import ClosedError
from cascade.resilience import background
from cascade.resilience.background import OutOfTimeError
from cascade.resilience.halting import Halt

LIMITS_S = (0.02, 0.5, 10.0, 100.0)
"""The first is enough on a machine with little to do."""


async def returned(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def raised(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


class Hangs:
    """Calls that never end by themselves, and what became of them."""

    def __init__(self) -> None:
        self.begun, self.ended = threading.Event(), threading.Event()

    async def call(self) -> None:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.ended.set()

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            yield 1
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.ended.set()


async def items(*values: int) -> AsyncGenerator[int, None]:
    for value in values:
        yield value


def test_what_a_call_returns_comes_out() -> None:
    assert background.run(PATIENCE_S, returned(42)) == 42
    assert background.run(float("inf"), returned(None)) is None


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OutOfTimeError(), TimeoutError("its own")])
def test_what_a_call_raises_comes_out(error: BaseException) -> None:
    with pytest.raises(type(error)):
        background.run(PATIENCE_S, raised(error))


def test_a_call_that_hangs_is_cancelled_on_time() -> None:
    for limit_s in LIMITS_S:
        hangs = Hangs()
        with pytest.raises(OutOfTimeError):
            background.run(limit_s, hangs.call())
        if hangs.begun.is_set():
            break
    assert hangs.ended.wait(PATIENCE_S)


def test_a_wait_ends_on_time_where_the_loop_itself_stands_still() -> None:
    go_on = threading.Event()

    async def blocks() -> None:
        go_on.wait()  # as a slow parser would

    with pytest.raises(OutOfTimeError):
        background.run(0.05, blocks())
    go_on.set()


def test_items_come_out_in_order() -> None:
    assert list(background.iterate(PATIENCE_S, items(1, 2, 3))) == [1, 2, 3]
    assert list(background.iterate(PATIENCE_S, items())) == []


def test_an_iterator_that_hangs_keeps_what_came_before() -> None:
    for limit_s in LIMITS_S:
        got, hangs = list[int](), Hangs()
        with pytest.raises(OutOfTimeError):
            for item in background.iterate(limit_s, hangs.items()):
                got.append(item)
        if hangs.begun.is_set():
            break
    assert got == [1]
    assert hangs.ended.wait(PATIENCE_S)


def failing() -> AsyncGenerator[int, None]:
    async def made() -> AsyncGenerator[int, None]:
        yield 1
        raise ZeroDivisionError

    return made()


def test_an_iterator_that_raises_raises_after_its_items() -> None:
    coming = background.iterate(PATIENCE_S, failing())
    assert next(coming) == 1
    with pytest.raises(ZeroDivisionError):
        next(coming)


def test_a_reader_who_leaves_stops_the_iterator() -> None:
    hangs = Hangs()
    coming = background.iterate(PATIENCE_S, hangs.items())
    assert next(coming) == 1
    coming.close()  # type: ignore[attr-defined]
    assert hangs.ended.wait(PATIENCE_S)


async def test_items_come_out_in_order_without_blocking() -> None:
    assert [item async for item in background.aiterate(PATIENCE_S, items(1, 2, 3))] == [1, 2, 3]
    assert [item async for item in background.aiterate(PATIENCE_S, items())] == []
    assert await background.arun(PATIENCE_S, returned(42)) == 42


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OutOfTimeError(), TimeoutError("its own")])
async def test_what_a_call_raises_comes_out_without_blocking(error: BaseException) -> None:
    with pytest.raises(type(error)):
        await background.arun(PATIENCE_S, raised(error))


async def test_without_blocking_a_call_is_left_on_time_and_cancelled() -> None:
    for limit_s in LIMITS_S:
        call, iterator, got = Hangs(), Hangs(), list[int]()
        with pytest.raises(OutOfTimeError):
            await background.arun(limit_s, call.call())
        with pytest.raises(OutOfTimeError):
            async for item in background.aiterate(limit_s, iterator.items()):
                got.append(item)
        if call.begun.is_set() and iterator.begun.is_set():
            break
    assert got == [1]
    assert await asyncio.to_thread(call.ended.wait, PATIENCE_S)
    assert await asyncio.to_thread(iterator.ended.wait, PATIENCE_S)


async def test_what_an_async_iterator_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        [item async for item in background.aiterate(PATIENCE_S, failing())]


async def test_a_reader_who_leaves_closes_the_async_iterator() -> None:
    hangs = Hangs()
    coming = background.aiterate(PATIENCE_S, hangs.items())
    assert await anext(coming) == 1
    await coming.aclose()
    assert await asyncio.to_thread(hangs.ended.wait, PATIENCE_S)


async def test_to_cancel_the_caller_cancels_the_call() -> None:
    hangs = Hangs()
    task = asyncio.create_task(background.arun(PATIENCE_S, hangs.call()))
    assert await asyncio.to_thread(hangs.begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(hangs.ended.wait, PATIENCE_S)


async def test_a_reader_who_is_slow_is_never_cancelled() -> None:
    """The time runs out while the reader is busy: the next item is refused, the reader's own wait is not."""
    for limit_s in LIMITS_S:
        coming = background.aiterate(limit_s, items(1, 2))
        with suppress(OutOfTimeError):  # a busy machine may not come to the first item
            assert await anext(coming) == 1
            waited = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(limit_s + 0.02, waited.set_result, "whole")
            assert await waited == "whole"
            break
    else:
        raise AssertionError("no item came in time")
    await coming.aclose()


@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_switch_stops_a_call_under_way(way: str) -> None:
    hangs, halt, got, read = Hangs(), Halt(), list[int](), threading.Event()
    under_way = hangs.begun if way == "run" else read
    threading.Thread(target=lambda: under_way.wait(PATIENCE_S) and halt.stop()).start()
    with pytest.raises(ClosedError), halt.ruling():
        if way == "run":
            background.run(2 * PATIENCE_S, hangs.call())
        for item in background.iterate(2 * PATIENCE_S, hangs.items()):
            got.append(item)
            read.set()
    assert got == ([] if way == "run" else [1])
    assert hangs.ended.wait(PATIENCE_S)


async def printed(code: str) -> str:
    """Run Python in a process of its own, and return what it prints."""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


async def test_on_the_loop_itself_a_call_runs_no_further_ahead_of_its_reader_than_a_few_items() -> None:
    """In a process of its own, as below."""
    code = """
import asyncio
from cascade.resilience import background

made = []

async def flood():
    for number in range(10_000):
        made.append(number)
        yield number
        await asyncio.sleep(0)

async def main():
    with background.adopted():
        coming, most = background.aiterate(60.0, flood()), 0
        async for number in coming:
            for _ in range(10):
                await asyncio.sleep(0)
            most = max(most, len(made) - number)
    print(len(made), most <= 6)

asyncio.run(main())
"""
    assert await printed(code) == "10000 True\n"


async def test_a_loop_that_is_adopted_makes_the_calls_itself() -> None:
    """In a process of its own: in this one the loop of the other tests has begun."""
    code = """
import asyncio, threading
from cascade.errors import ClosedError, UsageError
from cascade.resilience import background
from cascade.resilience.background import OutOfTimeError

async def where():
    return threading.current_thread() is threading.main_thread()

async def both():
    yield await where()
    await asyncio.sleep(3600)

async def stopped():
    asyncio.current_task().cancel()
    await asyncio.sleep(3600)

async def main():
    with background.adopted():
        assert await background.arun(100.0, where())
        assert await asyncio.to_thread(lambda: background.run(100.0, where()))
        for call, error in ((asyncio.sleep(3600), OutOfTimeError), (stopped(), ClosedError)):
            try:
                await background.arun(0.01 if error is OutOfTimeError else 100.0, call)
            except error:
                pass
        try:
            async for here in background.aiterate(0.2, both()):
                assert here
        except OutOfTimeError:
            pass
        try:
            background.run(100.0, where())
        except UsageError as error:
            print(error)
    assert not await background.arun(100.0, where())

asyncio.run(main())
"""
    assert "would never return" in await printed(code)
