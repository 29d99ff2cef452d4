"""Reads a log with people's judgements of its outputs (`cascade review`) as its labels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypeAlias

from cascade.api.logs import LogAsked, read_log
from cascade.api.output import Tell
from cascade.calibration.samples import unseen
from cascade.errors import UsageError
from cascade.evaluation.logs import Log
from cascade.policies.artifact import PolicyArtifact
from cascade.text import counted

Files: TypeAlias = str | Path | Iterable[str | Path] | None
"""One file of reviews, several, or none."""


class ReviewOptions(NamedTuple):
    """The reviews that serve as labels, and the rate at which those that count were drawn; None: all."""

    files: Sequence[Path] = ()
    rate: float | None = None

    @property
    def options(self) -> list[tuple[str, str]]:
        """The same options, as written on the command line."""
        rate = [] if self.rate is None else [("--label-rate", f"{self.rate:g}")]
        return [*(("--reviews", str(path)) for path in self.files), *rate]

    @classmethod
    def of(cls, files: Files, rate: float | None) -> ReviewOptions:
        """Return the options.

        Raises:
            UsageError: a rate is given without reviews.
        """
        listed = () if files is None else (files,) if isinstance(files, str | Path) else files
        found = cls(tuple(map(Path, listed)), rate)
        if not found.files and rate is not None:
            raise UsageError("--label-rate goes with --reviews FILE.")
        return found


def read_reviewed(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Log:
    """Read a log; if there are reviews, they are its labels.

    Args:
        asked: the log.
        reviews: the judgements.
        kind: the kind of guarantee; None: the kind that the reviews asked about.
        tell: is called with each notice about the log.

    Raises:
        UsageError: the log or the reviews cannot be read, or do not suit the kind.
    """
    if not reviews.files:
        return read_log(asked, tell)
    from cascade.review.labels import labelled_by_reviews
    from cascade.review.pairs import compare
    from cascade.review.reviews import read_reviews

    held = [read_reviews(path) for path in reviews.files]
    log = read_log(compared(asked), tell)
    found, said = compare(log.rows, asked.matcher or held[0].terms.matcher), kind or held[0].terms.ask
    tables = labelled_by_reviews(found, held, said, reviews.rate)
    for table in tables:
        missing = 0 if table.labels is None else int((table.labels.drawn & table.labels.unsaid).sum())
        if missing:
            lack = f"{counted(missing, 'question')} drawn for review lack a judgement, which counts as a loss"
            tell(f"{table.dataset}: {lack}")
    return replace(log, tables=tuple(tables))


def read_judged(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Log:
    """Read a log as `read_reviewed`; with reviews only the drawn questions, since the loss of the others is unknown.

    Raises:
        UsageError: as there; or none was drawn.
    """
    log = read_reviewed(asked, reviews, kind, tell)
    drawn = [one if one.labels is None else one.take(one.labels.drawn) for one in log.tables]
    if not all(one.n for one in drawn):
        raise UsageError("No question of this log was drawn for review: review more of them, at a higher --label-rate.")
    return replace(log, tables=tuple(drawn))


def compared(asked: LogAsked) -> LogAsked:
    """Return the options that read a log without its labels: an output is right if it equals the reference's."""
    if isinstance(asked.source, Log) or asked.reference is not None:
        return asked
    from cascade.episodes.truth import GUIDE

    return asked._replace(reference=asked.named[-1] if asked.named else GUIDE)


def without_training(log: Log, held: PolicyArtifact | None, tell: Tell) -> Log:
    """Return a log without the questions that made a policy, and tell how many were left out."""
    if held is None:
        return log
    left = tuple([unseen(table, held) for table in log.tables])
    gone = sum(table.n for table in log.tables) - sum(table.n for table in left)
    if gone:
        tell(f"{counted(gone, 'question')} of the log made the policy, and are left out: the others certify")
    return replace(log, tables=left)
