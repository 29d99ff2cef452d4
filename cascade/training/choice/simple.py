"""Policies that learn next to nothing: a fixed depth, and a threshold on one number. What learning has to beat."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from cascade.calibration.scores import history_of
from cascade.conformal.arrays import Floats, Ints
from cascade.episodes.table import EpisodeTable
from cascade.guarantees.base import Kind
from cascade.policies.base import Takes
from cascade.policies.columns import CONFIDENCE
from cascade.policies.design import Design
from cascade.policies.estimators import Constant, Linear, Scorer, Signal
from cascade.policies.features import FeatureSet, offered
from cascade.policies.learned import LearnedPolicy, StepRule
from cascade.training.stopping.answers import newest_answers
from cascade.training.stopping.targets import decides

VERDICT = "p_yes"
_SURE = ("p_yes", "logprob", "self_check", "gate", "judge_share", "verdict_mass", "agree", "agrees", "agreement")
_DOUBT = ("entropy", "uncertainty", "doubt", "disagree", "disagrees", "disagreement")
"""Words in the names of numbers whose high, or low, values mean that an answer is likely right."""
_SURELY = 3.0
"""Standard errors by which questions must contradict a name."""


def reference_alone(table: EpisodeTable) -> LearnedPolicy:
    """Return the policy that asks the reference at once, and nothing else: it has no regret, by definition."""
    nothing = (None,) * len(table.sources)
    rule = StepRule(FeatureSet((), table.sources), None, nothing, nothing)
    return LearnedPolicy("reference", (rule,), takes=Takes(reference=True))


def fixed_depth(table: EpisodeTable, kind: Kind | None = None) -> LearnedPolicy:
    """Return the policy that looks at nothing: going on scores −t after step t, so that a threshold is a depth.

    Its threshold is set by calibration as any other's: the least depth that keeps the promise.
    """
    onward = [((), Constant(-float(step))) for step in range(1, table.arrays.horizon)]
    return policy_of("depth", table, onward, kind)


def one_threshold(table: EpisodeTable, signal: str, kind: Kind) -> LearnedPolicy:
    """Return the policy that goes on while one number is high, or while it is low.

    A number whose name says what it means is read as it says, a low log-prob and a high entropy as doubt, unless the
    questions surely say otherwise; of others the questions decide. What they say is the rank correlation with what the
    steps to come would mend, over all steps: the cost at one threshold hangs on the few questions near it, and with 300
    of them it is the wrong way round in two of ten draws of a log (`design/portfolio.md`).

    Args:
        table: the training questions.
        signal: a feature's name.
        kind: of the guarantee.
    """
    told, meant = _promising(table, signal, kind), _meant(signal)
    sign = meant if meant and told * meant > -_SURELY else math.copysign(1.0, told)
    return _threshold(table, Signal(0, sign), signal, kind)


def plain_threshold(table: EpisodeTable, feature: str, sign: float, kind: Kind) -> LearnedPolicy:
    """Return the policy that goes on while a feature is high (sign 1) or low (−1), as it was named beforehand."""
    return _threshold(table, Signal(0, sign), feature, kind)


def _meant(signal: str) -> float:
    """Return 1 where a high number means doubt by its name, −1 where a low one does, 0 where the name says neither."""
    name = f"_{signal}_"
    if CONFIDENCE.fullmatch(signal) or any(f"_{word}_" in name for word in _SURE):
        return -1.0
    return 1.0 if any(f"_{word}_" in name for word in _DOUBT) else 0.0


def _promising(table: EpisodeTable, signal: str, kind: Kind) -> float:
    """Return how a number's ranks hang together with what going on to the end would mend, over all steps.

    In standard errors of what is seen where they do not: above 0 a high number promises more.
    """
    history, loss, decided = history_of(table), kind.loss(table), decides(table)
    features, found, square = FeatureSet((signal,), table.sources), 0.0, 0.0
    for t in range(table.arrays.horizon - 1):
        values = features.table(history, t + 1)[:, 0]
        rows = decided[:, t] & ~np.isnan(values)
        if np.count_nonzero(rows) > 1:
            ranks, mended = _centred_ranks(values[rows]), loss[rows, t] - loss[rows, -1]
            found += float((ranks * mended).sum())  # of whole numbers, but for graded losses
            square += float((ranks**2).sum()) * float(mended.var(ddof=1))
    return found / math.sqrt(square) if square > 0 else 0.0


def _centred_ranks(values: Floats) -> Ints:
    """Return twice the ranks, of equal ones the middle, less their mean: whole numbers that sum to 0.

    >>> _centred_ranks(np.array([0.3, 0.1, 0.3, 0.9])).tolist()
    [0, -3, 0, 3]
    """
    place, many = np.unique(values, return_inverse=True, return_counts=True)[1:]
    return np.asarray((2 * np.cumsum(many) - many - values.size)[place], dtype=np.int64)


def doubtful_verdict(table: EpisodeTable, kind: Kind | None = None) -> LearnedPolicy:
    """Return the policy that goes on while the verdict is near a coin flip: by −(p − ½)², falling in |p − ½|.

    The same order as that of the verdict's uncertainty −ln max(p, 1 − p). A missing verdict is full doubt.
    """
    square = Design(np.array([0.5]), np.ones(1), np.zeros(1), np.ones(1), np.array([]), np.array([[0, 0]]))
    return _threshold(table, Linear(square, np.array([0.0, -1.0]), 0.0), VERDICT, kind)


def signals_of(table: EpisodeTable) -> Iterator[str]:
    """Yield what a threshold could be set on: signals and confidences that are known and vary before the last step."""
    history = history_of(table)
    found = [name for step in range(1, history.horizon) for name in offered(history, step, at_most=10**6, enough=10**6)]
    yield from dict.fromkeys(name for name in found if name in history.signals or CONFIDENCE.fullmatch(name))


def _threshold(table: EpisodeTable, scorer: Scorer, signal: str, kind: Kind | None) -> LearnedPolicy:
    return policy_of("threshold", table, [((signal,), scorer)] * (table.arrays.horizon - 1), kind)


def policy_of(
    method: str,
    table: EpisodeTable,
    steps: Sequence[tuple[tuple[str, ...], Scorer]],
    kind: Kind | None,
    *,
    kappa: float = 0.0,
) -> LearnedPolicy:
    """Return a policy that keeps every answer, of a score of going on for each step but the last.

    Args:
        method: what made it, one of `policies.learned.METHODS`.
        table: the questions that it was made from.
        steps: for each step but the last what it looks at, and the score.
        kind: of the guarantee; None: on the set of answers.
        kappa: the threshold where none is certified.
    """
    nothing: tuple[Scorer | None, ...] = (None,) * len(table.sources)
    sure: Sequence[tuple[Scorer | None, ...]] = [nothing] * table.arrays.horizon
    if kind is not None and kind.last_is_safe(table):
        sure = newest_answers(table).confidence
    looks = [*steps, ((), None)]
    rules = [
        StepRule(FeatureSet(names, table.sources), scorer, nothing, own)
        for (names, scorer), own in zip(looks, sure, strict=True)
    ]
    return LearnedPolicy(method, tuple(rules), kappa)
