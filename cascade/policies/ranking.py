"""Confidences that rank the new answers of a step against the best earlier one by what is known now.

Answers are served by the highest confidence that any step gave them (`engine.rank`). An earlier answer's confidence is
of its time: since then other models have answered, and may have contradicted it. So a step says of its own answers and
of the best one so far, the incumbent, how likely each is right now, and the new confidences are moved to the side of
the incumbent's old one where they belong.
"""

from __future__ import annotations

import numpy as np

from cascade.conformal.arrays import Floats

LEAST = 1e-9
"""Confidences stay this far from 0 and 1, so that there is room to move one past another."""


def beside(chances: Floats, incumbent: Floats, best: Floats) -> Floats:
    """Return confidences of new answers, in order among themselves and beside the incumbent's.

    Args:
        chances: float64 (n, m), P(a new answer is right | all that is known now); NaN = unknown.
        incumbent: float64 (n,), the same of the best earlier answer; NaN = unknown.
        best: float64 (n,), the highest confidence of the earlier answers; NaN = none has any.

    Returns:
        float64 (n, m): above `best` where the chance is above the incumbent's, below where it is below, `best` itself
        where it is equal, and as close to the chance as that allows. Chances of one side keep their order. All lie in
        [0, 1]: where `best` is 0 or 1 itself there is no room beyond it, and those on that side equal it. Where the
        incumbent is unknown, the chance itself, at least `LEAST` from 0 and 1. NaN where the chance is.
    """
    made = np.minimum(np.maximum(chances, LEAST), 1.0 - LEAST)
    apart = ~np.isnan(best) & ~np.isnan(incumbent)
    over = (chances > incumbent[:, None]) & apart[:, None]
    under = (chances < incumbent[:, None]) & apart[:, None]
    least, most = best, best
    more, fewer = _ahead(chances, over), _ahead(-chances, under)
    for place in range(chances.shape[1]):
        least, most = np.nextafter(least, np.inf), np.nextafter(most, -np.inf)
        made = np.where(over & (more == place), np.maximum(made, least[:, None]), made)
        made = np.where(under & (fewer == place), np.minimum(made, most[:, None]), made)
    same = (chances == incumbent[:, None]) & apart[:, None]
    return np.minimum(np.maximum(np.where(same, best[:, None], made), 0.0), 1.0)


def _ahead(chances: Floats, side: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """Return how many answers of the same side have a lower chance: float64 (n, m)."""
    return np.asarray(((chances[:, None, :] < chances[:, :, None]) & side[:, None, :]).sum(axis=2), dtype=np.float64)
