"""Numbers: by value, within a tolerance; units are ignored. Exact fractions, no floats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, validate_call

from cascade.matching.registry import Matcher, accepted
from cascade.matching.text import clean, same_text, stated


class Number(NamedTuple):
    """A number, and whether it is a percentage: 50 % has the value 50."""

    value: Fraction
    percent: bool = False


def _tolerance(value: Any) -> Fraction:
    """Return a number that is at least 0, exactly as written: 0.1 is one tenth."""
    number = None if isinstance(value, bool) else _only(str(value))
    if number is None or number.value < 0:
        raise ValueError("must be a number that is not negative, such as 0.01 or 1%")
    return number.value / (100 if number.percent else 1)


Tolerance = Annotated[Fraction, BeforeValidator(_tolerance)]


class NumberMatcher(Matcher):
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
        targets = [number for text in golds if (number := _only(text)) is not None]
        if not targets:
            return None
        numbers = read_numbers(answer) or ()
        return bool(numbers) and any(all(self._agree(number, target) for number in numbers) for target in targets)

    def _agree(self, number: Number, target: Number) -> bool:
        """Whether a number is near enough: 50 % is 0.5, and 42 % is also 42, but 0.5 % is not 0.5."""
        scales = [Fraction(1)]
        if number.percent != target.percent:
            share = Fraction(1, 100) if number.percent else Fraction(100)
            bare = target if number.percent else number
            scales = [share, Fraction(1)] if abs(bare.value) > 1 else [share]
        limit = max(self._abs, self._rel * abs(target.value))
        return any(abs(number.value * scale - target.value) <= limit for scale in scales)


def _only(text: str) -> Number | None:
    numbers = read_numbers(text) or ()
    return numbers[0] if len(set(numbers)) == 1 else None


# --- reading: which part of a text counts, and the numbers in it ---

MAX_DIGITS = 1_000
"""A number with more digits, or an exponent beyond ±1,000, is not read: 1e999999 would fill the memory."""
_MAX_EXPONENT_CHARS = 20
MAX_NUMBERS = 20
"""A text with more numbers is not an answer to a question for one."""

_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
_TEENS = [
    "ten",
    "eleven",
    "twelve",
    *(f"{stem}teen" for stem in ("thir", "four", "fif", "six", "seven", "eigh", "nine")),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_VALUES = {word: value for value, word in enumerate(_UNITS + _TEENS)} | {"a": 1, "an": 1}
_VALUES |= {word: 10 * value for value, word in enumerate(_TENS, 2)}
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_TEN, _SCALE, _WORD = "|".join(_TENS), "|".join(_SCALES), "|".join([*_TENS, *_TEENS, *_UNITS])
# Digits with blanks, apostrophes or underscores between groups of three; or with points and commas, read later.
_RUN = r"(?:\d{1,3}(?:(?:[ ]\d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*|\.\d+)"
_TIMES_TEN = r"(?:[eE]|[ ]?(?:x|×|\*|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?[{(]?)"
_NUMBER = re.compile(
    rf"""
    (?<!\w)(?<![A-Za-z]-)                                             # not of a name: B12, COVID-19
    (?P<minus>(?<!\))[-+]|(?i:minus|negative)\ )?(?:(?:\b[A-Za-z]{{1,3}})?[$€£¥₹₽₩₺₪¢]\ ?)?(?P<inner>[-+])?
    (?:
      (?P<whole>\d+)\ (?:and\ )?(?P<top>\d+)\ ?/\ ?(?P<bottom>\d+)
      |(?P<numerator>{_RUN})\ ?/\ ?(?P<denominator>{_RUN})
      |(?P<ten>10)(?:\^|\*\*)[{{(]?(?P<power>[-+]?\d+)[)}}]?
      |(?P<run>{_RUN})(?:{_TIMES_TEN}(?P<exponent>[-+]?\d+)[)}}]?)?
      |(?i:(?P<words>(?:{_TEN})[ -](?:{"|".join(_UNITS[1:])})|{_WORD}|an?(?=\ (?:{_SCALE})))\b)
    )
    (?:(?:st|nd|rd|th)\b)?(?P<scales>(?i:\ (?:{_SCALE})s?\b)*)(?P<percent>\ ?%|[ -](?i:per\ ?cent)\b)?
    """,
    re.VERBOSE,
)
_FRAC = re.compile(r"(\d ?)?\\[dt]?frac ?\{ ?(-?\d{1,1000}) ?\} ?\{ ?(\d{1,1000}) ?\}")
_SQUARED = re.compile(r"\b([cdkm]?m|ft|in|mi)\^[23]\b")
# What makes a text with numbers something else than numbers, where \0 stands for each of them.
_ODD = re.compile(
    r"(?:(?<![A-Za-z])[A-Za-z]|[)\]}]) ?[-+*/^×] ?\0|[<>≤≥]=? ?\0"  # beside a variable or a bracket; a relation
    r"|\b(?:(?:less|fewer|more|greater) than|at (?:least|most)|half) \0"  # a bound
    r"|\0(?:\^|(?:[:/]|\*\*)\0| ?[ap]\.?m\b|[^\W\d_]|\([A-Za-z] ?[-+*/^)])"  # a power, a date, a time, 2x, 3(x + 1)
    r"|\0 ?[-+*/^×] ?(?:[B-HJ-Zb-hj-z](?![A-Za-z])|\()"  # before a variable or a bracket
    r"|\0[ -](?:and )?(?:an? )?(?:half|halves|(?:quarter|third|fourth|fifth|sixth|seventh|eighth|ninth|tenth)s?)\b"
    r"|\0[ -](?:and )?\0",  # words of a number above a hundred
    re.IGNORECASE,
)
_NO_NUMBER = re.compile(r"\b(?:no|some|any|every|each|the|this|that|which) one\b", re.IGNORECASE)
_DIGIT = re.compile(r"\d")
_EQUALS = re.compile(r"=>|->|→|(?<![<>!])=|[≈≅]")
_CLAUSE = re.compile(r"[;\n]|,\s|\b(?:and|or|so)\b")


def read_numbers(text: str) -> tuple[Number, ...] | None:
    """Return the numbers that a text states, of an equation those on its right; None if they cannot be read.

    >>> [str(number.value) for number in read_numbers("a = 3, so 2a = a + a = 1,234.5")]
    ['3', '2469/2']
    """
    plain = clean(text)
    return None if plain is None else _stated_numbers(plain)


@lru_cache(maxsize=1_024)
def _stated_numbers(plain: str) -> tuple[Number, ...] | None:
    part = stated(plain).strip("* ").rstrip(".")
    clauses = [_EQUALS.split(clause) for clause in _CLAUSE.split(part)]
    last = max((index for index, sides in enumerate(clauses) if len(sides) > 1), default=-1)
    right = "; ".join(sides[-1].strip() for index, sides in enumerate(clauses) if len(sides) > 1 or index > last)
    numbers = _numbers(right) if last >= 0 else ()
    return _numbers(part) if numbers == () else numbers


def _numbers(text: str) -> tuple[Number, ...] | None:
    """Return the numbers of a cleaned text; "one" counts for none in "the one with 5 apples" and "no one"."""
    text = _FRAC.sub(lambda frac: f"{frac[1] or ''}{' ' * bool(frac[1])}{frac[2]}/{frac[3]} ", text)
    text = _NO_NUMBER.sub("", _SQUARED.sub(r"\1", text))
    if _ODD.search(_NUMBER.sub("\0", text)):
        return None
    numbers: list[Number] = []
    for match in _NUMBER.finditer(text):
        if match[0].lower() == "one" and (numbers or _DIGIT.search(text)):
            continue
        value = _value(match)
        if value is None or len(numbers) == MAX_NUMBERS:
            return None
        value *= prod(_SCALES[scale] for scale in re.findall(_SCALE, match["scales"].lower()))
        negative = match["inner"] == "-" or (match["minus"] or "+") != "+"
        numbers.append(Number(-value if negative else value, match["percent"] is not None))
    return tuple(numbers)


def _value(match: re.Match[str]) -> Fraction | None:
    """Return a number without its sign; None if its form is unknown or it is too large."""
    if match["words"]:
        return Fraction(sum(_VALUES[word] for word in re.findall("[a-z]+", match["words"].lower())))
    if match["run"] or match["ten"]:
        value, exponent = read_run(match["run"] or "1"), match["exponent"] or match["power"] or "0"
        if value is None or len(exponent) > _MAX_EXPONENT_CHARS or abs(int(exponent)) > MAX_DIGITS:
            return None
        return value * Fraction(10) ** int(exponent)
    top, bottom = read_run(match["top"] or match["numerator"]), read_run(match["bottom"] or match["denominator"])
    whole = read_run(match["whole"] or "0")
    return whole + top / bottom if whole is not None and top is not None and bottom else None


_COMMAS = re.compile(r"(?!0,)(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})")
_POINTS = re.compile(r"(?!0\.)\d{1,3}(?:\.\d{3})+")


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
