"""A log with people's judgements as its truth: an output is "right" if serving it loses nothing.

It loses nothing if it equals the reference's output, or if it was judged and found no loss. Every other output counts
as a loss, unless its question was not drawn: a calibration leaves that out, and tests the drawn ones at alpha times the
share drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from cascade.conformal.labels import is_drawn
from cascade.episodes.schema import Dropped
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.guarantees.base import get
from cascade.guarantees.questions import Labels
from cascade.house.reading import Judgements
from cascade.review.pairs import Compared, Episode, PairId, digest_of, place_of
from cascade.review.reviews import Reviews, Terms

Harmless = Callable[[tuple[str, str], int], bool]
"""Whether an output, given by its number and the episode of a data set, loses nothing."""


def tables_with(compared: Compared, harmless: Harmless) -> list[EpisodeTable]:
    """Return a log's tables, in which an output is right if it equals the reference's or is harmless."""
    left_out = Dropped()
    rows = (
        row if number < 0 else {**row, "correct": harmless(place_of(row), number)}
        for row, number in _numbered(compared, left_out)
    )
    tables = tables_from_rows(rows, left_out)
    return [replace(table, truth=compared.relabelled.truths[table.dataset]) for table in tables]


def _numbered(compared: Compared, dropped: Dropped) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield the rows, each with the number of its output among those that differ; −1 for another row."""
    for row in compared.relabelled.rows(dropped):
        one = compared.episodes.get(place_of(row))
        differs = one is not None and row["answer"] is not None and row["correct"] is False
        yield row, one.numbers.get(digest_of(row["answer"]), -1) if one is not None and differs else -1


def verdicts_of(one: Episode, losses: Mapping[PairId, bool]) -> list[bool | None]:
    """Return, for each differing output of an episode, whether it was judged a loss; None without a judgement."""
    if one.reference is None:
        return [None for _ in one.kinds()]
    reference = one.reference.digest
    said = [
        [losses[pair] for digest in kind if (pair := PairId(one.question, digest, reference)) in losses]
        for kind in one.kinds()
    ]
    return [any(each) if each else None for each in said]


def labelled_by_reviews(
    compared: Compared, reviews: Sequence[Reviews], kind: str, rate: float | None = None
) -> list[EpisodeTable]:
    """Return a log's tables with people's judgements as the truth.

    Args:
        compared: the log.
        reviews: the judgements, all drawn with the same key. If reviewers differ, the output is a loss.
        kind: the kind of loss, "preference" or "regret".
        rate: the share of the questions whose judgements count; by default all that were drawn.

    Raises:
        UsageError: the reviews have another comparator or another draw, or did not ask for this kind of loss.
    """
    terms = _terms(compared, reviews, kind)
    share = terms.rate if rate is None else rate
    losses: dict[PairId, bool] = {}
    for held in reviews:
        for pair, lost in held.losses(kind).items():
            losses[pair] = losses.get(pair, False) or lost
    said = {place: verdicts_of(one, losses) for place, one in compared.episodes.items()}
    tables = tables_with(compared, lambda place, number: said[place][number] is False)
    coded = tables_from_rows(_coded(compared, said))
    return [_with_labels(*each, said, kind, share, terms.key) for each in zip(tables, coded, strict=True)]


def judgements(compared: Compared, reviews: Sequence[Reviews], kind: str, rate: float | None = None) -> Judgements:
    """Return what people judged, to read a log by (`house.reading.reviewed`). Arguments and errors as above."""
    terms = _terms(compared, reviews, kind)
    share = terms.rate if rate is None else rate
    losses: dict[PairId, bool] = {}
    for held in reviews:
        for pair, lost in held.losses(kind).items():
            losses[pair] = losses.get(pair, False) or lost
    said = {place: verdicts_of(one, losses) for place, one in compared.episodes.items()}

    def loses(row: Mapping[str, Any]) -> bool | None:
        number = compared.episodes[place_of(row)].numbers.get(digest_of(row["answer"]), -1)
        return True if number < 0 else said[place_of(row)][number]

    return Judgements(kind, share, lambda name: is_drawn(terms.key, name, share), loses)


_JUDGED, _UNJUDGED = 0.0, 1.0


def _coded(compared: Compared, said: Mapping[tuple[str, str], list[bool | None]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows with a mark, in the column of the confidence, of whether a differing answer was judged.

    A table stores each confidence at its answer's position, so the same code finds the position of every mark.
    """
    for row, number in _numbered(compared, Dropped()):
        judged = None if number < 0 else said[place_of(row)][number] is not None
        yield {**row, "confidence": None if judged is None else _JUDGED if judged else _UNJUDGED}


def _with_labels(
    table: EpisodeTable,
    coded: EpisodeTable,
    said: Mapping[tuple[str, str], list[bool | None]],
    kind: str,
    rate: float,
    key: str,
) -> EpisodeTable:
    drawn = np.array([is_drawn(key, question, rate) for question in table.questions], dtype=np.bool_)
    verdicts = [said.get((table.dataset, name), []) for name in table.ids]
    unsaid = np.array([any(one is None for one in each) for each in verdicts], dtype=np.bool_)
    assert table.truth is not None  # noqa: S101 - `tables_with` has set it
    labels = Labels(drawn, unsaid, coded.confidence == _JUDGED, coded.confidence == _UNJUDGED)
    return replace(table, truth=table.truth._replace(asked=kind, rate=rate), labels=labels)


def _terms(compared: Compared, reviews: Sequence[Reviews], kind: str) -> Terms:
    """Return the terms of the reviews; refuse reviews that do not fit the request."""
    terms = reviews[0].terms
    problems = []
    if any(one.terms.rate != terms.rate or (one.terms.key != terms.key and terms.rate < 1) for one in reviews):
        problems.append("the files of reviews have different draws; give files of one draw")
    if any(one.terms.matcher != compared.comparator for one in reviews):
        problems.append(f"the reviews compare outputs by {terms.matcher}, the log by {compared.comparator}: --matcher")
    if get(kind).labelled and any(one.terms.ask == "preference" for one in reviews):
        problems.append(f"{kind} needs right or wrong for both outputs, and the reviews asked only which is better")
    if not get(kind).reviewed:
        problems.append(f"reviews do not determine {kind}; ask for --promise regret or preference")
    if problems:
        raise UsageError(f"These reviews cannot be used: {'; '.join(problems)}.")
    return terms
