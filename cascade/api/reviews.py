"""Open a log for review by people, and the file of their judgements."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, cast

from cascade.api.logs import LogOptions, read_log
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.records.address import is_url, located
from cascade.reports.report import Tell
from cascade.review.pairs import Compared, compare
from cascade.review.reviews import SUFFIX, Ask, Location, Terms, reviews_at
from cascade.text import counted


class ReviewOptions(NamedTuple):
    """The options of a review, from the command line or a configuration.

    Attributes:
        log: the log: a file, or the URL of a store, and how it is read.
        file: the file of reviews; None: one beside the log.
        ask: "preference", or "regret", which also asks whether each output is right.
        rate: the share of the requests that is drawn; None: the file's rate, or all.
        seed: seed of the draw; None: a random one.
    """

    log: LogOptions
    file: Location | None = None
    ask: str = "preference"
    rate: float | None = None
    seed: int | None = None

    @property
    def path(self) -> Location:
        """The file of reviews, or the store that holds them. Raises UsageError if neither is known."""
        return beside(str(self.log.log)) if self.file is None else self.file

    def read(self, tell: Tell) -> Compared:
        """Return the log's outputs; report how many requests lack the reference's output. Raises UsageError."""
        begun = reviews_at(self.path)
        matcher = self.log.matcher or (None if begun is None else begun.terms.matcher)
        log = read_log(self.log._replace(matcher=matcher).against_reference, None, tell)
        outputs = compare(log.rows, matcher)
        if outputs.without_reference:
            tell(f"{counted(outputs.without_reference, 'request')} without an output of the reference: not shown")
        return outputs

    def terms(self, comparator: str) -> Terms:
        """Return the terms for the file's first line; terms that were not given are taken from an existing file."""
        key, begun = "" if self.seed is None else f"seed {self.seed}", reviews_at(self.path)
        rate = self.rate if self.rate is not None else 1.0 if begun is None else begun.terms.rate
        return Terms(cast("Ask", self.ask), comparator, rate, key)


def beside(episodes: str) -> Location:
    """Return where the reviews of a log are kept: in a file beside it, or in the store that holds it."""
    if is_url(episodes):
        return episodes
    if not Path(episodes).is_file():
        raise UsageError(
            f"{episodes} is not a file, so reviews cannot be kept beside it: name a file for them with -o FILE."
        )
    return Path(f"{episodes}{SUFFIX}")


def review_location(settings: CascadeConfig) -> Location | None:
    """Return the path or the store of the judgements made on a server's pages; None if traces are off.

    That is `server.review.file`, or else a file beside the named log, or else the store of the traces.
    """
    options, traces = settings.server.review, settings.traces_url
    if options.file is not None:
        return located(options.file)
    if options.log is not None:
        return beside(options.log)
    return traces
