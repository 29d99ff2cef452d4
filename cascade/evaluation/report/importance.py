"""How much a policy's score hangs on each of its features: a figure for readers, of whatever form the score is."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.policies.estimators import Scorer
from cascade.policies.features import Feature, describe
from cascade.policies.history import History
from cascade.policies.learned import LearnedPolicy

_ROWS = 2_000
"""Questions looked at: the figure has two digits."""


class Weighed(NamedTuple):
    """One feature of one step, and how much the score of going on hangs on it.

    Attributes:
        step: after which step it is looked at.
        feature: what it is.
        weight: 0: the score does not hang on it; 1: it is all that the score hangs on. None where nothing is scored, or
            the score does not vary. Features that tell the same share a weight as the fit divided it.
        known: the share of questions that have it.
    """

    step: int
    feature: Feature
    weight: float | None
    known: float


def weighed(policy: LearnedPolicy, history: History, seed: int = 0) -> list[Weighed]:
    """Return what each feature does to the scores of going on, on some logged questions.

    A feature's values are dealt out anew among the questions; its weight is √(E[(s − r)²] / (2 Var s)), for a score s
    that becomes r. Of a linear score that is |weight| · sd(feature) / sd(score). Where the score is +∞, for want of a
    feature that was always there in training, a question is left out.

    Args:
        policy: the policy.
        history: the questions; about 2,000 are looked at, evenly spread.
        seed: deals.

    Reference: Breiman, Random forests (2001), permutation importance, of the score instead of its error.
    """
    rows = np.arange(0, history.n, max(1, -(-history.n // _ROWS)))
    some, found = history.take(rows), []
    for step, rule in enumerate(policy.rules, 1):
        raw = rule.features.table(some, step)[some.steps >= step]
        for place, name in enumerate(rule.features.names):
            known = float((~np.isnan(raw[:, place])).mean()) if len(raw) else 0.0
            weight = None if rule.next is None else _weight(rule.next, raw, place, seed)
            found.append(Weighed(step, describe(name), weight, known))
    return found


def _weight(scorer: Scorer, raw: Floats, place: int, seed: int) -> float | None:
    if not len(raw):
        return None
    dealt = raw.copy()
    dealt[:, place] = np.random.default_rng([seed, place]).permutation(raw[:, place])
    one, other = scorer.values(raw), scorer.values(dealt)
    both = np.isfinite(one) & np.isfinite(other)
    spread = float(np.var(one[both])) if both.any() else 0.0
    if not spread > 0:
        return None
    return min(1.0, math.sqrt(float(np.mean((one[both] - other[both]) ** 2)) / (2 * spread)))
