"""Results of several ways to answer on the test questions of many splits: means, and differences to a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import Baseline, Clairvoyant, clairvoyant
from cascade.evaluation.evaluate import play_policy
from cascade.evaluation.splits import Interval, corrected_interval
from cascade.guarantees.base import Guarantee
from cascade.policies.base import Policy
from cascade.training.choice.simple import PER_RUNG

POLICY = "certified policy"


class Way(NamedTuple):
    """Means over the splits' test questions of one way to answer: the certified policy, or a baseline.

    Attributes:
        name: what it is called.
        cost_usd: a question's cost; None where costs are not known.
        accuracy: the share whose one answer is right.
        broken: the share that counts against the promise.
        in_set: the share with a right answer among those kept.
        length: steps.
        answers: different answers kept.
        saving: what it saves, as a share of the reference's cost, paired over the splits; None for the reference.
        accuracy_gap: its accuracy less the reference's, paired; None for the reference.
    """

    name: str
    cost_usd: float | None
    accuracy: float
    broken: float
    in_set: float
    length: float
    answers: float
    saving: Interval | None = None
    accuracy_gap: Interval | None = None


class Coin(NamedTuple):
    """A coin between two baselines, which breaks the promise as often as the policy does.

    The coin's saving comes only from breaking the promise that often. A policy that saves no more than the coin has
    learned nothing that is worth money.

    Attributes:
        one, other: the two baselines; the same where one of them alone does.
        share: of the questions that the other one answers.
        saving: what it saves, as a share of the reference's cost.
        accuracy: the share whose one answer is right.
        ahead: what the policy saves more, paired over the splits.
    """

    one: str
    other: str
    share: float
    saving: float
    accuracy: float
    ahead: Interval


class Figures(NamedTuple):
    """The figures of one way for each question: float64 (n,), NaN where unknown or where the promise says nothing."""

    cost: Floats
    right: Floats
    broken: Floats
    in_set: Floats
    length: Floats
    answers: Floats

    def take(self, rows: Ints | Bools) -> Figures:
        """Return the chosen questions."""
        return Figures(*(column[rows] for column in self))


def mean_of(column: Floats) -> float:
    """Return the mean of the known values; NaN if none is known."""
    known = column[~np.isnan(column)]
    return float(known.mean()) if known.size else np.nan


@dataclass(frozen=True, slots=True)
class Measuring:
    """Questions and the promise that they count against.

    Attributes:
        table: the questions.
        guarantee: the promise.
        reference: what savings are held against.
        promised: the reference of the promise, whatever savings are held against, where it needs one.
    """

    table: EpisodeTable
    guarantee: Guarantee
    reference: Baseline
    promised: Baseline

    def take(self, rows: Ints | Bools) -> Measuring:
        """Return the chosen questions."""
        return Measuring(self.table.take(rows), self.guarantee, self.reference.take(rows), self.promised.take(rows))

    def of_way(self, way: Baseline) -> Figures:
        """Return the figures of a baseline. The reference's own answers never break a promise that it always keeps."""
        lost = self._broken(way.right, way.in_set)
        if way.name == self.promised.name and self.guarantee.rules.reference_keeps_it:
            lost = np.minimum(lost, 0.0)
        columns = (way.cost, self._right(way.right), lost, way.in_set, way.length, way.answers)
        return Figures(*(np.where(way.known, column, np.nan) for column in columns))

    def of_policy(self, policy: Policy, rows: Ints) -> Figures:
        """Return what a policy did, at its certified thresholds, on some of the questions."""
        played = play_policy(self.table.take(rows), policy)
        lost, right = self._broken(played.right > 0, played.in_set > 0, rows), self._right(played.right, rows)
        return Figures(played.cost, right, lost, played.in_set, played.length, played.distinct)

    def bound(self) -> Clairvoyant:
        """Return the cost of the promise for a policy that knows every answer beforehand."""
        labels, one = self.table.labels, self
        if labels is not None:  # of the questions that were not drawn for review it is not known what is lost
            one = self.take(labels.drawn)
        found = clairvoyant(one.table, self.guarantee.rules, self.guarantee.alpha or 0.0, one.promised.right)
        assert found is not None  # noqa: S101 - `_broken` has refused what cannot be told
        return found

    def _right(self, right: Bools | Floats, rows: Ints | None = None) -> Floats:
        """Return which answers served are right; NaN where a question was not drawn for review."""
        labels = self.table.labels
        if labels is None:
            return np.asarray(right, dtype=np.float64)
        return np.where(labels.drawn if rows is None else labels.drawn[rows], right, np.nan)

    def _broken(self, right: Bools, in_set: Bools, rows: Ints | None = None) -> Floats:
        table = self.table if rows is None else self.table.take(rows)
        reference = self.promised.right if rows is None else self.promised.right[rows]
        found = self.guarantee.rules.broken(table, right, in_set, reference)
        if found is None:
            raise UsageError(f"{self.guarantee.kind} does not say which baselines break it (Kind.broken).")
        return found


