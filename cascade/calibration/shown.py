"""Count how many answers and which signals the questions of a log had at each step. `policies.scope` reads it."""

from __future__ import annotations

from typing import Any

import numpy as np

from cascade.conformal.arrays import Bools
from cascade.episodes.table import EpisodeTable
from cascade.policies.scope import Scope, usual


def shown(table: EpisodeTable) -> list[dict[str, Any]]:
    """Return what each step showed, as plain JSON values: one `policies.scope.Shown` for each step.

    A question counts at the steps that the log has of it.
    """
    answers = table.arrays.present.sum(axis=2)
    known = {name: ~np.isnan(values) for name, values in sorted(table.signals.items())}
    found = list[dict[str, Any]]()
    for t in range(table.arrays.horizon):
        there = table.arrays.steps > t
        step = dict[str, Any]()
        for many in np.unique(answers[there, t]).tolist():
            rows = there & (answers[:, t] == many)
            counts = {name: int(np.count_nonzero(have[rows, t])) for name, have in known.items()}
            step[str(many)] = {
                "of": int(np.count_nonzero(rows)),
                "signals": {name: count for name, count in counts.items() if count},
            }
        found.append(step)
    return found


def odd(table: EpisodeTable, scope: Scope) -> Bools:
    """Return which questions of a log have an odd step, bool (n,): `Scope.odd`."""
    found = np.zeros(table.n, dtype=np.bool_)
    answers = table.arrays.present.sum(axis=2)
    for t, at in enumerate((scope.shown or ())[: table.arrays.horizon]):
        there = table.arrays.steps > t
        for name, kind in at.items():
            rows = there & (answers[:, t] == int(name))
            if int(name) < usual(at):
                found |= rows
                continue
            for signal in scope.reads:
                if kind["of"] < 2 * kind["signals"].get(signal, 0) < 2 * kind["of"]:
                    found |= _lacking(table, signal, t, rows)
    return found


def _lacking(table: EpisodeTable, signal: str, t: int, rows: Bools) -> Bools:
    """Return which of the questions in `rows` lack a signal at a step."""
    values = table.signals.get(signal)
    return rows if values is None else rows & np.isnan(values[:, t])


def outside(table: EpisodeTable, scope: Scope) -> Bools:
    """Return which questions of a log have a step that the certificate does not cover, bool (n,): `Scope.outside`.

    If the certificate does not say what its calibration questions showed, all are taken to be covered.
    """
    found = np.zeros(table.n, dtype=np.bool_)
    if scope.shown is None:
        return found
    answers = table.arrays.present.sum(axis=2)
    for t in range(table.arrays.horizon):
        held = scope.shown[t] if t < len(scope.shown) else {}
        there = table.arrays.steps > t
        for many in np.unique(answers[there, t]).tolist():
            rows = there & (answers[:, t] == many)
            kind = held.get(str(many))
            if kind is None:
                found |= rows
                continue
            for name in scope.reads:
                if kind["signals"].get(name, 0) == kind["of"]:
                    found |= _lacking(table, name, t, rows)
    return found
