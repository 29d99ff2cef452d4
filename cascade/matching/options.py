"""Reading a matcher's options: from the text of a spec, or given as values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from cascade.registry import imported

Reader = Callable[[Any], Any]
"""Takes what was given, returns what is meant, raises ValueError with what is wrong."""

_MAX_NUMBER_CHARS = 40


def fraction(value: Any) -> Fraction:
    """Return a number that is at least 0, exactly as it is written: 0.1 is one tenth.

    >>> fraction("1e-3"), fraction(0.8), fraction("5%")
    (Fraction(1, 1000), Fraction(4, 5), Fraction(1, 20))
    """
    text = str(value).strip()
    if isinstance(value, bool) or len(text) > _MAX_NUMBER_CHARS:
        raise ValueError("is no number")
    digits, percent, _ = text.partition("%")
    exponent = digits.lower().partition("e")[2].lstrip("+-")
    if len(exponent) > len("999"):  # Fraction("1e999999999") would never come back
        raise ValueError("is out of range")
    try:
        read = Fraction(digits) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError("is no number") from None
    if read < 0:
        raise ValueError("must not be negative")
    return read


def share(value: Any) -> Fraction:
    """Return a number above 0 and at most 1."""
    read = fraction(value)
    if not 0 < read <= 1:
        raise ValueError("must be above 0 and at most 1")
    return read


def seconds(value: Any) -> float:
    """Return a duration above 0, at most an hour."""
    read = float(fraction(value))
    if not 0 < read <= 3_600:
        raise ValueError("must be above 0 and at most 3600 seconds")
    return read


def count(value: Any) -> int:
    """Return a whole number from 1 to 64."""
    read = fraction(value)
    if read.denominator != 1 or not 1 <= read <= 64:
        raise ValueError("must be a whole number from 1 to 64")
    return int(read)


def one_of(*words: str) -> Reader:
    """Return a reader of one of the words."""

    def read(value: Any) -> str:
        # YAML and Python say True where a spec says yes.
        said = {True: "yes", False: "no"}.get(value, value) if isinstance(value, bool) else value
        if said not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(said)

    return read


def letters(value: Any) -> str:
    """Return the letters that options are called by, as one upper-case text."""
    text = str(value).upper()
    if not text.isascii() or not text.isalpha() or len(set(text)) < len(text):
        raise ValueError("must be the letters of the options, each once, such as ABCD")
    return text


def function(value: Any) -> Callable[..., Any]:
    """Return something that can be called."""
    if not callable(value):
        raise ValueError("must be a function")  # noqa: TRY004 - `read_all` collects these
    made: Callable[..., Any] = value
    return made


def function_or_name(value: Any) -> Callable[..., Any]:
    """Return a function, given itself or as "module.attribute"; the module is imported, which runs it."""
    if not isinstance(value, str):
        return function(value)
    module, _, attribute = value.replace(":", ".").rpartition(".")
    if not module or not attribute:
        raise ValueError('must be "module.attribute", such as my_rules.is_right')
    return function(imported(f"{module}:{attribute}"))


def read_all(given: Mapping[str, Any], readers: Mapping[str, Reader]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that could be read, and what is wrong with the others. Unknown names are the caller's."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        try:
            values[name] = readers[name](value)
        except ValueError as error:
            problems.append(f"{name}={value!r} {error}")
    return values, problems
