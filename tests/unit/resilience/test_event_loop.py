"""Calls on the loop end on time, whatever they do, and are cancelled when nobody waits for them."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing, closing, suppress
from contextvars import ContextVar
from typing import Any

import pytest
from patience import PATIENCE_S

from cascade.errors import CascadeError, ClosedError, ProviderTimeoutError
from cascade.resilience import event_loop
from cascade.resilience.event_loop import Deadline, Halt, Worker, in_thread, items_on_loop, iterate, on_loop, run

LIMITS_S = (0.02, 0.5, 10.0, 100.0)
"""The first is enough on a machine with little to do."""
Call = Callable[[Coroutine[Any, Any, Any]], Any]


async def returned(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


async def raised(error: BaseException) -> None:
    await asyncio.sleep(0)
    raise error


async def items(*values: Any) -> AsyncGenerator[Any, None]:
    for value in values:
        if isinstance(value, Exception):
            raise value
        yield value


def test_where_no_thread_can_be_started_a_call_fails_and_the_next_works(monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(event_loop, "_background", event_loop._Background())
    with monkeypatch.context() as patch, pytest.raises(CascadeError, match="ulimit"):
        patch.setattr(threading.Thread, "start", refuse)
        run(returned(1))
    assert run(returned(2)) == 2
    event_loop._background.stop()


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


def elsewhere(call: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(on_loop(call, PATIENCE_S))


async def collected(source: AsyncGenerator[Any, None]) -> list[Any]:
    return [item async for item in items_on_loop(source, PATIENCE_S)]


WAYS = pytest.mark.parametrize("call", [run, elsewhere])
LISTS = pytest.mark.parametrize("listed", [lambda feed: list(iterate(feed)), lambda feed: asyncio.run(collected(feed))])


@WAYS
@pytest.mark.parametrize("value", [42, None])
def test_what_a_call_returns_comes_out(call, value):
    assert call(returned(value)) == value


@WAYS
@pytest.mark.parametrize("error", [ZeroDivisionError("x"), ProviderTimeoutError("x"), TimeoutError("its own")])
def test_what_a_call_raises_comes_out(call, error):
    with pytest.raises(type(error), match=str(error)):
        call(raised(error))


@LISTS
@pytest.mark.parametrize("values", [(1, 2, 3), ()])
def test_items_come_out_in_order(listed, values):
    assert listed(items(*values)) == [*values]


@LISTS
def test_what_comes_after_items_is_raised_after_them(listed):
    with pytest.raises(ZeroDivisionError):
        listed(items(1, ZeroDivisionError()))


def test_a_blocking_reader_gets_the_items_before_an_error_and_none_is_made_early():
    produced: list[int] = []

    async def counting() -> AsyncGenerator[int, None]:
        for number in range(3):
            produced.append(number)
            yield number
        raise ZeroDivisionError

    coming = iterate(counting())
    for number in range(3):
        assert next(coming) == number
        assert produced[-1] == number
    with pytest.raises(ZeroDivisionError):
        next(coming)


def test_a_wait_ends_on_time_where_the_loop_itself_stands_still(caplog):
    go_on = threading.Event()

    async def blocks() -> None:
        go_on.wait()  # as a slow parser would
        with suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        raise ZeroDivisionError

    with pytest.raises(ProviderTimeoutError):
        run(blocks(), time.monotonic() + 0.05)
    go_on.set()
    assert run(returned(1)) == 1
    assert not caplog.records  # asyncio would log the late error


async def test_a_call_is_left_on_time_and_cancelled():
    for limit_s in LIMITS_S:
        call, iterator, got = Hangs(), Hangs(), list[int]()
        with pytest.raises(TimeoutError):
            await on_loop(call.call(), limit_s)
        with pytest.raises(TimeoutError):
            async for item in items_on_loop(iterator.items(), limit_s):
                got.append(item)
        if call.begun.is_set() and iterator.begun.is_set():
            break
    assert got == [1]
    assert await asyncio.to_thread(call.ended.wait, PATIENCE_S)
    assert await asyncio.to_thread(iterator.ended.wait, PATIENCE_S)


def test_a_blocking_reader_who_leaves_stops_the_iterator_before_close_returns():
    hangs = Hangs()
    with closing(iterate(hangs.items())) as coming:  # type: ignore[type-var]
        assert next(coming) == 1
    assert hangs.ended.is_set()


async def test_a_reader_who_leaves_closes_the_iterator():
    hangs = Hangs()
    async with aclosing(items_on_loop(hangs.items(), PATIENCE_S)) as coming:
        assert await anext(coming) == 1
    assert await asyncio.to_thread(hangs.ended.wait, PATIENCE_S)


async def test_to_cancel_the_caller_cancels_the_call():
    hangs = Hangs()
    task = asyncio.create_task(on_loop(hangs.call(), PATIENCE_S))
    assert await asyncio.to_thread(hangs.begun.wait, PATIENCE_S)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await asyncio.to_thread(hangs.ended.wait, PATIENCE_S)


async def test_a_reader_who_is_slow_is_never_cancelled():
    """The time runs out while the reader is busy: the next item is refused, the reader's own wait is not."""
    for limit_s in LIMITS_S:
        coming = items_on_loop(items(1, 2), limit_s)
        with suppress(TimeoutError):  # a busy machine may not come to the first item
            assert await anext(coming) == 1
            waited = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(limit_s + 0.02, waited.set_result, "whole")
            assert await waited == "whole"
            break
    else:
        raise AssertionError("no item came in time")
    await coming.aclose()


