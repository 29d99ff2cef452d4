"""Split conformal calibration: the threshold that covers a fresh question with probability at least 1 − alpha.

kappa = the k-th smallest critical value of n calibration questions, k = ⌊alpha·(n + 1)⌋. A fresh question that is
exchangeable with them is then missed with probability at most k/(n + 1) ≤ alpha. The calibration questions may have
been used for nothing else: not for fitting, not for choosing. A question of the critical value −∞ is covered at no
threshold. So where kappa itself comes out as −∞, such questions are missed however many they are: nothing is promised.

Reference: Vovk, Gammerman & Shafer (2005); Angelopoulos et al., Conformal risk control (2022), 0/1 loss.
"""

from __future__ import annotations

import numpy as np

from cascade.checks import share_problems
from cascade.conformal.arrays import Floats
from cascade.conformal.binomial import as_written, most_losses
from cascade.errors import UsageError


def allowed_rank(n: int, alpha: float) -> int:
    """Return k = ⌊alpha·(n + 1)⌋, alpha read as the decimal number that it is written as.

    >>> allowed_rank(200, 0.1), allowed_rank(9, 0.1), allowed_rank(8, 0.1)
    (20, 1, 0)
    """
    return allowed_misses(n + 1, alpha)


def allowed_misses(n: int, alpha: float) -> int:
    """Return ⌊alpha·n⌋, alpha read as the decimal number that it is written as: 1 − 0.18 is a little more than 0.82.

    >>> allowed_misses(150, 0.18), 150 - (1 - 0.18) * 150 >= 27
    (27, False)
    """
    for problem in share_problems(ends=True, alpha=alpha):
        raise UsageError(f"{problem}.")
    return int(as_written(alpha) * n)


def split_rank(n: int, alpha: float) -> int:
    """Return the rank of the threshold among n critical values: ⌊alpha·(n + 1)⌋, or n where alpha is almost 1.

    >>> split_rank(9, 0.1), split_rank(9, 1.0)
    (1, 9)
    """
    return min(allowed_rank(n, alpha), n)


def pac_rank(n: int, alpha: float, delta: float) -> int:
    """Return the rank of the threshold whose coverage is 1 − alpha with confidence 1 − delta, 0 where there is none.

    k = max{k : Pr[Bin(n, alpha) ≤ k − 1] ≤ delta}. Let R be the probability that a fresh question is missed at the
    k-th smallest critical value. If R > alpha, then k − 1 or fewer of the n questions lie below the alpha-quantile of
    critical values, whose number is Bin(n, alpha) at the least: that happens with probability at most delta.

    >>> pac_rank(200, 0.1, 0.1), pac_rank(200, 0.1, 0.05), pac_rank(21, 0.1, 0.1)
    (15, 13, 0)
    """
    losses = most_losses(n, alpha, delta)
    return 0 if losses is None else losses + 1


def split_kappa(critical: Floats, alpha: float) -> float:
    """Return the calibrated threshold; −∞, which keeps everything, where n is too small for alpha.

    Args:
        critical: float64 (n,), the calibration questions' critical values (`critical.critical_kappa`).
        alpha: the share of questions that may be missed.

    Raises:
        UsageError: alpha lies outside 0..1, or a critical value is NaN.

    >>> split_kappa(np.array([0.3, 0.1, 0.2, 0.9]), 0.4)
    0.2
    """
    if np.isnan(critical).any():
        raise UsageError("A critical value is not a number.")
    k = split_rank(critical.size, alpha)
    return float("-inf") if k == 0 else float(np.partition(critical, k - 1)[k - 1])
