"""Ledgers: in memory, in a file, in PostgreSQL, against the plainest model of one."""

from __future__ import annotations

import random
import sqlite3
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import date, datetime, timedelta
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from patience import PATIENCE_S, at_once, until
from stores import postgres_url

from cascade.budget import caps
from cascade.budget.caps import (
    Account,
    Accounts,
    Cap,
    Caps,
    Hold,
    Lease,
    MemoryLedger,
    Refused,
    Renewal,
    renewals,
)
from cascade.budget.charges import Budget
from cascade.errors import BudgetExceededError, StoreError
from cascade.money import Price
from cascade.records import ledger as sql
from cascade.records.ledger import SqlLedger
from cascade.serving.spending import Ledger
from cascade.types import Message, Request
from unit.builders import CHEAP, request

CAPS = {"all": 100, "key:a": 60, "key:b": 60, "all day:01": 80}
NAMES = st.lists(st.sampled_from(sorted(CAPS)), unique=True, max_size=4)


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def ledger(request: Any, tmp_path: Path) -> Iterator[Ledger]:
    with ExitStack() as stack:
        if request.param == "postgres":
            opened: Ledger = SqlLedger(stack.enter_context(postgres_url()), owner="me")
        elif request.param == "memory":
            opened = MemoryLedger("me")
        else:
            opened = SqlLedger(f"sqlite:///{tmp_path / 'ledger.db'}", owner="me")
        yield opened
        opened.close()


def granted(answer: Hold | Refused) -> Hold:
    assert isinstance(answer, Hold)
    return answer


def test_a_hold_is_on_every_account_or_on_none(ledger):
    granted(ledger.reserve(50, {"a": 50, "b": 100}, 1e12))
    refusal = ledger.reserve(10, {"b": 100, "a": 59}, 1e12)
    assert refusal == Refused("a", 59, Account(0, 50))
    assert refusal.may_fit_later
    assert ledger.account("b") == Account(0, 50)


def test_what_is_settled_counts_at_its_cost_and_once(ledger):
    hold = granted(ledger.reserve(50, {"a": 50}, 1e12))
    assert [ledger.settle(hold, 20), ledger.settle(hold, 20)] == [True, False]
    assert ledger.account("a") == Account(20, 0)
    assert isinstance(ledger.reserve(31, {"a": 50}, 1e12), Refused)
    assert ledger.settle(granted(ledger.reserve(30, {"a": 50}, 1e12)), None)
    assert ledger.account("a") == Account(50, 0)


def test_more_than_the_cap_is_refused_at_once(ledger):
    refusal = ledger.reserve(51, {"a": 50}, 1e12)
    assert isinstance(refusal, Refused)
    assert not refusal.may_fit_later
    assert ledger.account("a") == Account(0, 0)


def test_lost_holds_are_booked_in_full(ledger):
    late, mine = (granted(ledger.reserve(5, {"a": 50}, ends)) for ends in (10.0, 1e12))
    assert ledger.recover(9.0) == 0
    assert ledger.recover(10.0) == 1
    assert ledger.account("a") == Account(5, 5)
    assert not ledger.settle(late, 1)
    assert ledger.recover(0.0, "me") == 1
    assert not ledger.settle(mine, 1)
    assert ledger.account("a") == Account(10, 0)


def test_accounts_of_ended_periods_are_forgotten_a_day_later_unless_something_is_held(ledger):
    day_s, windows, user = 86_400.0, (None, "day", "month"), "a_b%"
    days = Caps([Cap("user", window, None, 9) for window in windows])
    under_way, ended, yesterday, today = (days.of({"user": user}, day * day_s) for day in (0, 1, 40, 41))
    past = granted(ledger.reserve(1, under_way, 1e12))
    for names in (ended, yesterday, today):
        ledger.settle(granted(ledger.reserve(2, names, 1e12)), 2)
    names = [*under_way, *ended, *yesterday, *today]
    for name in names:
        ledger.account(name)  # which writes what was spent
    ledger.prune(days.periods(40 * day_s))
    assert {name for name in names if any(ledger.account(name))} == {*under_way, *yesterday, *today}
    assert ledger.settle(past, 1)
    assert [ledger.account(name).spent for name in (*under_way, *today)] == [7, 1, 3, 7, 2, 4]
    for day, share, listed in ((41, 0.0, windows), (42, 0.0, (None, "month")), (41, 0.4, (None, "month"))):
        listing = ledger.accounts(days.accounts(day * day_s, share), 9)
        assert sorted(map(str, map(caps.window_of, listing))) == sorted(map(str, listed))


