"""Calls on the background loop end on time, whatever they do, and are cancelled when nobody waits for them."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import pytest
from clock import within

from cascade.errors import ClosedError
from cascade.resilience import background
from cascade.resilience.background import OutOfTimeError
from cascade.resilience.halting import Halt


async def returned(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def raised(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def hang(ended: threading.Event) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        ended.set()


async def items(*values: int, ended: threading.Event | None = None, hangs: bool = False) -> AsyncGenerator[int, None]:
    try:
        for value in values:
            yield value
        if hangs:
            await asyncio.Event().wait()
    finally:
        if ended is not None:
            ended.set()


def test_what_a_call_returns_comes_out() -> None:
    assert background.run(10.0, returned(42)) == 42
    assert background.run(float("inf"), returned(None)) is None


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OutOfTimeError(), TimeoutError("its own")])
def test_what_a_call_raises_comes_out(error: BaseException) -> None:
    with pytest.raises(type(error)):
        background.run(10.0, raised(error))


def test_a_call_that_hangs_is_cancelled_on_time() -> None:
    ended = threading.Event()
    with pytest.raises(OutOfTimeError):
        background.run(0.01, hang(ended))
    assert ended.wait(10)


def test_a_wait_ends_on_time_where_the_loop_itself_stands_still() -> None:
    async def blocks() -> None:
        time.sleep(0.3)  # noqa: ASYNC251 - as a slow parser would

    with within(0.25), pytest.raises(OutOfTimeError):
        background.run(0.05, blocks())


def test_items_come_out_in_order() -> None:
    assert list(background.iterate(10.0, items(1, 2, 3))) == [1, 2, 3]
    assert list(background.iterate(10.0, items())) == []


def test_an_iterator_that_hangs_keeps_what_came_before() -> None:
    got, ended = [], threading.Event()
    with pytest.raises(OutOfTimeError):
        for item in background.iterate(1.0, items(1, hangs=True, ended=ended)):
            got.append(item)
    assert got == [1]
    assert ended.wait(10)


def failing() -> AsyncGenerator[int, None]:
    async def made() -> AsyncGenerator[int, None]:
        yield 1
        raise ZeroDivisionError

    return made()


def test_an_iterator_that_raises_raises_after_its_items() -> None:
    coming = background.iterate(10.0, failing())
    assert next(coming) == 1
    with pytest.raises(ZeroDivisionError):
        next(coming)


def test_a_reader_who_leaves_stops_the_iterator() -> None:
    ended = threading.Event()
    coming = background.iterate(10.0, items(1, hangs=True, ended=ended))
    assert next(coming) == 1
    coming.close()  # type: ignore[attr-defined]
    assert ended.wait(10)


async def test_items_come_out_in_order_without_blocking() -> None:
    assert [item async for item in background.aiterate(10.0, items(1, 2, 3))] == [1, 2, 3]
    assert [item async for item in background.aiterate(10.0, items())] == []
    assert await background.arun(10.0, returned(42)) == 42


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), OutOfTimeError(), TimeoutError("its own")])
async def test_what_a_call_raises_comes_out_without_blocking(error: BaseException) -> None:
    with pytest.raises(type(error)):
        await background.arun(10.0, raised(error))


async def test_without_blocking_a_call_is_left_on_time_and_cancelled() -> None:
    ended, got = threading.Event(), []
    with pytest.raises(OutOfTimeError):
        await background.arun(0.01, hang(ended))
    assert await asyncio.to_thread(ended.wait, 10)
    ended.clear()
    with pytest.raises(OutOfTimeError):
        async for item in background.aiterate(0.2, items(1, hangs=True, ended=ended)):
            got.append(item)
    assert got == [1]
    assert await asyncio.to_thread(ended.wait, 10)


async def test_what_an_async_iterator_raises_comes_out() -> None:
    with pytest.raises(ZeroDivisionError):
        [item async for item in background.aiterate(10.0, failing())]


async def test_a_reader_who_leaves_closes_the_async_iterator() -> None:
    ended = threading.Event()
    coming = background.aiterate(10.0, items(1, hangs=True, ended=ended))
    assert await anext(coming) == 1
    await coming.aclose()
    assert await asyncio.to_thread(ended.wait, 10)


async def test_to_cancel_the_caller_cancels_the_call() -> None:
    ended = threading.Event()
    task = asyncio.create_task(background.arun(10.0, hang(ended)))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(ended.wait, 10)


async def test_a_reader_who_is_slow_is_never_cancelled() -> None:
    """The time runs out while the reader is busy: the next item is refused, the reader's own wait is not."""
    coming = background.aiterate(0.3, items(1, 2))
    assert await anext(coming) == 1
    waited = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.4, waited.set_result, "whole")
    assert await waited == "whole"
    await coming.aclose()


def stopped_by(halt: Halt, call: Callable[[], Any]) -> BaseException:
    """Make a blocking call under a switch, throw it from elsewhere, and return what the call raised."""
    threading.Timer(0.1, halt.stop).start()
    with pytest.raises(ClosedError) as caught, halt.ruling():
        call()
    return caught.value


def read(coming: Iterator[int]) -> None:
    assert next(coming) == 1
    next(coming)


@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_switch_stops_a_call_under_way(way: str) -> None:
    ended, halt, started = threading.Event(), Halt(), time.monotonic()
    if way == "run":
        stopped_by(halt, lambda: background.run(30.0, hang(ended)))
    else:
        stopped_by(halt, lambda: read(background.iterate(30.0, items(1, hangs=True, ended=ended))))
    assert ended.wait(10)
    assert time.monotonic() - started < 5


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
from cascade.errors import ClosedError
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
        assert await background.arun(10.0, where())
        assert await asyncio.to_thread(lambda: background.run(10.0, where()))
        for call, error in ((asyncio.sleep(3600), OutOfTimeError), (stopped(), ClosedError)):
            try:
                await background.arun(0.01 if error is OutOfTimeError else 10.0, call)
            except error:
                pass
        try:
            async for here in background.aiterate(0.2, both()):
                assert here
        except OutOfTimeError:
            pass
        try:
            background.run(10.0, where())
        except RuntimeError as error:
            print(error)
    assert not await background.arun(10.0, where())

asyncio.run(main())
"""
    assert "would never return" in await printed(code)
