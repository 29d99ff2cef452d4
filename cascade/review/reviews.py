"""Judgements: a file, or a database shared by the replicas of a server; lines of JSON, each stored before it counts.

The first line has the draw of the requests and the kind of review. It is written before the first judgement and never
changed. Every other line is a judgement. A later judgement of the same reviewer on the same pair replaces an earlier
one; both stay. `Judgement.loses` decides whether serving the output is a loss.

| first line | |
|---|---|
| `review` | 1, the version of this form |
| `ask` | "preference" or "regret" |
| `matcher` | when two outputs are the same |
| `rate`, `key` | each request is drawn with this probability, by a hash with this key (`conformal.labels`) |
| `created_at` | UTC |

| judgement | |
|---|---|
| `question`, `output`, `reference` | the hashes of the request and of both outputs |
| `first` | which of the two was shown first: "output" or "reference" |
| `verdict` | which is better: "output", "reference", "equal", "both_bad"; or "skipped" |
| `output_right`, `reference_right` | true or false where that was asked; else null |
| `reviewer`, `at` | who, and when (UTC) |
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self, TypeAlias, get_args

from cascade.budget.database import Database
from cascade.conformal.labels import check_rate
from cascade.episodes.store import parse
from cascade.episodes.store.address import database_at, is_url
from cascade.errors import UsageError
from cascade.logs.lines import json_lines, write_all, writing
from cascade.logs.schema import Dropped
from cascade.review.pairs import PairId

VERSION = 1
Ask = Literal["preference", "regret"]
ASKS = get_args(Ask)
Side = Literal["output", "reference"]
Better = Literal["output", "reference", "equal", "both_bad", "skipped"]
SKIPPED = "skipped"
Place: TypeAlias = Path | str
"""A file, or the URL of a PostgreSQL store."""
_KEY_BYTES = 16
_NAMED = 5
_TABLES = ("CREATE TABLE IF NOT EXISTS cascade_reviews (number BIGINT PRIMARY KEY, line TEXT NOT NULL)",)


@dataclass(frozen=True, slots=True)
class Terms:
    """The first line: the draw and the kind of review.

    Attributes:
        ask: "preference" (which output is better), or "regret" (also whether each is right).
        matcher: the comparator of outputs.
        rate: the share of the requests that is drawn.
        key: the key of the hash that draws.
    """

    ask: Ask
    matcher: str
    rate: float = 1.0
    key: str = ""

    def __post_init__(self) -> None:
        if self.ask not in ASKS:
            raise UsageError(f"A review asks for {' or '.join(ASKS)}, not {self.ask!r}.")
        check_rate(self.rate)

    @property
    def first_line(self) -> dict[str, Any]:
        """The first line of a new file, with a key that is drawn if these terms have none."""
        key = self.key or secrets.token_hex(_KEY_BYTES)
        terms = {"ask": self.ask, "matcher": self.matcher, "rate": self.rate, "key": key}
        return {"review": VERSION, **terms, "created_at": now()}

    def check(self, place: str, begun: Terms) -> None:
        """Refuse to go on with other terms than those that were fixed before the first pair was shown."""
        differ = [
            f"{name} {getattr(begun, name)}, not {getattr(self, name)}"
            for name in ("ask", "matcher", "rate")
            if getattr(begun, name) != getattr(self, name)
        ]
        if self.key and self.key != begun.key:
            differ.append("another key")
        if differ:
            raise UsageError(f"{place} was begun with {'; '.join(differ)}. Go on with that, or begin another: -o FILE.")


class Judgement(NamedTuple):
    """A person's judgement of a pair, with the fields of the file."""

    question: str
    output: str
    reference: str
    first: Side
    verdict: Better
    output_right: bool | None
    reference_right: bool | None
    reviewer: str
    at: str

    @property
    def pair(self) -> PairId:
        """The identifier of its pair."""
        return PairId(self.question, self.output, self.reference)

    def loses(self, ask: str) -> bool | None:
        """Return whether serving the output is a loss; None if the judgement does not say.

        >>> both_bad = Judgement("q", "a", "b", "output", "both_bad", False, False, "ann", "")
        >>> both_bad.loses("regret"), both_bad._replace(verdict="reference").loses("preference")
        (False, True)
        """
        if self.verdict == SKIPPED:
            return None
        if ask == "preference":
            return self.verdict == "reference"
        if self.output_right is None or self.reference_right is None:
            return None
        return self.reference_right and not self.output_right


class Reviews(NamedTuple):
    """The state of a file of reviews: the last judgement of each reviewer on each pair, in the order of the file."""

    terms: Terms
    judgements: tuple[Judgement, ...]

    @property
    def reviewers(self) -> tuple[str, ...]:
        """The reviewers, in the order of their first judgements."""
        return tuple(dict.fromkeys(judgement.reviewer for judgement in self.judgements))

    def by(self, reviewer: str) -> dict[PairId, Judgement]:
        """Return a reviewer's judgement of each pair."""
        return {judgement.pair: judgement for judgement in self.judgements if judgement.reviewer == reviewer}

    def losses(self, ask: str) -> dict[PairId, bool]:
        """Return whether each judged pair is a loss, "preference" or "regret"; if reviewers differ, it is."""
        losses: dict[PairId, bool] = {}
        for judgement in self.judgements:
            lost = judgement.loses(ask)
            if lost is not None:
                losses[judgement.pair] = losses.get(judgement.pair, False) or lost
        return losses


