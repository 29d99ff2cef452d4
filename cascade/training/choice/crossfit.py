"""Cross-fitting: the scores of each question by a policy that was made without it and without its group.

Fold by fold, and in each candidate by candidate: those that are fitted to the same table share what they make of it.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from cascade.calibration.scores import Sample, sample_of, taken
from cascade.conformal.arrays import Ints, ScoreArrays
from cascade.conformal.rollout import levels, rollout
from cascade.episodes.table import EpisodeTable
from cascade.errors import CascadeError
from cascade.policies.base import Policy
from cascade.policies.learned import LearnedPolicy


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to make a policy from training questions.

    Attributes:
        name: what it is called in the table.
        method: what `policies.learned` calls it.
        complexity: of candidates that do as well the one of the least is chosen.
        fit: makes the policy, as far as the choice looks at it; the same questions give the same one.
        finish: makes it whole, where the choice does without a part; None = `fit` does.
        most_rows: questions that the choice fits it on, of each fold's; None = all. The winner is fitted on all.
    """

    name: str
    method: str
    complexity: int
    fit: Callable[[EpisodeTable], LearnedPolicy]
    most_rows: int | None = None
    finish: Callable[[EpisodeTable], LearnedPolicy] | None = None

    def whole(self, table: EpisodeTable) -> LearnedPolicy:
        """Make the policy that is served."""
        return (self.fit if self.finish is None else self.finish)(table)


class Held(NamedTuple):
    """A candidate out of fold: the questions with its scores, what it covers at its own threshold, the time it took."""

    sample: Sample
    coverage: float
    seconds: float


def cross_fitted(
    table: EpisodeTable, candidates: Sequence[Candidate], fold: Ints
) -> tuple[dict[str, Held], dict[str, str]]:
    """Return each candidate's scores of each question by a model that saw neither it nor anything of its fold.

    Also returned is why those that cannot be fitted cannot, by name.
    """
    blanks, failed = {one.name: _Blank(table) for one in candidates}, dict[str, str]()
    for some in _folds(table, fold):
        for one in candidates:
            if one.name not in failed:
                try:
                    blanks[one.name].fill(one, some)
                except CascadeError as error:
                    failed[one.name] = str(error)
    return {name: blank.held() for name, blank in blanks.items() if name not in failed}, failed


class _Fold:
    """Questions to score, int64 rows, and those to fit on: the same tables for all candidates."""

    def __init__(self, table: EpisodeTable, fold: Ints, number: int) -> None:
        self.rows = np.flatnonzero(fold == number)
        self.part = table.take(self.rows)
        self._whole, self._seen = table, np.flatnonzero(fold != number)
        self._tables: dict[int | None, EpisodeTable] = {}

    def to_fit(self, most: int | None) -> EpisodeTable:
        """Return the questions to fit on, at most so many."""
        if most is not None and self._seen.size <= most:
            most = None
        if most not in self._tables:
            few = self._seen if most is None else _fewer(self._whole, self._seen, most)
            self._tables[most] = self._whole.take(few)
        return self._tables[most]


def _folds(table: EpisodeTable, fold: Ints) -> Iterator[_Fold]:
    for number in range(int(fold.max()) + 1):
        yield _Fold(table, fold, number)


class _Blank:
    """A candidate's scores out of fold, as far as they are filled in."""

    def __init__(self, table: EpisodeTable) -> None:
        self._whole = table
        self._table: EpisodeTable | None = None
        self._covered, self._seconds = 0, 0.0

    def _room(self, policy: Policy) -> EpisodeTable:
        """Return the steps that the policy takes, with room for their scores, made at the first fold."""
        if self._table is None:
            self._table = taken(policy, self._whole)
            self._confidence = self._table.confidence.copy()
            self._scores = ScoreArrays(np.empty_like(self._confidence), np.empty_like(self._table.paid))
        return self._table

    def fill(self, candidate: Candidate, some: _Fold) -> None:
        """Fit, and score the questions of a fold."""
        started = time.perf_counter()
        policy = candidate.fit(some.to_fit(candidate.most_rows))
        part, rows = sample_of(some.part, policy), some.rows
        self._room(policy)
        self._confidence[rows] = part.table.confidence
        self._scores.candidates[rows], self._scores.next[rows] = part.scores
        self._covered += int(np.count_nonzero(rollout(part.table.arrays, part.levels, policy.kappa).covered))
        self._seconds += time.perf_counter() - started

    def held(self) -> Held:
        """Return what was filled in, of all folds."""
        assert self._table is not None  # noqa: S101 - every fold was filled
        found = replace(self._table, confidence=self._confidence)
        sample = Sample(found, self._scores, levels(found.arrays, self._scores))
        return Held(sample, self._covered / found.n, self._seconds)


def _fewer(table: EpisodeTable, rows: Ints, most: int) -> Ints:
    """Return at most so many rows, whole groups; one group where each alone has more.

    Group after group by a hash of their names, passing over those that are too large for what is left.
    """
    if rows.size <= most:
        return rows
    size = Counter([table.groups[row] for row in rows.tolist()])
    order = sorted(size, key=_hash)
    kept, left = set[str](), most
    for group in order:
        if size[group] <= left:
            kept.add(group)
            left -= size[group]
    chosen = kept or {order[0]}
    return rows[np.fromiter((table.groups[row] in chosen for row in rows.tolist()), dtype=np.bool_, count=rows.size)]


def _hash(name: str) -> bytes:
    """Return what settles a group's turn: fixed by its name, and foretold by nothing else."""
    return hashlib.sha256(f"fewer|{name}".encode("utf-8", "replace")).digest()
