"""Dates: at the precision of the accepted answer, in any usual form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from cascade.matching.base import RIGHT, UNKNOWN, WRONG, Verdict, accepted, any_of
from cascade.matching.date_reading import Date, FoundDate, read_dates
from cascade.matching.reading import clean, same_text, stated


@dataclass(frozen=True, slots=True)
class DateMatcher:
    """The date of an answer against the one of an accepted answer, as far as that is said.

    "5 May 1992" answers "1992" and "May 1992", but not the other way round. An answer with several dates is right only
    if each of them agrees. A date such as 3/4/1992 can be read in two ways: in an answer one that agrees is enough; in
    an accepted answer it leaves the truth unknown, but where no reading agrees. Months are in English; there is no
    locale.

    >>> DateMatcher().matches("May 5th, 1992", ["1992-05-05"]).correct
    True
    >>> DateMatcher().matches("44 BC", ["15 March 44 BCE"]).correct
    False
    """

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer's date is that of an accepted answer."""
        golds = accepted(gold)
        if any(same_text(answer, one) for one in golds):
            return RIGHT
        wanted = [found for found in map(_only_date, golds) if found is not None]
        if not wanted:
            return UNKNOWN
        said = _read(answer)
        if not said:
            return WRONG
        return any_of(_agree(said, one) for one in wanted)


def _agree(said: Sequence[FoundDate], wanted: FoundDate) -> Verdict:
    near = [any(_covers(reading, one) for one in wanted.readings) for found in said for reading in [found.readings]]
    if not all(near):
        return WRONG
    return RIGHT if len(wanted.readings) == 1 else UNKNOWN


def _covers(readings: frozenset[Date], wanted: Date) -> bool:
    """Whether some reading says at least what is wanted, and the same."""
    return any(all(w is None or s == w for s, w in zip(said, wanted, strict=True)) for said in readings)


_KEPT_CHARS = 200


def _only_date(text: str) -> FoundDate | None:
    """Return the date of an accepted answer, or None if it holds none or several."""
    found = _read_again(text) if len(text) <= _KEPT_CHARS else _read(text)
    return found[0] if found and len(set(found)) == 1 and found[0].readings else None


@lru_cache(maxsize=4_096)  # the answers to one question are compared with the same few accepted ones
def _read_again(text: str) -> tuple[FoundDate, ...]:
    return _read(text)


def _read(text: str) -> tuple[FoundDate, ...]:
    plain = clean(text)
    return () if plain is None else read_dates(stated(plain).strip("* .")) or ()
