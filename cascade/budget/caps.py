"""Caps that many requests share: a ledger of accounts, each with an amount spent and an amount held.

Before a call, the most that it can cost is held on every account that has a cap; afterwards its actual cost is booked
and the hold ends. `MemoryLedger` serves one process, `records.ledger` any number of them: each process takes a `Lease`
on an account and carves the holds of its calls out of that. Amounts are integer nano-dollars.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import uuid
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Literal, NamedTuple, TypeAlias

from cascade.forks import now_and_after_fork
from cascade.identity import name_key


class Account(NamedTuple):
    """The balance of one account, in nano-dollars. A hold never takes `spent + held` above the cap it was made under.

    `alerted` is the highest amount for which an alert was recorded; `resets` is how often the account was reset to 0.
    """

    spent: int = 0
    held: int = 0
    alerted: int = 0
    resets: int = 0


class Hold(NamedTuple):
    """Money set aside for a call.

    Attributes:
        amount: the most that the call can cost, in nano-dollars.
        owner: the process that made the hold.
        expires_s: when the hold counts as lost, in seconds since 1970.
    """

    id: str
    amount: int
    accounts: tuple[str, ...]
    owner: str
    expires_s: float


class Accounts(NamedTuple):
    """A filter for accounts: `begin` is a scope, or a scope with a name (`user:ann`), and `end` is a period's suffix.

    A bare scope includes all its names. With `least`, only accounts that spent at least that and were alerted for less.

    >>> meant = Accounts("user", " day:1970-01-01", least=5)
    >>> [meant.has(name, Account(spent=5)) for name in ("user:ann day:1970-01-01", "user day:1970-01-01", "user:ann")]
    [True, True, False]
    """

    begin: str
    end: str
    least: int = 0

    def has(self, name: str, stands: Account) -> bool:
        """Return whether an account matches the filter."""
        if self.least and not stands.alerted < self.least <= stands.spent:
            return False
        return name == self.begin + self.end or (name.startswith(f"{self.begin}:") and period(name) == self.end)


class Refused(NamedTuple):
    """A refused hold: the account whose cap it would exceed, and the account's balance."""

    account: str
    cap: int
    stands: Account

    @property
    def may_fit_later(self) -> bool:
        """Whether the call could fit once other holds are settled."""
        return self.stands.held > 0


def new_id() -> str:
    """Return an id for a hold or an owner."""
    return uuid.uuid4().hex


class MemoryLedger:
    """A ledger in memory, which ends with the process. `records.ledger.SqlLedger` has the same methods on a database.

    Every method is atomic across threads and, with a database, across processes. `carve` and `settle` never query the
    database; the others raise StoreError if it cannot be reached.

    >>> ledger = MemoryLedger()
    >>> hold = ledger.reserve(70, {"total": 100}, expires_s=1e12)
    >>> ledger.reserve(40, {"total": 100}, expires_s=1e12).account
    'total'
    >>> ledger.settle(hold, 20), ledger.account("total")[:2]
    (True, (20, 0))
    """

    def __init__(self, owner: str = "") -> None:
        self._owner = owner
        self._accounts = defaultdict[str, Account](Account)
        self._holds: dict[str, Hold] = {}
        self._numbers = itertools.count()
        now_and_after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def reserve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none.

        Args:
            amount: nano-dollars, at least 0.
            caps: the cap of each account.
            expires_s: seconds since 1970. A hold that is not settled by then is booked in full by `recover`.
        """
        with self._lock:
            balances = {name: self._accounts.get(name, Account()) for name in caps}
            for name, stands in balances.items():
                if stands.spent + stands.held + amount > caps[name]:
                    return Refused(name, caps[name], stands)
            for name, stands in balances.items():
                self._accounts[name] = stands._replace(held=stands.held + amount)
            hold = Hold(str(next(self._numbers)), amount, tuple(caps), self._owner, expires_s)
            self._holds[hold.id] = hold
            return hold

    def carve(self, amount: int, caps: Mapping[str, int], expires_s: float) -> Hold | None:
        """Hold an amount as `reserve` does, without querying a database; return None if only `reserve` can decide."""
        hold = self.reserve(amount, caps, expires_s)
        return hold if isinstance(hold, Hold) else None

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost, or the whole hold if the cost is None; return False if it had already ended."""
        with self._lock:
            return self._settle(hold.id, cost)

    def _settle(self, hold_id: str, cost: int | None) -> bool:
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return False
        for name in hold.accounts:
            stands = self._accounts[name]
            spent = stands.spent + (hold.amount if cost is None else cost)
            self._accounts[name] = stands._replace(spent=spent, held=stands.held - hold.amount)
        return True

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book in full all expired holds, and all holds of `owner`, a process that has ended; return how many."""
        with self._lock:
            lost = [hold.id for hold in self._holds.values() if hold.expires_s <= now_s or hold.owner == owner]
            return sum(self._settle(hold_id, None) for hold_id in lost)

    def account(self, name: str) -> Account:
        """Return the balance of an account."""
        return self._accounts.get(name, Account())

    def accounts(self, meant: Collection[Accounts], count: int) -> dict[str, Account]:
        """Return the `count` matching accounts that have spent the most."""
        used = (at for at in [*self._accounts.items()] if any(kind.has(*at) for kind in meant))
        return dict(heapq.nlargest(count, used, key=lambda at: at[1].spent))

    def prune(self, oldest: Mapping[str | None, str]) -> None:
        """Forget accounts without holds whose period is before `oldest`, a result of `Caps.periods`."""
        for name in [*self._accounts]:
            window, end = window_of(name), period(name)
            with self._lock:  # for one account at a time, since calls wait for it
                if window and end < oldest[window] and not self._accounts[name].held:
                    del self._accounts[name]

    def reset(self, name: str, who: str) -> None:  # noqa: ARG002 - the server logs it
        """Set an account's spending to 0 and keep its holds; a database also records who did it."""
        with self._lock:
            stands = self._accounts[name]
            self._accounts[name] = Account(0, stands.held, resets=stands.resets + 1)

    def alert(self, name: str, amount: int) -> bool:
        """Record an alert for this amount; return False if this amount or a higher one was already alerted."""
        with self._lock:
            stands = self._accounts[name]
            self._accounts[name] = stands._replace(alerted=max(amount, stands.alerted))
            return amount > stands.alerted

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


