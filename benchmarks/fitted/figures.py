"""From costs on many splits to ratios that can be believed: splits share questions, and so do cells of one source."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats
from cascade.house.student import student_quantile
from cascade.house.study import Interval, interval


def ratio(costs: Floats, against: Floats, *, n_train: int, n_test: int) -> Interval:
    """Return the ratio of two mean costs over paired splits, with its interval.

    The ratio's error is that of the mean of (a − R·b)/mean(b), by the delta method; the splits overlap, which Nadeau
    and Bengio's correction allows for. NaN without bounds where a cost is unknown on any split.

    >>> ratio(np.array([1.0, 2.0]), np.array([2.0, 4.0]), n_train=10, n_test=10)
    Interval(mean=0.5, low=0.5, high=0.5)
    """
    if np.isnan(costs).any() or np.isnan(against).any():
        return Interval(math.nan, None, None)
    found = float(costs.mean() / against.mean())
    gap = interval(((costs - found * against) / against.mean()).tolist(), n_train, n_test)
    if gap.low is None or gap.high is None:
        return Interval(found, None, None)
    return Interval(found, found + gap.low, found + gap.high)


def geometric_mean(ratios: Mapping[str, Sequence[float]]) -> Interval:
    """Return the geometric mean of ratios by source, and its interval over the sources.

    Cells of one source share their questions, so each source counts once: with the geometric mean of its cells. The
    interval is Student's, of the logarithms, over the sources. NaN ratios are left out.

    >>> geometric_mean({"a": [0.5, 0.5], "b": [2.0]}).mean
    1.0
    """
    known = ([cell for cell in cells if not math.isnan(cell)] for cells in ratios.values())
    logs = [float(np.mean(np.log(cells))) for cells in known if cells]
    if not logs:
        return Interval(math.nan, None, None)
    mean = float(np.mean(logs))
    if len(logs) < 2:
        return Interval(math.exp(mean), None, None)
    half = student_quantile(0.975, len(logs) - 1) * float(np.std(logs, ddof=1)) / math.sqrt(len(logs))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))


class Coverage(NamedTuple):
    """The realised coverage over splits, and how far it lies from what was promised.

    Attributes:
        mean, sd: over the splits.
        z: standard errors that the mean lies above 1 − alpha; a certificate is broken beyond chance below −3.
    """

    mean: float
    sd: float
    z: float


def coverage(values: Floats, alpha: float, *, calibration: int, test: int) -> Coverage:
    """Return the realised coverage of a calibrated policy over the splits.

    Given the log the splits are independent, and split conformal's promise holds exactly over them. The standard error
    is that of the law without ties: of a split the variance is that of a Beta(n + 1 − k, k) plus the test's own.

    >>> coverage(np.array([0.9, 0.94]), 0.1, calibration=198, test=300)
    Coverage(mean=0.92, sd=0.028, z=1.03)
    """
    mean, sd = float(values.mean()), float(values.std(ddof=1)) if values.size > 1 else math.nan
    error = math.sqrt(alpha * (1 - alpha) * (1 / (calibration + 2) + 1 / test) / values.size)
    return Coverage(round(mean, 6), round(sd, 3), round((mean - (1 - alpha)) / error, 2))


def told(found: Interval, digits: int = 3) -> str:
    """Return an interval as text.

    >>> told(Interval(0.5, 0.4, 0.61)), told(Interval(math.nan, None, None))
    ('0.500 [0.400, 0.610]', '–')
    """
    if math.isnan(found.mean):
        return "–"
    if found.low is None or found.high is None:
        return f"{found.mean:.{digits}f}"
    return f"{found.mean:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"
