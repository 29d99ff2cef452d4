"""A ledger in SQLite or PostgreSQL that any number of processes share through leases.

A lease is a row of `holds` on one account. The holds of calls are carved from it in memory, so most calls need no
query. Once per turn a thread writes what was spent and renews the leases. Those of a killed process are booked in full.

Every transaction locks its accounts in the same order, then its rows of `holds`, so that no two can deadlock.
"""

from __future__ import annotations

import atexit
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import sqlalchemy as sa

from cascade.budget.caps import Account, Accounts, Claim, Hold, Lease, Refused, Renewal, new_id, renewals
from cascade.errors import StoreError, logger
from cascade.forks import now_and_after_fork
from cascade.money import exact_dollars
from cascade.records import link
from cascade.records.database import Database, accounts, holds, insert, resets
from cascade.safety import redact
from cascade.text import now_utc

T = TypeVar("T")
_TRIES = 3
"""How often a change is tried if its connection breaks. The ids of its rows show whether an earlier try succeeded."""
_TURN_S = 0.25
"""How often spending is written, and so how far the balances in other processes lag behind."""
_WAITS_S = 4 * _TURN_S
"""How long processes keep no slack on an account after one of them found no room on it."""
_MOST_WAITING = 10_000
_BETWEEN = "\n"
"""The separator of account names in a hold; `caps.Caps` makes no name with a line end."""
_WAITS = f"waits{_BETWEEN}"
"""Followed by an account's name, the id of an empty hold, which asks other processes to give back their slack."""
_OPENED = insert(accounts).values(name=sa.bindparam("name"), spent=0, held=0, alerted=0, resets=0)
_OPENED = _OPENED.on_conflict_do_nothing()
_NAMED = accounts.c.name.in_(sa.bindparam("names", expanding=True))
_WAITED = sa.exists().where(holds.c.id == _WAITS + accounts.c.name, holds.c.expires_s > sa.bindparam("now_s"))
_LOCKED = sa.select(accounts, _WAITED.label("waited")).where(_NAMED).order_by(accounts.c.name)
_LOCKED = _LOCKED.with_for_update(of=accounts)
_ENDED = sa.delete(holds).where(holds.c.id.in_(sa.bindparam("ids", expanding=True))).returning(holds.c.id)
_BOOKED = sa.update(accounts).where(accounts.c.name == sa.bindparam("account"))
_BOOKED = _BOOKED.values(spent=accounts.c.spent + sa.bindparam("more"), held=accounts.c.held + sa.bindparam("longer"))
_PAGE = 2_000
_NEXT_PAGE = sa.select(accounts.c.name).where(accounts.c.name > sa.bindparam("last"))
_NEXT_PAGE = _NEXT_PAGE.order_by(accounts.c.name).offset(_PAGE).limit(1)
_HOLD = insert(holds)
_HOLD = _HOLD.on_conflict_do_update(index_elements=["id"], set_={"expires_s": _HOLD.excluded.expires_s})