def merged(files: Iterable[Reviews]) -> Reviews:
    """Return several files as one, for a report, with the terms of the first.

    Raises:
        UsageError: they ask for different things.
    """
    every = list(files)
    if len({(each.terms.ask, each.terms.matcher) for each in every}) > 1:
        raise UsageError("These files of reviews ask for different things, or compare outputs differently.")
    return Reviews(every[0].terms, tuple([judgement for each in every for judgement in each.judgements]))


def now() -> str:
    """Return the current time in the file's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


# --- reading ---


def read_reviews(path: Path) -> Reviews:
    """Read a file of reviews. A torn last line, as after a crash, is ignored, since it was never acknowledged.

    Raises:
        UsageError: there is no such file, or lines are not valid; lists every problem.
    """
    dropped = Dropped()
    return _reviews_in(json_lines(path, dropped), str(path), dropped)


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


def _reviews_in(lines: Iterable[tuple[int, Any]], name: str, dropped: Dropped) -> Reviews:
    """Return the reviews in numbered lines of `name`; `dropped` counts those that were left out while reading."""
    problems, terms = list[str](), None
    last: dict[tuple[str, PairId], Judgement] = {}
    for number, value in lines:
        try:
            if terms is None:
                terms = _terms(value)
                continue
            judgement = _judgement(value)
        except (KeyError, TypeError, AttributeError, UsageError) as error:
            problems.append(f"line {number}: {error}")
            continue
        last.pop((judgement.reviewer, judgement.pair), None)
        last[judgement.reviewer, judgement.pair] = judgement
    if dropped.rows.keys() - {"a torn last line"}:
        problems.append(dropped.describe())
    if terms is None and not problems:
        problems.append("it is empty")
    if problems or terms is None:
        raise UsageError("\n  - ".join([f"{name} is not a file of reviews:", *problems[:_NAMED]]))
    return Reviews(terms, tuple(last.values()))


def _terms(value: Mapping[str, Any]) -> Terms:
    if value.get("review") != VERSION:
        raise UsageError(f'its first line must say "review": {VERSION}')
    return Terms(value["ask"], value["matcher"], value["rate"], value["key"])


_CHOICES: Mapping[str, tuple[object, ...]] = {
    "first": get_args(Side),
    "verdict": get_args(Better),
    "output_right": (True, False, None),
    "reference_right": (True, False, None),
}


def _judgement(value: Mapping[str, Any]) -> Judgement:
    wrong = [
        name
        for name in Judgement._fields
        if (value.get(name, "") not in _CHOICES[name] if name in _CHOICES else not isinstance(value.get(name), str))
    ]
    if wrong:
        raise UsageError(f"{', '.join(wrong)} cannot be read")
    return Judgement(**{name: value[name] for name in Judgement._fields})


# --- writing ---


def opened(place: Place, terms: Terms) -> ReviewFile | ReviewTable:
    """Open the place for writing judgements; create it with these terms if it does not exist.

    Raises:
        UsageError: it has other terms, or another process is writing the file.
        StoreError: the database cannot be reached.
    """
    return ReviewTable(place, terms) if isinstance(place, str) else ReviewFile(place, terms)


class ReviewFile:
    """Writes a file of reviews, one process at a time. Use it as a context manager.

    Args:
        path: the file, which is created if it does not exist.
        terms: the terms of the review. An existing file keeps its key, and refuses other terms.

    Raises:
        UsageError: it is not a file of reviews, was begun with other terms, or another process is writing it.
    """

    def __init__(self, path: Path, terms: Terms) -> None:
        self.path = path
        with writing(path):
            path.touch(mode=0o600, exist_ok=True)
            self._file: IO[bytes] = path.open("r+b", buffering=0)
        try:
            _lock(self._file, path)
            data = self._file.read()
            if data and not data.endswith(b"\n"):  # a last line without an end was never acknowledged
                with writing(path):
                    self._file.truncate(data.rfind(b"\n") + 1)
            if path.stat().st_size == 0:
                self._append(terms.first_line)
            self.reviews = read_reviews(path)
            terms.check(str(path), self.reviews.terms)
        except BaseException:
            self._file.close()
            raise

    def add(self, judgement: Judgement) -> None:
        """Write a judgement; return once it is on the disk."""
        self._append(judgement._asdict())

    def _append(self, document: Mapping[str, Any]) -> None:
        line = json.dumps(document, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"
        with writing(self.path):
            end = self._file.seek(0, os.SEEK_END)
            try:
                write_all(self._file, line)
            except OSError:
                self._file.truncate(end)
                raise
            os.fsync(self._file.fileno())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _lock(file: IO[bytes], path: Path) -> None:
    """Lock the file against a second process, if the system has file locks."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise UsageError(
            f"Another process is writing {path}. Wait for it, or review into another file: -o FILE."
        ) from None


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
                    json.dumps(terms.first_line),
                )
            self.reviews = _read(self._database, self.path)
            terms.check(self.path, self.reviews.terms)
        except BaseException:
            self._database.close()
            raise

    def add(self, judgement: Judgement) -> None:
        """Write a judgement; return once it is committed."""
        line = json.dumps(
            judgement._asdict(), allow_nan=False
        )  # ASCII: PostgreSQL's text has no NUL, no lone surrogate
        with self._database.transaction() as run:
            run("SELECT line FROM cascade_reviews WHERE number = 0 FOR UPDATE")  # replicas take turns
            run("INSERT INTO cascade_reviews (number, line) SELECT MAX(number) + 1, ? FROM cascade_reviews", line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()


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
    return _reviews_in(((number + 1, json.loads(line)) for number, line in rows), name, Dropped())
