"""Store episode rows: one table in SQLite or PostgreSQL, with the same code for both.

`Store.open("sqlite:///cascade.db")` is all that most callers need. `Store` is loaded on first use and SQLAlchemy when a
store is opened, since a configuration that names a store should be read without either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cascade.episodes.store.address import Address, parse
from cascade.episodes.store.ids import uuid7
from cascade.episodes.store.problems import StoreError
from cascade.resilience.forks import no_fork

if TYPE_CHECKING:
    from cascade.episodes.store.core import Store

__all__ = ["Address", "Store", "StoreError", "load", "parse", "uuid7"]


def load(address: Address) -> None:
    """Import what a store needs. Forks in other threads wait meanwhile: their child could never finish the imports."""
    with no_fork():
        from cascade.episodes.store import core, tables  # noqa: F401 - core is imported for its own sake

        tables.load(address)


def __getattr__(name: str) -> Any:
    if name == "Store":
        from cascade.episodes.store.core import Store

        return Store
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
