"""One cap for calls side by side: whatever the interleaving, it is not passed, and nobody waits for nothing."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from patience import PATIENCE_S, until

from cascade.budget.charges import Budget
from cascade.errors import BudgetExceededError
from cascade.money import Price
from cascade.types import Message, Request
from unit.made import CHEAP, request

A_NANO_A_TOKEN = Price(0, 1_000)


def costing(nano_usd: int) -> Request:
    """Return a call that costs at most so much at a nano-dollar a token."""
    return request(messages=(Message("user", ""),), max_tokens=nano_usd)


def held(budget: Budget, nano_usd: int) -> int:
    return budget.hold(costing(nano_usd), A_NANO_A_TOKEN)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until_somebody_waits(budget: Budget) -> None:
    until(lambda: bool(budget._changed._waiters))  # type: ignore[attr-defined]


# --- one after the other ---


def test_without_a_cap_nothing_is_held_and_what_is_spent_is_still_counted() -> None:
    budget = Budget()
    assert budget.hold(costing(10**9), None) == 0
    budget.settle(0, 7)
    budget.settle(0, None)
    assert budget.spent_nano_usd == 7


def test_under_a_cap_an_unknown_price_is_refused() -> None:
    with pytest.raises(BudgetExceededError, match=r"small has no known price.*under models"):
        Budget(10**18).hold(costing(1), None)


def test_a_hold_is_the_worst_price_of_the_call() -> None:
    asked = request(messages=(Message("user", "x" * 100),), max_tokens=10)
    assert Budget(10**9).hold(asked, CHEAP) == (100 + 16) * 100 + 10 * 400


def test_calls_fit_up_to_the_last_nano_dollar() -> None:
    budget = Budget(10)
    budget.settle(held(budget, 10), 4)
    budget.settle(held(budget, 6), 6)
    assert budget.spent_nano_usd == 10
    with pytest.raises(BudgetExceededError):
        held(budget, 1)


def test_what_was_spent_before_counts() -> None:
    budget = Budget(10, 8)
    with pytest.raises(BudgetExceededError):
        held(budget, 3)
    assert held(budget, 2) == 2


def test_an_unknown_cost_is_booked_at_the_full_hold() -> None:
    budget = Budget(10)
    budget.settle(held(budget, 6), None)
    assert budget.spent_nano_usd == 6
    with pytest.raises(BudgetExceededError):
        held(budget, 5)


def test_a_refused_hold_holds_nothing() -> None:
    budget = Budget(10)
    with pytest.raises(BudgetExceededError):
        held(budget, 11)
    assert held(budget, 10) == 10


# --- side by side ---


@pytest.mark.parametrize(("cost", "goes"), [(5, True), (6, False), (None, False)])
def test_a_hold_that_does_not_fit_waits_for_others_and_then_decides(cost: int | None, goes: bool) -> None:
    budget, came = Budget(10), []
    first = held(budget, 10)

    def second() -> None:
        try:
            came.append(held(budget, 5))
        except BudgetExceededError as error:
            came.append(error)

    thread = in_a_thread(second)
    until_somebody_waits(budget)
    assert came == []
    budget.settle(first, cost)
    thread.join(PATIENCE_S)
    assert (came == [5]) is goes
    assert len(came) == 1


def test_a_settlement_that_is_not_enough_is_waited_over_while_others_are_in_flight() -> None:
    budget, came = Budget(10), []
    one, other = held(budget, 5), held(budget, 5)
    thread = in_a_thread(lambda: came.append(held(budget, 8)))
    until_somebody_waits(budget)
    budget.settle(one, 1)
    until_somebody_waits(budget)
    assert came == []
    budget.settle(other, 1)
    thread.join(PATIENCE_S)
    assert came == [8]


@pytest.fixture
def _switching_often() -> Iterator[None]:
    """Let threads take turns 500 times as often as they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


class _Watched:
    """A budget used from many threads, with what really was paid and every refusal that was not needed."""

    def __init__(self, limit: int, before: int) -> None:
        self.budget = Budget(limit, before)
        self.limit = limit
        self.lock = threading.Lock()
        self.paid = before
        self.possible = before  # what is paid, and the worst of what is in flight
        self.wrong: list[str] = []

    def work(self, calls: list[tuple[int, int]]) -> None:
        for bound, saved in calls:
            cost = max(0, bound - saved)
            try:
                hold = held(self.budget, bound)
            except BudgetExceededError:
                with self.lock:
                    if self.paid + bound <= self.limit:
                        self.wrong.append(f"{bound} was refused with {self.paid} paid")
                continue
            with self.lock:
                self.possible += bound
                if self.possible > self.limit:
                    self.wrong.append(f"{self.possible} could be paid")
            with self.lock:
                self.paid += cost
                self.possible -= bound - cost
            self.budget.settle(hold, cost)


CALLS = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 40)), min_size=1, max_size=8)


@pytest.mark.usefixtures("_switching_often")
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 120), st.integers(0, 30), st.lists(CALLS, min_size=2, max_size=6))
def test_no_interleaving_passes_the_cap_or_refuses_what_fits(
    limit: int, before: int, threads: list[list[tuple[int, int]]]
) -> None:
    watched = _Watched(limit, before)
    running = [in_a_thread(lambda calls=calls: watched.work(calls)) for calls in threads]  # type: ignore[misc]
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a hold waits for ever"
    assert watched.wrong == []
    assert watched.budget.spent_nano_usd == watched.paid
    assert watched.paid <= max(limit, before)