@dataclass(slots=True)
class SplitResults:
    """One way's figures, an entry a split."""

    means: list[list[float]] = field(default_factory=list)
    savings: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)

    @property
    def accuracy(self) -> float:
        """The mean share whose one answer is right."""
        return float(np.mean([means[1] for means in self.means]))

    @property
    def broken(self) -> float:
        """The mean share that counts against the promise."""
        return float(np.mean(self.losses))

    @property
    def losses(self) -> list[float]:
        """The share that counts against the promise in each split."""
        return [means[2] for means in self.means]

    def add(self, did: Figures, reference: Figures) -> None:
        """Add a split's test questions, paired with the reference's on those that both are known for."""
        known = ~(np.isnan(did.cost) | np.isnan(reference.cost))
        if not known.any():
            return
        self.means.append([mean_of(column) for column in did])
        paid = float(reference.cost[known].sum())
        self.savings.append(1 - float(did.cost[known].sum()) / paid if paid > 0 else np.nan)
        self.gaps.append(mean_of(did.right - reference.right))

    def way(self, name: str, sizes: tuple[int, int], *, paired: bool) -> Way:
        """Return the means with the differences to the reference; without them if `paired` is False (the reference)."""
        cost, right, broken, in_set, length, answers = np.array(self.means).mean(axis=0).tolist()

        def interval(values: list[float]) -> Interval | None:
            known = paired and not np.isnan(values).any()
            return corrected_interval(values, n_train=sizes[0], n_test=sizes[1]) if known else None

        gaps = interval(self.savings), interval(self.gaps)
        return Way(name, cost / 1e9, right, broken, in_set, length, answers, *gaps)


def coin_of(results: Mapping[str, SplitResults], sizes: tuple[int, int]) -> Coin | None:
    """Return the cheapest coin that breaks the promise as often as the policies do, on average over the splits.

    The coin chooses between two ways to answer that look at no signal.
    """
    policy = results[POLICY]
    blind = {name: one for name, one in results.items() if name not in {POLICY, PER_RUNG}}
    ways = [(name, one) for name, one in blind.items() if len(one.means) == len(policy.means)]
    best: tuple[float, str, str, float] | None = None
    for (one, first), (other, second) in combinations_with_replacement(ways, 2):
        share = _weight(first.broken, second.broken, policy.broken)
        if share is not None:
            saving = float((1 - share) * np.mean(first.savings) + share * np.mean(second.savings))
            best = max(best or (saving, one, other, share), (saving, one, other, share), key=lambda found: found[0])
    if best is None:
        return None
    saving, one, other, share = best
    first, second = results[one], results[other]
    ahead = [
        own - a - (b - a) * _tossed(share, lost, first.broken, second.broken)
        for own, lost, a, b in zip(policy.savings, policy.losses, first.savings, second.savings, strict=True)
    ]
    accuracy = (1 - share) * first.accuracy + share * second.accuracy
    return Coin(one, other, share, saving, accuracy, corrected_interval(ahead, n_train=sizes[0], n_test=sizes[1]))


def _tossed(share: float, lost: float, one: float, other: float) -> float:
    """Return the coin's share in one split: the coin then breaks the promise as often as the split's policy (`lost`).

    The share is linear in `lost`, so its mean over the splits is the coin's share. A policy that breaks the promise
    more often in one split is compared with a coin that does so too.
    """
    return (lost - one) / (other - one) if 0 < share < 1 else share


def _weight(one: float, other: float, target: float) -> float | None:
    """Return the share of `other` in a mixture with mean `target`.

    None if both exceed the target. If neither does, return 0 or 1: whichever is the larger of the two is taken alone.
    """
    if one <= target and other <= target:
        return 0.0 if one >= other else 1.0
    if min(one, other) > target:
        return None
    return (target - one) / (other - one)
