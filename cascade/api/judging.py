"""Opens a log for review by people, and the file of their judgements."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

from cascade.api.logs import LogOptions, Models, Where, read_log
from cascade.api.policies import read_directory
from cascade.config import CascadeConfig, traces_url
from cascade.conformal.promise import Promise
from cascade.errors import UsageError
from cascade.fitting.attempts import place_of, upcoming
from cascade.fitting.divide import unseen
from cascade.records.address import is_url
from cascade.reports.report import Tell
from cascade.review.labels import Along, certifying, to_judge
from cascade.review.pairs import Compared, compare
from cascade.review.reviews import SUFFIX, Ask, Place, Reviews, Terms, reviews_at
from cascade.review.session import Room
from cascade.table import Log
from cascade.text import counted


class Judging(NamedTuple):
    """The options of a review, from the command line or a configuration.

    Attributes:
        episodes: the log: a file, or the URL of a store.
        file: the file of reviews; None: beside the log.
        ask: "preference", or "regret", which also asks whether each output is right.
        policy: a policy directory; only the outputs that decide its certificate are shown.
        risk, confidence: those of the certificate.
        rate: the share of the requests that is drawn; None: the file's rate, or all.
        seed: seed of the draw; None: a random one.
        where, matcher, models: how the log is read.
    """

    episodes: str
    file: Place | None = None
    ask: str = "preference"
    policy: Path | None = None
    risk: float = 0.05
    confidence: float = 0.9
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
        begun = reviews_at(self.path)
        matcher = self.matcher or (None if begun is None else begun.terms.matcher)
        options = LogOptions(self.episodes, self.where, matcher, models=self.models)
        log = read_log(options.against_reference, None, tell)
        outputs = compare(log.rows, matcher)
        if outputs.without_reference:
            tell(f"{counted(outputs.without_reference, 'request')} without an output of the reference: not shown")
        return outputs

    def terms(self, comparator: str) -> Terms:
        """Return the terms for the file's first line; terms that were not given are taken from an existing file."""
        key, begun = "" if self.seed is None else f"seed {self.seed}", reviews_at(self.path)
        rate = self.rate if self.rate is not None else 1.0 if begun is None else begun.terms.rate
        return Terms(cast("Ask", self.ask), comparator, rate, key)

    def promise(self, rate: float = 1.0) -> Promise:
        """Return what is to be certified with the judgements of a share of the requests."""
        return Promise(self.ask, self.risk, self.confidence, rate)

    def room(self, outputs: Compared, terms: Terms) -> Room:
        """Return the room.

        Args:
            outputs: what `read` returned.
            terms: the terms in the file's first line.
        """
        log, promise = to_judge(outputs, terms), self.promise(terms.rate)
        return Room(outputs.pairs, terms, certifying(log, promise).n, self._along(outputs, log, promise))

    def _along(self, outputs: Compared, log: Log, promise: Promise) -> Along | None:
        if self.policy is None:
            return None
        directory = read_directory(self.policy)
        directory.refuse_other_plan(log)
        fresh = unseen(log, directory.requests.fitted)
        share = upcoming(place_of(self.episodes), certifying(fresh, promise).ids).share
        level = share * (promise.delta or 0.0)  # what the next fit may spend
        return Along.of(fresh, directory.policy, outputs.pairs, promise, level)


def beside(episodes: str) -> Place:
    """Return where the reviews of a log are kept: a file beside it; those of a store, in the store."""
    if is_url(episodes):
        return episodes
    if not Path(episodes).is_file():
        raise UsageError(
            f"{episodes} is not a file, so reviews cannot be kept beside it: name a file for them with -o FILE."
        )
    return Path(f"{episodes}{SUFFIX}")


def review_place(settings: CascadeConfig) -> Place | None:
    """Return the path or the store of the judgements made on a server's pages; None if traces are off.

    That is `server.review.file`, or else a file beside the named log, or else the store of the traces.
    """
    options, traces = settings.server.review, traces_url(settings.traces)
    if options.file is not None:
        return Path(options.file)
    if options.log is not None:
        return beside(options.log)
    return traces


def reviews_of(settings: CascadeConfig) -> Reviews | None:
    """Return the judgements made on a server's pages, or by `cascade review` in the same file; None if there are none.

    Raises:
        UsageError: it cannot be read.
        StoreError: the store cannot be reached.
    """
    place = review_place(settings)
    return None if place is None else reviews_at(place)
