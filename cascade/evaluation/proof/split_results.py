"""Results of several methods on the test questions of many splits: means, and differences to a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import NamedTuple

import numpy as np

from cascade.calibration.samples import PER_RUNG
from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.errors import UsageError
from cascade.evaluation.baselines import Baseline, Clairvoyant, clairvoyant
from cascade.evaluation.evaluate import play_policy
from cascade.evaluation.splits import Interval, OverSplits, corrected_interval
from cascade.guarantees.base import Guarantee
from cascade.policies.base import Policy

POLICY = "certified policy"


class Way(NamedTuple):
    """Means over the splits' test questions of one method: the certified policy, or a baseline.

    Attributes:
        name: its name.
        cost_usd: a question's cost; None if costs are unknown.
        accuracy: the share whose one answer is right.
        broken: the share that counts against the promise.
        in_set: the share with a right answer among those kept.
        length: steps.
        answers: different answers kept.
        saving: its saving, as a share of the reference's cost, paired over the splits; None for the reference.
        accuracy_gap: its accuracy minus the reference's, paired; None for the reference.
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
    """A random choice between two baselines ("coin") that breaks the promise as often as the policy does.

    The coin's saving comes only from breaking the promise that often. If a policy saves no more than the coin, its
    signals save nothing.

    Attributes:
        one, other: the two baselines; the same baseline twice if it is enough alone.
        share: the share of the questions that `other` answers.
        saving: its saving, as a share of the reference's cost.
        accuracy: the share whose one answer is right.
        ahead: how much more the policy saves, paired over the splits.
    """

    one: str
    other: str
    share: float
    saving: float
    accuracy: float
    ahead: Interval


class Figures(NamedTuple):
    """The figures of one way for each question: float64 (n,), NaN where unknown or where the promise does not apply."""

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
    """Questions, and the promise that is measured on them.

    Attributes:
        table: the questions.
        guarantee: the promise.
        reference: the baseline of the savings.
        promised: the reference of the promise, if it needs one; savings may be measured against another.
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

    def of_policy(self, policy: Policy) -> Figures:
        """Return what a policy does, at its certified thresholds."""
        played = play_policy(self.table, policy)
        lost, right = self._broken(played.right > 0, played.in_set > 0), self._right(played.right)
        return Figures(played.cost, right, lost, played.in_set, played.length, played.distinct)

    def bound(self) -> Clairvoyant:
        """Return the cost of the promise for a policy that knows every answer beforehand."""
        labels, one = self.table.labels, self
        if labels is not None:  # for questions that were not drawn for review, the loss is unknown
            one = self.take(labels.drawn)
        found = clairvoyant(one.table, self.guarantee.rules, self.guarantee.alpha or 0.0, one.promised.right)
        assert found is not None  # noqa: S101 - `_broken` has refused what cannot be told
        return found

    def _right(self, right: Bools | Floats) -> Floats:
        """Return which answers served are right; NaN where a question was not drawn for review."""
        labels = self.table.labels
        return np.asarray(right, dtype=np.float64) if labels is None else np.where(labels.drawn, right, np.nan)

    def _broken(self, right: Bools, in_set: Bools) -> Floats:
        found = self.guarantee.rules.broken(self.table, right, in_set, self.promised.right)
        if found is None:
            raise UsageError(f"{self.guarantee.kind} does not say which baselines break it (Kind.broken).")
        return found


def write_down(into: OverSplits, did: Figures, reference: Figures) -> None:
    """Add a split's test questions, paired with the reference's on those that both are known for."""
    known = ~(np.isnan(did.cost) | np.isnan(reference.cost))
    if not known.any():
        return
    paid = float(reference.cost[known].sum())
    saving = 1 - float(did.cost[known].sum()) / paid if paid > 0 else np.nan
    means = {name: mean_of(column) for name, column in did._asdict().items()}
    into.add({**means, "saving": saving, "gap": mean_of(did.right - reference.right)})


def way_of(name: str, found: OverSplits, sizes: tuple[int, int], *, paired: bool) -> Way:
    """Return the means with the differences to the reference; without them if `paired` is False (the reference)."""
    cost, right, broken, in_set, length, answers = (float(found.of(figure).mean()) for figure in Figures._fields)
    gaps = [_gap(found, name, sizes) if paired else None for name in _LEAST]
    return Way(name, cost / 1e9, right, broken, in_set, length, answers, *gaps)


_LEAST = {"saving": -np.inf, "gap": -1.0}
"""The least that a difference to the reference can be; the most is 1, because no cost is negative."""


def _gap(found: OverSplits, name: str, sizes: tuple[int, int]) -> Interval | None:
    """Return a difference to the reference, with its interval cut to possible values."""
    gap = found.interval(name, n_train=sizes[0], n_test=sizes[1])
    return None if gap is None else gap.within(_LEAST[name], 1.0)


def coin_of(results: Mapping[str, OverSplits], sizes: tuple[int, int]) -> Coin | None:
    """Return the cheapest coin that breaks the promise as often as the policies do, on average over the splits.

    The coin chooses between two methods that use no signal.
    """
    own, lost = results[POLICY].of("saving"), results[POLICY].of("broken")
    ways = {name: one for name, one in results.items() if name not in {POLICY, PER_RUNG}}
    saving = {name: one.of("saving") for name, one in ways.items() if one.of("saving").size == own.size}
    broken = {name: float(ways[name].of("broken").mean()) for name in saving}
    best: tuple[float, str, str, float] | None = None
    for one, other in combinations_with_replacement(saving, 2):
        share = _weight(broken[one], broken[other], float(lost.mean()))
        if share is not None:
            saved = float((1 - share) * saving[one].mean() + share * saving[other].mean())
            best = max(best or (saved, one, other, share), (saved, one, other, share), key=lambda found: found[0])
    if best is None:
        return None
    saved, one, other, share = best
    # The coin's share in a split, at which it breaks the promise as often as the split's policy. It is linear in
    # `lost`, so its mean over the splits is the coin's share.
    tossed = (lost - broken[one]) / (broken[other] - broken[one]) if 0 < share < 1 else np.full(lost.size, share)
    ahead = own - saving[one] - (saving[other] - saving[one]) * tossed
    right = (float(ways[name].of("right").mean()) for name in (one, other))
    accuracy = sum(weight * mean for weight, mean in zip((1 - share, share), right, strict=True))
    interval = corrected_interval(ahead.tolist(), n_train=sizes[0], n_test=sizes[1])
    return Coin(one, other, share, saved, accuracy, interval)


def _weight(one: float, other: float, target: float) -> float | None:
    """Return the share of `other` in a mixture with mean `target`.

    None if both exceed the target. If neither does, return 0 or 1: whichever is the larger of the two is taken alone.
    """
    if one <= target and other <= target:
        return 0.0 if one >= other else 1.0
    if min(one, other) > target:
        return None
    return (target - one) / (other - one)
