"""Storage of judgements: a file, or a database shared by the replicas of a server. Both have the same lines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self, TypeAlias

from cascade.budget.database import Database
from cascade.episodes.files import is_url
from cascade.episodes.schema import Dropped
from cascade.episodes.store import parse
from cascade.episodes.store.address import database_at
from cascade.errors import UsageError
from cascade.review.reviews import (
    Judgement,
    ReviewFile,
    Reviews,
    Terms,
    check_terms,
    first_line,
    read_reviews,
    reviews_in,
)

Place: TypeAlias = Path | str
"""A file, or the URL of a PostgreSQL store."""
_TABLES = ("CREATE TABLE IF NOT EXISTS cascade_reviews (number BIGINT PRIMARY KEY, line TEXT NOT NULL)",)


class ReviewTable:
    """Judgements in a database, for any number of processes at a time. Use it as a context manager.

    Args:
        url: the URL of a PostgreSQL store.
        terms: the terms of the review. An existing table keeps its key, and refuses other terms.

    Raises:
        UsageError: the table has other terms.
        StoreError: it cannot be reached.
    """

    def __init__(self, url: str, terms: Terms) -> None:
        self.path = parse(url).shown
        self._database = _database(url)
        try:
            with self._database.transaction() as run:
                run(
                    "INSERT INTO cascade_reviews (number, line) VALUES (0, ?) ON CONFLICT DO NOTHING",
                    json.dumps(first_line(terms)),
                )
            self.reviews = _read(self._database, self.path)
            check_terms(self.path, self.reviews.terms, terms)
        except BaseException:
            self._database.close()
            raise

    def add(self, one: Judgement) -> None:
        """Write a judgement; return once it is committed."""
        line = json.dumps(one._asdict(), allow_nan=False)  # ASCII: PostgreSQL's text holds no NUL and no lone surrogate
        with self._database.transaction() as run:
            run("SELECT line FROM cascade_reviews WHERE number = 0 FOR UPDATE")  # replicas take turns
            run("INSERT INTO cascade_reviews (number, line) SELECT MAX(number) + 1, ? FROM cascade_reviews", line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


def opened(place: Place, terms: Terms) -> ReviewFile | ReviewTable:
    """Open the place for writing judgements; create it with these terms if it does not exist.

    Raises:
        UsageError: it has other terms, or another process is writing the file.
        StoreError: the database cannot be reached.
    """
    return ReviewTable(place, terms) if isinstance(place, str) else ReviewFile(place, terms)


def reviews_at(place: Place) -> Reviews | None:
    """Return the reviews stored there; None if no review has begun.

    Raises:
        UsageError: a line cannot be read.
        StoreError: the database cannot be reached.
    """
    if isinstance(place, Path):
        return read_reviews(place) if place.is_file() and place.stat().st_size else None
    database = _database(place)
    try:
        with database.transaction(reading=True) as run:
            begun = run("SELECT 1 FROM cascade_reviews WHERE number = 0").fetchone()
        return _read(database, parse(place).shown) if begun else None
    finally:
        database.close()


def place_for(traces: str, suffix: str) -> Place:
    """Return the place of the judgements of a store's traces: beside its file, or in its PostgreSQL database.

    >>> place_for("sqlite:////data/traces.db", ".reviews.jsonl").name
    'traces.db.reviews.jsonl'
    """
    path = parse(traces).path
    return traces if path is None else Path(f"{path}{suffix}")


def _database(url: str) -> Database:
    if not is_url(url):
        raise UsageError(f"{url} is not a store's URL.")
    return database_at(url, _TABLES, "The store of reviews")


def _read(database: Database, name: str) -> Reviews:
    with database.transaction(reading=True) as run:
        rows = run("SELECT number, line FROM cascade_reviews ORDER BY number").fetchall()
    return reviews_in(((number + 1, json.loads(line)) for number, line in rows), name, Dropped())
