"""How much a policy's score depends on each of its features: one figure for readers, for every form of score.

For a policy network the figure is about the probabilities of its actions; after the last step these are the
probabilities of keeping answers. It is not about their logarithms, which are the scores: whether an action has 1e-9 or
1e-20 decides nothing, but would make up most of the logarithms' variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.policies.design import GO_ON
from cascade.policies.features import Feature, describe
from cascade.policies.history import History
from cascade.policies.learned import LearnedPolicy, StepRule

_ROWS = 2_000
"""The most questions used: the figure has two digits."""


class Weighed(NamedTuple):
    """One feature of one step, and how much the score of going on, or a network's probabilities, depend on it.

    Attributes:
        step: the step after which the policy reads it; 0 before any call.
        feature: its description.
        weight: 0: the score does not depend on it; 1: it depends on nothing else. None where nothing is scored, or
            the score does not vary. Features that tell the same share a weight as the fit divided it.
        known: the share of questions that have it.
    """

    step: int
    feature: Feature
    weight: float | None
    known: float


def weighed(policy: LearnedPolicy, history: History, seed: int = 0) -> list[Weighed]:
    """Return how much each feature moves the scores of going on, on some logged questions.

    A feature's values are permuted among the questions; its weight is √(E[(s − r)²] / (2 Var s)), for a score s that
    becomes r. For a linear score that is |weight| · sd(feature) / sd(score). For a network, s and r are the
    probabilities of its actions, and both means are summed over these. A question is left out if its score is +∞
    because it lacks a feature that was always there in training.

    Args:
        policy: the policy.
        history: the questions; about 2,000 are looked at, evenly spread.
        seed: deals.

    Reference: Breiman, Random forests (2001), permutation importance, of the score instead of its error.
    """
    rows = np.arange(0, history.n, max(1, -(-history.n // _ROWS)))
    some, found = history.take(rows), []
    for step, rule, here in _rules(policy, some):
        raw = rule.features.table(here, max(1, min(step, here.horizon)))[here.steps >= min(step, here.horizon)]
        for place, name in enumerate(rule.features.names):
            known = float((~np.isnan(raw[:, place])).mean()) if len(raw) else 0.0
            found.append(Weighed(step, describe(name), _weight(rule, raw, place, seed), known))
    return found


def _rules(policy: LearnedPolicy, history: History) -> Iterator[tuple[int, StepRule, History]]:
    """Yield the rules with the steps that they read; for a policy that buys, those with at most one offer bought."""
    if not policy.states:
        yield from ((step, rule, history) for step, rule in enumerate(policy.rules, 1))
    for state, rule in zip(policy.states[:-1], policy.rules, strict=False):
        if len(state) < 2:
            yield (state[0], rule, history.only(state)) if state else (0, rule, history)


def _weight(rule: StepRule, raw: Floats, place: int, seed: int) -> float | None:
    dealt = raw.copy()
    dealt[:, place] = np.random.default_rng([seed, place]).permutation(raw[:, place])
    one, other = _scored(rule, raw), _scored(rule, dealt)
    if one is None or other is None:
        return None
    both = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    spread = float(np.var(one[both], axis=0).sum()) if both.any() else 0.0
    if not spread > 0:
        return None
    moved = float(np.mean((one[both] - other[both]) ** 2, axis=0).sum())
    return min(1.0, math.sqrt(moved / (2 * spread)))


def _scored(rule: StepRule, raw: Floats) -> Floats | None:
    """Return a rule's scores, float64 (n, d) -> (n, j), +∞ for unknown ones; None if it scores nothing."""
    network = rule.network
    if network is not None and (rule.next is None or rule.next.network is not None):
        logs = network.log_probabilities(raw)[:, network.allowed]
        return np.where(logs == GO_ON, np.inf, np.exp(np.minimum(logs, 0.0)))
    return None if rule.next is None else rule.next.values(raw)[:, None]
