"""From raw features to the columns that a linear model weighs, the same to the bit for one row and for many.

Live, one row is scored; on a log, all rows at once; and a certified threshold is the score of a logged row. So both go
through the same arithmetic: element by element, sums in the order of the columns (`np.add.accumulate`, which is
sequential), `exp` by `math.exp`. No matrix product is served: its order of summation depends on shape and machine.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.policies.reading import Array, Reading

GO_ON = math.inf
"""The score where something is missing that never was in training: go on, keep the answer. See `Design.unforeseen`."""


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """How d raw features become D columns: clipped and scaled, then marks of what is missing, then products.

    The columns, in order: each feature x as (clip(x, low, high) − centre) / scale, 0 where x is missing (NaN); for each
    of `indicators` 1 where that feature is missing, else 0; for each of `pairs` the product of two of the columns so
    far. A square is the pair (j, j). D = d + i + p.

    Attributes:
        centre, scale, low, high: float64 (d,); scale > 0, low ≤ high, all finite.
        indicators: int64 (i,), the features that were missing in training.
        pairs: int64 (p, 2), columns below d + i.
        foreseen: bool (d,), whether a feature may be missing: those in `indicators`.

    >>> design = Design(np.zeros(1), np.ones(1), np.array([-2.0]), np.array([2.0]), np.array([0]), np.array([[0, 0]]))
    >>> design.rows(np.array([[1.5], [9.0], [np.nan]])).tolist()
    [[1.5, 0.0, 2.25], [2.0, 0.0, 4.0], [0.0, 1.0, 0.0]]
    """

    centre: Floats
    scale: Floats
    low: Floats
    high: Floats
    indicators: Ints
    pairs: Ints
    foreseen: Bools = field(init=False, repr=False)
    _needed: Bools = field(init=False, repr=False)
    _first: Ints = field(init=False, repr=False)
    _second: Ints = field(init=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("centre", "scale", "low", "high"):
            object.__setattr__(self, name, fixed(getattr(self, name), np.float64))
        pairs = fixed(np.asarray(self.pairs).reshape(-1, 2), np.int64)
        indicators = fixed(self.indicators, np.int64)
        object.__setattr__(self, "indicators", indicators)
        object.__setattr__(self, "pairs", pairs)
        object.__setattr__(self, "foreseen", fixed(np.isin(np.arange(self.centre.size), indicators), np.bool_))
        object.__setattr__(self, "_needed", fixed(~self.foreseen, np.bool_))
        object.__setattr__(self, "_first", fixed(pairs[:, 0], np.int64))
        object.__setattr__(self, "_second", fixed(pairs[:, 1], np.int64))

    @property
    def width(self) -> int:
        """The raw features d."""
        return int(self.centre.size)

    @property
    def columns(self) -> int:
        """The columns D."""
        return int(self.centre.size + self.indicators.size + self.pairs.shape[0])

    def rows(self, raw: Floats) -> Floats:
        """Return the columns of raw features, float64 (…, d) -> (…, D)."""
        return self._made(raw, np.isnan(raw))

    def _made(self, raw: Floats, missing: Bools | None) -> Floats:
        """Return the columns; `missing` says which features are, bool (…, d), None that none is."""
        made = np.empty((*raw.shape[:-1], self.columns))
        scaled, shown = made[..., : self.width], self.width + self.indicators.size
        np.maximum(raw, self.low, out=scaled)
        np.minimum(scaled, self.high, out=scaled)
        np.subtract(scaled, self.centre, out=scaled)
        np.divide(scaled, self.scale, out=scaled)
        if missing is None:
            made[..., self.width : shown] = 0.0
        else:
            scaled[missing] = 0.0
            made[..., self.width : shown] = missing.take(self.indicators, -1)
        if self._first.size:
            np.multiply(made.take(self._first, -1), made.take(self._second, -1), out=made[..., shown:])
        return made

    def row(self, raw: Sequence[float]) -> list[float]:
        """Return the columns of one row of raw features, the same numbers as `rows`."""
        found: list[float] = self.rows(np.array(raw, dtype=np.float64)).tolist()
        return found

    def unforeseen(self, raw: Floats) -> Bools:
        """Return where a feature is missing that never was in training, bool (…).

        There is no telling what that means, and a 0 would be a guess. The stated fallback is `GO_ON`.
        """
        return np.asarray((np.isnan(raw) & self._needed).any(axis=-1))

    def designed(self, raw: Floats, missing: Bools | None) -> Designed:
        """Return the columns, and where they must not be used; `missing` as `Memo.missing` has it."""
        rows = self._made(raw, missing)
        if missing is None:
            return Designed(rows, None)
        strange = missing & self._needed
        return Designed(rows, strange.any(axis=-1) if np.count_nonzero(strange) else None)

    def most(self) -> Floats:
        """Return the most that each column can be, without its sign: float64 (D,)."""
        edges = np.maximum(np.abs(self.low - self.centre), np.abs(self.high - self.centre)) / self.scale
        plain = np.concatenate([edges, np.ones(self.indicators.size)])
        return np.concatenate([plain, plain[self._first] * plain[self._second]])

    def arrays(self) -> dict[str, Array]:
        """Return what the design is made of, by name."""
        return {name: getattr(self, name) for name in ("centre", "scale", "low", "high", "indicators", "pairs")}

    @classmethod
    def read(cls, held: Reading, width: int) -> Design | None:
        """Return a design of d features from a file's arrays; None, and the problems noted, where they are none.

        The same arrays elsewhere in the file give the same object, so that its columns are made once a step.
        """
        parts = {name: held.take(name, np.float64, (width,)) for name in ("centre", "scale", "low", "high")}
        parts |= {"indicators": held.take("indicators", np.int64, (None,))}
        parts |= {"pairs": held.take("pairs", np.int64, (None, 2))}
        if any(part is None for part in parts.values()):
            return None
        key = tuple([part.tobytes() for part in parts.values()])
        made: Design = held.shared.setdefault(key, cls(**parts))
        problems = list(made._problems())
        for said in problems:
            held.note(said)
        return None if problems else made

    def _problems(self) -> Iterator[str]:
        if not (self.scale > 0).all() or not (self.low <= self.high).all():
            yield "scale is above 0 and low at most high"
        listed = self.indicators
        if not _within(listed, self.width) or np.unique(listed).size < listed.size:
            yield f"indicators: they name each of the {self.width} features at most once"
        if not _within(self.pairs, self.width + listed.size):
            yield f"pairs: they name columns below {self.width + listed.size}"


def _within(places: Ints, below: int) -> bool:
    return bool(((places >= 0) & (places < below)).all())


class Designed(NamedTuple):
    """Columns, float64 (…, D), and where they must not be used: bool (…); None: nowhere."""

    rows: Floats
    unforeseen: Any

    def scored(self, values: Floats) -> Floats:
        """Return values (…) where the columns may be used, and `GO_ON` elsewhere."""
        return values if self.unforeseen is None else np.where(self.unforeseen, GO_ON, values)


class Memo:
    """What was made of one set of raw features already, float64 (…, d): several scorers of a step have parts in common.

    Attributes:
        missing: which features are missing, bool (…, d); None where none is.
        designs: the columns of designs.
        networks: what networks (`network.Network`) give: of one row a sequence of k floats, of many float64 (…, k).
    """

    __slots__ = ("designs", "missing", "networks", "raw")

    def __init__(self, raw: Floats) -> None:
        self.raw = raw
        missing = np.isnan(raw)
        self.missing: Bools | None = missing if np.count_nonzero(missing) else None  # five times as fast as any()
        self.designs: dict[Design, Designed] = {}
        self.networks: dict[Any, Any] = {}

    def designed(self, design: Design) -> Designed:
        """Return the columns of a design."""
        found = self.designs.get(design)
        if found is None:
            found = self.designs[design] = design.designed(self.raw, self.missing)
        return found


class Scored(ABC):
    """One number for each row of raw features. All that is served to score with is one of these (`estimators`)."""

    __slots__ = ()

    @abstractmethod
    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the scores of raw features, float64 (…, d) -> (…); `GO_ON` where a missing value was not foreseen.

        `memo` is what was made of the same raw features already.
        """

    @abstractmethod
    def needs(self, width: int) -> Bools:
        """Return the features, of d = width, without which every score is `GO_ON`: bool (d,)."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return all that it is made of, as arrays by dotted names."""

    def value(self, raw: Sequence[float] | Floats, memo: Memo | None = None) -> float:
        """Return the score of one row: the same number to the bit."""
        return float(self.values(np.asarray(raw, dtype=np.float64), memo))


