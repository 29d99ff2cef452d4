"""A ledger in SQLite or PostgreSQL, which any number of processes share.

Each change of an account is one conditional statement, so a stale value is never written back. Accounts are changed in
the order of their names, so two transactions never wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cascade.budget.caps import Account, Hold, LedgerDownError, Refused, new_id
from cascade.budget.database import Database, UndoneError

_T = TypeVar("_T")
_TRIES = 3
"""How often a change is tried if its connection breaks. A change may be made twice: a repeated hold is booked in full
when it expires, and a hold is settled only once."""

TABLES = (
    "CREATE TABLE IF NOT EXISTS cascade_accounts (name TEXT PRIMARY KEY, spent BIGINT NOT NULL, held BIGINT NOT NULL)",
    """CREATE TABLE IF NOT EXISTS cascade_holds (id TEXT PRIMARY KEY, amount BIGINT NOT NULL, accounts TEXT NOT NULL,
    owner TEXT NOT NULL, expires_s DOUBLE PRECISION NOT NULL)""",
)
_HOLD = (
    "INSERT INTO cascade_accounts (name, spent, held) VALUES (?, 0, ?) ON CONFLICT (name) DO UPDATE "
    "SET held = cascade_accounts.held + excluded.held "
    "WHERE cascade_accounts.spent + cascade_accounts.held + excluded.held <= ?"
)
_NOTE = "INSERT INTO cascade_holds (id, amount, accounts, owner, expires_s) VALUES (?, ?, ?, ?, ?)"
_END = "DELETE FROM cascade_holds WHERE id = ? RETURNING amount, accounts"
_BOOK = "UPDATE cascade_accounts SET held = held - ?, spent = spent + ? WHERE name = ?"
_LOST = "SELECT id FROM cascade_holds WHERE expires_s <= ? OR owner = ?"
_READ = "SELECT spent, held FROM cascade_accounts WHERE name = ?"
_BETWEEN = "\n"
"""The separator of account names in a hold; `caps.Caps` makes no name with a line end."""


class SqlLedger:
    """A ledger in a database. Made by `sqlite` or `postgres`; close it.

    Args:
        database: the database of the accounts.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    def sqlite(cls, path: str | Path) -> SqlLedger:
        """Return the ledger in a file, which is created if it is missing."""
        return cls(Database.sqlite(path, TABLES))

    @classmethod
    def postgres(cls, url: str) -> SqlLedger:
        """Return the ledger in a database. Raises MissingExtraError without psycopg."""
        return cls(Database.postgres(url, TABLES))

    def reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        """Hold an amount on all accounts, or on none."""
        names = sorted(caps)
        for name in names:
            if amount > caps[name]:
                return Refused(name, caps[name], self.account(name))
        return self._lasting(lambda: self._reserve(amount, {name: caps[name] for name in names}, owner, expires_s))

    def _reserve(self, amount: int, caps: Mapping[str, int], owner: str, expires_s: float) -> Hold | Refused:
        hold = Hold(new_id(), amount, tuple(caps), owner, expires_s)
        with suppress(_NoRoomError), self._database.transaction() as run:
            for name, cap in caps.items():
                if not run(_HOLD, name, amount, cap).rowcount:
                    full = name
                    raise _NoRoomError
            run(_NOTE, hold.id, amount, _BETWEEN.join(caps), owner, expires_s)
            return hold
        return Refused(full, caps[full], self.account(full))

    def settle(self, hold: Hold, cost: int | None) -> bool:
        """End a hold and book its cost."""
        return self._lasting(lambda: self._settle(hold.id, cost))

    def _settle(self, hold_id: str, cost: int | None) -> bool:
        with self._database.transaction() as run:
            # A hold is on the disk before its call is made. If the power fails within a second of a settlement, the
            # hold reappears and is booked in full when it expires: no spending is lost.
            if self._database.unsynced:
                run(self._database.unsynced)
            found = run(_END, hold_id).fetchone()
            if found is None:
                return False
            amount, names = found
            for name in names.split(_BETWEEN) if names else ():
                run(_BOOK, amount, amount if cost is None else cost, name)
        return True

    def recover(self, now_s: float, owner: str | None = None) -> int:
        """Book expired holds in full."""
        lost = self._lasting(lambda: self._lost(now_s, owner or ""))
        return sum(self._lasting(lambda one=one: self._settle(one, None)) for one in lost)  # type: ignore[misc]

    def _lost(self, now_s: float, owner: str) -> list[str]:
        with self._database.transaction(reading=True) as run:
            return [one for (one,) in run(_LOST, now_s, owner).fetchall()]

    def account(self, name: str) -> Account:
        """Return the balance of an account."""
        return self._lasting(lambda: self._account(name))

    def _account(self, name: str) -> Account:
        with self._database.transaction(reading=True) as run:
            found = run(_READ, name).fetchone()
        return Account() if found is None else Account(*found)

    def _lasting(self, act: Callable[[], _T]) -> _T:
        """Repeat an action on another connection if one breaks. Raises LedgerDownError if that fails too."""
        for _ in range(_TRIES):
            try:
                return act()
            except self._database.broken as error:
                last = type(error).__name__
        raise LedgerDownError(last)

    def close(self) -> None:
        """Close the connections that are not in use; the others are closed when they are released."""
        self._database.close()


class _NoRoomError(UndoneError):
    """An account has no room: the holds on other accounts are rolled back."""
