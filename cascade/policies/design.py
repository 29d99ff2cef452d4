"""Converts raw features to the columns of a linear model, with the same bits for one row and for many.

Live, one row is scored; on a log, all rows at once; and a certified threshold is the score of a logged row. So both
use the same arithmetic: element by element, with sums in the order of the columns (`np.add.accumulate`, which is
sequential), `exp` by `math.exp`. Serving uses no matrix product, whose order of summation depends on shape and machine.

`Scored` is the base class of all scorers. `Reading` reads the named arrays of a file, from which scorers are built, and
notes every problem.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from cascade.conformal.arrays import Bools, Floats, Ints
from cascade.registry import default

Array: TypeAlias = np.ndarray[Any, Any]


class Reading:
    """A file's arrays by dotted names, and the problems found in them.

    >>> held = Reading({"linear.weights": np.zeros(3)})
    >>> held.inside("linear").take("weights", np.float64, (4,)) is None
    True
    >>> held.problems
    ['linear.weights: its shape must be (4,), not (3,)']
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays, self._prefix = arrays, ""
        self._taken: set[str] = set()
        self.problems: list[str] = []
        self.shared: dict[Any, Any] = {}
        """Objects already built from arrays that occur again in the file."""

    def inside(self, name: str) -> Reading:
        """Return the group of arrays whose names begin with this name; both have one list of problems."""
        part = Reading(self._arrays)
        part._prefix, part._taken = f"{self._prefix}{name}.", self._taken
        part.problems, part.shared = self.problems, self.shared
        return part

    def names(self) -> list[str]:
        """Return the first parts of the names, sorted."""
        here = [name[len(self._prefix) :] for name in self._arrays if name.startswith(self._prefix)]
        return sorted({name.split(".")[0] for name in here})

    def take(self, name: str, dtype: Any, shape: Sequence[int | None], *, finite: bool = True) -> Any:
        """Return an array of exactly this type and shape; None in the shape means any length.

        Return None and note the problem if it is missing, has another type or shape, or has a number that is not
        finite. If `finite` is false, infinite numbers are allowed, but not NaN.
        """
        full = self._prefix + name
        self._taken.add(full)
        found = self._arrays.get(full)
        said = None
        if found is None:
            said = "is missing"
        elif found.dtype != np.dtype(dtype):
            said = f"its type must be {np.dtype(dtype)}, not {found.dtype}"
        elif len(found.shape) != len(shape) or any(
            wanted not in {None, size} for size, wanted in zip(found.shape, shape, strict=True)
        ):
            meant = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
            said = f"its shape must be ({meant}{',' if len(shape) == 1 else ''}), not {found.shape}"
        elif found.dtype.kind == "f" and finite and not np.isfinite(found).all():
            said = "its numbers must be finite"
        elif found.dtype.kind == "f" and np.isnan(found).any():
            said = "its entries must be numbers"
        elif found.dtype.kind == "b" and (np.frombuffer(found.tobytes(), np.uint8) > 1).any():
            said = "its bytes must be 0 or 1"
        if said is not None:
            self.note(said, name)
            return None
        return found

    def number(self, name: str, *, finite: bool = True) -> float | None:
        """Return a single number; return None and note the problem if there is none, or if it is NaN."""
        if not finite:
            found = self._arrays.get(self._prefix + name)
            if found is not None and found.shape == () and found.dtype == np.float64 and np.isinf(found):
                self._taken.add(self._prefix + name)
                return float(found)
        taken = self.take(name, np.float64, ())
        return None if taken is None else float(taken)

    def note(self, said: str, name: str | None = None) -> None:
        """Record a problem of this group, or of one name in it."""
        where = self._prefix.removesuffix(".") if name is None else self._prefix + name
        self.problems.append(f"{where}: {said}" if where else said)

    def left(self) -> Iterator[str]:
        """Yield the names that were not read."""
        yield from sorted(set(self._arrays) - self._taken)


