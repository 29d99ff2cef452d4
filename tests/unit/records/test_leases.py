"""Leases of the ledger, and the way to a store: who asks it and for how long, what goes back, who is killed, forked or late."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, closing
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy as sa
from patience import PATIENCE_S, at_once, in_child, until
from stores import behind, postgres_url

from cascade.budget.caps import Account, Hold, Refused
from cascade.errors import BudgetExceededError, StoreError
from cascade.records import ledger as sql
from cascade.records import link
from cascade.records.database import resets
from cascade.records.ledger import SqlLedger
from cascade.records.link import StoreLink

CAPS, FAR_S = {"key:a": 10_000, "total": 100_000}, 1e12
HOLD, PRICE, PROCESSES, THREADS = 10, 7, 3, 2


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: Any, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        yield stack.enter_context(postgres_url()) if request.param == "postgres" else f"sqlite:///{tmp_path}/ledger.db"


@pytest.fixture
def ledgers(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SqlLedger, SqlLedger]]:
    """Yield two processes' ledgers, whose leases change when a test says so."""
    monkeypatch.setattr(sql, "_TURN_S", 1e6)
    pair = SqlLedger(url), SqlLedger(url)
    yield pair
    for ledger in pair:
        ledger.close()


def busy(ledger: SqlLedger, ends_s: float = FAR_S, calls: int = 20) -> None:
    """Make calls, and let the ledger lease as much for the next."""
    for _ in range(calls):
        hold = ledger.reserve(HOLD, CAPS, ends_s)
        assert isinstance(hold, Hold)
        assert ledger.settle(hold, PRICE)
    ledger.turn()


def down(*_: Any, **__: Any) -> Any:
    raise StoreError("down", retryable=True)


def test_a_hold_is_lost_by_the_clock_of_the_server_alone():
    with postgres_url() as url, closing(SqlLedger(url)) as other, behind(600.0) as there_s:
        with closing(SqlLedger(url)) as late:
            hold = late.reserve(HOLD, CAPS, there_s + 300.0)
            assert other.recover(there_s + 600.0) == 0
            assert late.settle(hold, PRICE)
        assert other.account("total").spent == PRICE


def test_a_clock_that_is_set_later_loses_no_hold_of_another_process():
    with postgres_url() as url, closing(SqlLedger(url)) as other:
        with behind(600.0) as there_s:
            ledger = SqlLedger(url)
        now_s = there_s + 600.0
        hold = other.reserve(HOLD, CAPS, now_s + 300.0)
        assert (ledger.account("total").held, ledger.recover(now_s)) == (HOLD, 0)
        assert isinstance(hold, Hold)
        assert other.settle(hold, PRICE)
        ledger.close()


def test_what_is_spent_when_the_ledger_is_closed_is_counted_as_lost(ledgers):
    closed, _ = ledgers
    closed.book(["total"], PRICE)
    closed.close()
    assert closed.lost_nano_usd == 0
    closed.book(["total"], PRICE)
    assert closed.lost_nano_usd == PRICE


def test_where_no_thread_can_be_started_costs_are_booked_later(ledgers, monkeypatch):
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ledger, other = ledgers
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        ledger.book(["total"], PRICE)
    busy(ledger, calls=1)
    assert ledger._thread is not None
    assert other.account("total").spent == 2 * PRICE


def test_a_call_that_a_lease_has_room_for_asks_no_database(ledgers, monkeypatch):
    mine, other = ledgers
    busy(mine)
    with monkeypatch.context() as patch:
        patch.setattr(mine._database, "transaction", down)
        calls = 0
        while (hold := mine.carve(HOLD, CAPS, FAR_S)) is not None:
            assert mine.settle(hold, PRICE)
            calls += 1
        assert calls >= 19  # as many as in the last turn
        with pytest.raises(StoreError):
            mine.reserve(HOLD, CAPS, FAR_S)
    stands = other.account("total")
    assert (stands.spent, stands.spent + stands.held >= (20 + calls) * PRICE) == (20 * PRICE, True)
    assert mine.account("total") == Account((20 + calls) * PRICE, 0) == other.account("total")._replace(held=0)
    assert mine.carve(HOLD, CAPS | {"user:ann": 50}, FAR_S) is None


def test_what_nobody_uses_goes_back_and_an_account_that_is_used_seldom_has_exact_holds(ledgers):
    mine, other = ledgers
    busy(mine, calls=1)
    assert other.account("total") == Account(PRICE, 0)
    busy(mine)
    assert 0 < other.account("total").held <= 0.05 * CAPS["total"]
    mine.turn()
    assert other.account("total") == Account(21 * PRICE, 0)