class SqlLedger:
    """A ledger in a database, to be closed after use. It is opened like a `Database`; queries may raise StoreError.

    Args:
        url: the store of the accounts.
        limit_s: as in `Database.shared`.
        owner: the name of this process in the ledger.

    Attributes:
        allowed: how many calls were made without asking the ledger, counted by the caller.
        waiting: how many costs that no hold covers are waiting to be booked.
        lost_nano_usd: the sum of such costs never booked, because the process ended or too many were waiting.
    """

    def __init__(self, url: str, limit_s: float | None = None, owner: str | None = None) -> None:
        self._database, self._owner = Database.shared(url, limit_s), owner or new_id()
        self.now_s = self._database.now_s
        self.allowed = self.lost_nano_usd = 0
        now_and_after_fork(self._begin)

    def _begin(self) -> None:
        """Start without leases; after a fork they stay with the parent."""
        self._lock = threading.Condition()  # guards what is in memory; never held during a query
        self._writing = threading.Lock()  # guards the database and what is known about it
        self._leases: dict[str, Lease] = {}
        self._holds: dict[str, tuple[Hold, list[Lease]]] = {}
        self._claims: list[Claim] = []
        self._thread: threading.Thread | None = None
        self._closing = False
        self.waiting = self._unbooked = 0

    def carve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | None:
        """Hold an amount on all accounts if the leases have room for it; else return None."""
        with self._lock:
            claim = self._claim_of(amount, caps, expires_s)
            return None if claim.needs or self._closing else self._carved(claim).hold

    def _claim_of(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Claim:
        """Return a claim with the leases that a call fits in, and the accounts on which it needs more."""
        claim = Claim(Hold(new_id(), amount, tuple(caps), self._owner, expires_s))
        for name in sorted(caps):
            lease = self._leases.get(name)
            if lease is not None and lease.fits(amount, caps[name], expires_s):
                claim.leases.append(lease)
            else:
                claim.needs[name] = caps[name]
        return claim

    def _carved(self, claim: Claim) -> Claim:
        for lease in claim.leases:
            lease.carve(claim.hold.amount, claim.hold.expires_s)
        self._holds[claim.hold.id] = claim.hold, claim.leases
        claim.answer = None if claim.needs else claim.hold
        return claim

    def reserve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none."""
        if (small := min(caps, key=lambda name: (caps[name], name), default=None)) and amount > caps[small]:
            return Refused(small, caps[small], self.account(small))
        return self.reserve_all([(amount, caps, expires_s)])[0]

    def reserve_all(self, asks: Sequence[tuple[int, Mapping[str, int], float]]) -> list[Hold | Refused]:
        """Do as `reserve` does for several calls. Those that arrive during a transaction share the next one."""
        with self._lock:
            claims = [self._carved(self._claim_of(*ask)) for ask in asks]
            self._claims += [claim for claim in claims if claim.needs]
        if any(claim.answer is None for claim in claims):
            with self._writing, suppress(Exception):  # the error is the claims' answer
                self._write()
        failed = next((claim.answer for claim in claims if not isinstance(claim.answer, Hold | Refused)), None)
        for claim in claims:
            if failed or not isinstance(claim.answer, Hold):
                self.settle(claim.hold, 0)
        if failed:
            raise failed
        return [claim.answer for claim in claims if isinstance(claim.answer, Hold | Refused)]

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost, or the whole hold if the cost is None; return False if it had already ended."""
        with self._lock:
            if hold.id not in self._holds:
                return False
            _, leases = self._holds.pop(hold.id)
            for lease in leases:
                lease.settle(hold.amount, hold.amount if cost is None else cost)
            return not leases or any(not lease.lost for lease in leases)

    def book(self, names: Collection[str], cost: int) -> None:
        """Book a cost that no hold covers, as soon as the database answers."""
        with self._lock:
            if self._closing or self.waiting >= _MOST_WAITING:
                self._lose(cost)
                return
            for name in names:
                self._leases.setdefault(name, Lease()).book(cost)
            self.waiting, self._unbooked = self.waiting + 1, self._unbooked + cost
            self._awake()

    def _lose(self, cost: int) -> None:
        self.lost_nano_usd += cost
        logger.error("budget: %s USD were spent and could not be booked", exact_dollars(cost))

    def _awake(self) -> None:
        """Start the thread that takes turns, unless it runs. If it cannot be started, the next call tries again."""
        if self._thread is None and not self._closing:
            thread = threading.Thread(target=self._run, name="cascade-bookings", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                logger.warning("budget: %d bookings wait for the ledger: %s", self.waiting, error)
                return
            self._thread = thread
            atexit.register(self.close)

    def _run(self) -> None:
        """Take turns as long as there are leases, and once more at the end."""
        pause_s, closing = _TURN_S, False
        while not closing:
            with self._lock:
                closing = self._lock.wait_for(lambda: self._closing, pause_s)
                if not self._leases:
                    self._thread = None
                    break
            try:
                self.turn()
                pause_s = _TURN_S
            except Exception as error:  # noqa: BLE001 - the next turn tries again
                logger.warning("budget: %d bookings wait for the ledger: %s", self.waiting, redact(str(error)))
                pause_s = link.AGAIN_S
        atexit.unregister(self.close)

    def turn(self) -> None:
        """Write what was spent since the last turn, and renew the leases at the amounts that were in use."""
        with self._lock:
            for lease in self._leases.values():
                lease.turn()
            names = [name for name, at in self._leases.items() if at.spent or at.free or at.change or not at.holds]
            waiting, unbooked = self.waiting, self._unbooked
        with self._writing:
            self._write(names)
        with self._lock:
            self.waiting, self._unbooked = self.waiting - waiting, self._unbooked - unbooked

    def _write(self, names: Collection[str] = ()) -> None:
        """Answer all waiting claims, and renew the leases with these names."""
        with self._lock:
            claims, self._claims = self._claims, []
        try:
            _lasting(lambda: self._transact(claims, names))
        except Exception as error:
            for claim in claims:
                claim.answer = error
            raise

    def _transact(self, claims: Sequence[Claim], names: Collection[str]) -> None:
        with self._lock:
            for claim in claims:
                for name, cap in claim.needs.items():
                    self._leases.setdefault(name, Lease()).cap = cap
                self._awake()
            wanted = sorted({*names, *(name for claim in claims for name in claim.needs)})
            leases = {name: self._leases[name] for name in wanted if name in self._leases}
        if not leases:
            return
        with self._database.transaction() as connection:
            if new := [{"name": name} for name, lease in leases.items() if lease.id is None]:
                connection.execute(_OPENED, new)
            stored = connection.execute(_LOCKED, {"names": list(leases), "now_s": self._database.now_s()}).all()
            ids = [row for lease in leases.values() for row in lease.rows]
            rows = set(connection.scalars(_ENDED, {"ids": ids}))
            stands = {row.name: Account(row.spent, row.held) for row in stored}
            exact = {row.name for row in stored if row.waited or self._closing}
            with self._lock:
                leases = {name: lease.end_change(rows) for name, lease in leases.items()}
                self._leases |= leases
                for row in stored:
                    leases[row.name].learn(row.resets)
                changes = renewals(claims, leases, stands, exact)
            self._change(connection, changes, claims)
        self._commit(claims, leases)

    def _commit(self, claims: Sequence[Claim], leases: Mapping[str, Lease]) -> None:
        """Apply the committed changes, so that calls can use them."""
        with self._lock:
            for lease in leases.values():
                lease.commit()
            for claim in claims:
                if isinstance(claim.answer, Hold) and claim.hold.id in self._holds:  # else it was refused, or has ended
                    for name in claim.needs:
                        leases[name].carve(claim.hold.amount, claim.hold.expires_s)
                        claim.leases.append(leases[name])
            for name in [name for name, lease in leases.items() if not (lease.rows or lease.holds or lease.spent)]:
                del self._leases[name]

    def _change(self, connection: sa.Connection, changes: Mapping[str, Renewal], claims: Sequence[Claim]) -> None:
        """Write the leases' new rows, the old ones being deleted, and mark accounts on which a call could fit later."""
        connection.execute(_BOOKED, [{"account": n, "more": c.spent, "longer": c.longer} for n, c in changes.items()])
        full = {
            claim.answer.account for claim in claims if isinstance(claim.answer, Refused) and claim.answer.may_fit_later
        }
        skew_s, waits_s = self._database.skew_s, self._database.now_s() + _WAITS_S
        rows = [Hold(c.id, c.amount, (name,), self._owner, c.expires_s + skew_s) for name, c in changes.items() if c.id]
        rows += [Hold(_WAITS + name, 0, (name,), self._owner, waits_s) for name in sorted(full)]
        if rows:
            connection.execute(_HOLD, [row._asdict() | {"accounts": row.accounts[0]} for row in rows])

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book in full expired holds, expired leases of other processes, and those of `owner`; return how many."""
        with self._lock:
            late = [hold for hold, _ in self._holds.values() if hold.expires_s <= now_s or hold.owner == owner]
        count = sum(self.settle(hold, None) for hold in late)
        late_s = now_s + self._database.skew_s
        lost = sa.select(holds).where((holds.c.expires_s <= late_s) | (holds.c.owner == (owner or "")))
        with self._writing:
            own = [row for lease in self._leases.values() for row in lease.rows]
            for row in _lasting(lambda: self._database.rows(lost.where(holds.c.id.not_in(own)))):
                count += _lasting(lambda row=row: self._recovered(row))  # type: ignore[misc]
        return count

    def _recovered(self, row: Any) -> bool:
        names = row.accounts.split(_BETWEEN) if row.accounts else []
        with self._database.transaction() as connection:
            connection.execute(_LOCKED, {"names": names, "now_s": 0.0})
            if not connection.scalars(_ENDED, {"ids": [row.id]}).all():
                return False
            if names:
                connection.execute(_BOOKED, [{"account": n, "more": row.amount, "longer": -row.amount} for n in names])
        return bool(row.amount)

    def account(self, name: str) -> Account:
        """Return the balance of an account. What other processes lease counts as held until they write."""
        with self._writing:
            if name in self._leases:
                self._write([name])
            rows = _lasting(lambda: self._database.rows(sa.select(accounts).where(accounts.c.name == name)))
            with self._lock:
                lease = self._leases.get(name, Lease())
                balances = [
                    Account(row.spent + lease.spent, row.held - lease.amount + lease.carved, row.alerted, row.resets)
                    for row in rows
                ]
        return balances[0] if balances else Account()

    def accounts(self, meant: Collection[Accounts], count: int) -> dict[str, Account]:
        """Return the `count` matching accounts that have spent the most, by what has been written so far."""
        query = sa.select(accounts).where(sa.or_(*map(_are, meant))).order_by(accounts.c.spent.desc()).limit(count)
        pages = self._by_page(lambda connection, page: connection.execute(query.where(page)).all(), reading=True)
        rows = heapq.nlargest(count, itertools.chain.from_iterable(pages), key=lambda row: row.spent)
        return {row.name: Account(row.spent, row.held, row.alerted, row.resets) for row in rows}

    def prune(self, oldest: Mapping[str | None, str]) -> None:
        """Forget accounts without holds whose period is before `oldest`."""
        name = accounts.c.name
        ended = sa.or_(
            *(
                name.contains(f" {window}:") & (sa.func.substr(name, sa.func.length(name) - len(end) + 1) < end)
                for window, end in oldest.items()
                if window
            )
        )
        leased = sa.exists().where(holds.c.accounts == name, ~holds.c.id.startswith(_WAITS))
        empty = sa.delete(accounts).where(ended, accounts.c.held == 0, ~leased)
        for _ in self._by_page(lambda connection, page: connection.execute(empty.where(page))):
            continue

    def _by_page(
        self, act: Callable[[sa.Connection, sa.ColumnElement[bool]], T], *, reading: bool = False
    ) -> Iterator[T]:
        """Yield the result of an action on each page of accounts, in transactions so short that calls can wait."""
        last: str | None = ""
        while last is not None:
            with self._database.transaction(reading=reading) as connection:
                end = connection.scalar(_NEXT_PAGE, {"last": last})
                page = accounts.c.name > last
                result = act(connection, page if end is None else page & (accounts.c.name <= end))
            yield result
            last = end

    def reset(self, name: str, who: str) -> None:
        """Set an account's spending to 0. What processes had not written yet, up to a turn later, is dropped too."""
        self.account(name)  # writes what was spent here
        with self._writing:
            _lasting(lambda: self._reset(name, who))
        self.account(name)  # learns of the reset

    def _reset(self, name: str, who: str) -> None:
        with self._database.transaction() as connection:
            connection.execute(_OPENED, {"name": name})
            row = connection.execute(_LOCKED, {"names": [name], "now_s": 0.0}).one()
            number, at = row.resets + 1, now_utc()
            record = {"account": name, "number": number, "who": who, "reset_at": at, "spent": row.spent}
            connection.execute(sa.insert(resets), record)
            zeros = sa.update(accounts).where(accounts.c.name == name)
            connection.execute(zeros.values(spent=0, alerted=0, resets=number))

    def alert(self, name: str, amount: int) -> bool:
        """Record an alert for this amount; return False if any process already alerted this amount or a higher one."""
        noted = sa.update(accounts).where(accounts.c.name == name, accounts.c.alerted < amount).values(alerted=amount)
        with self._database.transaction() as connection:
            return bool(connection.execute(noted).rowcount)

    def close(self) -> None:
        """Write what was spent, give back leases, and close the connections; costs that cannot be booked are lost."""
        with self._lock:
            self._closing = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(2 * link.LIMIT_S)
        if self.waiting:
            self._lose(self._unbooked)
        self.waiting = self._unbooked = 0
        self._database.close()


def _are(meant: Accounts) -> sa.ColumnElement[bool]:
    """Return the condition of `Accounts.has` in SQL."""
    name = accounts.c.name
    ends = name.endswith(meant.end, autoescape=True) if meant.end else ~name.contains(" ")
    are = (name == meant.begin + meant.end) | (name.startswith(f"{meant.begin}:", autoescape=True) & ends)
    return (accounts.c.spent >= meant.least) & (accounts.c.alerted < meant.least) & are if meant.least else are


def _lasting(act: Callable[[], T]) -> T:
    """Run an action, and repeat it on another connection if one breaks."""
    ends_s = time.monotonic() + link.LIMIT_S
    for tries in range(1, _TRIES + 1):
        try:
            return act()
        except StoreError as error:
            if not error.retryable or tries == _TRIES or time.monotonic() > ends_s:
                raise
    raise AssertionError("the last try returns or raises")
