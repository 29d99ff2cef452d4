"""A bridge to logs that are still read as `EpisodeTable`: at most 80 lines, gone when rows are read as a `Log`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from cascade.episodes.table import EpisodeTable
from cascade.guarantees.questions import ends_in_reference, has_reference, reference_walk
from cascade.house.simple import TIE
from cascade.table import Baseline, Floats, Log, Node, Reference


def log_of(table: EpisodeTable) -> Log:
    """Return the same requests as a `Log`: the candidates of a step become its nodes.

    A step's cost and signals, which a table has once a step, are those of its last node.
    """
    arrays = table.arrays
    n, horizon, places = arrays.answer.shape
    shape = n, horizon * places
    each = [(t, source) for t in range(horizon) for source in table.sources]
    alone = () if places == 1 and table.step_models else None
    names = [table.step_names[t] if places == 1 else f"round {t + 1} {source}" for t, source in each]
    nodes = [Node(name, t, reads=alone) for name, (t, _) in zip(names, each, strict=True)]
    there = np.stack([table.has(t + 1) for t in range(horizon)], axis=1)
    bought = np.repeat(there, places, axis=1)
    known = bought & (arrays.answer.reshape(shape) >= 0)
    right = np.where(known, arrays.correct.reshape(shape), np.nan)
    labels = table.labels
    if labels is not None:
        right = np.where(labels.unjudged.reshape(shape), np.nan, right)
    paid = np.zeros(shape, dtype=np.int64)
    paid[:, places - 1 :: places] = np.where(np.isnan(table.paid), np.where(there, -1, 0), np.nan_to_num(table.paid))
    log = Log(
        name=table.dataset,
        nodes=tuple(nodes),
        ids=table.questions,
        groups=table.groups,
        answer=np.where(known, arrays.answer.reshape(shape), -1),
        right=right,
        cost_nano_usd=np.where(bought, paid, 0),
        bought=bought,
        complete=arrays.complete,
        confidence=table.confidence.reshape(shape),
        signals={name: _at_last(values, places) for name, values in table.signals.items()},
        features=table.asked,
        segments=table.segments,
        drawn=None if labels is None else labels.drawn,
        texts_known=table.texts_known,
        baselines={name: _baseline(table, name) for name in table.walks if name != _reference_name(table)},
    )
    if TIE not in log.signals and not np.isnan(table.tokens).all():
        log = replace(log, signals={**log.signals, TIE: _at_last(table.tokens, places)})
    return log if not has_reference(table) else replace(log, reference=_reference(table))


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
