"""Draw splits and summarise figures over splits, for `compare` and `prove`.

A split gives each group of questions as a whole to training, calibration or test. A method has one value of each
figure on a split (`OverSplits`); a difference is paired over the splits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from cascade.conformal.arrays import Floats, Ints
from cascade.errors import UsageError

SHARES = (0.6, 0.2, 0.2)
"""Training, calibration, test."""


@dataclass(frozen=True, slots=True)
class Split:
    """The rows of each part, int64, disjoint, together all."""

    train: Ints
    calibration: Ints
    test: Ints


def splits(
    groups: Sequence[str],
    count: int,
    seed: int,
    shares: tuple[float, float, float] = SHARES,
    tell: Callable[[int, int], None] = lambda done, total: None,  # noqa: ARG005 - names are the interface
) -> Iterator[Split]:
    """Yield `count` random splits.

    Each group is in one part, by `shares` of training, calibration and test. `tell` is called with (splits done,
    splits in all) when the caller asks for the next split.
    """
    member = numbered(groups)
    many = len(set(groups))
    if many < len(shares):
        raise UsageError(f"{many} groups of questions cannot be split into {len(shares)} parts; log more.")
    if min(shares) <= 0 or abs(sum(shares) - 1) > 1e-9:
        raise UsageError(f"The shares of a split are positive and sum to 1, not {shares}.")
    first = max(1, round(shares[0] * many))
    second = min(many - 1, max(first + 1, round((shares[0] + shares[1]) * many)))
    first = min(first, second - 1)
    for number in range(count):
        order = np.random.default_rng([seed, number]).permutation(many)
        part = np.empty(many, dtype=np.int64)
        part[order[:first]], part[order[first:second]], part[order[second:]] = 0, 1, 2
        of = part[member]
        yield Split(*(np.flatnonzero(of == which) for which in range(3)))
        tell(number + 1, count)


def numbered(groups: Sequence[str]) -> Ints:
    """Return the number of each question's group, int64 (n,): groups are numbered by their names, in order.

    >>> numbered(["b", "a", "b"]).tolist()
    [1, 0, 1]
    """
    number = {name: place for place, name in enumerate(sorted(set(groups)))}
    return np.fromiter((number[name] for name in groups), dtype=np.int64, count=len(groups))


# --- The uncertainty of a mean over splits: splits share questions, so they are not independent ---

CONFIDENCE = 0.95
LEAST_QUESTIONS = 6
"""With fewer independent questions there is no interval. Chance gives a difference of one sign on all of n questions
with probability 2^(1 − n) (the exact two-sided sign test), which is below 5 % from n = 6 on."""


class Interval(NamedTuple):
    """A mean with its confidence interval; an unknown bound is None."""

    mean: float
    low: float | None
    high: float | None

    @property
    def excludes_zero(self) -> bool:
        """Whether 0 lies outside: the difference is more than chance."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def within(self, least: float, most: float) -> Interval:
        """Return the interval cut to the possible values of the figure; its confidence is the same.

        >>> Interval(0.6, 0.12, 1.06).within(-math.inf, 1.0)
        Interval(mean=0.6, low=0.12, high=1.0)
        """
        low, high = (None if bound is None else min(max(bound, least), most) for bound in (self.low, self.high))
        return self._replace(low=low, high=high)


def corrected_interval(
    values: Sequence[float], *, n_train: int, n_test: int, confidence: float = CONFIDENCE
) -> Interval:
    """Return the mean of per-split values and its interval, with Nadeau and Bengio's correction.

    The variance over J splits is multiplied by 1/J + n_test/n_train instead of 1/J, since the splits overlap; Student's
    t with J − 1 degrees of freedom. With fewer than two splits, or fewer than `LEAST_QUESTIONS` independent questions
    in `n_train` and `n_test` together, the bounds are unknown.

    Reference: Nadeau & Bengio, Inference for the generalization error (2003).
    """
    data = np.asarray(values, dtype=np.float64)
    mean = float(data.mean())
    if data.size < 2 or n_train + n_test < LEAST_QUESTIONS:
        return Interval(mean, None, None)
    spread = math.sqrt(float(data.var(ddof=1)) * (1 / data.size + n_test / n_train))
    half = student_t_quantile((1 + confidence) / 2, data.size - 1) * spread
    return Interval(mean, mean - half, mean + half)


@dataclass(slots=True)
class OverSplits:
    """The figures of one method, by name: a value for each split, NaN if unknown."""

    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, figures: Mapping[str, float | None]) -> None:
        """Add the figures of a split; None: unknown."""
        for name, value in figures.items():
            self.values.setdefault(name, []).append(np.nan if value is None else value)

    def of(self, name: str) -> Floats:
        """Return a figure's values, float64 (splits,)."""
        return np.array(self.values.get(name, []), dtype=np.float64)

    def mean(self, name: str) -> float | None:
        """Return a figure's mean; None if it is unknown for a split."""
        values = self.of(name)
        return float(values.mean()) if values.size and not np.isnan(values).any() else None

    def sd(self, name: str) -> float | None:
        """Return a figure's standard deviation; None for a single split, or if it is unknown for a split."""
        values = self.of(name)
        return float(values.std(ddof=1)) if values.size > 1 and not np.isnan(values).any() else None

    def interval(self, name: str, *, n_train: int, n_test: int) -> Interval | None:
        """Return a figure's mean with its interval (`corrected_interval`); None if it is unknown for a split."""
        if self.mean(name) is None:
            return None
        return corrected_interval(self.values[name], n_train=n_train, n_test=n_test)


def student_t_quantile(p: float, df: int) -> float:
    """Return the p-quantile of Student's t with df degrees of freedom, p in [0.5, 1), to 1e-10.

    >>> round(student_t_quantile(0.975, 19), 4), round(student_t_quantile(0.975, 1), 4)
    (2.093, 12.7062)
    """
    if not 0.5 <= p < 1 or df < 1:
        raise UsageError(f"Student's t has no {p:g}-quantile with {df} degrees of freedom here; p is in [0.5, 1).")
    low, high = 0.0, 1.0
    while _t_cdf(high, df) < p:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_cdf(middle, df) < p else (low, middle)
    return (low + high) / 2


def _t_cdf(t: float, df: int) -> float:
    """Return P(T ≤ t) for t ≥ 0, by the finite series for whole degrees of freedom (Abramowitz & Stegun 26.7.3-4)."""
    theta = math.atan(t / math.sqrt(df))
    cos2 = math.cos(theta) ** 2
    odd = df % 2
    term = math.cos(theta) if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= (k - 1) / k * cos2
        total += term
    area = 2 / math.pi * (theta + math.sin(theta) * total) if odd else math.sin(theta) * total
    return 0.5 + area / 2