# --- the switch and the deadline ---


@pytest.mark.parametrize("way", ["run", "iterate"])
def test_a_switch_stops_a_call_under_way(way):
    hangs, halt, got, read = Hangs(), Halt(), list[int](), threading.Event()
    under_way = hangs.begun if way == "run" else read

    async def covered() -> None:
        with halt.covering():
            await hangs.call()

    threading.Thread(target=lambda: under_way.wait(PATIENCE_S) and halt.stop()).start()
    with pytest.raises(ClosedError):
        if way == "run":
            run(covered())
        for item in iterate(halt.covered(hangs.items())):
            got.append(item)
            read.set()
    assert got == ([] if way == "run" else [1])
    assert hangs.ended.is_set()
    assert halt.wait_idle(0.0)
    with pytest.raises(ClosedError):
        run(covered())


async def test_a_cancelled_block_is_cancelled_and_not_stopped():
    halt = Halt()

    async def covered() -> None:
        with halt.covering():
            await asyncio.Event().wait()

    task = asyncio.create_task(covered())
    await asyncio.sleep(0)
    assert not halt.wait_idle(0.0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert halt.wait_idle(0.0)


def test_a_deadline_falls_to_0_and_not_below(monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(event_loop.time, "monotonic", lambda: now[0])
    ends = Deadline.after(5.0)
    for now_s, left_s in ((1_002.0, 3.0), (1_012.0, 0.0)):
        now[0] = now_s
        assert ends.remaining_s() == left_s
    assert Deadline().remaining_s() == math.inf
    assert Deadline.after(0.0).remaining_s() == 0.0


# --- blocking work ---

_mark: ContextVar[int] = ContextVar("mark", default=0)


async def test_work_runs_in_one_thread_in_the_context_of_its_caller():
    _mark.set(7)
    with closing(Worker()) as worker:
        threads = [await worker.do(threading.get_ident) for _ in range(3)]
        assert await worker.do(_mark.get) == 7
    assert len({*threads, threading.get_ident()}) == 2
    assert await in_thread(threading.get_ident) not in threads


async def test_what_work_raises_comes_out():
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)


# --- in processes of their own: in this one the loop of the other tests has begun ---


async def printed(code: str) -> str:
    """Run Python in a process of its own, and return what it prints."""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stderr, done.returncode) == ("", 0)
    return done.stdout


async def test_on_the_loop_itself_a_call_runs_no_further_ahead_of_its_reader_than_a_few_items():
    code = """
import asyncio
from cascade.resilience import event_loop

made = []

async def flood():
    for number in range(10_000):
        made.append(number)
        yield number
        await asyncio.sleep(0)

async def main():
    with event_loop.adopted():
        coming, most = event_loop.items_on_loop(flood(), 60.0), 0
        async for number in coming:
            for _ in range(10):
                await asyncio.sleep(0)
            most = max(most, len(made) - number)
    print(len(made), most <= 6)

asyncio.run(main())
"""
    assert await printed(code) == "10000 True\n"


async def test_a_loop_that_is_adopted_makes_the_calls_itself():
    code = """
import asyncio, threading
from cascade.errors import CascadeError, ClosedError, UsageError
from cascade.resilience import event_loop

async def where():
    return threading.current_thread() is threading.main_thread()

async def both():
    yield await where()
    await asyncio.sleep(3600)

async def stopped():
    asyncio.current_task().cancel()
    await asyncio.sleep(3600)

async def main():
    with event_loop.adopted():
        assert await event_loop.on_loop(where(), 100.0)
        assert await asyncio.to_thread(lambda: event_loop.run(where()))
        for call, error in ((asyncio.sleep(3600), TimeoutError), (stopped(), ClosedError)):
            try:
                await event_loop.on_loop(call, 0.01 if error is TimeoutError else 100.0)
            except error:
                pass
        try:
            async for here in event_loop.items_on_loop(both(), 0.2):
                assert here
        except TimeoutError:
            pass
        try:
            event_loop.run(where())
        except UsageError:
            print("refused")
    assert not await event_loop.on_loop(where(), 100.0)

asyncio.run(main())
"""
    assert await printed(code) == "refused\n"


async def test_ctrl_c_cancels_a_blocking_call_and_waits_for_its_end():
    code = """
import asyncio, signal, threading
from cascade.resilience import event_loop

signal.signal(signal.SIGINT, signal.default_int_handler)
begun, ended = threading.Event(), []

async def booked():
    signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)
    try:
        await asyncio.sleep(3600)
    finally:
        await asyncio.sleep(0.01)
        ended.append(True)

async def items():
    await booked()
    yield 1

for way in (lambda: event_loop.run(booked()), lambda: next(event_loop.iterate(items()))):
    try:
        way()
    except KeyboardInterrupt:
        print(len(ended))
"""
    assert await printed(code) == "1\n2\n"
