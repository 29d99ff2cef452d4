"""Numbers: by value, within a tolerance; units are ignored. Exact fractions, no floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, validate_call

from cascade.matching.base import accepted
from cascade.matching.text import clean, same_text, stated


class Number(NamedTuple):
    """A number, and whether it is a percentage: 50 % has the value 50."""

    value: Fraction
    percent: bool = False


def _tolerance(value: Any) -> Fraction:
    """Return a number that is at least 0, exactly as written: 0.1 is one tenth."""
    number = None if isinstance(value, bool) else _only(read_numbers(str(value)))
    if number is None or number.value < 0:
        raise ValueError("must be a number that is not negative, such as 0.01 or 1%")
    return number.value / (100 if number.percent else 1)


Tolerance = Annotated[Fraction, BeforeValidator(_tolerance)]


class NumberMatcher:
    """Compares the one number of an answer with that of an accepted answer.

    An answer a agrees with an accepted one g if |a - g| ≤ max(abs, rel · |g|). Units are ignored: 5 km is 5 m. An
    answer with several numbers is right only if each of them agrees. If an accepted answer has no number or several,
    only the same text is right; if no accepted answer has exactly one number, the truth of any other text is unknown.

    Args:
        rel: relative tolerance.
        abs: absolute tolerance.

    >>> NumberMatcher().matches("about 1,500 m", ["1500"]), NumberMatcher().matches("3 or 4", ["3"])
    (True, False)
    >>> NumberMatcher(rel="1%").matches("3.14", ["3.14159"])
    True
    """

    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(self, rel: Tolerance = Fraction(0), abs: Tolerance = Fraction(0)) -> None:  # noqa: A002 - the option's
        self._rel, self._abs = rel, abs

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's number is that of an accepted answer."""
        golds = accepted(gold)
        if any(same_text(answer, text) for text in golds):
            return True
        targets = [number for text in golds if (number := _only(read_numbers(text))) is not None]
        if not targets:
            return None
        numbers = read_numbers(answer)
        return bool(numbers) and any(all(self._agree(number, target) for number in numbers) for target in targets)

    def _agree(self, number: Number | None, target: Number) -> bool:
        """Whether a number is near enough: 50 % is 0.5, and 42 % is also 42, but 0.5 % is not 0.5."""
        if number is None:
            return False
        scales = [Fraction(1)]
        if number.percent != target.percent:
            share = Fraction(1, 100) if number.percent else Fraction(100)
            bare = target if number.percent else number
            scales = [share, Fraction(1)] if abs(bare.value) > 1 else [share]
        limit = max(self._abs, self._rel * abs(target.value))
        return any(abs(number.value * scale - target.value) <= limit for scale in scales)


def _only(numbers: Sequence[Number | None]) -> Number | None:
    return numbers[0] if len(set(numbers)) == 1 else None


# --- which part of a text counts ---

_EQUALS = re.compile(r"=>|->|→|(?<![<>!])=|[≈≅]")
_CLAUSE = re.compile(r"[;\n]|,\s|\b(?:and|or|so)\b")
# As accountants write -5: the whole text is a number in parentheses.
_PARENTHESISED = re.compile(r"([A-Z]{0,3}[$€£¥]? ?)\(([A-Z$€£¥ ]{0,5}\d[^()]{0,200})\)([^()\d]{0,40})")


def read_numbers(text: str) -> list[Number | None]:
    """Return the numbers that a text states, of an equation those on its right; None for one that cannot be read.

    >>> [str(number.value) for number in read_numbers("a = 3, so 2a = a + a = 1,234.5")]
    ['3', '2469/2']
    """
    plain = clean(text)
    return [None] if plain is None else list(_stated_numbers(plain))


@lru_cache(maxsize=1_024)
def _stated_numbers(plain: str) -> tuple[Number | None, ...]:
    part = stated(plain).strip("* ").rstrip(".")
    if part[:1] == part[-1:] == "$":
        part = part[1:-1]
    parenthesised = _PARENTHESISED.fullmatch(part)
    if parenthesised is not None:
        part = f"-{''.join(parenthesised.groups())}"
    clauses = [_EQUALS.split(clause) for clause in _CLAUSE.split(part)]
    last = max((index for index, sides in enumerate(clauses) if len(sides) > 1), default=-1)
    sides = [sides[-1].strip() for index, sides in enumerate(clauses) if len(sides) > 1 or index > last]
    numbers = [number for side in sides for number in _numbers(side)] if last >= 0 else []
    return tuple(numbers or _numbers(part))


# --- one number, in all usual forms ---