_OFTEN = 2
"""The fewest holds per turn for which a lease gets slack; rarely used accounts, such as one user's, get none."""
_SHARE = 0.05
"""The most slack that one process may lease, as a share of the account's room."""
_AHEAD_S = 10.0
"""How long after its last renewal a lease accepts new holds. A lease in use is renewed every turn."""


class Renewal(NamedTuple):
    """The state that a lease takes once its transaction is known to be committed; its amount grows by `longer`."""

    id: str | None
    amount: int
    longer: int
    spent: int
    granted: int
    expires_s: float


@dataclass(eq=False, slots=True)
class Lease:
    """A process's part of an account. `carved + spent` exceeds `amount` only by costs that no hold covers.

    Attributes:
        cap: the account's cap.
        id: the database row that holds `amount` for this lease until `expires_s`; None if there is none.
        carved: the part of `amount` held by calls in progress; `holds` counts these calls.
        spent: the cost that was booked here and is not yet written to the database.
        change: a renewal whose outcome is not known yet; `free` can be used whatever the outcome.
        lost: whether the row was recovered, so that the account was charged with all of `amount`.
        last_s: when the last of its holds expires.
        resets: how often the account had been reset when `spent` started to count; None if unknown.
    """

    cap: int = 0
    id: str | None = None
    amount: int = 0
    expires_s: float = 0.0
    carved: int = 0
    holds: int = 0
    spent: int = 0
    change: Renewal | None = None
    lost: bool = False
    last_s: float = 0.0
    resets: int | None = None
    _calls: int = 0
    _turn_spent: int = 0
    _most: int = 0
    _usual: int = 0
    _last: int = 0

    @property
    def free(self) -> int:
        """The amount that can still be carved."""
        change = self.change
        least = self.amount if change is None else min(self.amount, change.amount - change.granted + change.spent)
        return least - self.carved - self.spent

    def fits(self, amount: int, cap: int, expires_s: float) -> bool:
        """Return whether a hold can be carved. It must not outlive the lease, which is not recovered before it ends."""
        return amount <= self.free and expires_s <= self.expires_s and cap == self.cap

    def carve(self, amount: int, expires_s: float) -> None:
        """Carve a hold out of the lease."""
        self.carved, self.holds, self._calls, self._last = self.carved + amount, self.holds + 1, self._calls + 1, amount
        self._most = max(self._most, self.carved + self._turn_spent)
        self.last_s = max(self.last_s, expires_s)

    def settle(self, amount: int, cost: int) -> None:
        """End a hold and book its cost."""
        self.carved, self.holds = self.carved - amount, self.holds - 1
        self.book(cost)

    def book(self, cost: int) -> None:
        """Add a cost."""
        self.spent, self._turn_spent = self.spent + cost, self._turn_spent + cost

    def learn(self, resets: int) -> None:
        """Drop unwritten spending from before a reset of the account, so that the lease does not bring it back."""
        self.spent = self.spent if self.resets in {None, resets} else 0
        self.resets = resets

    def turn(self) -> None:
        """Begin a turn. The most in use at any time of the last turn, its spending included, becomes the usual."""
        self._usual = self._most if self._calls >= _OFTEN else 0
        self._most, self._turn_spent, self._calls = self.carved, 0, 0

    def slack(self, in_use: int, room: int) -> int:
        """Return how much to lease beyond `in_use`: a small share of the room at most, and 0 if no call would fit."""
        now = max(self._most, in_use + self._turn_spent) if self._calls >= _OFTEN else 0
        slack = min(max(self._usual, now) - in_use, int(room * _SHARE))
        return slack if slack >= max(1, self._last) else 0

    @property
    def rows(self) -> list[str]:
        """The ids of the database rows that may exist for the lease."""
        return [row for row in (self.id, self.change and self.change.id) if row is not None]

    def commit(self) -> None:
        """Apply the pending change."""
        if (change := self.change) is not None:
            self.id, self.amount, self.expires_s = change.id, change.amount, change.expires_s
            self.spent, self.change = self.spent - change.spent, None

    def end_change(self, rows: AbstractSet[str]) -> Lease:
        """Resolve a pending change by the rows that exist; return the lease, or the replacement of a lost one."""
        if (change := self.change) and (change.id in rows if change.id is not None else self.id not in rows):
            self.commit()
        self.change, self.lost = None, self.id is not None and self.id not in rows
        return Lease(self.cap, spent=max(0, self.carved + self.spent - self.amount)) if self.lost else self