def test_who_finds_no_room_gets_the_slack_of_others_who_go_on(ledgers):
    mine, other = ledgers
    busy(mine)
    left = CAPS["key:a"] - 20 * PRICE
    refused = other.reserve(left, CAPS, FAR_S)
    assert isinstance(refused, Refused)
    assert refused.may_fit_later
    busy(mine, calls=1)
    last = other.reserve(left - PRICE, CAPS, FAR_S)
    assert isinstance(last, Hold)
    full = mine.reserve(1, CAPS, FAR_S)
    assert isinstance(full, Refused)
    other.settle(last, None)
    other.turn()
    full = mine.reserve(1, CAPS, FAR_S)
    assert isinstance(full, Refused)
    assert not full.may_fit_later


def test_a_lease_that_others_may_have_booked_serves_no_call_and_counts_once(ledgers):
    mine, other = ledgers
    busy(mine, 100.0)
    late = mine.carve(HOLD, CAPS, 100.0)
    assert late is not None
    assert other.recover(100.0) == 0  # a lease ends after all its holds
    leased = other.account("total").held
    assert other.recover(200.0) == len(CAPS)  # the process was suspended
    assert mine.carve(HOLD, CAPS, 300.0) is None
    mine.settle(late, PRICE)
    assert mine.account("total") == other.account("total") == Account(20 * PRICE + leased, 0)
    busy(mine, 300.0, calls=2)
    assert other.account("total").spent == 22 * PRICE + leased


def test_a_lease_does_not_bring_back_what_was_spent_before_a_reset(ledgers):
    mine, other = ledgers
    busy(mine)
    for _ in range(3):  # which is not written
        hold = mine.carve(HOLD, CAPS, FAR_S)
        assert hold is not None
        assert mine.settle(hold, PRICE)
    late = mine.carve(HOLD, CAPS, FAR_S)
    assert late is not None
    leased = other.account("total").held
    other.reset("total", "boss")
    assert other.account("total") == Account(0, leased, resets=1)
    mine.turn()
    assert mine.account("total") == Account(0, HOLD, resets=1)
    assert mine.account("key:a") == Account(23 * PRICE, HOLD)
    assert mine.settle(late, PRICE)
    mine.turn()
    mine.turn()
    assert mine.account("total") == other.account("total") == Account(PRICE, 0, resets=1)
    with other._database.transaction(reading=True) as connection:
        (record,) = connection.execute(sa.select(resets)).all()
    assert (record.account, record.number, record.who, record.spent) == ("total", 1, "boss", 20 * PRICE)
    assert datetime.fromisoformat(record.reset_at).utcoffset() == timedelta(0)


@pytest.mark.parametrize("calls", [1, 19])
def test_what_is_forgotten_at_a_reset_is_at_most_what_was_leased(ledgers, calls):
    mine, other = ledgers
    busy(mine)
    leased = other.account("total").held
    other.reset("total", "boss")
    for _ in range(calls):  # by a process that has not heard of it
        hold = mine.carve(HOLD, CAPS, FAR_S)
        assert hold is not None
        mine.settle(hold, PRICE)
    mine.turn()
    stands = other.account("total")
    assert 0 <= calls * PRICE - stands.spent <= leased


def test_a_forked_child_has_no_leases(ledgers):
    mine, other = ledgers
    busy(mine)
    hold = mine.carve(HOLD, CAPS, FAR_S)
    assert hold is not None

    def child() -> tuple[Any, bool, bool]:
        tried = mine.carve(HOLD, CAPS, FAR_S), mine.settle(hold, PRICE), isinstance(mine.reserve(5, CAPS, FAR_S), Hold)
        mine.close()
        return tried

    assert in_child(child) == (None, False, True)
    assert mine.settle(hold, PRICE)
    mine.close()
    assert other.account("total") == Account(21 * PRICE, 5)


def test_calls_that_come_at_once_share_a_transaction(ledgers, monkeypatch):
    mine, _ = ledgers
    whole, counts = mine._transact, list[int]()
    monkeypatch.setattr(mine, "_transact", lambda asks, names: counts.append(len(asks)) or whole(asks, names))
    assert len(mine.reserve_all([(HOLD, CAPS, FAR_S)] * 8)) == 8
    assert counts == [8]
    assert mine.account("total") == Account(0, 8 * HOLD)


def spend(url: str, name: str, bill: Any, caps: dict[str, int]) -> None:
    """Call and bill in some threads until a cap ends it."""
    ledger = SqlLedger(url, PATIENCE_S, name)

    def work() -> None:
        while True:
            hold: Any = ledger.carve(HOLD, caps, FAR_S) or ledger.reserve(HOLD, caps, FAR_S)
            if isinstance(hold, Hold):
                os.write(bill.fileno(), b"x")
                ledger.settle(hold, PRICE)
            elif not hold.may_fit_later:
                return

    at_once(*[work] * THREADS)
    ledger.close()