MAX_DIGITS = 1_000
"""A number with more digits, or an exponent beyond ±1,000, is not read: 1e999999 would fill the memory."""
_MAX_EXPONENT_CHARS = 20
MAX_NUMBERS = 20
"""A text with more numbers is not an answer to a question for one."""

_BELOW_20 = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SMALL = {word: value for value, word in enumerate(_BELOW_20)} | {
    word: 10 * value for value, word in enumerate(_TENS, 2)
}
_SCALES = {"dozen": 12, "hundred": 100} | {
    word: 1_000**power for power, word in enumerate(("thousand", "million", "billion", "trillion"), 1)
}
_SHORT_SCALES = {"k": 3, "m": 6, "b": 9, "t": 12}
_PARTS = {
    "half": 2, "halve": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "seventh": 7, "eighth": 8,
    "ninth": 9, "tenth": 10,
}  # fmt: skip

_SCALE = "|".join(_SCALES)
_TWO_DIGITS = rf"(?:(?:{'|'.join(_TENS)})(?:[ -](?:{'|'.join(_BELOW_20[1:10])}))?|(?:{'|'.join(_BELOW_20)}))\b"
_THREE_DIGITS = rf"(?:{_TWO_DIGITS}|an?(?=\ (?:{_SCALE})))(?:\ (?:hundred|dozen)\b(?:(?:\ and)?\ {_TWO_DIGITS})?)?"
_WORDS = rf"{_THREE_DIGITS}(?:\ (?:{_SCALE})\b(?:(?:\ and)?\ {_THREE_DIGITS})?)*"
# Digits with blanks, apostrophes or underscores between groups of three; or with points and commas, read later.
_RUN = r"(?:\d{1,3}(?:(?:[ ]\d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*|\.\d+)"
_TIMES_TEN = r"(?:[eE]|[ ]?(?:x|×|\*|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?[{(]?)"
_NUMBER = re.compile(
    rf"""
    (?<!\w)(?<![A-Za-z]-)                                             # not of a name: B12, COVID-19
    (?P<minus>(?<!\))[-+]|(?i:minus|negative)\ )?
    (?P<money>(?:\b[A-Za-z]{{1,3}})?[$€£¥₹₽₩₺₪¢]\ ?)?
    (?P<inner>[-+])?
    (?:
      (?P<odd>\d+(?:[:/]\d+){{2,}}|\d+:\d+)                          # a date, a time
      |(?P<whole>\d+)\ (?:and\ )?(?P<top>\d+)\ ?/\ ?(?P<bottom>\d+)
      |(?P<numerator>{_RUN})\ ?/\ ?(?P<denominator>{_RUN})
      |(?P<ten>10)(?:\^|\*\*)[{{(]?(?P<power>[-+]?\d+)[)}}]?
      |(?P<run>{_RUN})(?:{_TIMES_TEN}(?P<exponent>[-+]?\d+)[)}}]?)?
      |(?i:(?P<words>{_WORDS})(?:[ -]?(?P<part>{"|".join(_PARTS)})(?P<parts>s?)\b)?|(?P<half>half)\b)
    )
    (?P<and_half>\ and\ a\ half\b)?(?:(?:st|nd|rd|th)\b)?
    (?P<scales>(?i:\ ?(?:{_SCALE})s?\b)*)(?P<short>\ ?(?:k|[bmt]n|[kmbtKMBT])\b)?
    (?P<percent>\ ?%|[ -](?i:per\ ?cent)\b)?
    """,
    re.VERBOSE,
)
_FRAC = re.compile(r"(\d ?)?\\[dt]?frac ?\{ ?(-?\d{1,1000}) ?\} ?\{ ?(\d{1,1000}) ?\}")
_SQUARED = re.compile(r"\b([cdkm]?m|ft|in|mi)\^[23]\b")
# A variable or a bracket beside an operator, a relation, a word that counts nothing: p - 2, (a+b)/2, "at least 5".
_ODD_BEFORE = re.compile(
    r"(?:(?:(?<![A-Za-z])[A-Za-z]|[)\]}]) ?[-+*/^×] ?|[<>≤≥]=? ?|"
    r"\b(?:(?:less|fewer|more|greater) than|at (?:least|most)) )$",
    re.IGNORECASE,
)
_ODD_BEHIND = re.compile(
    r"\^|\*\*\d| ?[ap]\.?m\b|[^\W\d_]| ?[-+*/^×] ?(?:[B-HJ-Zb-hj-z](?![A-Za-z])|\()|\([A-Za-z] ?[-+*/^)]", re.IGNORECASE
)
_SOMEBODY = re.compile(r"\b(?:no|some|any|every|each|the|this|that|which) $", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_CHARS_BEFORE = len("greater than ")


def _numbers(text: str) -> list[Number | None]:
    """Return the numbers of a cleaned text; "one" counts for none in "the one with 5 apples" and "no one"."""
    text = _FRAC.sub(lambda frac: f"{frac[1] or ''}{' ' * bool(frac[1])}{frac[2]}/{frac[3]} ", text)
    text = _SQUARED.sub(r"\1", text)
    numbers: list[Number | None] = []
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - _CHARS_BEFORE) : match.start()]
        if match[0].lower() == "one" and (numbers or _DIGIT.search(text) or _SOMEBODY.search(before)):
            continue
        odd = _ODD_BEFORE.search(before) or _ODD_BEHIND.match(text, match.end())
        numbers.append(None if odd else _number(match))
        if len(numbers) > MAX_NUMBERS:
            return [None]
    return numbers


