"""Recorded walks: the results of other ways to answer the same requests, such as asking only the guide."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cascade.episodes.steps import first_of, summed
from cascade.logs.columns import Calls
from cascade.logs.schema import Dropped
from cascade.table import Baseline, Bools, Floats, Ints

_REASONS = (
    "neither an answer nor a reply is recorded",
    "it has several answers, one of them with a null candidate",
    "it has several answers, and kept is null for one of them",
    "it is unknown whether its answer is right",
)


def baseline_of(
    name: str, calls: Calls, at: Ints, row: Ints, episodes: Sequence[str], unjudged: bool, dropped: Dropped
) -> tuple[Baseline, Ints]:
    """Return what a walk did on each episode, and how many answers it kept there.

    An episode for which its result is unknown is left out and counted.

    Args:
        name: the walk's name.
        calls: the calls of the log.
        at: the numbers of the walk's calls, ascending.
        row: the episode of each call, as its index in `episodes`.
        episodes: the names of the episodes.
        unjudged: whether answers without a label are accepted.
        dropped: counts what is left out.
    """
    n, column, step = len(episodes), calls.columns, np.maximum(calls.columns["step"][at], 1)
    gives = np.flatnonzero(calls.flags["answers"][at])
    # if an answer has several rows, the first counts, and for `kept` the first that has a value
    first, group = first_of(row[gives], step[gives], column["candidate"][at[gives]] + 1)
    answer, of, candidate = at[gives[first]], row[gives[first]], column["candidate"][at[gives[first]]]
    flags, keeps = column["kept"][at[gives]], np.full(first.size, -1)
    keeps[group[flags >= 0][::-1]] = flags[flags >= 0][::-1]
    right, served = calls.right[answer], keeps != 0

    def rows_with(condition: Bools) -> Bools:
        return np.bincount(of[condition], minlength=n) > 0

    nameless = np.bincount(row[gives][column["candidate"][at[gives]] < 0], minlength=n)
    # The only answer of a walk was served, even if `kept` is null. If there are several answers, each needs a `kept`.
    several = (np.bincount(of, minlength=n) > 1) | (nameless > 1)
    replied = np.bincount(row[calls.flags["replied"][at]], minlength=n) > 0
    tests = (
        ~rows_with(of >= 0) & ~replied,
        several & (nameless > 0),
        several & rows_with(keeps < 0),
        rows_with(served & np.isnan(right)) & (not unjudged),
    )
    logged = np.bincount(row, minlength=n) > 0
    reason = np.where(logged, np.select(tests, range(len(tests)), -1), -1)
    for episode in np.flatnonzero(reason >= 0).tolist():
        text = f"a walk {name!r} is left out of its episode: {_REASONS[reason[episode]]}"
        dropped.note(text, episodes[episode])
    known, length = logged & (reason < 0), np.zeros(n, dtype=np.int64)
    np.maximum.at(length, row, step)
    # without texts, all right answers are equal
    place = step[gives[first]] * (int(candidate.max(initial=0)) + 1) + np.maximum(candidate, 0)
    key, size = column["key"][answer], int(column["key"].max(initial=0)) + 1
    spelling = np.where(key >= 0, key, np.where(right == 1, size, size + 1 + place))
    pairs, _ = first_of(of[served], spelling[served])
    pool = served | ~rows_with(served)[of]
    baseline = Baseline(
        known,
        known & rows_with(served & (right == 1)),
        np.where(known, _served_right(n, of[pool], spelling[pool], answer[pool], calls), np.nan),
        np.where(known, summed(column["cost"][at], row, n), -1),
        np.where(known, length, 0),
        np.where(known, np.bincount(of[served][pairs], minlength=n), 0),
    )
    return baseline, np.where(known, np.bincount(of[served], minlength=n), 0)


def _served_right(n: int, row: Ints, spelling: Ints, answer: Ints, calls: Calls) -> Floats:
    """Return whether the answer to be served is right: the most confident, then the most frequent, then the latest."""
    sure = np.nan_to_num(calls.confidence[answer], nan=-1.0)
    first, group = first_of(row, spelling)
    surest, latest = np.full(first.size, -np.inf), np.zeros(first.size, dtype=np.int64)
    np.maximum.at(surest, group, sure)
    np.maximum.at(latest, group, np.maximum(calls.columns["step"][answer], 1))
    order = np.lexsort((first, -latest, -np.bincount(group, minlength=first.size), -surest, row[first]))
    best = order[np.unique(row[first][order], return_index=True)[1]]
    right = np.zeros(n)
    is_best = np.isin(group, best) & (sure == surest[group])
    chosen = np.flatnonzero(is_best)[::-1]
    right[row[chosen]] = calls.right[answer[chosen]]  # the first counts
    return right