GO_ON = math.inf
"""The score if a feature is missing that was never missing in training: go on, keep the answer."""


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """The conversion of d raw features to D columns: scaled features, then indicators of missing ones, then products.

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
        """Return the columns; `missing`, bool (…, d), marks the missing features; None if none is missing."""
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

    def designed(self, raw: Floats, missing: Bools | None) -> Designed:
        """Return the columns, and the rows that must not use them; `missing` is as in `Memo.missing`.

        These rows lack a feature that was never missing in training: its value is unknown, and 0 would be a guess.
        """
        rows = self._made(raw, missing)
        if missing is None:
            return Designed(rows, None)
        strange = missing & self._needed
        return Designed(rows, strange.any(axis=-1) if np.count_nonzero(strange) else None)

    def most(self) -> Floats:
        """Return the largest possible absolute value of each column: float64 (D,)."""
        edges = np.maximum(np.abs(self.low - self.centre), np.abs(self.high - self.centre)) / self.scale
        plain = np.concatenate([edges, np.ones(self.indicators.size)])
        return np.concatenate([plain, plain[self._first] * plain[self._second]])

    def arrays(self) -> dict[str, Array]:
        """Return the arrays of the design, by name."""
        return {name: getattr(self, name) for name in ("centre", "scale", "low", "high", "indicators", "pairs")}

    @classmethod
    def read(cls, held: Reading, width: int) -> Design | None:
        """Return a design of d features from a file's arrays; return None and note the problems if they are not valid.

        Equal arrays in a file give the same object, so that its columns are computed once per step.
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
            yield "scale must be above 0, and low at most high"
        listed = self.indicators
        if not _within(listed, self.width) or np.unique(listed).size < listed.size:
            yield f"indicators: they must name each of the {self.width} features at most once"
        if not _within(self.pairs, self.width + listed.size):
            yield f"pairs: they must name columns below {self.width + listed.size}"


def _within(places: Ints, below: int) -> bool:
    return bool(((places >= 0) & (places < below)).all())


class Designed(NamedTuple):
    """Columns, float64 (…, D), and the rows that must not use them, bool (…); None if all may use them."""

    rows: Floats
    unforeseen: Any

    def scored(self, values: Floats) -> Floats:
        """Return values (…), replaced by `GO_ON` in rows whose columns must not be used."""
        return values if self.unforeseen is None else np.where(self.unforeseen, GO_ON, values)


class Memo:
    """A cache for one set of raw features, float64 (…, d), since the scorers of a step have parts in common.

    Attributes:
        missing: which features are missing, bool (…, d); None if none is.
        designs: the columns of designs.
        networks: the outputs of networks (`network.Network`): k floats for one row, float64 (…, k) for many.
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
    """The base class of scorers: one number for each row of raw features (`estimators` has the scorers).

    Attributes:
        kind: the scorer's name in files.
    """

    __slots__ = ()
    kind: ClassVar[str]

    @default
    def network(self) -> Any:
        """The policy network (`network.Network`) whose output it is; None for most scorers."""
        return None

    @abstractmethod
    def values(self, raw: Floats, memo: Memo | None = None) -> Floats:
        """Return the scores of raw features, float64 (…, d) -> (…); `GO_ON` if a missing value was not foreseen.

        `memo` caches results for the same raw features.
        """

    @abstractmethod
    def needs(self, width: int) -> Bools:
        """Return the features, of d = width, without which every score is `GO_ON`: bool (d,)."""

    @abstractmethod
    def arrays(self) -> dict[str, Array]:
        """Return its parameters, as arrays by dotted names."""

    @classmethod
    @abstractmethod
    def read(cls, held: Reading, width: int) -> Scored | None:
        """Build it for d = width features from a file's arrays; if they are not valid, note why and return None."""

    def value(self, raw: Sequence[float] | Floats, memo: Memo | None = None) -> float:
        """Return the score of one row, with the same bits."""
        return float(self.values(np.asarray(raw, dtype=np.float64), memo))


def or_go_on(unforeseen: Bools, values: Floats) -> Floats:
    """Return values (…), replaced by `GO_ON` where they must not be used."""
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
    """Return start + weights[0] · rows[…, 0] + …, added in the same order as by `summed`.

    Many rows (n, D) with one set of weights (D,) give (n,); one row (D,) with k sets of weights (k, D) gives (k,).
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
