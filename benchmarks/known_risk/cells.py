"""What many calibrations came to: the measured risk beside what is promised, and beside its law where that is known."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from cascade.conformal.arrays import Floats, Ints
from known_risk.populations import Population

SIMULATIONS = 20_000
SIZES = (20, 50, 200, 1000)
ALPHAS = (0.05, 0.1, 0.2)
DELTA = 0.1
STANDARD_ERRORS = 3.0
_BLOCK = 1_000  # calibration sets drawn at once
_ROUNDING = 1e-12  # of the mean of 20,000 equal numbers


@dataclass(frozen=True, slots=True)
class Cell:
    """What many calibrations of one kind came to.

    Attributes:
        guarantee: its name; "naive …" for a rule that is to fail.
        population: the population's name.
        n: calibration questions.
        level: alpha, or the budget as a share of what keeping everything costs.
        promised: what `measured` is not to exceed.
        law: what it is exactly; None where only the bound is known.
        measured: the mean risk over calibrations, or the share of them that break the promise.
        se: its standard error.
        certified: the share of calibrations that gave a certificate.
        limit: how many standard errors are no evidence: 3, more where the cell is the worst of several.
    """

    guarantee: str
    population: str
    n: int
    level: float
    promised: float
    law: float | None
    measured: float
    se: float
    certified: float = 1.0
    limit: float = STANDARD_ERRORS

    @property
    def naive(self) -> bool:
        """Whether it is a rule that is to fail."""
        return self.guarantee.startswith("naive")

    @property
    def excess(self) -> float:
        """How many standard errors the measured value lies above the promise."""
        return _standardised(self.measured - self.promised, self.se)

    @property
    def z(self) -> float:
        """How many standard errors the measured value lies from its law, or from the promise where there is none."""
        return self.excess if self.law is None else _standardised(self.measured - self.law, self.se)

    @property
    def holds(self) -> bool:
        """Whether the promise is kept, and the law, if any, is met, within `limit` standard errors."""
        return self.excess <= self.limit and (self.law is None or abs(self.z) <= self.limit)


def _standardised(difference: float, se: float) -> float:
    if abs(difference) < _ROUNDING:
        return 0.0
    return difference / se if se > _ROUNDING else float(np.copysign(np.inf, difference))


def samples(source: Population, n: int, count: int, seed: int = 0) -> Iterator[Ints]:
    """Yield calibration sets: the places of n questions each, drawn independently, with replacement."""
    chance = np.random.default_rng([seed, n, source.ties])
    for start in range(0, count, _BLOCK):
        yield from chance.integers(source.size, size=(min(_BLOCK, count - start), n))


def mean_cell(
    name: str,
    source: Population,
    n: int,
    level: float,
    promised: float,
    risk: Floats,
    law: float | None = None,
    certified: float = 1.0,
) -> Cell:
    """Return the cell of a risk that is promised on average over calibrations."""
    se = float(risk.std(ddof=1)) / risk.size**0.5
    return Cell(name, source.name, n, level, promised, law, float(risk.mean()), se, certified)


def violation_cell(
    name: str,
    source: Population,
    n: int,
    level: float,
    broken: Floats,
    law: float | None = None,
    certified: float = 1.0,
) -> Cell:
    """Return the cell of a promise with confidence 1 − delta; `broken` marks the calibrations that break it."""
    expected = DELTA if law is None else law
    se = (expected * (1 - expected) / broken.size) ** 0.5
    return Cell(name, source.name, n, level, DELTA, law, float(broken.mean()), se, certified)
