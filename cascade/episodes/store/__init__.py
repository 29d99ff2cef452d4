"""Where episode rows are kept and found again: one table in SQLite or PostgreSQL, the same code for both.

`Store.open("sqlite:///cascade.db")` is all that most callers need. Importing this package does not import SQLAlchemy.
"""

from cascade.episodes.store.address import Address, parse
from cascade.episodes.store.core import Store
from cascade.episodes.store.ids import uuid7
from cascade.episodes.store.problems import StoreError

__all__ = ["Address", "Store", "StoreError", "parse", "uuid7"]
