"""Store episode rows: one table in SQLite or PostgreSQL, with the same code for both.

`Store.open("sqlite:///cascade.db")` is all that most callers need. Names are loaded on first use and SQLAlchemy when a
store is opened, since a configuration that names a store should be read without either.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cascade.episodes.store.address import Address, parse
    from cascade.episodes.store.core import Store
    from cascade.episodes.store.ids import uuid7
    from cascade.episodes.store.problems import StoreError

_HOMES = {"Address": "address", "Store": "core", "StoreError": "problems", "parse": "address", "uuid7": "ids"}
__all__ = ["Address", "Store", "StoreError", "load", "parse", "uuid7"]


def load(address: Address) -> None:
    """Import what a store needs. Forks in other threads wait meanwhile: their child could never finish the imports."""
    from cascade.resilience.forks import no_fork

    with no_fork():
        from cascade.episodes.store import core, tables  # noqa: F401 - core is imported for its own sake

        tables.load(address)


def __getattr__(name: str) -> Any:
    """Load a public name from its module (PEP 562)."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
