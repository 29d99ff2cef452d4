"""A ledger in SQLite or PostgreSQL, which any number of processes share.

Each change of an account is one conditional statement, so a stale value is never written back. Accounts are changed in
the order of their names, so two transactions never wait for each other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypeVar

import sqlalchemy as sa

from cascade.budget.caps import Account, Hold, Refused, new_id
from cascade.errors import StoreError
from cascade.records import link
from cascade.records.database import Database, accounts, holds, insert

T = TypeVar("T")
_TRIES = 3
"""How often a change is tried if its connection breaks. A change may be made twice: a repeated hold is booked in full
when it expires, and a hold is settled only once."""
_MORE = insert(accounts).values(name=sa.bindparam("name"), spent=0, held=sa.bindparam("amount"))
_HELD = accounts.c.held + _MORE.excluded.held
_HOLD = _MORE.on_conflict_do_update(
    index_elements=["name"], set_={"held": _HELD}, where=accounts.c.spent + _HELD <= sa.bindparam("cap")
)
"""Adds to what an account holds; changes no row where the account has no room."""
_BETWEEN = "\n"
"""The separator of account names in a hold; `caps.Caps` makes no name with a line end."""


class SqlLedger:
    """A ledger in a database. Made by `open`; close it. Each method raises StoreError if the database fails.

    Args:
        database: the database of the accounts.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def open(cls, url: str, limit_s: float | None = None) -> SqlLedger:
        """Return the ledger at a store's URL; `limit_s` as in `Database.shared`. Raises as `Database`."""
        return cls(Database.shared(url, limit_s))

    def reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none."""
        names = sorted(caps)
        for name in names:
            if amount > caps[name]:
                return Refused(name, caps[name], self.account(name))
        return _lasting(lambda: self._reserve(amount, {name: caps[name] for name in names}, owner, expires_s))

    def _reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        hold = Hold(new_id(), amount, tuple(caps), owner, expires_s)
        with suppress(_NoRoomError), self._database.transaction() as connection:
            for name, cap in caps.items():
                if not connection.execute(_HOLD, {"name": name, "amount": amount, "cap": cap}).rowcount:
                    full = name
                    raise _NoRoomError
            row = hold._asdict() | {"accounts": _BETWEEN.join(caps)}
            connection.execute(sa.insert(holds), row)
            return hold
        return Refused(full, caps[full], self.account(full))

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost, or all of it if the cost is None; return False if it has ended before."""
        return _lasting(lambda: self._settle(hold.id, cost))

    def _settle(self, hold_id: str, cost: int | None) -> bool:
        end = sa.delete(holds).where(holds.c.id == hold_id).returning(holds.c.amount, holds.c.accounts)
        with self._database.transaction() as connection:
            # A hold is on the disk before its call is made. If the power fails within a second of a settlement, the
            # hold reappears and is booked in full when it expires: no spending is lost.
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql("SET LOCAL synchronous_commit TO OFF")
            ended = connection.execute(end).one_or_none()
            if ended is None:
                return False
            spent = accounts.c.spent + (ended.amount if cost is None else cost)
            book = sa.update(accounts).values(held=accounts.c.held - ended.amount, spent=spent)
            for name in ended.accounts.split(_BETWEEN) if ended.accounts else ():
                connection.execute(book.where(accounts.c.name == name))
        return True

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book expired holds, and those of an owner that has ended, in full; return how many."""
        lost = sa.select(holds.c.id).where((holds.c.expires_s <= now_s) | (holds.c.owner == (owner or "")))
        return sum(_lasting(lambda hold_id=hold_id: self._settle(hold_id, None)) for hold_id in self._all(lost))  # type: ignore[misc]

    def _all(self, query: sa.Select[tuple[str]]) -> list[str]:
        with self._database.transaction(reading=True) as connection:
            return list(connection.scalars(query))

    def account(self, name: str) -> Account:
        """Return the balance of an account."""
        return _lasting(lambda: self._account(name))

    def _account(self, name: str) -> Account:
        query = sa.select(accounts.c.spent, accounts.c.held).where(accounts.c.name == name)
        with self._database.transaction(reading=True) as connection:
            balance = connection.execute(query).one_or_none()
        return Account() if balance is None else Account(*balance)

    def close(self) -> None:
        """Close the connections."""
        self._database.close()


class _NoRoomError(Exception):
    """An account has no room: the holds on other accounts are rolled back."""


def _lasting(act: Callable[[], T]) -> T:
    """Repeat an action on another connection if one breaks."""
    ends_s = time.monotonic() + link.LIMIT_S
    for tries in range(1, _TRIES + 1):
        try:
            return act()
        except StoreError as error:
            if not error.retryable or tries == _TRIES or time.monotonic() > ends_s:
                raise
    raise AssertionError("the last try returns or raises")
