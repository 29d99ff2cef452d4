"""Judgements in a database: a file beside the log, or the store of a server's traces. Many people may write.

Row 0 has the draw of the requests and the kind of review. It is written before the first pair is shown and never
changed. Every other row is a judgement, stored before it counts. A later judgement of the same reviewer on the same
pair replaces an earlier one; both stay stored. `Judgement.loses` decides whether serving the output is a loss.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import sqlalchemy as sa

from cascade.checks import refuse, share_problems
from cascade.errors import UsageError
from cascade.records.address import parse
from cascade.records.database import Database, insert
from cascade.records.database import reviews as lines
from cascade.review.pairs import PairId

Ask = Literal["preference", "regret"]
ASKS = get_args(Ask)
Side = Literal["output", "reference"]
Better = Literal["output", "reference", "equal", "both_bad", "skipped"]
SKIPPED = "skipped"
SUFFIX = ".reviews.db"
_LIMIT_S = 10.0
"""How long a page or a person waits for the database."""
Location: TypeAlias = Path | str
"""A file, or the URL of a store."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The draw and the kind of review.

    Attributes:
        ask: "preference" (which output is better), or "regret" (also whether each is right).
        matcher: the comparator of outputs.
        rate: the share of the requests that is drawn, by a hash (`conformal.monitor`).
        key: the key of the hash.
    """

    ask: Ask
    matcher: str
    rate: float = 1.0
    key: str = ""

    def __post_init__(self) -> None:
        if self.ask not in ASKS:
            raise UsageError(f"A review asks for {' or '.join(ASKS)}, not {self.ask!r}.")
        rate = share_problems(ends=True, label_rate=self.rate)
        refuse([*rate, *(["label_rate must be above 0"] if self.rate == 0 else [])])

    def check(self, path: str, begun: Terms) -> None:
        """Raise UsageError if these are not the terms that were fixed before the first pair was shown."""
        differ = [
            f"{name} {getattr(begun, name)}, not {getattr(self, name)}"
            for name in ("ask", "matcher", "rate")
            if getattr(begun, name) != getattr(self, name)
        ]
        if self.key and self.key != begun.key:
            differ.append("another key")
        if differ:
            raise UsageError(f"{path} was begun with {'; '.join(differ)}. Continue so, or begin another: -o FILE.")


class Judgement(NamedTuple):
    """A person's judgement of a pair.

    Attributes:
        question, output, reference: the hashes of the request and of both outputs.
        first: which of the two was shown first.
        verdict: which is better.
        output_right, reference_right: whether each is right; None where that was not asked.
        reviewer, at: who judged, and when (UTC).
    """

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
    """The state of a review: its terms, and the last judgement of each reviewer on each pair, in order."""

    terms: Terms
    judgements: tuple[Judgement, ...]

    def by(self, reviewer: str) -> dict[PairId, Judgement]:
        """Return a reviewer's judgement of each pair."""
        return {judgement.pair: judgement for judgement in self.judgements if judgement.reviewer == reviewer}


def reviews_at(location: Location) -> Reviews | None:
    """Return the judgements at a location; None if no review has begun there.

    Raises:
        UsageError: it is not a file of reviews.
        StoreError: the database cannot be reached.
    """
    path = location if isinstance(location, Path) else parse(location).path
    if path is not None and not (path.is_file() and path.stat().st_size):
        return None
    with Database(_url(location), limit_s=_LIMIT_S) as database:
        return _read(database)


def read_reviews(location: Location) -> Reviews:
    """Return the judgements at a location. Raises UsageError if no review has begun there."""
    reviews = reviews_at(location)
    if reviews is None:
        raise UsageError(f"There are no reviews in {location_shown(location)}: cascade review writes them.")
    return reviews


class ReviewStore(Database):
    """Writes judgements; processes and people may share it. Use it as a context manager.

    Args:
        location: the file, which is created if it does not exist, or the URL of a store.
        terms: the terms of the review. A review that has begun keeps its key, and refuses other terms.

    Attributes:
        path: the location, as it may be shown.
        reviews: the judgements at the time it was opened.

    Raises:
        UsageError: it is not a file of reviews, or the review has other terms.
        StoreError: the database cannot be reached.
    """

    def __init__(self, location: Location, terms: Terms) -> None:
        super().__init__(_url(location), limit_s=_LIMIT_S)
        self.path = location_shown(location)
        begun = asdict(terms) | {"key": terms.key or secrets.token_hex(16)}
        try:
            self._write(0, begun)
            reviews = _read(self)
            assert reviews is not None  # noqa: S101 - it was just begun
            terms.check(self.path, reviews.terms)
        except BaseException:
            self.close()
            raise
        self.reviews = reviews

    def add(self, judgement: Judgement) -> None:
        """Write a judgement; return once it is on the disk."""
        self._write(None, judgement._asdict())

    def _write(self, number: int | None, document: dict[str, Any]) -> None:
        """Write a line, with its number if that is free, or by default with the next number."""
        line = json.dumps(document, allow_nan=False)  # ASCII: PostgreSQL's text has no NUL, no lone surrogate
        with self.transaction() as connection:
            connection.execute(sa.select(lines.c.line).where(lines.c.number == 0).with_for_update())  # take turns
            last = connection.scalar(sa.select(sa.func.max(lines.c.number)))
            row = {"number": (last or 0) + 1 if number is None else number, "line": line}
            connection.execute(insert(lines).on_conflict_do_nothing(), row)


def location_shown(location: Location) -> str:
    """Return a location as it may be shown: without a password."""
    return str(location) if isinstance(location, Path) else parse(location).shown


def _url(location: Location) -> str:
    return location if isinstance(location, str) else f"sqlite:///{location.resolve()}"


def _read(database: Database) -> Reviews | None:
    stored = [row.line for row in database.rows(sa.select(lines.c.line).order_by(lines.c.number))]
    if not stored:
        return None
    begun, *later = stored
    last: dict[tuple[str, PairId], Judgement] = {}
    try:
        terms = Terms(**json.loads(begun))
        for line in later:
            judgement = Judgement(**json.loads(line))
            last.pop((judgement.reviewer, judgement.pair), None)
            last[judgement.reviewer, judgement.pair] = judgement
    except TypeError as error:  # another version wrote them
        raise UsageError(f"These reviews cannot be read: {error}. Begin another: -o FILE.") from None
    return Reviews(terms, tuple(last.values()))
