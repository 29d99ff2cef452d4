"""Numbers: by value, with units that are converted, within a tolerance. Exact fractions, no floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from cascade.matching.base import RIGHT, UNKNOWN, WRONG, Verdict, accepted
from cascade.matching.quantities import (
    MAX_QUANTITIES,
    Quantity,
    Reading,
    negative_in_parentheses,
    read_quantities,
)
from cascade.matching.reading import clean, same_text, stated
from cascade.matching.units import DEGREE, PERCENT, TEMPERATURE


@dataclass(frozen=True, slots=True)
class NumberMatcher:
    """The one number of an answer against the one of an accepted answer.

    An answer a agrees with an accepted one g if |a - g| ≤ max(abs, rel · |g|), both in g's unit. An answer with several
    numbers is right only if each of them agrees. Where an accepted answer holds no number or several, only the same
    text is right; if no accepted answer holds one number, the truth of any other text is unknown.

    Attributes:
        rel: relative tolerance, 0 by default.
        abs: absolute tolerance in the accepted answer's unit, 0 by default.
        units: "yes": units are converted and must be compatible where both sides have one; "required": an answer to an
            accepted one with a unit must have one; "no": units are overlooked.

    >>> NumberMatcher().matches("about 1,500 m", ["1.5 km"]).correct, NumberMatcher().matches("3 or 4", ["3"]).correct
    (True, False)
    >>> NumberMatcher(rel=Fraction("0.01")).matches("3.14", ["3.14159"]).correct
    True
    """

    rel: Fraction = Fraction(0)
    abs: Fraction = Fraction(0)
    units: str = "yes"

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer's number is that of an accepted answer."""
        golds = accepted(gold)
        if any(same_text(answer, one, fold=False) for one in golds):
            return RIGHT
        wanted = [found for found in map(only_quantity, golds) if found is not None]
        if not wanted:
            return UNKNOWN
        said = _read(answer)
        if said.unreadable or not said.quantities:
            return WRONG
        return Verdict(any(all(self._agree(one, other) for one in said.quantities) for other in wanted))

    def _agree(self, said: Quantity, wanted: Quantity) -> bool:
        if said.relation != wanted.relation or (said.per and wanted.per and said.per != wanted.per):
            return False
        if self.units == "required" and wanted.unit is not None and said.unit is None:
            return False
        return any(self._near(value, wanted.value) for value in self._values(said, wanted))

    def _near(self, said: Fraction, wanted: Fraction) -> bool:
        return abs(said - wanted) <= max(self.abs, self.rel * abs(wanted))

    def _values(self, said: Quantity, wanted: Quantity) -> list[Fraction]:
        """Return what was said in the unit that is wanted; none if it cannot be."""
        ours, theirs = said.unit, wanted.unit
        if self.units == "no" or ours == theirs or _loosely_the_same(said, wanted):
            return [said.value]
        if PERCENT in {ours, theirs} and None in {ours, theirs}:
            return _of_hundred(said, wanted)
        if ours is None or theirs is None:
            return [said.value]
        if ours.dimension != theirs.dimension:
            return []
        return [(said.value * ours.factor + ours.offset - theirs.offset) / theirs.factor]


def only_quantity(text: str) -> Quantity | None:
    """Return the quantity of an accepted answer, or None if it holds none, or several, or one that is unreadable."""
    found = _read_again(text) if len(text) <= _KEPT_CHARS else _read(text)
    one = found.quantities[:1]
    return one[0] if one and not found.unreadable and set(found.quantities) == set(one) else None


def _of_hundred(said: Quantity, wanted: Quantity) -> list[Fraction]:
    """Return the readings of a percentage beside a bare number: 50 % is 0.5, and 42 where a percentage was asked for.

    A bare number up to 1 is a share: 0.5 % is not 0.5.
    """
    bare = said.value if said.unit is None else wanted.value
    asked = [said.value] if abs(bare) > 1 else []
    factor = Fraction(100) if said.unit is None else PERCENT.factor
    return [*asked, said.value * factor]


_NAMESAKES = ({"lb", "GBP"}, {"ton", "t"})


def _loosely_the_same(said: Quantity, wanted: Quantity) -> bool:
    """Whether two units share a name: degrees of temperature, pounds of money, tons of any kind."""
    if said.unit is None or wanted.unit is None:
        return False
    pair = (said.unit, wanted.unit)
    dimensions = {unit.dimension for unit in pair}
    names = {unit.name for unit in pair}
    return (dimensions == {DEGREE.dimension, TEMPERATURE} and DEGREE.name in names) or names in _NAMESAKES


def _unwrapped(text: str) -> str:
    """Return a text without the marks of bold print or of a formula around the whole of it."""
    bare = text.strip("* ").rstrip(".")
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == "$" else bare


_EQUALS = re.compile(r"=>|->|→|(?<![<>!])=|[≈≅]")
_CLAUSE = re.compile(r"[;\n]|,\s|\b(?:and|or|so)\b")


_KEPT_CHARS = 200


@lru_cache(maxsize=4_096)  # the answers to one question are compared with the same few accepted ones
def _read_again(text: str) -> Reading:
    return _read(text)


def _read(text: str) -> Reading:
    """Return the numbers that a text states: of an equation, those on its right."""
    plain = clean(text)
    if plain is None:
        return Reading((), unreadable=True)
    part = negative_in_parentheses(_unwrapped(stated(plain)))
    if _EQUALS.search(part) is None:
        return read_quantities(part)
    sides = _right_sides(part)
    if len(sides) > MAX_QUANTITIES:
        return Reading((), unreadable=True)
    found = [read_quantities(side) for side in sides]
    quantities = tuple(quantity for one in found for quantity in one.quantities)
    if not quantities and not any(one.unreadable for one in found):
        return read_quantities(part)
    return Reading(quantities, any(one.unreadable for one in found))


def _right_sides(text: str) -> list[str]:
    """Return what stands right of the last equals sign of each clause, and the clauses behind the last of them.

    >>> _right_sides("a = 3, so 2a = a + a = 6")
    ['3', '6']
    """
    clauses = [_EQUALS.split(clause) for clause in _CLAUSE.split(text)]
    last = max(at for at, sides in enumerate(clauses) if len(sides) > 1)
    return [sides[-1].strip() for at, sides in enumerate(clauses) if len(sides) > 1 or at > last]