def test_a_listing_waits_for_no_call_and_lets_none_wait(ledger, monkeypatch):
    if not isinstance(ledger, SqlLedger):
        return
    monkeypatch.setattr(sql, "_NEXT_PAGE", sql._NEXT_PAGE.offset(2))  # pages of three accounts
    for number in range(10):
        ledger.settle(granted(ledger.reserve(9, {f"user:{number}": 100}, 1e12)), number)
        ledger.account(f"user:{number}")
    transactions, whole = list[bool](), ledger._database.transaction
    monkeypatch.setattr(ledger._database, "transaction", lambda **how: transactions.append(True) or whole(**how))
    with ledger._writing:
        listed = ledger.accounts([Accounts("user", "")], 4)
    assert [at.spent for at in listed.values()] == [9, 8, 7, 6]
    assert len(transactions) == 4


def test_threads_never_pass_a_cap_and_lose_nothing(ledger):
    costs, lock, most = Counter[str](), threading.Lock(), {"total": 300, "a": 200, "b": 200}

    def spend(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(25):
            names = rng.sample(sorted(most), 2)
            answer = ledger.reserve(rng.randint(1, 9), {name: most[name] for name in names}, 1e12)
            if isinstance(answer, Refused):
                continue
            for name in names:
                stands = ledger.account(name)
                assert stands.spent + stands.held <= most[name]
            cost = rng.randint(0, answer.amount)
            assert ledger.settle(answer, cost)
            with lock:
                costs.update(dict.fromkeys(names, cost))

    at_once(*(partial(spend, seed) for seed in range(6)))
    assert {name: ledger.account(name) for name in most} == {name: Account(costs[name], 0) for name in most}


def test_connections_that_broke_are_replaced():
    with postgres_url() as url:
        import psycopg

        ledger = SqlLedger(url)
        hold = granted(ledger.reserve(50, {"a": 100}, 1e12))
        with ledger._database.transaction() as first, ledger._database.transaction() as second:
            for connection in (first, second):  # two are kept
                connection.exec_driver_sql("SELECT 1")
        with psycopg.connect(url, autocommit=True) as admin:
            admin.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
        assert ledger.settle(hold, 20)
        assert ledger.account("a") == Account(20, 0)
        ledger.close()


def killed(ledger: SqlLedger) -> None:
    """Let a ledger do nothing more, as if its process had been killed."""
    with ledger._lock:
        ledger._leases.clear()
    ledger.close()


def meant(name: str) -> Accounts:
    return Accounts(name.removesuffix(caps.period(name)).partition(":")[0], caps.period(name))


class LedgerMachine(RuleBasedStateMachine):
    """What two processes can do on one ledger, and what can happen to them, beside a list of holds and sums of costs."""

    def __init__(self) -> None:
        super().__init__()
        self.folder, self.patch = TemporaryDirectory(), pytest.MonkeyPatch()
        self.patch.setattr(sql, "_TURN_S", 1e6)
        self.patch.setattr(sql, "_NEXT_PAGE", sql._NEXT_PAGE.offset(1))  # pages of two accounts
        self.patch.setattr(caps, "_OFTEN", 1)  # so that leases have slack though caps are small
        self.patch.setattr(caps, "_SHARE", 0.5)
        self.faults: list[str] = []
        self.memory, self.replicas = MemoryLedger(), [self.process(), self.process()]
        self.open: list[tuple[Hold, Hold, int, int]] = []  # in memory, in the database, of which process, its end
        self.ended: list[tuple[Hold, int]] = []
        self.spent, self.now, self.day, self.alerted = Counter[str](), 0, 1, Counter[str]()

    def today(self, name: str) -> str:
        return name.replace("day:01", f"day:{self.day:02}")

    @property
    def accounts(self) -> dict[str, int]:
        """The caps of all accounts that there ever were."""
        return CAPS | {f"all day:{day:02}": CAPS["all day:01"] for day in range(1, self.day + 1)}

    def process(self) -> SqlLedger:
        ledger = SqlLedger(f"sqlite:///{Path(self.folder.name) / 'ledger.db'}")
        whole = ledger._database.transaction

        @contextmanager
        def breaking(**how: bool) -> Iterator[Any]:
            fault = self.faults.pop() if self.faults else ""
            if fault == "before":
                raise StoreError("broke", retryable=True)
            with whole(**how) as connection:
                yield connection
            if fault:
                raise StoreError("broke in its commit", retryable=True)

        ledger._database.transaction = breaking  # type: ignore[method-assign]
        return ledger

    def on_hold(self, name: str) -> int:
        return sum(hold.amount for hold, _, _, _ in self.open if name in hold.accounts)

    @rule(faults=st.lists(st.sampled_from(["before", "in"]), min_size=1, max_size=4))
    def fail(self, faults: list[str]) -> None:
        self.faults = faults

    @rule(amount=st.integers(0, 70), names=NAMES, ends=st.integers(0, 9), which=st.integers(0, 1))
    def reserve(self, amount: int, names: list[str], ends: int, which: int) -> None:
        ends += self.now
        caps = {self.today(name): CAPS[name] for name in names}
        arguments = amount, caps, float(ends)
        fits = all(self.spent[name] + self.on_hold(name) + amount <= cap for name, cap in caps.items())
        try:
            answer = self.replicas[which].reserve(*arguments)
            if fits and isinstance(answer, Refused):
                assert answer.may_fit_later
                self.faults.clear()
                self.replicas[1 - which].turn()  # which gives back what nobody uses
                answer = self.replicas[which].reserve(*arguments)
        except StoreError:
            return
        assert isinstance(answer, Hold) is fits
        beside = self.memory.reserve(*arguments)
        assert isinstance(beside, Hold) is fits
        if fits:
            self.open.append((granted(beside), granted(answer), which, ends))

    @rule(which=st.integers(0, 99), cost=st.none() | st.integers(0, 70))
    def settle(self, which: int, cost: int | None) -> None:
        if not self.open:
            return
        hold = self.open[which % len(self.open)]
        amount = hold[0].amount if cost is None else min(cost, hold[0].amount)
        assert self.replicas[hold[2]].settle(hold[1], amount)
        assert self.memory.settle(hold[0], amount)
        self.end(hold, amount)

    def end(self, hold: tuple[Hold, Hold, int, int], amount: int) -> None:
        self.open.remove(hold)
        self.spent.update(dict.fromkeys(hold[0].accounts, amount))
        self.ended.append((hold[1], hold[2]))

    @rule(which=st.integers(0, 99))
    def settle_again(self, which: int) -> None:
        if self.ended:
            hold, process = self.ended[which % len(self.ended)]
            assert not self.replicas[process].settle(hold, 1)

    @rule(now=st.integers(0, 9))
    def recover(self, now: int) -> None:
        self.faults.clear()
        now += self.now
        lost = [hold for hold in self.open if hold[3] <= now]
        assert sum(copy.recover(float(now)) for copy in self.replicas) == len(lost) == self.memory.recover(float(now))
        for hold in lost:
            self.end(hold, hold[0].amount)

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CAPS)), cost=st.integers(0, 9))
    def book(self, which: int, name: str, cost: int) -> None:
        name = self.today(name)
        if self.balance(name) + cost > self.accounts[name]:
            return
        self.replicas[which].book([name], cost)
        self.turn(which)
        self.faults.clear()
        self.turn(which)
        self.add(name, cost)

    def add(self, name: str, cost: int) -> None:
        self.memory.settle(granted(self.memory.reserve(0, {name: self.accounts[name]}, 0.0)), cost)
        self.spent[name] += cost

    @rule()
    def midnight(self) -> None:
        """Calls under way are booked on the day on which they began."""
        self.day += 1

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CAPS)))
    def reset(self, which: int, name: str) -> None:
        """What the other process has spent and not written does not come back."""
        self.faults.clear()
        name = self.today(name)
        for ledger in (self.replicas[which], self.memory):
            ledger.reset(name, "me")
        self.spent[name] = self.alerted[name] = 0
        self.replicas[1 - which].turn()
        assert self.replicas[1 - which].account(name).spent == 0

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CAPS)), amount=st.sampled_from([30, 50]))
    def alert(self, which: int, name: str, amount: int) -> None:
        self.faults.clear()
        name = self.today(name)
        if name not in self.replicas[which].accounts([meant(name)], 99):
            return
        new = amount > self.alerted[name]
        assert self.replicas[which].alert(name, amount) is self.memory.alert(name, amount) is new
        self.alerted[name] = max(amount, self.alerted[name])

    @rule(which=st.integers(0, 1))
    def prune(self, which: int) -> None:
        """What nobody holds on days before the last is forgotten, once all is on record."""
        if any(hold.amount == 0 for hold, _, _, _ in self.open):
            return  # in memory nothing is held
        self.rest()
        self.midnight()
        oldest = {None: "", "day": f" day:{self.day:02}", "month": " month:01"}
        for ledger in (self.replicas[which], self.memory):
            ledger.prune(oldest)
        for day in range(1, self.day):
            name = f"all day:{day:02}"
            if not any(name in hold.accounts for hold, _, _, _ in self.open):
                self.spent[name] = self.alerted[name] = 0

    @rule(which=st.integers(0, 1))
    def turn(self, which: int) -> None:
        with suppress(StoreError):
            self.replicas[which].turn()

    @rule(which=st.integers(0, 1), dies=st.booleans())
    def lose(self, which: int, dies: bool) -> None:
        """One is killed, or suspended until its leases have ended; the other books them in full."""
        self.faults.clear()
        self.turn(which)  # so that it is known what its rows are
        process, other = self.replicas[which], self.replicas[1 - which]
        unused = {name: lease.free for name, lease in process._leases.items()}
        gone = [hold for hold in self.open if hold[2] == which or not dies]  # the other's end by the clock
        if dies:
            killed(process)
            other.recover(0.0, process._owner)
            self.replicas[which] = self.process()
        else:
            self.now += 20
            other.recover(float(self.now))
            other.turn()
            other.turn()  # which gives back what would have ended, too
            for _, late, of, _ in gone:
                assert of != which or process.settle(late, 1)  # which changes nothing
            for name in self.accounts:
                process.account(name)  # it learns that they are lost
        for hold in gone:
            self.memory.settle(hold[0], None)
            self.end(hold, hold[0].amount)
        for name, slack in unused.items():
            self.add(name, slack)

    @rule(which=st.integers(0, 1), name=st.sampled_from(sorted(CAPS)))
    def look(self, which: int, name: str) -> None:
        self.faults.clear()
        name = self.today(name)
        stands = self.replicas[which].account(name)
        assert stands.spent <= self.spent[name]
        assert self.spent[name] + self.on_hold(name) <= stands.spent + stands.held <= self.accounts[name]

    @rule()
    def rest(self) -> None:
        """If nobody does anything, nothing is leased that no call holds, and all that was spent is on record."""
        self.faults.clear()
        for replica in [*self.replicas, *self.replicas]:
            replica.turn()
        every = [meant(name) for name in self.accounts]
        for ledger in (*self.replicas, self.memory):
            listed = ledger.accounts(every, 1_000)
            for name in self.accounts:
                stands = ledger.account(name)
                assert stands[:3] == (self.spent[name], self.on_hold(name), self.alerted[name])
                assert stands == listed.get(name, Account())
            assert ledger.accounts([Accounts("all", " day:00"), Accounts("ke", "")], 9) == {}
            most = sorted([at.spent for at in listed.values()], reverse=True)
            assert [at.spent for at in ledger.accounts(every, 2).values()] == most[:2]
            alerts = ledger.accounts([at._replace(least=50) for at in every], 99).values()
            assert len(alerts) == sum(at.alerted < 50 <= at.spent for at in listed.values())

    def balance(self, name: str) -> int:
        with closing(sqlite3.connect(f"{self.folder.name}/ledger.db")) as file:
            query = "SELECT sum(spent + held) FROM cascade_accounts WHERE name = ?"
            return file.execute(query, (name,)).fetchone()[0] or 0

    @invariant()
    def no_cap_is_passed_and_nothing_is_forgotten(self) -> None:
        for name, cap in self.accounts.items():
            assert self.spent[name] + self.on_hold(name) <= self.balance(name) <= cap

    def teardown(self) -> None:
        self.rest()
        for replica in self.replicas:
            replica.close()
        self.patch.undo()
        self.folder.cleanup()