@dataclass(eq=False, slots=True)
class Claim:
    """A call that needs a hold. `leases` have room for it; the accounts in `needs`, with their caps, not yet."""

    hold: Hold
    needs: dict[str, int] = field(default_factory=dict)
    leases: list[Lease] = field(default_factory=list)
    answer: Hold | Refused | Exception | None = None


def renewals(
    claims: Sequence[Claim], leases: Mapping[str, Lease], stands: Mapping[str, Account], exact: AbstractSet[str]
) -> dict[str, Renewal]:
    """Answer claims in their order; set and return the change of each lease.

    `stands` has the balances in the database. Accounts in `exact` get no slack, since other processes wait for it.
    """
    room = {name: lease.cap - stands[name].spent - stands[name].held + lease.free for name, lease in leases.items()}
    granted, changes = Counter[str](), dict[str, Renewal]()
    for claim in claims:
        amount = claim.hold.amount
        full = next((name for name in claim.needs if amount > room[name]), None)
        if full is not None:
            cap, spent = leases[full].cap, stands[full].spent + leases[full].spent
            claim.answer = Refused(full, cap, Account(spent, cap - room[full] - spent))
            continue
        claim.answer = claim.hold
        for name in claim.needs:
            room[name], granted[name] = room[name] - amount, granted[name] + amount
            leases[name].last_s = max(leases[name].last_s, claim.hold.expires_s)
    for name, lease in leases.items():
        in_use, over = lease.carved + granted.get(name, 0), lease.carved + lease.spent > lease.amount
        amount = in_use + (0 if name in exact else lease.slack(in_use, room[name]))
        # A row proves that a cost beyond the lease was written. A cost within it is covered if the old row is lost.
        row = new_id() if amount > in_use or lease.holds or name in granted or over else None
        end_s = max(lease.expires_s, lease.last_s + _AHEAD_S)
        change = Renewal(row, amount, amount - lease.amount, lease.spent, in_use - lease.carved, end_s)
        lease.change = changes[name] = change
    return changes


Window: TypeAlias = Literal["day", "month"]
"""The period over which a cap counts spending."""
_PERIODS: Mapping[str, str] = {"day": "%Y-%m-%d", "month": "%Y-%m"}
"""The format of a window's period in account names. Parsed, it gives the first day of the period."""
OF_CLIENTS = frozenset({"user", "segment"})
"""The scopes whose names clients choose."""