def test_processes_one_of_which_is_killed_pass_no_cap_and_lose_nothing(url):
    caps, context = {"day:1": 7_000, "total": 10_000}, multiprocessing.get_context("forkserver")
    watching = SqlLedger(url, PATIENCE_S)
    ours, theirs = context.Pipe(duplex=False)
    running = [context.Process(target=spend, args=(url, f"{n}", theirs, caps)) for n in range(PROCESSES)]
    for process in running:
        process.start()
    theirs.close()
    billed, most = 0, -caps["total"]

    def read() -> None:
        nonlocal billed
        while piece := os.read(ours.fileno(), 4_096):
            billed += PRICE * len(piece)

    reading = threading.Thread(target=read)
    reading.start()
    until(lambda: billed > 2_000)
    running[0].kill()
    running[0].join()
    while any(process.is_alive() for process in running):
        watching.recover(0.0, "0")
        most = max(most, *(sum(watching.account(name)) - cap for name, cap in caps.items()))
    for process in running[1:]:
        assert process.exitcode == 0
    reading.join(PATIENCE_S)
    stands = {name: watching.account(name) for name in caps}
    watching.close()
    assert most <= 0
    assert all(account.held == 0 and billed <= account.spent <= caps[name] for name, account in stands.items())


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    fake = Clock()
    monkeypatch.setattr(link, "time", fake)
    return fake


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
    calls = list[int]()
    with pytest.raises(StoreError, match="gone"):
        await way.call(calls.append, 1)
    clock.now_s = link.AGAIN_S
    go = threading.Event()
    trying = asyncio.create_task(way.call(go.wait, PATIENCE_S))
    await asyncio.sleep(0)
    with pytest.raises(StoreError, match="gone"):  # one tries, the others do not wait for it
        await way.call(calls.append, 2)
    go.set()
    assert await trying
    await way.call(calls.append, 3)
    assert (calls, way.problem, way.failures, way.rests) == ([3], None, 1, False)


async def test_a_no_is_an_answer_and_a_failure_beside_a_success_is_no_outage(way, clock):
    with pytest.raises(StoreError):
        await way.call(fails)
    clock.now_s = link.AGAIN_S
    with pytest.raises(BudgetExceededError):
        await way.call(refuses)
    assert way.problem is None
    go, began = threading.Event(), threading.Event()
    slow = asyncio.create_task(way.call(lambda: began.set() or (go.wait(PATIENCE_S) and fails())))
    await asyncio.to_thread(began.wait, PATIENCE_S)
    clock.now_s += 1
    assert await way.call(lambda: 1) == 1
    go.set()
    with pytest.raises(StoreError):
        await slow
    assert (way.problem, way.failures) == (None, 2)


@pytest.mark.parametrize("hurried", [False, True])
async def test_a_late_call_is_a_failure_unless_its_caller_was_in_a_hurry(way, hurried, monkeypatch):
    go, began, late = threading.Event(), threading.Event(), list[str]()
    way.limit_s = PATIENCE_S if hurried else 0.01
    monkeypatch.setattr(asyncio, "wait", lambda *_, timeout: asyncio.to_thread(began.wait, PATIENCE_S))
    with pytest.raises(StoreError) as caught:
        await way.call(lambda: began.set() or (go.wait(PATIENCE_S) and "hold"), within_s=0.01, late=late.append)
    assert (caught.value.retryable, way.problem is None, way.failures) == (True, hurried, 1)
    go.set()
    until(lambda: late == ["hold"])  # what came too late is given back


@pytest.mark.parametrize(("answers", "runs"), [(200, 200), (50, 200), (0, 200), (1, 1)])
async def test_a_queue_before_a_store_that_works_is_no_failure_and_one_that_hangs_delays_for_the_limit(
    answers, runs, clock, monkeypatch
):
    """The store takes a twentieth of the limit for each of so many calls, and then hangs; 200 calls may share a run."""
    way, queue, submitted, hangs_s = StoreLink("budget", 1.0), deque[Any](), list[Future[Any]](), 0.0

    def submit(*act: Any) -> Future[Any]:
        submitted.append(Future())
        return queue.append(partial(*act)) or submitted[-1]

    async def wait(futures: list[Any], **limits: float) -> None:
        ends_s = clock.now_s + limits["timeout"]
        while clock.now_s < ends_s and not futures[0].done():  # noqa: ASYNC110 - no real time passes
            await asyncio.sleep(0)

    monkeypatch.setattr(way, "_threads", SimpleNamespace(submit=submit))
    monkeypatch.setattr(asyncio, "wait", wait)
    calls = [way.together(sorted, n) if runs == 1 else way.call(int, n) for n in range(200)]
    burst = asyncio.gather(*calls, return_exceptions=True)
    while not burst.done():
        await asyncio.sleep(0)
        clock.now_s += 0.05
        if len(queue) > runs - answers:
            submitted[runs - len(queue)].set_result(queue.popleft()())
        elif queue:
            hangs_s += 0.05
    late = (runs - answers) * 200 // runs
    assert (await burst)[: 200 - late] == [*range(200 - late)]
    assert (len(submitted), way.failures, way.problem is None, hangs_s < 1.2) == (runs, late, not late, True)
    assert [future.cancelled() for future in submitted] == [False] * answers + [True] * (runs - answers)
