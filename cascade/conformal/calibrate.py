"""Turn critical values into a threshold with a guarantee. A cascade of your own needs no other module than this.

A question's critical value kappa*(q) is the highest threshold at which a right answer is still kept
(`split.critical_kappa`); +∞ where every threshold is good for it, −∞ where none is. A question is covered at kappa
where kappa ≤ kappa*(q). Any decision rule whose set of answers grows as one number falls has critical values.

Numpy is imported where it is used: this module is imported with the package, for its own sake
(`from cascade.conformal import calibrate`) and by programs that never calibrate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cascade.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from numpy.typing import ArrayLike

    from cascade.conformal.arrays import Floats


@dataclass(frozen=True, slots=True)
class Calibration:
    """A threshold, and its promise about a fresh question (`calibrate`).

    Attributes:
        kappa: the threshold: the k-th smallest critical value. −∞ where everything is to be kept.
        n: calibration questions.
        k: the rank; 0 where n is too small for alpha, or for alpha and delta.
        alpha: the share of questions that may be missed.
        delta: the probability that the calibration misleads; None for a promise on average over calibrations.
        misses: calibration questions that are missed at kappa: at most k − 1 unless `vacuous`. Where everything is
            kept, those that no finite threshold covers.
    """

    kappa: float
    n: int
    k: int
    alpha: float
    delta: float | None
    misses: int

    @property
    def keeps_everything(self) -> bool:
        """Whether every answer of every step must be kept for the promise, whatever its score, −∞ included."""
        return self.k == 0

    @property
    def vacuous(self) -> bool:
        """Whether the calibration promises nothing, because k or more questions are missed at every threshold."""
        return self.k > 0 and self.kappa == -math.inf

    @property
    def needed_n(self) -> int | None:
        """The least number of questions that would have given a threshold; None where none would: alpha is 0."""
        from cascade.conformal.binomial import needed_n

        return needed_n(self.alpha, self.delta) if self.alpha > 0 else None

    @property
    def expected_coverage(self) -> float | None:
        """1 − k/(n + 1): the mean coverage over calibrations without ties, a lower bound with them; None if vacuous."""
        return None if self.vacuous else 1 - self.k / (self.n + 1)

    @property
    def coverage_sd(self) -> float | None:
        """The standard deviation of the coverage between calibrations: that of Beta(n + 1 − k, k).

        Without ties, the coverage has this distribution. 0 if everything is kept, None if vacuous.
        """
        if self.vacuous:
            return None
        return math.sqrt(self.k * (self.n + 1 - self.k) / (self.n + 2)) / (self.n + 1)


def calibrate(
    critical_values: ArrayLike,
    alpha: float,
    *,
    delta: float | None = None,
    groups: Sequence[Hashable] | None = None,
    seed: int = 0,
) -> Calibration:
    """Return the highest threshold with the promise that a fresh question is missed with probability at most alpha.

    Guarantee: let the n calibration questions and a fresh one be exchangeable, used for nothing else before (neither
    for fitting nor for choosing). Then

        without delta:  Pr[fresh missed and not vacuous] ≤ k/(n + 1) ≤ alpha,             k = ⌊alpha·(n + 1)⌋
        with delta:     Pr[ Pr[fresh missed | calibration] > alpha and not vacuous ] ≤ delta

    the second for independent questions of one law, with the largest k for which Pr[Bin(n, alpha) ≤ k − 1] ≤ delta.
    The first is on average over calibrations: one of them may cover less (`Calibration.coverage_sd`). Ties and
    infinite values are included, on the safe side. Where k is 0 everything is to be kept. A calibration is vacuous
    where k or more questions have the critical value −∞: then nothing is promised (`Calibration.vacuous`).

    Args:
        critical_values: n numbers, any sequence or array of one dimension; ±∞ allowed.
        alpha: the share of questions that may be missed, 0..1.
        delta: the probability that the calibration misleads.
        groups: n labels, where questions belong together (of one document, one user); None = of no group. One question
            of each group counts, drawn at random (`split.one_of_each`), and the promise is about a random question of a
            fresh group: `Calibration.n` is the number of groups, which take the place of the questions above.
        seed: draws them.

    Raises:
        UsageError: alpha or delta lies outside its range, a critical value is missing or not a number, there are not as
            many groups as values. All is listed.

    Reference: Vovk, Gammerman & Shafer, Algorithmic Learning in a Random World (2005); with delta Vovk, Conditional
    validity of inductive conformal predictors (2012), by the exact binomial law.

    >>> found = calibrate([0.31, 0.12, 0.55, 0.47, 0.93, 0.28, 0.76, 0.64, 0.83], alpha=0.2)
    >>> found.kappa, found.k, found.misses, found.expected_coverage
    (0.28, 2, 1, 0.8)
    >>> calibrate([0.31, 0.12, 0.55], alpha=0.2).keeps_everything, calibrate([0.31, 0.12, 0.55], alpha=0.2).needed_n
    (True, 4)
    >>> calibrate([0.3, 0.3, 0.4, 0.6, 0.9, 0.8], alpha=0.25, groups=["a", "a", "a", "b", "b", "c"]).n
    3
    """
    import numpy as np

    from cascade.conformal.rollout import passed
    from cascade.conformal.split import pac_rank, split_rank

    values = _checked(critical_values, alpha, delta, groups)
    if groups is not None:
        from cascade.conformal.split import one_of_each

        values = values[one_of_each(groups, seed=seed)]
    n = values.size
    k = split_rank(n, alpha) if delta is None else pac_rank(n, alpha, delta)
    kappa = float(np.partition(values, k - 1)[k - 1]) if k else -math.inf
    misses = n - int(np.count_nonzero(passed(values, kappa)))
    return Calibration(kappa, n, k, float(alpha), None if delta is None else float(delta), misses)


def _checked(
    critical_values: ArrayLike, alpha: float, delta: float | None, groups: Sequence[Hashable] | None
) -> Floats:
    """Return the critical values as an array, or raise one error that lists every problem."""
    import numpy as np

    from cascade.checks import refuse, share_problems

    wrong = [*share_problems(ends=True, alpha=alpha), *share_problems(delta=delta)]
    try:
        values = np.asarray(critical_values, dtype=np.float64)
    except (TypeError, ValueError):
        raise UsageError("; ".join([*wrong, "the critical values must be numbers"]) + ".") from None
    if values.ndim != 1:
        wrong.append(f"the critical values must have one dimension, not the shape {values.shape}")
    elif groups is not None and len(groups) != values.size:
        wrong.append(f"there are {values.size} critical values, and {len(groups)} groups")
    missing = np.flatnonzero(np.isnan(values))
    if missing.size:
        wrong.append(f"{missing.size} of {values.size} critical values are not a number, the first at {missing[0]}")
    refuse(wrong)
    return values
