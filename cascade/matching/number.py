"""Numbers: by value, within a tolerance; units are ignored. Exact fractions, no floats."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import NamedTuple

from cascade.matching.base import accepted
from cascade.matching.reading import clean, remembering, same_text, stated


@dataclass(frozen=True, slots=True)
class NumberMatcher:
    """Compares the one number of an answer with that of an accepted answer.

    An answer a agrees with an accepted one g if |a - g| ≤ max(abs, rel · |g|). Units are ignored: 5 km is 5 m. An
    answer with several numbers is right only if each of them agrees. If an accepted answer has no number or several,
    only the same text is right; if no accepted answer has exactly one number, the truth of any other text is unknown.

    Attributes:
        rel: relative tolerance, 0 by default.
        abs: absolute tolerance, 0 by default.

    >>> NumberMatcher().matches("about 1,500 m", ["1500"]), NumberMatcher().matches("3 or 4", ["3"])
    (True, False)
    >>> NumberMatcher(rel=Fraction("0.01")).matches("3.14", ["3.14159"])
    True
    """

    rel: Fraction = Fraction(0)
    abs: Fraction = Fraction(0)

    def matches(self, answer: str, gold: Sequence[str]) -> bool | None:
        """Return whether the answer's number is that of an accepted answer."""
        golds = accepted(gold)
        if any(same_text(answer, one, fold=False) for one in golds):
            return True
        wanted = [quantity for quantity in map(only_quantity, golds) if quantity is not None]
        if not wanted:
            return None
        said = _read(answer)
        if said.unreadable or not said.quantities:
            return False
        return any(all(self._agree(one, other) for one in said.quantities) for other in wanted)

    def _agree(self, said: Quantity, wanted: Quantity) -> bool:
        if said.relation != wanted.relation:
            return False
        most = max(self.abs, self.rel * abs(wanted.value))
        return any(abs(value - wanted.value) <= most for value in _readings(said, wanted))


def _readings(said: Quantity, wanted: Quantity) -> list[Fraction]:
    """Return the values of a quantity beside the wanted one: 50 % is 0.5, and 42 % is 42 if a percentage was asked for.

    A bare number up to 1 is a share: 0.5 % is not 0.5.
    """
    if said.percent == wanted.percent:
        return [said.value]
    bare = wanted if said.percent else said
    in_percent = [said.value] if abs(bare.value) > 1 else []
    return [*in_percent, said.value / 100 if said.percent else said.value * 100]


def only_quantity(text: str) -> Quantity | None:
    """Return the quantity of an accepted answer; None if it has none, several, or an unreadable one."""
    found = _read_again(text)
    one = found.quantities[:1]
    return one[0] if one and not found.unreadable and set(found.quantities) == set(one) else None


def _unwrapped(text: str) -> str:
    """Return a text without the marks of bold print or of a formula around the whole of it."""
    bare = text.strip("* ").rstrip(".")
    return bare[1:-1] if len(bare) > 1 and bare[0] == bare[-1] == "$" else bare


_EQUALS = re.compile(r"=>|->|→|(?<![<>!])=|[≈≅]")
_CLAUSE = re.compile(r"[;\n]|,\s|\b(?:and|or|so)\b")


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


_read_again = remembering(_read)


def _right_sides(text: str) -> list[str]:
    """Return the text after the last equals sign of each clause, and the clauses after the last of them.

    >>> _right_sides("a = 3, so 2a = a + a = 6")
    ['3', '6']
    """
    clauses = [_EQUALS.split(clause) for clause in _CLAUSE.split(text)]
    last = max(at for at, sides in enumerate(clauses) if len(sides) > 1)
    return [sides[-1].strip() for at, sides in enumerate(clauses) if len(sides) > 1 or at > last]


# --- numbers in words: "seven", "twenty-one", "two hundred and five", "three quarters" ---


def _counted(words: str, start: int) -> dict[str, int]:
    return {word: value for value, word in enumerate(words.split(), start)}


_SMALL = _counted(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen",
    0,
)
_TENS = {
    word: 10 * value for word, value in _counted("twenty thirty forty fifty sixty seventy eighty ninety", 2).items()
}
SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
_PARTS = _counted("half third quarter fifth sixth seventh eighth ninth tenth", 2) | {"fourth": 4}

_WORD = "|".join([*sorted([*_SMALL, *_TENS], key=len, reverse=True)])
_SCALE_WORD = "|".join(SCALES)
_FIRST = rf"(?:{_WORD})\b|an? (?=(?:{_SCALE_WORD})\b)|(?=half\b)"
_IN_WORDS = re.compile(
    rf"\b(minus |negative )?(?:{_FIRST})(?:(?: and |[ -])?(?:{_WORD}|{_SCALE_WORD})\b)*", re.IGNORECASE
)
_PART = re.compile(rf"[ -]?({'|'.join(_PARTS)}|halve)(s?)\b", re.IGNORECASE)