TestLedgers = LedgerMachine.TestCase
TestLedgers.settings = settings(max_examples=8, stateful_step_count=30, deadline=None, phases=[Phase.generate])


ALL = {"all": None, "key": "k", "user": "ann", "segment": "de", "model": "small"}
SCOPES, WINDOWS = tuple(ALL), (None, "day", "month")


def test_each_scope_in_each_window_has_accounts_and_a_name_may_have_a_cap_of_its_own():
    assert Caps().of(ALL, 0.0) == {}
    listed = [Cap(scope, window, None, 9) for scope in SCOPES for window in WINDOWS]
    listed += [Cap(scope, "day", name, 1) for scope, name in ALL.items() if name]
    caps = Caps(listed)
    accounts = caps.of(ALL, 86_400.0)
    assert len(accounts) == len(SCOPES) * len(WINDOWS)
    assert {name for name, size in accounts.items() if size == 1} == {
        f"{scope}:{name} day:1970-01-02" for scope, name in ALL.items() if name
    }
    assert {name: caps.size(name, 86_400.0) for name in accounts} == accounts
    assert caps.of(dict.fromkeys(ALL), 0.0)["user day:1970-01-01"] == 9
    assert {caps.size(name, 0.0) for name in accounts if "day" in name} == {None}
    assert {caps.size(name, 0.0) for name in ("all week:1", "", "all ", "all:x", "user:\x00", "user:" + "x" * 101)} == {
        None
    }


