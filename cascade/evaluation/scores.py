"""A live policy's scores on logged steps: the same policy object that serves, shown the log instead of models."""

from __future__ import annotations

import math

import numpy as np

from cascade.conformal.arrays import ScoreArrays
from cascade.episodes.table import EpisodeTable
from cascade.policies.base import Observation, Policy
from cascade.types import Candidate, Question, Step


def table_scores(policy: Policy, table: EpisodeTable) -> ScoreArrays:
    """Return a policy's scores on every step of every question, in O(nT) calls of the policy.

    A policy sees the signals, the sources and confidences of the candidates, and which of them are the same answer;
    not the texts, which a table does not hold.
    """
    shape = table.arrays.answer.shape
    candidates, onward = np.full(shape, -np.inf), np.full(shape[:2], -np.inf)
    for row in range(table.n):
        steps = _steps(table, row)
        question = Question(table.ids[row])
        for t in range(len(steps)):
            found = policy.scores(Observation(question, steps[: t + 1], len(steps)))
            places = np.flatnonzero(table.arrays.present[row, t])
            candidates[row, t, places] = found.candidates
            onward[row, t] = found.next
    return ScoreArrays(candidates, onward)


def _steps(table: EpisodeTable, row: int) -> tuple[Step, ...]:
    """Return one question's steps as a policy sees them."""
    found = []
    for t in range(int(table.arrays.steps[row])):
        made = tuple(
            Candidate(f"answer {table.arrays.answer[row, t, a]}", source, source, _known(table.confidence[row, t, a]))
            for a, source in enumerate(table.sources)
            if table.arrays.present[row, t, a]
        )
        numbers = {name: _known(values[row, t]) for name, values in table.signals.items()}
        found.append(Step(t + 1, made, numbers))
    return tuple(found)


def _known(value: float) -> float | None:
    return None if math.isnan(value) else float(value)
