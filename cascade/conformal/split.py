"""Split conformal calibration: the threshold that covers a fresh question with probability at least 1 − alpha.

kappa = the k-th smallest critical value of n calibration questions, k = ⌊alpha·(n + 1)⌋. A fresh question that is
exchangeable with them is then missed with probability at most k/(n + 1) ≤ alpha. The calibration questions may have
been used for nothing else: not for fitting, not for choosing. A question of the critical value −∞ is covered at no
threshold. So where kappa itself comes out as −∞, such questions are missed however many they are: nothing is promised.

Reference: Vovk, Gammerman & Shafer (2005); Angelopoulos et al., Conformal risk control (2022), 0/1 loss.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np

from cascade.conformal.arrays import Floats
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
    if not 0 <= alpha <= 1:
        raise UsageError(f"alpha must lie in 0..1, not {alpha:g}.")
    return int(Fraction(repr(float(alpha))) * n)


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
    k = min(allowed_rank(critical.size, alpha), critical.size)
    return float("-inf") if k == 0 else float(np.partition(critical, k - 1)[k - 1])