class Words(NamedTuple):
    """A number in words: its position, its value (None if the words do not make a number), and the words."""

    start: int
    end: int
    value: Fraction | None
    written: str


def find_words(text: str) -> Iterator[Words]:
    """Yield the numbers written in words in a text.

    >>> [(one.written, one.value) for one in find_words("two hundred and five of two-thirds")]
    [('two hundred and five', Fraction(205, 1)), ('two', Fraction(2, 3))]
    """
    for found in _IN_WORDS.finditer(text):
        sign = -1 if found[1] else 1
        tokens = [one for one in re.split(r"[ -]+", found[0][len(found[1] or "") :].lower()) if one]
        value, end = _whole(tokens), found.end()
        part = _PART.match(text, end)
        made = None if value is None else Fraction(value)
        if part is not None:
            made, end = _part_of(value, part, tokens), part.end()
        if end > found.start():
            yield Words(found.start(), end, made and sign * made, found[0].lower().strip())


def _whole(tokens: list[str]) -> int | None:
    """Return the number that the words make, or None: "two hundred and five", not "two three"."""
    made: _WordsValue | None = _WordsValue()
    for before, word in zip(["", *tokens], tokens, strict=False):
        made = made and made.then(word, before)
    return None if made is None else made.total + made.group


class _WordsValue(NamedTuple):
    """The value of the words so far: earlier groups, the current group, and the largest scale and number allowed."""

    total: int = 0
    group: int = 0
    room: int = SCALES["trillion"]
    below: int = 1_000

    def then(self, word: str, before: str) -> _WordsValue | None:
        """Return the number after the next word, or None if the word cannot follow."""
        if word in {"a", "an"}:
            return _WordsValue(0, 1, self.room, 1)
        if word == "and":
            return self if before in SCALES else None
        return self.scaled(SCALES[word]) if word in SCALES else self.and_small(_SMALL.get(word, _TENS.get(word, 0)))

    def scaled(self, scale: int) -> _WordsValue | None:
        """Return the number after a scale word: "two" and "hundred", "twelve" and "thousand"."""
        small = scale in {12, 100}
        if not self.group or (self.group >= 100 if small else scale > self.room):
            return None
        if small:
            return self._replace(group=self.group * scale, below=scale if scale == 100 else 1)
        return _WordsValue(self.total + self.group * scale, 0, scale // 1_000)

    def and_small(self, value: int) -> _WordsValue | None:
        """Return the number after a small number or a ten: "hundred" and "five", "twenty" and "one"."""
        if value >= self.below:
            return None
        return self._replace(group=self.group + value, below=10 if value >= 20 else 1)


def _part_of(value: int | None, part: re.Match[str], tokens: list[str]) -> Fraction | None:
    """Return "three quarters" as a fraction. "Twenty-third" is none: one part is singular, several are plural."""
    word = part[1].lower()
    size = 2 if word == "halve" else _PARTS[word]
    several = bool(part[2])
    if not tokens:
        return Fraction(1, 2) if word == "half" and not several else None
    return None if value is None or several == (value == 1) else Fraction(value, size)


# --- quantities: numbers in all usual forms ---

MAX_DIGITS = 1_000
"""A number with more digits, or an exponent beyond ±1,000, is not read: 1e999999 would fill the memory."""
MAX_QUANTITIES = 20
"""A text with more numbers is not an answer to a question for one."""


class Quantity(NamedTuple):
    """A number, whether it is a percentage, and a relation such as "<"."""

    value: Fraction
    percent: bool = False
    relation: str = ""


class Reading(NamedTuple):
    """The numbers of a text. `unreadable`: the text has a number of unknown form."""

    quantities: tuple[Quantity, ...]
    unreadable: bool = False


# Digits with blanks, apostrophes or underscores between groups of three; or with points and commas, read later.
_RUN = r"(?:\d{1,3}(?:(?:[ ]\d{3})+|(?:'\d{3})+|(?:_\d{3})+)(?!\d)(?:[.,]\d+)?|\d+(?:[.,]\d+)*|(?<!\d)\.\d+)"
_TIMES_TEN = r"[ ]?(?:x|×|\*|\\times|\\cdot)[ ]?10[ ]?(?:\^|\*\*)[ ]?[{(]?"
_NUMBER = re.compile(
    rf"""
    (?P<minus>(?<![\w)])[-+]|\b(?i:minus|negative)\ )?
    (?P<money>(?:\b[A-Za-z]{{1,3}})?[$€£¥₹₽₩₺₪¢]\ ?)?
    (?P<inner>[-+])?
    (?:
      (?P<odd>\d+(?:[:/]\d+){{2,}}|\d+:\d+)
      |(?P<whole>\d+)\ (?:and\ )?(?P<top>\d+)\ ?/\ ?(?P<bottom>\d+)
      |(?P<numerator>{_RUN})\ ?/\ ?(?P<denominator>{_RUN})
      |(?P<tens>10)(?:\^|\*\*)[{{(]?(?P<power>[-+]?\d+)[)}}]?
      |(?P<run>{_RUN})(?:(?:[eE]|{_TIMES_TEN})(?P<exponent>[-+]?\d+)[)}}]?)?
    )
    """,
    re.VERBOSE,
)
_FRAC = re.compile(r"(\d ?)?\\[dt]?frac ?\{ ?(-?\d{1,1000}) ?\} ?\{ ?(\d{1,1000}) ?\}")
_ORDINAL = re.compile(r"(?:st|nd|rd|th)\b")
_SCALE = re.compile(rf" ?({'|'.join(SCALES)})s?\b", re.IGNORECASE)
_SHORT_SCALE = re.compile(r" ?(k|bn|mn|tn)\b")
_MONEY_SCALE = re.compile(r" ?([kmbtKMBT])\b")
_SHORT = {"k": 3, "m": 6, "mn": 6, "b": 9, "bn": 9, "t": 12, "tn": 12}
_PERCENT = re.compile(r" ?%|[ -]per ?cent\b", re.IGNORECASE)
_SQUARED = re.compile(r"\b([cdkm]?m|ft|in|mi)\^[23]\b")
# A variable or a bracket beside an operator: the number is part of a formula, such as p - 2 or (a+b)/2.
_FORMULA_BEFORE = re.compile(r"(?:(?<![A-Za-z])[A-Za-z]|[)\]}]) ?[-+*/^×] ?$")
_FORMULA_BEHIND = re.compile(r" ?[-+*/^×] ?(?:[B-HJ-Zb-hj-z](?![A-Za-z])|\()|\([A-Za-z] ?[-+*/^)]")
_RELATIONS = {
    "≤": "<=", "≥": ">=", "less than": "<", "fewer than": "<", "more than": ">", "greater than": ">", "at least": ">=",
    "at most": "<=",
}  # fmt: skip
_RELATION = re.compile(rf"(?:([<>≤≥]=?) ?|\b({'|'.join(list(_RELATIONS)[2:])}) )$", re.IGNORECASE)
_RELATION_CHARS = len("greater than ")
_POWER = re.compile(r"\^|\*\*\d")
_OF_THE_CLOCK = re.compile(r" ?[ap]\.?m\b", re.IGNORECASE)
_SOMEBODY = re.compile(r"\b(?:no|some|any|every|each|the|this|that|which) $", re.IGNORECASE)
_PARENTHESISED = re.compile(r"(?P<money>[A-Z]{0,3}[$€£¥]?) ?\((?P<inside>[^()]{1,200})\)(?P<behind>[^()]{0,40})")


def read_quantities(text: str) -> Reading:
    """Return the quantities of a cleaned text.

    >>> [str(one.value) for one in read_quantities("about 1,234.5 or 3/4").quantities]
    ['2469/2', '3/4']
    """
    text = _FRAC.sub(lambda found: f"{found[1] or ''}{' ' * bool(found[1])}{found[2]}/{found[3]} ", text)
    text = _SQUARED.sub(r"\1", text)
    found = list(islice(_found(text), MAX_QUANTITIES + 1))
    if len(found) > MAX_QUANTITIES:
        return Reading((), unreadable=True)
    return Reading(tuple(one for one in found if one is not None), unreadable=None in found)


def negative_in_parentheses(text: str) -> str:
    """Return a text that is only a number in parentheses with a minus instead, as in accounting.

    >>> negative_in_parentheses("$(1,234)"), negative_in_parentheses("(5) km"), negative_in_parentheses("no (5)")
    ('-$1,234', '-5 km', 'no (5)')
    """
    whole = _PARENTHESISED.fullmatch(text)
    if whole is None or not re.match(r"[A-Z$€£¥ ]{0,5}\d", whole["inside"]) or re.search(r"\d", whole["behind"]):
        return text
    return f"-{whole['money']}{whole['inside']}{whole['behind']}"


def _found(text: str) -> Iterator[Quantity | None]:
    """Yield the quantity of each number; None for an unknown form."""
    spans: list[tuple[int, int]] = []
    for match in _NUMBER.finditer(text):
        if _is_name(text, match):
            continue
        value = None if _FORMULA_BEFORE.search(text, max(0, match.start() - 4), match.start()) else _value(match)
        quantity, end = _whole_quantity(text, match.end(), value, money=bool(match["money"]))
        spans.append((match.start(), end))
        yield _related(text, match.start(), quantity)
    for words in find_words(text):
        if words.written == "one" and (spans or _SOMEBODY.search(text[max(0, words.start - 8) : words.start])):
            continue  # "the one with 5 apples", "no one"
        if not any(start < words.end and words.start < end for start, end in spans):
            quantity, end = _whole_quantity(text, words.end, words.value)
            spans.append((words.start, end))
            yield _related(text, words.start, quantity)


def _related(text: str, start: int, quantity: Quantity | None) -> Quantity | None:
    """Return a quantity with the relation before it: "< 5" and "at least five" are not five."""
    found = _RELATION.search(text, max(0, start - _RELATION_CHARS), start)
    if quantity is None or found is None:
        return quantity
    said = (found[1] or found[2]).lower()
    return quantity._replace(relation=_RELATIONS.get(said, said))


def _is_name(text: str, match: re.Match[str]) -> bool:
    """Whether a number is part of a name or a formula: B12, COVID-19, x2."""
    before = text[max(0, match.start() - 2) : match.start()]
    return before[-1:].isalpha() or before[-1:] == "_" or (before[-1:] == "-" and before[:1].isalpha())


def _value(match: re.Match[str]) -> Fraction | None:
    """Return the value of a number; None if its form is unknown or it is too large."""
    sign = -1 if "-" in (match["inner"] or "") or (match["minus"] or "").strip() not in {"", "+"} else 1
    if match["odd"]:
        return None
    if match["run"]:
        return _scaled(read_run(match["run"]), match["exponent"], sign)
    if match["tens"]:
        return _scaled(Fraction(1), match["power"], sign)
    if match["whole"]:
        whole, top, bottom = (read_run(match[name]) for name in ("whole", "top", "bottom"))
    else:
        whole, top, bottom = Fraction(0), read_run(match["numerator"]), read_run(match["denominator"])
    if whole is None or top is None or not bottom:
        return None
    return sign * (whole + top / bottom)


def _scaled(value: Fraction | None, exponent: str | None, sign: int) -> Fraction | None:
    if value is None or exponent is None:
        return value and sign * value
    if len(exponent.lstrip("+-0")) > len(str(MAX_DIGITS)):
        return None
    power = int(exponent)
    return sign * value * Fraction(10) ** power if abs(power) <= MAX_DIGITS else None


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
    last = max(bare.rfind(","), bare.rfind("."))
    if last < 0:
        return Fraction(int(bare))
    mark = bare[last]
    other = "." if mark == "," else ","
    if other not in bare and _is_grouped(bare, mark) and (mark == "," or bare.count(".") > 1):
        return Fraction(int(bare.replace(mark, "")))
    whole, decimals = bare[:last], bare[last + 1 :]
    if mark in whole or (other in whole and not _is_grouped(whole, other)) or (other in whole and bare != run):
        return None
    return Fraction(f"{whole.replace(other, '') or '0'}.{decimals}")


def _is_grouped(digits: str, mark: str) -> bool:
    first, *groups = digits.split(mark)
    if not groups or first in {"", "0"} or len(groups[-1]) != 3:
        return False
    sizes = {len(group) for group in groups[:-1]}
    return (len(first) <= 3 and sizes <= {3}) or (mark == "," and len(first) <= 2 and sizes == {2})


def _whole_quantity(text: str, end: int, value: Fraction | None, *, money: bool = False) -> tuple[Quantity | None, int]:
    """Return the quantity of a number and the text after it, and its end."""
    if text.startswith(" and a half", end) and value is not None:
        value, end = value + Fraction(1, 2), end + len(" and a half")
    ordinal = _ORDINAL.match(text, end)
    if ordinal is not None:
        end = ordinal.end()
    value, end = _with_scale(text, end, value, money=money)
    percent = _PERCENT.match(text, end)
    if percent is not None:
        end = percent.end()
    odd = _POWER.match(text, end) or _OF_THE_CLOCK.match(text, end) or text[end : end + 1].isalpha()
    if value is None or odd or _FORMULA_BEHIND.match(text, end):
        return None, end
    return Quantity(value, percent is not None), end


def _with_scale(text: str, end: int, value: Fraction | None, *, money: bool) -> tuple[Fraction | None, int]:
    """Return a value times the words and letters behind it: million, k, and of money m and b."""
    while (found := _SCALE.match(text, end)) is not None:
        value, end = value and value * SCALES[found[1].lower()], found.end()
    short = _SHORT_SCALE.match(text, end) or (_MONEY_SCALE.match(text, end) if money else None)
    if short is not None:
        value, end = value and value * Fraction(10) ** _SHORT[short[1].lower()], short.end()
    return value, end
