"""Dates: at the precision of the accepted answer, in any usual form. English month names, no locale."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from cascade.matching.base import RIGHT, UNKNOWN, WRONG, Verdict, accepted, any_of
from cascade.matching.reading import clean, remembering, same_text, stated


@dataclass(frozen=True, slots=True)
class DateMatcher:
    """Compares the date of an answer with that of an accepted answer, to the accepted answer's precision.

    "5 May 1992" answers "1992" and "May 1992", but not the other way round. An answer with several dates is right only
    if each of them agrees. A date such as 3/4/1992 has two readings: in an answer one that agrees is enough; in an
    accepted answer the truth is unknown, unless no reading agrees. Months are in English; there is no locale.

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
    """Whether some reading has at least the wanted precision, and agrees."""
    return any(all(w is None or s == w for s, w in zip(said, wanted, strict=True)) for said in readings)


def _only_date(text: str) -> FoundDate | None:
    """Return the date of an accepted answer; None if it has none or several."""
    found = _read_again(text)
    return found[0] if found and len(set(found)) == 1 and found[0].readings else None


def _read(text: str) -> tuple[FoundDate, ...]:
    plain = clean(text)
    return () if plain is None else read_dates(stated(plain).strip("* .")) or ()


_read_again = remembering(_read)


# --- dates in a text ---


class Date(NamedTuple):
    """A date to its stated precision. Years are astronomical: 1 BC is 0, 44 BC is -43."""

    year: int | None
    month: int | None = None
    day: int | None = None


class FoundDate(NamedTuple):
    """A date in a text: all its readings; empty if it exists in no calendar, such as 31 February."""

    readings: frozenset[Date]


_MONTHS = (
    "jan(?:uary)?", "feb(?:ruary)?", "mar(?:ch)?", "apr(?:il)?", "may", "june?", "july?", "aug(?:ust)?",
    "sep(?:t(?:ember)?)?", "oct(?:ober)?", "nov(?:ember)?", "dec(?:ember)?",
)  # fmt: skip
_MONTH_STARTS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_MONTH = rf"(?P<{{0}}>{'|'.join(_MONTHS)})\b\.?"
_DAY = r"(?P<{0}>\d{{1,2}})(?:st|nd|rd|th)?"
_ERA = r"b\.? ?c\.?(?: ?e\b\.?)?(?![a-z])|a\.? ?d\b\.?|c\.? ?e\b\.?"
_ERA_AFTER = rf"(?P<{{0}}> ?(?:{_ERA}))?(?![a-z])"
_ERA_BEFORE = r"(?:\b(?P<{0}>b\.?c\.?(?:e\.?)?|a\.?d\.?|c\.?e\.?) ?)?"
_YEAR = _ERA_BEFORE.format("before{0}") + r"(?P<year{0}>\d{{1,5}}|'\d\d)" + _ERA_AFTER.format("after{0}") + r"(?!['\d])"


def _year(number: int) -> str:
    return _YEAR.format(number)


_FORMS = (
    # 1992-05-05, 1992-05-05T12:00Z, -0043-03-15, 1992/5/5, 1992-05
    r"(?<![\d/.-])(?P<iso>[+-]?\d{4,5})(?P<mark>[-/.])(?P<isomonth>\d\d?)(?:(?P=mark)(?P<isoday>\d\d?))?(?!\d|[-/.]\d)",
    # 5/5/1992, 05.06.92, 5-6-1992
    r"(?<![\d/.-])(?P<one>\d\d?)(?P<sep>[-/.])(?P<two>\d\d?)(?P=sep)(?P<numericyear>\d{4}|\d\d)(?!\d|[-/.]\d)",
    r"(?<![\d/.-])(?P<onlymonth>\d\d?)/(?P<onlyyear>\d{4})(?!\d|[-/.]\d)",
    # 5 May 1992, the 5th of May, 1992, 5 May
    rf"(?<![\d/.-]){_DAY.format('day1')}(?: day)?(?: of)?[ -]{_MONTH.format('month1')}(?:(?:,? (?:of )?|-){_year(1)})?",
    # May 5, 1992, May 5th 1992, May 5
    rf"\b{_MONTH.format('month2')} {_DAY.format('day2')}(?!\d| ?(?:{_ERA})|[-/:]\d| -\d)(?:,? (?:of )?{_year(2)})?",
    # May 1992, May of 44 BC
    rf"\b{_MONTH.format('month3')},? (?:of )?{_year(3)}",
    # 44 BC, AD 79, 1992
    rf"(?<![\w/.])(?<![A-Za-z]-)(?<!\d,){_year(4)}(?![,.:/]\d)",
    # -0043: an ISO year before the common era
    r"(?<![\w/.-])(?P<isoyear>-\d{4})(?![\d-])",
)
_DATE = re.compile("|".join(_FORMS), re.IGNORECASE)
_BASIC = re.compile(r"(\d{4})(\d\d)(\d\d)")
_MAX_DATES = 20


