"""A bridge to logs that are still read as `EpisodeTable`: at most 80 lines, gone when rows are read as a `Log`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.guarantees.questions import ends_in_reference, has_reference, reference_walk
from cascade.house.simple import TIE
from cascade.policies.base import History
from cascade.table import Baseline, Floats, Log, Node, Reference


def log_of(table: EpisodeTable) -> Log:
    """Return the same requests as a `Log`: the candidates of a step become its nodes.

    A step's cost and signals, which a table has once a step, are those of its last node.
    """
    arrays, places = table.arrays, len(table.sources)
    each = [(t, source) for t in range(arrays.horizon) for source in table.sources]
    alone = () if places == 1 and table.step_models else None
    names = [table.step_names[t] if places == 1 else f"round {t + 1} {source}" for t, source in each]
    if len(set(names)) < len(names):
        names = [f"{name} {place + 1}" for place, name in enumerate(names)]
    history = History(
        table.sources, arrays.answer, table.texts_known, table.confidence, table.signals, table.asked, table.paid,
        table.tokens, arrays.steps, arrays.complete, table.bought, table.questions,
    )  # fmt: skip
    log = seen(history, [Node(name, t, reads=alone) for name, (t, _) in zip(names, each, strict=True)])
    right, labels = np.where(log.answers, arrays.correct.reshape(log.answer.shape), np.nan), table.labels
    if labels is not None:
        right = np.where(labels.unjudged.reshape(right.shape), np.nan, right)
    return replace(
        log,
        name=table.dataset,
        ids=table.questions,
        groups=table.groups,
        right=right,
        segments=table.segments,
        drawn=None if labels is None else labels.drawn,
        baselines={name: _baseline(table, name) for name in table.walks if name != _reference_name(table)},
        reference=_reference(table) if has_reference(table) else None,
    )


def seen(history: History, nodes: Sequence[Node]) -> Log:
    """Return the columns of a log that a policy may read, without what is right and who asked."""
    n, horizon, places = history.answer.shape
    shape = n, horizon * places
    if len(nodes) != shape[1]:
        raise UsageError(f"The plan has {len(nodes)} nodes, and the log {shape[1]}.")
    there = np.stack([history.has(t + 1) for t in range(horizon)], axis=1)
    bought, cost, unknown = np.repeat(there, places, axis=1), history.cost, np.full(shape, np.nan)
    paid = np.zeros(shape, dtype=np.int64)
    paid[:, places - 1 :: places] = np.where(np.isnan(cost), np.where(there, -1, 0), np.nan_to_num(cost))
    signals = {name: _at_last(values, places) for name, values in history.signals.items()}
    if TIE not in signals and not np.isnan(history.tokens).all():
        signals[TIE] = _at_last(history.tokens, places)
    return Log(
        name="log",
        nodes=tuple(nodes),
        ids=history.ids or ("",) * n,
        groups=("",) * n,
        answer=np.where(bought, history.answer.reshape(shape), -1),
        right=unknown,
        cost_nano_usd=np.where(bought, paid, 0),
        bought=bought,
        complete=history.complete,
        confidence=history.confidence.reshape(shape),
        signals=signals,
        features=history.asked,
        texts_known=history.texts_known,
    )


def _at_last(values: Floats, places: int) -> Floats:
    """Return a column of steps as one of nodes: at the last node of each step, NaN elsewhere."""
    spread = np.full((values.shape[0], values.shape[1] * places), np.nan)
    spread[:, places - 1 :: places] = values
    return spread


def _reference_name(table: EpisodeTable) -> str | None:
    return reference_walk(table) if has_reference(table) else None


def _baseline(table: EpisodeTable, name: str) -> Baseline:
    walk = table.walks[name]
    cost = np.where(walk.known & table.priced, walk.cost, -1)
    return Baseline(walk.known, walk.covered, walk.right.astype(np.float64), cost, walk.length, walk.distinct)


def _reference(table: EpisodeTable) -> Reference:
    walk = table.walks[reference_walk(table)]
    unsure = ~walk.known | (~table.texts_known & (walk.leaves > 2))
    right = np.where(unsure, np.nan, walk.right.astype(np.float64))
    return Reference(right, np.where(walk.known & table.priced, walk.cost, -1), ends_in_reference(table))
