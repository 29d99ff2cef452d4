"""The verbs that still read `EpisodeTable`: gone when the last of them reads a `Log`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import fspath
from typing import Any

from cascade.api.logs import LogAsked, ReviewOptions, parse_where
from cascade.api.output import Tell
from cascade.episodes.schema import UNJUDGED, Dropped, identity
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.evaluation import logs
from cascade.evaluation.logs import Log
from cascade.guarantees.base import get
from cascade.house.reading import Reading
from cascade.policies.artifact import PolicyArtifact


def read_log(asked: LogAsked, tell: Tell) -> Log:
    """Read a log, or return one that was read already. Raises as `open_log`."""
    if isinstance(asked.source, Reading):
        if any(asked[1:]):
            raise UsageError("This log has been read already: pass where, matcher and the other options to open_log.")
        labels, tables = asked.source.rows, list(tables_from_rows(asked.source.rows()))
        return Log(tuple(tables), labels, matcher=asked.source.matcher)
    if isinstance(asked.source, Log):
        if any(asked[1:]):
            raise UsageError("This log has been read already: pass where, matcher and the other options to open_log.")
        return asked.source
    dropped, where = Dropped(), parse_where(asked.where or ())
    how: dict[str, Any] = {"reference": asked.reference, "models": asked.named}
    log = logs.open_log(fspath(asked.source), where, asked.matcher, dropped, **how)
    if dropped.describe():
        tell(dropped.describe())
    if dropped.rows[UNJUDGED]:
        judged = sum(table.n for table in log.tables)
        tell(
            f"Only {judged:,} of {judged + dropped.rows[UNJUDGED]:,} questions have all their answers judged. Whatever "
            "needs labels uses these alone, and a certificate from them covers the others only if the judged ones were "
            "drawn at random. Agreement needs no labels and uses all"
        )
    if log.unlabelled:
        for table in log.tables:
            tell(unlabelled_said(table, unjudged=log.unjudged))
    return log


def unlabelled_said(table: EpisodeTable, *, unjudged: bool = False) -> str:
    """Return the notice for a log without labels: it can only get a promise of agreement.

    Accepted answers are not judged by a default matcher: one that is too strict finds both models wrong, and a promise
    of regret then holds without meaning anything.
    """
    assert table.truth is not None  # noqa: S101 - such a log is compared with its reference
    reference, comparator = table.truth.reference, table.truth.comparator
    cautions = "".join(f" {said}" for said in table.truth.cautions)
    has = "has accepted answers (gold), and" if unjudged else "does not say which answers are right, so"
    matcher = " no matcher was named to judge by them (--matcher exact, label, json, …), so" if unjudged else ""
    return (
        f"The log {table.dataset} {has}{matcher} the guarantee offered is agreement with "
        f"{reference}: that the answer served is the same as what {reference} gives, by the comparator {comparator}. "
        f"No label is needed.{cautions}"
    )


def tables_for(log: Log, kind: str | None, held: PolicyArtifact | None = None) -> tuple[EpisodeTable, ...]:
    """Return a log's tables with the extra columns that a kind of guarantee reads.

    It says whether each answer equals the reference's. The comparator is that of the
    directory's certificates.

    Raises:
        UsageError: the log's "right" is not what the kind is about.
    """
    if kind is not None and get(kind).compares:
        log = log.compared(held.certificates[0].comparator if held is not None and held.certificates else None)
    tables = log.tables
    for table in tables if kind is not None else ():
        get(kind).check_truth(table)
    return tables


def tell_pooled(tables: Sequence[EpisodeTable], tell: Tell) -> None:
    """Report to `tell` which data sets are pooled, if there are several."""
    if len(tables) > 1:
        listed = ", ".join(f"{table.dataset} ({table.n})" for table in tables)
        tell(f"{len(tables)} data sets are used as one: {listed}; --where dataset=NAME chooses one")


def read_judged(asked: LogAsked, reviews: ReviewOptions, kind: str | None, tell: Tell) -> Log:
    """Read a log; if there are reviews, they are its labels, on the requests that were drawn.

    Raises:
        UsageError: as `read_log`; the reviews cannot be read, or do not suit the kind; or no request was drawn.
    """
    if not reviews.files:
        return read_log(asked, tell)
    from cascade.review.labels import judgements
    from cascade.review.pairs import compare
    from cascade.review.reviews import read_reviews

    files = [read_reviews(path) for path in reviews.files]
    log = read_log(compared(asked), tell)
    outputs, kind = compare(log.rows, asked.matcher or files[0].terms.matcher), kind or files[0].terms.ask
    judged, dropped = judgements(outputs, files, kind, reviews.rate), Dropped()
    rows = [
        row if row["correct"] is not False else {**row, "correct": judged.loses(row) is False}
        for row in outputs.labelled.rows(dropped)
        if judged.drawn(identity(row["question"] or "", row["context"]))
    ]
    if not rows:
        raise UsageError("No question of this log was drawn for review: review more of them, at a higher --label-rate.")
    before = {table.dataset: table.truth for table in log.tables}
    tables = []
    for table in tables_from_rows(rows, dropped):
        truth = before[table.dataset]
        assert truth is not None  # noqa: S101 - the log was compared
        tables.append(replace(table, truth=truth._replace(asked=kind, rate=judged.rate)))
    return replace(log, tables=tuple(tables))


def compared(asked: LogAsked) -> LogAsked:
    """Return the options that read a log without its labels: an output is right if it equals the reference's."""
    if isinstance(asked.source, Log) or asked.reference is not None:
        return asked
    from cascade.episodes.truth import GUIDE

    return asked._replace(reference=asked.named[-1] if asked.named else GUIDE)