def read_dates(text: str) -> tuple[FoundDate, ...] | None:
    """Return the dates of a cleaned text in order; None if there are too many for an answer.

    >>> [sorted(one.readings) for one in read_dates("5 May 1992 or 3/4/1992")]
    [[Date(year=1992, month=5, day=5)], [Date(year=1992, month=3, day=4), Date(year=1992, month=4, day=3)]]
    >>> [sorted(one.readings) for one in read_dates("the Ides of March, 44 BC")]
    [[Date(year=-43, month=3, day=None)]]
    """
    basic = _BASIC.fullmatch(text)
    if basic is not None:
        return (_only(int(basic[1]), int(basic[2]), int(basic[3])),)
    found = []
    for match in _DATE.finditer(text):
        one = _found(match)
        if one is not None:
            found.append(one)
        if len(found) > _MAX_DATES:
            return None
    return tuple(found)


def _found(match: re.Match[str]) -> FoundDate | None:
    """Return the readings of a match; None for a number that is not a year."""
    if match["isoyear"]:
        return FoundDate(frozenset([Date(int(match["isoyear"]))]))
    if match["iso"]:
        return _iso(match)
    if match["onlymonth"]:
        return _only(int(match["onlyyear"]), int(match["onlymonth"]), None)
    return _numeric(match) if match["one"] else _in_words(match)


def _iso(match: re.Match[str]) -> FoundDate | None:
    """Return a date that begins with its year. 1992.5 is a number."""
    year, month, day = int(match["iso"]), int(match["isomonth"]), match["isoday"]
    if day is None:
        return None if match["mark"] == "." else _only(year, month, None)
    return _only(year, month, int(day))


def _in_words(match: re.Match[str]) -> FoundDate | None:
    """Return the readings of a date with a month in words, or of a year."""
    form = next((number for number in (1, 2, 3) if match[f"month{number}"]), 4)
    years = list(_years(match, form))
    if form == 4:
        return FoundDate(frozenset(map(Date, years))) if years else None
    month = 1 + _MONTH_STARTS.index(match[f"month{form}"][:3].lower())
    day = int(match[f"day{form}"]) if form < 3 else None
    if day is None and not years:
        return None
    known: list[int | None] = [*years] or [None]
    return _dates((year, month, day) for year in known)


def _years(match: re.Match[str], form: int) -> Iterator[int]:
    """Yield the years that a number can mean: one, for '92 two, for a bare number of few digits none."""
    written = match[f"year{form}"]
    if written is None:
        return
    era = (match[f"before{form}"] or match[f"after{form}"] or "").replace(".", "").replace(" ", "").lower()
    if written.startswith("'"):
        yield from (1900 + int(written[1:]), 2000 + int(written[1:]))
    elif era:
        year = int(written)
        if year:
            yield 1 - year if era.startswith("b") else year
    elif len(written) == 4 or (form < 4 and len(written) == 3):
        yield int(written)


def _numeric(match: re.Match[str]) -> FoundDate:
    """Return day and month in either order; with points the day always comes first."""
    one, two, written = int(match["one"]), int(match["two"]), match["numericyear"]
    years = [int(written)] if len(written) == 4 else [1900 + int(written), 2000 + int(written)]
    orders = [(two, one)] if match["sep"] == "." else [(two, one), (one, two)]
    return _dates((year, month, day) for year in years for month, day in orders)


def _only(year: int, month: int, day: int | None) -> FoundDate:
    return _dates([(year, month, day)])


def _dates(parts: Iterable[tuple[int | None, int, int | None]]) -> FoundDate:
    """Return the readings that are dates. A 29 February is one in any year of the Julian or the Gregorian calendar."""
    return FoundDate(frozenset(Date(*part) for part in parts if _exists(*part)))


def _exists(year: int | None, month: int, day: int | None) -> bool:
    if not 1 <= month <= 12:
        return False
    leap_or_unknown = year is None or year % 4 == 0
    last = 28 if month == 2 and not leap_or_unknown else _DAYS[month - 1]
    return day is None or 1 <= day <= last