@pytest.mark.parametrize("user", ["a\nb", "\x00", "x" * 101, "\ud800", "ünal"])
def test_a_user_s_name_is_one_that_a_database_takes(user):
    (name,) = Caps([Cap("user", None, None, 1)]).of({"user": user}, 0.0)
    assert name.isascii()
    assert " " not in name
    assert name.isprintable()
    assert len(name) < 100


CLOCKS = [  # where clocks change: at 2:00, at midnight, by half an hour, and where a day was left out
    ("Europe/Vienna", date(2027, 3, 28), 23), ("Europe/Vienna", date(2027, 10, 31), 25), ("UTC", date(2028, 2, 29), 24),
    ("Africa/Cairo", date(2027, 4, 30), 23), ("America/Havana", date(2027, 11, 7), 25), ("Asia/Beirut", date(2021, 3, 28), 23),
    ("Australia/Lord_Howe", date(2027, 10, 3), 23.5), ("America/Asuncion", date(2022, 3, 26), 25),
    ("Pacific/Apia", date(2011, 12, 29), 24), ("Asia/Kolkata", date(2027, 12, 31), 24),
]  # fmt: skip


@pytest.mark.parametrize(("zone", "day", "hours"), CLOCKS)
def test_each_period_ends_where_the_next_begins(zone, day, hours):
    caps = Caps([Cap("all", "day", None, 1), Cap("all", "month", None, 1)], ZoneInfo(zone))
    now_s = datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(zone)).timestamp()
    for account in caps.of({"all": None}, now_s):
        end = ends_s(caps, account)
        assert account in caps.of({"all": None}, end - 1)
        assert account not in caps.of({"all": None}, end)
    of_day = f"all day:{day}"
    assert ends_s(caps, of_day) == ends_s(caps, f"all day:{day - timedelta(days=1)}") + hours * 3_600


