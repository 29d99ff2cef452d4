"""How many calls of a model run at once: the decision, and those who wait for a turn."""

from __future__ import annotations

import asyncio

import pytest

from cascade.errors import ProviderUnavailableError, RateLimitedError, from_status
from cascade.resilience.limits import CEILING, FLOOR, Limit, Turns, overloaded
from cascade.resilience.portal import Deadline


def test_a_storm_of_refusals_cuts_once_and_lasting_ones_down_to_the_floor() -> None:
    limit = Limit()
    for _ in range(40):
        for began in [limit.begin() for _ in range(50)]:
            limit.end(began, overloaded=True)
    assert (limit.allowed, limit.under_way) == (FLOOR, 0)


def test_successes_raise_a_limit_that_is_reached_and_no_other() -> None:
    limit = Limit()
    limit.end(limit.begin(), overloaded=True)
    for _ in range(100):
        limit.end(limit.begin(), overloaded=False)  # one at a time: nobody is held back
    assert limit.allowed == FLOOR
    began = [limit.begin() for _ in range(FLOOR)]
    for _ in range(100):
        while not limit.full:
            began.append(limit.begin())
        limit.end(began.pop(0), overloaded=False)
    assert 12 < limit.allowed < 16  # about the root of 2 × 100 successes: one more for each round of calls
    limit.allowed, limit.under_way = CEILING - 1e-6, CEILING - 1
    limit.end(0, overloaded=False)
    assert limit.allowed == float("inf")


def test_what_a_refusal_says_of_the_server() -> None:
    assert overloaded(RateLimitedError("slow down"))
    assert overloaded(from_status(503, ""))
    assert overloaded(from_status(529, ""))
    assert overloaded(from_status(400, "")) is None


async def test_no_more_run_than_the_limit_allows_and_all_get_their_turn_in_order() -> None:
    turns, running, most, done = Turns(), 0, 0, list[int]()
    turns.limit.end(turns.limit.begin(), overloaded=True)

    async def call(number: int) -> None:
        nonlocal running, most
        async with turns.turn("small", Deadline()):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
        done.append(number)

    await asyncio.gather(*(call(number) for number in range(12)))
    assert done == sorted(done)
    assert FLOOR <= most <= FLOOR + 3  # it was raised meanwhile


async def test_who_leaves_the_queue_or_waits_in_vain_takes_no_turn() -> None:
    turns = Turns()
    turns.limit.end(turns.limit.begin(), overloaded=True)
    held = [turns.limit.begin() for _ in range(FLOOR)]

    async def call(deadline: Deadline) -> None:
        async with turns.turn("small", deadline):
            pass

    with pytest.raises(ProviderUnavailableError, match="overloaded") as caught:
        await call(Deadline.after(0.0))
    assert caught.value.billed == "no"
    leaving, staying = asyncio.create_task(call(Deadline())), asyncio.create_task(call(Deadline()))
    await asyncio.sleep(0)
    turns._end(held.pop(), None)  # the turn is given to the first, who leaves at the same moment
    leaving.cancel()
    await staying
    assert leaving.cancelled()
    assert turns.limit.under_way == len(held)