def or_go_on(unforeseen: Bools, values: Floats) -> Floats:
    """Return values (…), and `GO_ON` where they are not to be used."""
    return np.where(unforeseen, GO_ON, values) if unforeseen.any() else values


def summed(start: float, terms: Floats) -> Floats:
    """Return start + terms[…, 0] + terms[…, 1] + …, added in this order: float64 (…, k) -> (…).

    >>> float(summed(1.0, np.array([1e-16, 1e-16])))
    1.0
    """
    line = np.empty((*terms.shape[:-1], terms.shape[-1] + 1))
    line[..., 0] = start
    line[..., 1:] = terms
    added: Floats = np.add.accumulate(line, axis=-1)[..., -1]
    return added


def weighed(start: float | Floats, weights: Floats, rows: Floats) -> Floats:
    """Return start + weights[0] · rows[…, 0] + …, added as `summed` does.

    Many rows, float64 (n, D), of one form, (D,), give (n,); one row (D,) of many forms, (k, D), gives (k,).
    """
    shape = (rows if rows.ndim > 1 else weights).shape
    line = np.empty((*shape[:-1], shape[-1] + 1))
    line[..., 0] = start
    np.multiply(rows, weights, out=line[..., 1:])
    added: Floats = np.add.accumulate(line, axis=-1)[..., -1]
    return added


def fixed(values: Any, dtype: Any) -> Any:
    """Return a read-only copy of an array."""
    made = np.array(values, dtype=dtype)
    made.setflags(write=False)
    return made