def _number(match: re.Match[str]) -> Number | None:
    """Return a number; None if its form is unknown or it is too large."""
    value, short = _value(match), match["short"] or ""
    if not match["money"] and short.strip() in set("mbtKMBT"):  # a unit: 5 m
        short = "" if short[0] == " " else None
    if value is None or short is None:
        return None
    value += Fraction(1, 2) if match["and_half"] else 0
    for scale in re.findall(_SCALE, match["scales"].lower()):
        value *= _SCALES[scale]
    value *= 10 ** _SHORT_SCALES.get(short.strip()[:1].lower(), 0)
    negative = match["inner"] == "-" or (match["minus"] or "+") != "+"
    return Number(-value if negative else value, match["percent"] is not None)


def _value(match: re.Match[str]) -> Fraction | None:
    if match["words"]:
        return _words_value(match)
    if match["half"]:
        return Fraction(1, 2)
    if match["odd"]:
        return None
    if match["run"] or match["ten"]:
        value, exponent = read_run(match["run"] or "1"), match["exponent"] or match["power"] or "0"
        if value is None or len(exponent) > _MAX_EXPONENT_CHARS or abs(int(exponent)) > MAX_DIGITS:
            return None
        return value * Fraction(10) ** int(exponent)
    top, bottom = read_run(match["top"] or match["numerator"]), read_run(match["bottom"] or match["denominator"])
    whole = read_run(match["whole"] or "0")
    return whole + top / bottom if whole is not None and top is not None and bottom else None


def _words_value(match: re.Match[str]) -> Fraction | None:
    """Return "two hundred and five" or "three quarters"; "twenty-third" is no number: its part should be plural."""
    total = group = 0
    for word in re.findall("[a-z]+", match["words"].lower()):
        if word in {"dozen", "hundred"}:
            group *= _SCALES[word]
        elif word in _SCALES:
            total, group = (total + group * _SCALES[word] if group else total * _SCALES[word]), 0
        else:
            group += _SMALL.get(word, word in {"a", "an"})
    value = Fraction(total + group)
    if match["part"] is None:
        return value
    return None if bool(match["parts"]) == (value == 1) else value / _PARTS[match["part"].lower()]


def read_run(run: str) -> Fraction | None:
    """Return the value of a run of digits with separators; None if no reading is clear.

    A comma alone groups by three, otherwise it is a decimal comma; a point alone is a decimal point; of both the last
    is the decimal one. Groups of two and three are Indian.

    >>> [str(read_run(run)) for run in ("1,000", "1.000", "3,14", "1.000,5", "1.234.567", "12,34,567", "1.2.3")]
    ['1000', '1', '157/50', '2001/2', '1234567', '1234567', 'None']
    """
    if len(run) > MAX_DIGITS:
        return None
    bare = re.sub("[ '_]", "", run)
    end = max(bare.rfind(","), bare.rfind("."))
    whole, mark, decimals = bare[: max(end, 0)], bare[end : end + 1], bare[end + 1 :]
    if end < 0 or _COMMAS.fullmatch(bare) or ("." in whole and _POINTS.fullmatch(bare)):
        return Fraction(re.sub("[,.]", "", bare))
    grouped = (_POINTS if mark == "," else _COMMAS).fullmatch(whole) is not None and bare == run
    if not grouped and re.search("[,.]", whole):
        return None
    return Fraction(f"{re.sub('[,.]', '', whole) or 0}.{decimals}")


_COMMAS = re.compile(r"(?!0,)(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})")
_POINTS = re.compile(r"(?!0\.)\d{1,3}(?:\.\d{3})+")
