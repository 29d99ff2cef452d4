"""Foreign calls end on time, whatever they do."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from cascade.resilience.wallclock import OutOfTimeError, aiterate_within, call_within, iterate_within


def test_what_a_call_returns_comes_out() -> None:
    assert call_within(10.0, lambda: 42) == 42
    assert call_within(float("inf"), lambda: None) is None


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), KeyboardInterrupt(), OutOfTimeError()])
def test_what_a_call_raises_comes_out(error: BaseException) -> None:
    def call() -> None:
        raise error

    with pytest.raises(type(error)):
        call_within(10.0, call)


def test_a_call_that_hangs_is_left_behind_on_time() -> None:
    hang = threading.Event()
    with pytest.raises(OutOfTimeError):
        call_within(0.01, hang.wait)
    hang.set()


def test_items_come_out_in_order() -> None:
    assert list(iterate_within(10.0, lambda: iter(range(5)))) == list(range(5))
    assert list(iterate_within(10.0, lambda: iter(()))) == []


def test_an_iterator_that_hangs_keeps_what_came_before() -> None:
    hang, got = threading.Event(), []

    def items() -> Iterator[int]:
        yield 1
        hang.wait()
        yield 2

    with pytest.raises(OutOfTimeError):
        got.extend(item for item in _noted(got, iterate_within(0.05, items)))
    assert got == [1]
    hang.set()


def _noted(got: list[int], items: Iterator[int]) -> Iterator[int]:
    for item in items:
        got.append(item)
    yield from ()


def test_an_iterator_that_raises_raises_after_its_items() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ZeroDivisionError

    coming = iterate_within(10.0, items)
    assert next(coming) == 1
    with pytest.raises(ZeroDivisionError):
        next(coming)


def test_a_reader_who_leaves_stops_the_iterator() -> None:
    closed, went_on = threading.Event(), threading.Event()
    more = threading.Event()

    def items() -> Iterator[int]:
        try:
            yield 1
            more.wait(10)
            yield 2
            went_on.set()
            yield 3
        finally:
            closed.set()

    coming = iterate_within(10.0, items)
    assert next(coming) == 1
    coming.close()
    more.set()
    assert closed.wait(10)
    assert not went_on.is_set()


async def counted(*items: int, closed: list[bool] | None = None) -> AsyncGenerator[int, None]:
    try:
        for item in items:
            yield item
    finally:
        if closed is not None:
            closed.append(True)


async def test_items_come_out_in_order_without_blocking() -> None:
    assert [item async for item in aiterate_within(10.0, counted(1, 2, 3))] == [1, 2, 3]
    assert [item async for item in aiterate_within(10.0, counted())] == []


async def test_an_async_iterator_that_hangs_is_left_on_time_and_closed() -> None:
    closed: list[bool] = []

    async def hangs() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    got = []
    with pytest.raises(OutOfTimeError):
        async for item in aiterate_within(0.05, hangs()):
            got.append(item)
    assert (got, closed) == ([1], [True])


async def test_what_an_async_iterator_raises_comes_out() -> None:
    async def fails() -> AsyncGenerator[int, None]:
        yield 1
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        [item async for item in aiterate_within(10.0, fails())]


async def test_a_reader_who_leaves_closes_the_async_iterator() -> None:
    closed: list[bool] = []
    coming = aiterate_within(10.0, counted(1, 2, closed=closed))
    assert await anext(coming) == 1
    await coming.aclose()
    assert closed == [True]


async def test_a_reader_who_is_slow_is_never_cancelled() -> None:
    """The time runs out while the reader is busy: the next item is refused, the reader's own wait is not."""
    coming = aiterate_within(0.02, counted(1, 2))
    assert await anext(coming) == 1
    waited = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.05, waited.set_result, "whole")
    assert await waited == "whole"
    await coming.aclose()
