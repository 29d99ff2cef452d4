"""Compare numbers by value, within a tolerance and without units, as exact fractions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Annotated, Any, NamedTuple

from pydantic import BeforeValidator, ConfigDict, validate_call

from cascade.matching.registry import Matcher, accepted
from cascade.matching.text import TextMatcher, clean, same_text, stated


class Number(NamedTuple):
    """A number, and whether it is a percentage: 50 % has the value 50."""

    value: Fraction
    percent: bool = False


def _tolerance(value: Any) -> Fraction:
    """Return a number that is at least 0, exactly as written: 0.1 is one tenth."""
    number = None if isinstance(value, bool) else only_number(str(value))
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
        targets = [number for text in golds if (number := only_number(text)) is not None]
        if not targets:
            return None
        numbers = read_numbers(answer)
        return bool(numbers) and any(all(self._agree(number, target) for number in numbers) for target in targets)

    def _agree(self, number: Number, target: Number) -> bool:
        """Return whether a number is within the tolerance: 50 % is 0.5, and 42 % is also 42, but 0.5 % is not 0.5."""
        scales = [Fraction(1)]
        if number.percent != target.percent:
            share = Fraction(1, 100) if number.percent else Fraction(100)
            bare = target if number.percent else number
            scales = [share, Fraction(1)] if abs(bare.value) > 1 else [share]
        limit = max(self._abs, self._rel * abs(target.value))
        return any(abs(number.value * scale - target.value) <= limit for scale in scales)


_PLAIN = re.compile(r"\s*[-−]?\d[\d,]*(?:\.\d+)?\s*")


class ExactMatcher(Matcher):
    """The default: the same words (`normalize_answer`), or the same number if the accepted answer is a plain number.

    >>> matcher = ExactMatcher()
    >>> matcher.matches("The Danube.", ["Danube"]), matcher.matches("$9", ["9"]), matcher.matches("7 x 3", ["21"])
    (True, True, False)
    """

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer equals an accepted one; None if there is no accepted one."""
        golds = accepted(gold)
        if not golds:
            return None
        plain = [text for text in golds if _PLAIN.fullmatch(text)]
        return TextMatcher().matches(answer, golds) or (bool(plain) and NumberMatcher().matches(answer, plain) is True)


def only_number(text: str) -> Number | None:
    """Return the only number that a text states; None if it states none, or several."""
    numbers = set(read_numbers(text))
    return numbers.pop() if len(numbers) == 1 else None


# --- reading: which part of a text counts, and the numbers in it ---

MAX_DIGITS = 1_000
"""A number with more digits, or an exponent beyond ±1,000, is not read: 1e999999 would fill the memory."""
MAX_NUMBERS = 20
"""A text with more numbers is not the answer to a question that asks for one."""
_SCALES = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_SCALE = "|".join(_SCALES)
# Digits with blanks, apostrophes or underscores between groups of three; or with points and commas, read later.
_RUN = r"(?:\d{1,3}(?:(?:[ ]\d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*|\.\d+)"
_TIMES_TEN = r"(?:[eE]|[ ]?(?:x|×|\*|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?[{(]?)"
_NUMBER = re.compile(
    rf"""
    (?<![\w^])(?<![A-Za-z]-)                                         # not of a name: B12, COVID-19; nor km^2
    (?P<minus>(?<!\))[-+])?(?:(?:\b[A-Za-z]{{1,3}})?[$€£¥₹]\ ?)?(?P<inner>[-+])?
    (?:(?P<whole>\d+)\ (?=\d+\ ?/))?(?P<run>{_RUN})(?:\ ?/\ ?(?P<bottom>{_RUN}))?
    (?:{_TIMES_TEN}(?P<exponent>[-+]?\d{{1,4}})(?!\d)[)}}]?)?
    (?:(?:st|nd|rd|th)\b)?(?P<scales>(?i:\ (?:{_SCALE})s?\b)*)(?P<percent>\ ?%|[ -](?i:per\ ?cent)\b)?
    """,
    re.VERBOSE,
)
_RIGHT = re.compile(r"=([^=]*?)(?=[;\n]|,\s|\b(?:and|or|so)\b|$)")
"""The right side of an equation, up to the end of its clause."""
_FRAC = re.compile(r"\\[dt]?frac ?\{ ?(-?\d{1,1000}) ?\} ?\{ ?(\d{1,1000}) ?\}")
# What makes a text with numbers more than a list of numbers; \0 stands for each number.
_ODD = re.compile(
    r"(?:(?<![A-Za-z])[A-Za-z]|[)\]}]) ?[-+*/^×] ?\0|[<>≤≥]=? ?\0"  # beside a variable or a bracket; a relation
    r"|\b(?:(?:less|fewer|more|greater) than|at (?:least|most)|half) \0"  # a bound
    r"|\0(?:\^|(?:[:/]|\*\*)\0| ?[ap]\.?m\b|[^\W\d_]|\([A-Za-z] ?[-+*/^)])"  # a power, a date, a time, 2x, 3(x + 1)
    r"|\0 ?[-+*/^×] ?(?:[B-HJ-Zb-hj-z](?![A-Za-z])|[(_])"  # before a variable or a bracket
    r"|\0[ -](?:and (?:a |\0)|or [^\0])",  # and a half; or a word
    re.IGNORECASE,
)


@lru_cache(maxsize=1_024)
def read_numbers(text: str) -> tuple[Number, ...]:
    """Return the numbers that a text states, in an equation those on its right side; none if they cannot be read.

    >>> [str(number.value) for number in read_numbers("3 + 4 = 7 km, so x = 7")], read_numbers("2x")
    (['7', '7'], ())
    """
    plain = stated(clean(text)).strip("* ").rstrip(".")
    if sides := list(_RIGHT.finditer(plain)):
        plain = "; ".join([*(side[1] for side in sides), plain[sides[-1].end() :]])
    plain = _FRAC.sub(r"\1/\2 ", plain)
    matches = list(_NUMBER.finditer(plain))
    numbers = [] if _ODD.search(_NUMBER.sub("\0", plain)) or len(matches) > MAX_NUMBERS else list(map(_number, matches))
    return tuple([number for number in numbers if number is not None]) if None not in numbers else ()


def _number(match: re.Match[str]) -> Number | None:
    """Return a number; None if its form is unknown or it is too large."""
    whole, value, bottom = (read_run(match[name] or default) for name, default in _PARTS)
    exponent = int(match["exponent"] or 0)
    if whole is None or value is None or not bottom or abs(exponent) > MAX_DIGITS:
        return None
    value = (whole + value / bottom) * Fraction(10) ** exponent
    value *= prod(_SCALES[scale] for scale in re.findall(_SCALE, match["scales"].lower()))
    negative = match["inner"] == "-" or match["minus"] == "-"
    return Number(-value if negative else value, match["percent"] is not None)


_PARTS = (("whole", "0"), ("run", "0"), ("bottom", "1"))
_COMMAS = re.compile(r"(?!0,)(?:\d{1,3}(?:,\d{3})+|\d{1,2}(?:,\d{2})+,\d{3})")
_POINTS = re.compile(r"(?!0\.)\d{1,3}(?:\.\d{3})+")


def read_run(run: str) -> Fraction | None:
    """Return the value of a run of digits with separators; None if no reading is clear.

    A comma alone groups by three, otherwise it is a decimal comma; a point alone is a decimal point; if both occur, the
    last is the decimal mark. Groups of two and three digits are Indian.

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
