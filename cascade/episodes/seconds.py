"""Price the time of calls: add a price for each second of a logged call to its cost in money.

A fit reads costs only. So this module turns a log with call durations into one in which a step costs its money plus a
price for each second, for steps and for the walks of single models. The cost that a policy sees as a feature stays
money.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError

_NANO = 1_000_000_000
Taken: TypeAlias = Mapping[tuple[str, str | None, int], float]
"""Seconds by episode, walk and step, if every call of it has a duration."""


def seconds_of(rows: Iterable[Mapping[str, Any]]) -> Taken:
    """Return how long each logged step took: the sum over its calls, NaN if one has no duration."""
    found: defaultdict[tuple[str, str | None, int], float] = defaultdict(float)
    for row in rows:
        if row["step"] is not None:
            taken = row["latency_ms"]
            found[row["episode_id"], row["walk"], row["step"]] += np.nan if taken is None else taken / 1_000
    return found


def with_seconds(table: EpisodeTable, taken: Taken, usd_a_second: float) -> EpisodeTable:
    """Return the questions with costs that include a price per second."""
    if not 0 < usd_a_second < np.inf:
        raise UsageError(f"The price of a second of waiting must be above 0 USD, not {usd_a_second:g}.")
    steps = _steps(table, taken)
    on_record = np.arange(table.arrays.horizon) < table.arrays.steps[:, None]
    lacking = int(np.isnan(steps[on_record]).sum())
    if lacking:
        raise UsageError(
            f"{lacking:,} logged steps of {table.dataset} have no duration (column latency_ms), so waiting cannot be "
            "priced."
        )
    price = usd_a_second * _NANO
    walks = {}
    for name, walk in table.walks.items():
        whole = _walk(table, taken, name, steps)
        if whole is not None:
            walks[name] = replace(walk, cost=walk.cost + np.rint(price * whole).astype(np.int64))
    if not walks and table.walks:
        raise UsageError(f"{table.dataset} has no durations of its models alone, so waiting times cannot be compared.")
    cost = table.arrays.cost + np.rint(price * np.where(on_record, steps, 0.0)).astype(np.int64)
    return replace(table, arrays=replace(table.arrays, cost=cost), walks=walks)


def clocked(table: EpisodeTable, taken: Taken) -> EpisodeTable:
    """Return the questions with nanoseconds for costs; a policy's cost features stay in money.

    Seconds of a step that is recorded must be known, as `with_seconds` makes sure.
    """
    steps = np.nan_to_num(_steps(table, taken))
    return replace(table, arrays=replace(table.arrays, cost=np.rint(_NANO * steps).astype(np.int64)))


def _steps(table: EpisodeTable, taken: Taken) -> Floats:
    numbers = range(1, table.arrays.horizon + 1)
    return np.array([[taken.get((one, None, number), np.nan) for number in numbers] for one in table.ids])


def _walk(table: EpisodeTable, taken: Taken, name: str, steps: Floats) -> Floats | None:
    """Return how long a walk took, (n,), 0 if it is not recorded; None if the log has no durations."""
    walk = table.walks[name]
    by_name: dict[str, float] = defaultdict(float)
    for (one, which, _), spent in taken.items():
        if which == name:
            by_name[one] += spent
    found = np.array([by_name.get(one, np.nan) for one in table.ids])
    if not by_name:  # the first model alone, or the last, is one of the steps, at the same price
        same = [np.array_equal(walk.cost[walk.known], table.arrays.cost[walk.known, at]) for at in (0, -1)]
        found = steps[:, 0] if same[0] else steps[:, -1] if same[1] else found
    whole = np.where(walk.known, found, 0.0)
    return None if np.isnan(whole).any() else np.asarray(whole)
