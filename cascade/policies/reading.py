"""Named arrays of a file, taken one by one by what is made of them. What is wrong is noted, and nothing guessed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = np.ndarray[Any, Any]


class Reading:
    """Arrays by dotted names, and what was found wrong with them.

    >>> held = Reading({"linear.weights": np.zeros(3)})
    >>> held.inside("linear").take("weights", np.float64, (4,)) is None
    True
    >>> held.problems
    ['linear.weights: its shape is (3,), and (4,) is meant']
    """

    def __init__(self, arrays: Mapping[str, Array]) -> None:
        self._arrays, self._prefix = arrays, ""
        self._taken: set[str] = set()
        self.problems: list[str] = []
        self.shared: dict[Any, Any] = {}
        """What was made of arrays that are the same elsewhere in the file."""

    def inside(self, name: str) -> Reading:
        """Return what stands under a name; problems are noted in the same list."""
        part = Reading(self._arrays)
        part._prefix, part._taken = f"{self._prefix}{name}.", self._taken
        part.problems, part.shared = self.problems, self.shared
        return part

    def names(self) -> list[str]:
        """Return the first parts of the names here, sorted."""
        here = [name[len(self._prefix) :] for name in self._arrays if name.startswith(self._prefix)]
        return sorted({name.split(".")[0] for name in here})

    def take(self, name: str, dtype: Any, shape: Sequence[int | None], *, finite: bool = True) -> Any:
        """Return an array of exactly this type and shape (None: any length, one length for all Nones is not meant).

        None where it is missing, of another type or shape, or holds a number that is not finite, or without `finite` is
        none at all (NaN); that is noted.
        """
        full = self._prefix + name
        self._taken.add(full)
        found = self._arrays.get(full)
        said = None
        if found is None:
            said = "is missing"
        elif found.dtype != np.dtype(dtype):
            said = f"its type is {found.dtype}, and {np.dtype(dtype)} is meant"
        elif len(found.shape) != len(shape) or any(
            wanted not in {None, size} for size, wanted in zip(found.shape, shape, strict=True)
        ):
            meant = ", ".join("any" if wanted is None else str(wanted) for wanted in shape)
            said = f"its shape is {found.shape}, and ({meant}{',' if len(shape) == 1 else ''}) is meant"
        elif found.dtype.kind == "f" and finite and not np.isfinite(found).all():
            said = "not all of its numbers are finite"
        elif found.dtype.kind == "f" and np.isnan(found).any():
            said = "not all of it are numbers"
        elif found.dtype.kind == "b" and (np.frombuffer(found.tobytes(), np.uint8) > 1).any():
            said = "not all of its bytes are 0 or 1"
        if said is not None:
            self.note(said, name)
            return None
        return found

    def number(self, name: str, *, finite: bool = True) -> float | None:
        """Return a single number; None, and noted, where there is none. NaN is none."""
        if not finite:
            found = self._arrays.get(self._prefix + name)
            if found is not None and found.shape == () and found.dtype == np.float64 and np.isinf(found):
                self._taken.add(self._prefix + name)
                return float(found)
        taken = self.take(name, np.float64, ())
        return None if taken is None else float(taken)

    def note(self, said: str, name: str | None = None) -> None:
        """Note a problem of what is here, or of one name in it."""
        where = self._prefix.removesuffix(".") if name is None else self._prefix + name
        self.problems.append(f"{where}: {said}" if where else said)

    def left(self) -> Iterator[str]:
        """Yield the names that were not read."""
        yield from sorted(set(self._arrays) - self._taken)
