"""The file of reviews: lines of JSON, each on the disk before the next pair is shown.

The first line has the draw of the questions and the kind of review. It is written before the first judgement and never
changed. Every other line is a judgement. A later judgement of the same reviewer on the same pair replaces an earlier
one; both stay in the file. `Judgement.loses` decides whether serving the output is a loss.

| first line | |
|---|---|
| `review` | 1, the version of this form |
| `ask` | "preference" or "regret" |
| `matcher` | when two outputs are the same |
| `rate`, `key` | each question is drawn with this probability, by a hash with this key (`conformal.labels`) |
| `created_at` | UTC |

| judgement | |
|---|---|
| `question`, `output`, `reference` | the hashes of the question and of both outputs |
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
from typing import IO, Any, Literal, NamedTuple, Self, get_args

from cascade.conformal.labels import check_rate
from cascade.episodes.lines import json_lines, write_all, writing
from cascade.episodes.schema import Dropped
from cascade.errors import UsageError
from cascade.review.pairs import PairId

VERSION = 1
Ask = Literal["preference", "regret"]
Side = Literal["output", "reference"]
Better = Literal["output", "reference", "equal", "both_bad", "skipped"]
SKIPPED = "skipped"
_KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class Terms:
    """The first line of a file of reviews: the draw and the kind of review.

    Attributes:
        ask: "preference" (which output is better), or "regret" (also whether each is right).
        matcher: the comparator of outputs.
        rate: the share of the questions that is drawn.
        key: the key of the hash that draws.
    """

    ask: Ask
    matcher: str
    rate: float = 1.0
    key: str = ""

    def __post_init__(self) -> None:
        if self.ask not in get_args(Ask):
            raise UsageError(f"A review asks for {' or '.join(get_args(Ask))}, not {self.ask!r}.")
        check_rate(self.rate)


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

        >>> one = Judgement("q", "a", "b", "output", "both_bad", False, False, "ann", "")
        >>> one.loses("preference"), one.loses("regret"), one._replace(verdict="reference").loses("preference")
        (False, False, True)
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
        return tuple(dict.fromkeys(one.reviewer for one in self.judgements))

    def by(self, reviewer: str) -> dict[PairId, Judgement]:
        """Return a reviewer's judgement of each pair."""
        return {one.pair: one for one in self.judgements if one.reviewer == reviewer}

    def losses(self, ask: str) -> dict[PairId, bool]:
        """Return whether each judged pair is a loss, "preference" or "regret"; if reviewers differ, it is."""
        found: dict[PairId, bool] = {}
        for one in self.judgements:
            lost = one.loses(ask)
            if lost is not None:
                found[one.pair] = found.get(one.pair, False) or lost
        return found


def read_reviews(path: Path) -> Reviews:
    """Read a file of reviews. A torn last line, as after a crash, is ignored, since it was never acknowledged.

    Raises:
        UsageError: there is no such file, or lines are not valid; lists every problem.
    """
    dropped = Dropped()
    return reviews_in(json_lines(path, dropped), str(path), dropped)


def reviews_in(lines: Iterable[tuple[int, Any]], name: str, dropped: Dropped) -> Reviews:
    """Return the reviews in numbered lines, the first with the terms.

    Args:
        lines: the lines with their numbers.
        name: the name of their source, for messages.
        dropped: counts the lines that were left out while reading.

    Raises:
        UsageError: lines are not valid; lists every problem.
    """
    problems = list[str]()
    terms: Terms | None = None
    found: dict[tuple[str, PairId], Judgement] = {}
    for number, value in lines:
        try:
            if terms is None:
                terms = _terms(value)
                continue
            one = _judgement(value)
        except (KeyError, TypeError, ValueError, UsageError) as error:
            problems.append(f"line {number}: {error}")
            continue
        found.pop((one.reviewer, one.pair), None)
        found[one.reviewer, one.pair] = one
    if dropped.rows.keys() - {"a torn last line"}:
        problems.append(dropped.describe())
    if terms is None and not problems:
        problems.append("it is empty")
    if problems or terms is None:
        raise UsageError("\n  - ".join([f"{name} is not a file of reviews:", *problems[:5]]))
    return Reviews(terms, tuple(found.values()))


def _terms(value: Mapping[str, Any]) -> Terms:
    if value.get("review") != VERSION:
        raise UsageError(f'its first line must say "review": {VERSION}')
    return Terms(value["ask"], value["matcher"], value["rate"], value["key"])


_PLAIN = dict.fromkeys(("question", "output", "reference", "reviewer", "at"), str)
_CHOICES: Mapping[str, tuple[object, ...]] = {
    "first": get_args(Side),
    "verdict": get_args(Better),
    "output_right": (True, False, None),
    "reference_right": (True, False, None),
}


def _judgement(value: Mapping[str, Any]) -> Judgement:
    wrong = [name for name, kind in _PLAIN.items() if not isinstance(value.get(name), kind)]
    wrong += [name for name, choices in _CHOICES.items() if value.get(name, "") not in choices]
    if wrong:
        raise UsageError(f"{', '.join(wrong)} cannot be read")
    return Judgement(**{name: value[name] for name in Judgement._fields})


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
                self._append(first_line(terms))
            self.reviews = read_reviews(path)
            check_terms(str(path), self.reviews.terms, terms)
        except BaseException:
            self._file.close()
            raise

    def add(self, one: Judgement) -> None:
        """Write a judgement; return once it is on the disk."""
        self._append(one._asdict())

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


def now() -> str:
    """Return the current time in the file's format."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def first_line(terms: Terms) -> dict[str, Any]:
    """Return the first line of a file of reviews; draw a key if the terms have none."""
    key = terms.key or secrets.token_hex(_KEY_BYTES)
    begun = {"ask": terms.ask, "matcher": terms.matcher, "rate": terms.rate, "key": key}
    return {"review": VERSION, **begun, "created_at": now()}


def check_terms(path: str, held: Terms, wanted: Terms) -> None:
    """Refuse to continue with other terms: the draw and the question were fixed before the first pair was shown."""
    differ = [
        f"{name} {getattr(held, name)}, not {getattr(wanted, name)}"
        for name in ("ask", "matcher", "rate")
        if getattr(held, name) != getattr(wanted, name)
    ]
    if wanted.key and wanted.key != held.key:
        differ.append("another key")
    if differ:
        raise UsageError(f"{path} was begun with {'; '.join(differ)}. Go on with that, or begin another: -o FILE.")


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


def merged(files: Iterable[Reviews]) -> Reviews:
    """Return several files merged, for a report, with the terms of the first one.

    Raises:
        UsageError: they ask for different things.
    """
    held = list(files)
    if len({(one.terms.ask, one.terms.matcher) for one in held}) > 1:
        raise UsageError("These files of reviews ask for different things, or compare outputs differently.")
    return Reviews(held[0].terms, tuple([one for each in held for one in each.judgements]))