class Cap(NamedTuple):
    """The most that an account may spend.

    Attributes:
        scope: whose spending it limits: "all", or each "key", "user", "segment" or "model".
        window: the period that it covers; None if that has no end.
        name: the one key, user, segment or model that it is for; None: every one without a cap of its own.
        nano_usd: the limit.
    """

    scope: str
    window: Window | None
    name: str | None
    nano_usd: int


class Caps:
    """The caps of a configuration.

    Args:
        caps: in any order; no two have the same scope, window and name.
        zone: the time zone in which periods begin.

    >>> caps = Caps([Cap("user", None, None, 5), Cap("all", "day", None, 9), Cap("key", "month", "app", 7)])
    >>> caps.of({"all": None, "user": "ann", "key": "app", "model": "small"}, 0.0)
    {'user:ann': 5, 'all day:1970-01-01': 9, 'key:app month:1970-01': 7}
    >>> caps.size("user:bob", 0.0), caps.size("all day:1969-12-31", 0.0), f"{caps.ends('key:app month:1970-01'):%F}"
    (5, None, '1970-02-01')
    """

    def __init__(self, caps: Iterable[Cap] = (), zone: tzinfo = UTC) -> None:
        self._sizes, self._zone = dict[tuple[str, str | None], dict[str | None, int]](), zone
        for cap in caps:
            self._sizes.setdefault((cap.scope, cap.window), {})[cap.name and name_key(cap.name)] = cap.nano_usd

    def periods(self, now_s: float) -> dict[str | None, str]:
        """Return, by window, the suffix of the account names of the current period."""
        now = datetime.fromtimestamp(now_s, self._zone)
        return {None: "", **{window: f" {window}:{now:{form}}" for window, form in _PERIODS.items()}}

    def accounts(self, now_s: float, share: float = 0.0) -> list[Accounts]:
        """Return filters for the accounts under each cap now, only those due for an alert if a share is given."""
        periods = self.periods(now_s)
        return [
            Accounts(per if name is None else f"{per}:{name}", periods[window], round(share * size))
            for (per, window), sizes in self._sizes.items()
            for name, size in sizes.items()
        ]

    def of(self, names: Mapping[str, str | None], now_s: float) -> dict[str, int]:
        """Return, by account, the caps for these names: with a name for every scope, all that a request spends from.

        Requests without a key share one account, and so do requests that name no user.
        """
        caps, periods = dict[str, int](), self.periods(now_s)
        for (per, window), sizes in self._sizes.items():
            given = names.get(per)
            name = None if given is None else name_key(given)
            if per in names and (size := sizes.get(name, sizes.get(None))) is not None:
                caps[f"{per if name is None else f'{per}:{name}'}{periods[window]}"] = size
        return caps

    def size(self, account: str, now_s: float) -> int | None:
        """Return the cap of an account; None if it has none, or its period is not the current one."""
        name = account.partition(" ")[0].partition(":")[2] or None
        if name is not None and (scope(account) == "all" or name_key(name) != name):
            return None
        window = window_of(account)
        sizes = self._sizes.get((scope(account), window), {})
        return sizes.get(name, sizes.get(None)) if self.periods(now_s).get(window) == period(account) else None

    def ends(self, account: str) -> datetime | None:
        """Return when the period of an account ends; None if it has no end."""
        if (window := window_of(account)) is None:
            return None
        form, written = _PERIODS[window], account.rpartition(":")[2]
        ends = datetime.strptime(written, form).replace(tzinfo=self._zone)
        # Where clocks go forward at midnight, the day begins at that moment; Python reads 0:00 with the old offset.
        while f"{ends:{form}}" == written:
            ends += timedelta(days=1)
        return ends


def scope(account: str) -> str:
    """Return the scope of an account, as in `Cap.scope`."""
    return account.partition(" ")[0].partition(":")[0]


def period(account: str) -> str:
    """Return the suffix of an account's name, as in `Caps.periods`."""
    return "".join(account.partition(" ")[1:])


def window_of(account: str) -> str | None:
    """Return the window of an account, as in `Cap.window`."""
    return period(account).strip().partition(":")[0] or None


def label(account: str) -> str:
    """Return an account's name without its date.

    >>> [(scope(name), period(name), label(name)) for name in ("key:app month:1970-01", "all")]
    [('key', ' month:1970-01', 'key:app month'), ('all', '', 'all')]
    """
    return account.removesuffix(period(account)) + period(account).partition(":")[0]
