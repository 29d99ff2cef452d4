"""Caps on many requests together: a ledger of accounts, each with money spent and money held.

Before a call its highest price is held on every account that has a cap; after it the real cost is booked and the hold
ends. `MemoryLedger` serves one process, `records.ledger` any number of them. Amounts are integer nano-dollars.
"""

from __future__ import annotations

import hashlib
import itertools
import re
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import NamedTuple, Protocol

from cascade.forks import after_fork


class Account(NamedTuple):
    """The balance of one account, in nano-dollars. `spent + held` never exceeds a cap under which a hold was made."""

    spent: int = 0
    held: int = 0


class Hold(NamedTuple):
    """Money that is set aside for a call.

    Attributes:
        id: its id.
        amount: nano-dollars, the most that the call can cost.
        accounts: the accounts on which it is held.
        owner: the process that made it.
        expires_s: when it counts as lost, in seconds since 1970.
    """

    id: str
    amount: int
    accounts: tuple[str, ...]
    owner: str
    expires_s: float


class Refused(NamedTuple):
    """Why nothing was held: the account whose cap would be exceeded, and its balance."""

    account: str
    cap: int
    stands: Account

    @property
    def may_fit_later(self) -> bool:
        """Whether the call could fit once other holds are settled."""
        return self.stands.held > 0


class Ledger(Protocol):
    """Accounts that holds are made on. Every method is atomic, between threads and, in a database, processes.

    Each raises StoreError if its database cannot be reached.
    """

    def reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none.

        Args:
            amount: nano-dollars, at least 0.
            caps: the cap of each account.
            owner: the holder.
            expires_s: seconds since 1970. A hold that is not settled by then is booked in full by `recover`.
        """
        ...

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost; None: unknown, and booked in full.

        Returns:
            Whether the hold existed; if not, it was settled or recovered before, and nothing changes.
        """
        ...

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book expired holds in full, and all holds of `owner`, which no longer runs; return how many."""
        ...

    def account(self, name: str) -> Account:
        """Return the balance of an account."""
        ...

    def close(self) -> None:
        """Release connections."""
        ...


def new_id() -> str:
    """Return an id for a hold or an owner."""
    return uuid.uuid4().hex


class MemoryLedger:
    """A ledger in this process's memory, which ends with it.

    >>> ledger = MemoryLedger()
    >>> hold = ledger.reserve(70, {"total": 100}, "me", expires_s=1e12)
    >>> ledger.reserve(40, {"total": 100}, "me", expires_s=1e12).account
    'total'
    >>> ledger.settle(hold, 20), ledger.account("total")
    (True, Account(spent=20, held=0))
    """

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._holds: dict[str, Hold] = {}
        self._numbers = itertools.count()
        self._renew()
        after_fork(self._renew)

    def _renew(self) -> None:
        self._lock = threading.Lock()

    def reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none."""
        with self._lock:
            balances = {name: self._accounts.get(name, _EMPTY) for name in caps}
            for name, stands in balances.items():
                if stands.spent + stands.held + amount > caps[name]:
                    return Refused(name, caps[name], stands)
            for name, stands in balances.items():
                self._accounts[name] = Account(stands.spent, stands.held + amount)
            hold = Hold(str(next(self._numbers)), amount, tuple(caps), owner, expires_s)
            self._holds[hold.id] = hold
            return hold

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost."""
        with self._lock:
            return self._settle(hold.id, cost)

    def _settle(self, hold_id: str, cost: int | None) -> bool:
        hold = self._holds.pop(hold_id, None)
        if hold is None:
            return False
        for name in hold.accounts:
            stands = self._accounts[name]
            spent = stands.spent + (hold.amount if cost is None else cost)
            self._accounts[name] = Account(spent, stands.held - hold.amount)
        return True

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book expired holds in full."""
        with self._lock:
            lost = [hold.id for hold in self._holds.values() if hold.expires_s <= now_s or hold.owner == owner]
            return sum(self._settle(hold_id, None) for hold_id in lost)

    def account(self, name: str) -> Account:
        """Return the balance of an account."""
        return self._accounts.get(name, _EMPTY)

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


_EMPTY = Account()
_PLAIN = re.compile(r"[!-~]{1,100}")


@dataclass(frozen=True, slots=True)
class Caps:
    """The caps of a configuration, in nano-dollars; None is no cap.

    Args:
        per_key: for each key of the server.
        per_user: for each user named in requests.
        per_day: for all together, each day (UTC).
        per_month: for all together, each month (UTC).
        total: for all together, without a period.
        keys: of single keys, by name, in place of `per_key`.
    """

    per_key: int | None = None
    per_user: int | None = None
    per_day: int | None = None
    per_month: int | None = None
    total: int | None = None
    keys: Mapping[str, int] = field(default_factory=dict, hash=False)

    def of(self, key: str | None, user: str | None, now_s: float) -> dict[str, int]:
        """Return the cap of each account that a request spends from.

        A request without a key, or one that names no user, shares an account with all others like it.

        >>> Caps(per_user=5, per_day=9).of(None, "ann", 0.0)
        {'user:ann': 5, 'day:1970-01-01': 9}
        """
        day = time.strftime("%Y-%m-%d", time.gmtime(now_s))
        named = {
            f"key:{_plain(key)}": self.keys.get(key or "", self.per_key),
            f"user:{_plain(user)}": self.per_user,
            f"day:{day}": self.per_day,
            f"month:{day[:7]}": self.per_month,
            "total": self.total,
        }
        return {name: cap for name, cap in named.items() if cap is not None}


def ends_s(account: str) -> float | None:
    """Return when the period of an account ends, in seconds since 1970; None if it has no end.

    >>> ends_s("day:1970-01-01"), ends_s("month:1970-12"), ends_s("total")
    (86400.0, 31536000.0, None)
    """
    kind, _, period = account.partition(":")
    if kind == "day":
        return (datetime.fromisoformat(period).replace(tzinfo=UTC) + timedelta(days=1)).timestamp()
    if kind == "month":
        year, month = map(int, period.split("-"))
        return datetime(year + month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()
    return None


def _plain(name: str | None) -> str:
    """Return a name that any database accepts: its hash if a client's name is too long or has odd characters."""
    if name is None or _PLAIN.fullmatch(name):
        return name or ""
    return "sha256:" + hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()
