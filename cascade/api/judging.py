"""Opens a log for review by people, and the file of their judgements."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cascade.api.logs import LogAsked, Models, Where
from cascade.api.output import Tell
from cascade.api.policies import policy_directory
from cascade.api.tables_of_logs import compared, read_log
from cascade.calibration.samples import joined, once, one_a_group, tied
from cascade.config import CascadeConfig, traces_url
from cascade.episodes.files import is_url
from cascade.errors import UsageError
from cascade.guarantees.base import Guarantee
from cascade.house.attempts import FIRST
from cascade.review.labels import tables_with
from cascade.review.pairs import Compared, compare
from cascade.review.path import Along, along_path
from cascade.review.plan import Plan, plans
from cascade.review.reviews import Reviews, Terms
from cascade.review.session import Room
from cascade.review.storage import Place, place_for, reviews_at
from cascade.text import counted

SUFFIX = ".reviews.jsonl"
_SHARE = 0.1
"""The default alpha and delta of a certificate from reviews."""


class Judging(NamedTuple):
    """The options of a review, from the command line or a configuration.

    Attributes:
        episodes: the log: a file, or the URL of a store.
        file: the file of reviews; None: beside the log.
        ask: "preference", or "regret", which also asks whether each output is right.
        policy: a policy directory; only the outputs that decide its certificate are shown.
        alpha, delta: those of the certificate.
        rate: the share of the questions that is drawn; None: the file's rate, or all.
        seed: seed of the draw; None: a random one.
        where, matcher, models: how the log is read.
    """

    episodes: str
    file: Place | None = None
    ask: str = "preference"
    policy: Path | None = None
    alpha: float | None = None
    delta: float | None = None
    rate: float | None = None
    seed: int | None = None
    where: Where = None
    matcher: str | None = None
    models: Models = None

    @property
    def path(self) -> Place:
        """The file of reviews, or the store that holds them. Raises UsageError if neither is known."""
        return beside(self.episodes) if self.file is None else self.file

    def read(self, tell: Tell) -> Compared:
        """Return the log's outputs; report how many requests lack the reference's output. Raises UsageError."""
        return self._compared(self.matcher or _held(self.path).matcher, tell)

    def _compared(self, matcher: str | None, tell: Tell) -> Compared:
        log = read_log(compared(LogAsked(self.episodes, self.where, matcher, models=self.models)), tell)
        found = compare(log.rows, matcher)
        if found.without_reference:
            tell(f"{counted(found.without_reference, 'request')} without an output of the reference: not shown")
        return found

    def terms(self, comparator: str) -> Terms:
        """Return the terms for the file's first line; terms that were not given are taken from an existing file."""
        key = "" if self.seed is None else f"seed {self.seed}"
        rate = _held(self.path).rate if self.rate is None else self.rate
        return Terms(self.ask, comparator, rate, key)  # type: ignore[arg-type]  # it says what is wrong with it

    def room(self, found: Compared, terms: Terms, tell: Tell) -> Room:
        """Return the room.

        Args:
            found: what `read` returned.
            terms: the terms in the file's first line.
            tell: is called with notices.
        """
        along = None if self.policy is None else self._along(found, self._wanted(tell), terms)
        return Room(found.pairs(), terms, _certify(found), along)

    def plans(self, tell: Tell) -> list[Plan]:
        """Return the number of judgements that a certificate needs, for several rates of the draw."""
        found, wanted = self._compared(self.matcher, tell), self._wanted(tell)
        along = self._along(found, wanted, Terms(self.ask, self.matcher or ""))  # type: ignore[arg-type]  # as above
        return plans(_certify(found), len(found.pairs()), along, wanted)

    def _wanted(self, tell: Tell) -> Guarantee:
        if self.delta is None:
            tell(f"a guarantee of {self.ask} has a delta; without --delta it is {_SHARE:g}")
        alpha, delta = (_SHARE if share is None else share for share in (self.alpha, self.delta))
        return Guarantee(self.ask, alpha, delta)

    def _along(self, found: Compared, wanted: Guarantee, terms: Terms) -> Along | None:
        if self.policy is None:
            return None
        held = policy_directory(self.policy, certificates=False)
        first = None if wanted.delta is None else FIRST * wanted.delta  # what a first fit may spend
        return along_path(found, held.policy, held.artifact, replace(wanted, delta=first), terms)


def beside(episodes: str) -> Path:
    """Return the file of reviews beside a log."""
    if is_url(episodes) or not Path(episodes).is_file():
        raise UsageError(
            f"{episodes} is not a file, so reviews cannot be kept beside it: name a file for them with -o FILE."
        )
    return Path(f"{episodes}{SUFFIX}")


class _Held(NamedTuple):
    """The terms of a file of reviews that a caller may leave out."""

    matcher: str | None = None
    rate: float = 1.0


def _held(place: Place) -> _Held:
    held = reviews_at(place)
    return _Held() if held is None else _Held(held.terms.matcher, held.terms.rate)


def review_place(settings: CascadeConfig) -> Place | None:
    """Return the path or the store of the judgements made on a server's pages; None if traces are off.

    That is `server.review.file`, or else a file beside the named log or the traces. For traces in PostgreSQL it is
    their database, so that replicas share it.
    """
    wanted, traces = settings.server.review, traces_url(settings.traces)
    if wanted.file is not None:
        return Path(wanted.file)
    if wanted.log is not None:
        return beside(wanted.log)
    return None if traces is None else place_for(traces, SUFFIX)


def reviews_of(settings: CascadeConfig) -> Reviews | None:
    """Return the judgements made on a server's pages, or by `cascade review` in the same file; None if there are none.

    Raises:
        UsageError: it cannot be read.
        StoreError: the store cannot be reached.
    """
    place = review_place(settings)
    return None if place is None else reviews_at(place)


def _certify(found: Compared) -> int:
    """Return the number of questions of a log that can certify: one of each group."""
    table = tied(joined(tables_with(found, lambda _, __: True)))
    return one_a_group(table.take(once(table))).n