def ends_s(caps: Caps, account: str) -> float:
    end = caps.ends(account)
    return end.timestamp()


A_NANO_A_TOKEN = Price(0, 1_000)


def costing(nano_usd: int) -> Request:
    """Return a call that costs at most so much at a nano-dollar a token."""
    return request(messages=(Message("user", ""),), max_tokens=nano_usd)


def held_of_shared_budget(budget: Budget, nano_usd: int) -> int:
    return budget.hold(costing(nano_usd), A_NANO_A_TOKEN)


def in_a_thread(work: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def until_somebody_waits(budget: Budget) -> None:
    until(lambda: bool(budget._changed._waiters))  # type: ignore[attr-defined]


# --- one after the other ---


def test_without_a_cap_nothing_is_held_and_what_is_spent_is_still_counted():
    budget = Budget()
    assert budget.hold(costing(10**9), None) == 0
    budget.settle(0, 7)
    budget.settle(0, None)
    assert budget.spent_nano_usd == 7


def test_under_a_cap_an_unknown_price_is_refused():
    with pytest.raises(BudgetExceededError, match=r"small has no known price.*under models"):
        Budget(10**18).hold(costing(1), None)


def test_a_hold_is_the_worst_price_of_the_call():
    call = request(messages=(Message("user", "x" * 100),), max_tokens=10)
    assert Budget(10**9).hold(call, CHEAP) == (100 + 16) * 100 + 10 * 400


def test_calls_fit_up_to_the_last_nano_dollar_and_an_unknown_cost_is_booked_at_the_full_hold():
    budget = Budget(20, 10)  # what was spent before counts
    with pytest.raises(BudgetExceededError):
        held_of_shared_budget(budget, 11)  # which holds nothing
    budget.settle(held_of_shared_budget(budget, 10), 4)
    budget.settle(held_of_shared_budget(budget, 6), None)
    assert budget.spent_nano_usd == 20
    with pytest.raises(BudgetExceededError):
        held_of_shared_budget(budget, 1)


# --- side by side ---


@pytest.mark.parametrize(("cost", "goes"), [(5, True), (6, False), (None, False)])
def test_a_hold_that_does_not_fit_waits_for_others_and_then_decides(cost, goes):
    budget, came = Budget(10), []
    first = held_of_shared_budget(budget, 10)

    def second() -> None:
        try:
            came.append(held_of_shared_budget(budget, 5))
        except BudgetExceededError as error:
            came.append(error)

    thread = in_a_thread(second)
    until_somebody_waits(budget)
    assert came == []
    budget.settle(first, cost)
    thread.join(PATIENCE_S)
    assert (came == [5]) is goes
    assert len(came) == 1


def test_a_settlement_that_is_not_enough_is_waited_over_while_others_are_in_flight():
    budget, came = Budget(10), []
    first, other = held_of_shared_budget(budget, 5), held_of_shared_budget(budget, 5)
    thread = in_a_thread(lambda: came.append(held_of_shared_budget(budget, 8)))
    until_somebody_waits(budget)
    budget.settle(first, 1)
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
                hold = held_of_shared_budget(self.budget, bound)
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
def test_no_interleaving_passes_the_cap_or_refuses_what_fits(limit, before, threads):
    watched = _Watched(limit, before)
    running = [in_a_thread(lambda calls=calls: watched.work(calls)) for calls in threads]  # type: ignore[misc]
    for thread in running:
        thread.join(PATIENCE_S)
        assert not thread.is_alive(), "a hold waits for ever"
    assert watched.wrong == []
    assert watched.budget.spent_nano_usd == watched.paid
    assert watched.paid <= max(limit, before)


def test_a_lease_serves_what_it_has_whatever_became_of_its_change():
    lease = Lease(100, "a", amount=60)
    lease.change = Renewal("b", 20, -40, 0, 0, 1.0)
    assert lease.free == 20
    lease.change = Renewal("b", 90, 30, 0, 25, 1.0)
    assert lease.free == 60


def test_a_cost_without_a_hold_leaves_a_row_that_tells_whether_it_was_written():
    lease = Lease(100, spent=30)
    change = renewals([], {"total": lease}, {"total": Account()}, set())["total"]
    assert change.id is not None
    assert lease.end_change({change.id}).spent == 0
    lost = Lease(100, spent=30)
    renewals([], {"total": lost}, {"total": Account()}, set())
    assert lost.end_change(set()).spent == 30
