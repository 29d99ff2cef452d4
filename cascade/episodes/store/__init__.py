"""Store episode rows: one table in SQLite or PostgreSQL, with the same code for both.

`Store.open("sqlite:///cascade.db")` is all that most callers need. Names are loaded on first use and SQLAlchemy when a
store is opened, since a configuration that names a store should be read without either.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade._names import loaded_on_use

if TYPE_CHECKING:
    from cascade.episodes.store.address import Address, parse
    from cascade.episodes.store.core import Store
    from cascade.episodes.store.ids import uuid7
    from cascade.episodes.store.problems import NoTracesError, StoreError

_HOMES = {
    "address": "Address parse",
    "core": "Store",
    "ids": "uuid7",
    "problems": "NoTracesError StoreError",
}
__all__ = ["Address", "NoTracesError", "Store", "StoreError", "load", "parse", "uuid7"]


def load(address: Address) -> None:
    """Import a store's packages. Forks in other threads wait meanwhile: their child could not finish the imports."""
    from cascade.forks import no_fork

    with no_fork():
        from cascade.episodes.store import core, tables  # noqa: F401 - core is imported for its own sake

        tables.load(address)


__getattr__ = loaded_on_use(__name__, _HOMES)
