"""Grade each logged answer in 0..1, for when right or wrong is too coarse: the F1 of its words."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.episodes.schema import answers
from cascade.episodes.table import EpisodeTable
from cascade.episodes.tabulate import tables_from_rows
from cascade.errors import UsageError
from cascade.matching import Matcher, get_matcher
from cascade.matching.judging import judge_row

F1 = "f1"
"""The best F1 of the words over the accepted answers, as in SQuAD."""
_MATCHERS: Mapping[str, str] = {F1: "squad"}


def qualities(rows: Iterable[Mapping[str, Any]], tables: Sequence[EpisodeTable], measure: str = F1) -> list[Floats]:
    """Return the quality of every candidate of each table: float64 (n, T, m) in 0..1, NaN = unknown or no candidate.

    Args:
        rows: the rows of the tables, in any order; read once.
        tables: whole tables, as `tables_from_rows` made them; choose questions afterwards.
        measure: "f1", or a matcher's name for `matching.get_matcher`: its score is the quality ("hotpotqa") or, if it
            has none, 1 for right and 0 for wrong.

    Guarantee: a quality has the position of its candidate in the table's `StepArrays.answer`. It is unknown if the row
    has no answer text or no accepted answer, or the matcher cannot decide.

    Raises:
        UsageError: the measure does not exist, a table was not made from these rows, or it has no known quality.

    Reference: Rajpurkar et al., SQuAD (2016), `evaluate-v1.1.py`.

    >>> from cascade.episodes.schema import COLUMNS
    >>> log = [{**dict.fromkeys(COLUMNS), "episode_id": "q", "step": 1, "candidate": 0, "source": "base",
    ...         "answer": "the blue Danube", "gold": ["Danube"], "correct": False, "cost_nano_usd": 10}]
    >>> qualities(log, tables_from_rows(log))[0].round(3).tolist()
    [[[0.667]]]
    """
    matcher = get_matcher(_MATCHERS.get(measure, measure))
    wanted = {(table.dataset, name) for table in tables for name in table.ids}
    graded = {table.dataset: table for table in _tables(_graded(rows, wanted, matcher))}
    found = [_aligned(table, graded.get(table.dataset)) for table in tables]
    for table, quality in zip(tables, found, strict=True):
        if table.n and np.isnan(quality).all():
            raise UsageError(f"{table.dataset} has nothing to grade answers by: it needs the columns answer and gold.")
    return found


def _graded(
    rows: Iterable[Mapping[str, Any]], wanted: set[tuple[str, str]], matcher: Matcher
) -> Iterator[dict[str, Any]]:
    """Yield the steps' rows with the quality in place of the confidence.

    A table stores each candidate's confidence at its answer's position and does not use it otherwise. So the table of
    these rows has every quality in the right place, by the same code that placed the answers.
    """
    for number, row in enumerate(rows, 1):
        if row["walk"] is None and (row["dataset"] or "log", row["episode_id"]) in wanted:
            judged = {"confidence": _quality(row, number, matcher), "correct": False} if answers(row) else {}
            yield {**row, **judged}


def _quality(row: Mapping[str, Any], number: int, matcher: Matcher) -> float | None:
    verdict = judge_row(row, number, matcher)
    if verdict is None or (verdict.score is None and verdict.correct is None):
        return None
    return float(bool(verdict.correct)) if verdict.score is None else min(1.0, max(0.0, verdict.score))


def _tables(rows: Iterator[dict[str, Any]]) -> list[EpisodeTable]:
    first = next(rows, None)
    return [] if first is None else tables_from_rows(chain([first], rows))


def _aligned(table: EpisodeTable, graded: EpisodeTable | None) -> Floats:
    """Return the qualities in the order of a table's questions."""
    if not table.n:
        return np.full(table.arrays.answer.shape, math.nan)
    place = {} if graded is None else {name: i for i, name in enumerate(graded.ids)}
    if graded is not None and place.keys() == set(table.ids):
        order = np.array([place[name] for name in table.ids])
        if np.array_equal(graded.arrays.present[order], table.arrays.present):
            return np.asarray(graded.confidence[order], dtype=np.float64)
    raise UsageError(f"These are not the rows that the table {table.dataset} was made from.")
