"""Matchers by name, loaded at first use: built in, or an installed package's entry point.

Options of a matcher come as the text of a spec ("number:rel=1e-3"), or as values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote
from cascade.matching.base import ByMatching, Comparator, Matcher
from cascade.registry import Registry, callable_alone, imported

MATCHERS: Registry[Callable[..., Matcher]] = Registry(
    "matcher",
    "cascade.matchers",
    {
        "text": "cascade.matching.words:TextMatcher",
        "label": "cascade.matching.words:LabelMatcher",
        "exact": "cascade.matching.words:ExactMatcher",
        "choice": "cascade.matching.choice:ChoiceMatcher",
        "number": "cascade.matching.number:NumberMatcher",
        "math": "cascade.matching.maths:MathMatcher",
        "json": "cascade.matching.json_value:JsonMatcher",
        "tool_calls": "cascade.matching.tool_calls:ToolCallsMatcher",
        "code": "cascade.matching.code:CodeMatcher",
        "function": "cascade.matching.base:FunctionMatcher",
        "judge": "cascade.matching.judge:JudgeMatcher",
        "request": "cascade.matching.same:RequestMatcher",
    },
    callable_alone,
)


Reader = Callable[[Any], Any]
"""Converts a given option to its value; raises ValueError with the problem."""

_MAX_NUMBER_CHARS = 40


def fraction(value: Any) -> Fraction:
    """Return a number that is at least 0, exactly as written: 0.1 is one tenth.

    >>> fraction("1e-3"), fraction(0.8), fraction("5%")
    (Fraction(1, 1000), Fraction(4, 5), Fraction(1, 20))
    """
    text = str(value).strip()
    if isinstance(value, bool) or len(text) > _MAX_NUMBER_CHARS:
        raise ValueError("is not a number")
    digits, percent, _ = text.partition("%")
    exponent = digits.lower().partition("e")[2].lstrip("+-")
    if len(exponent) > len("999"):  # Fraction("1e999999999") would never come back
        raise ValueError("is out of range")
    try:
        read = Fraction(digits) / (100 if percent else 1)
    except (ValueError, ZeroDivisionError):
        raise ValueError("is not a number") from None
    if read < 0:
        raise ValueError("must not be negative")
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
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return str(value)

    return read


def letters(value: Any) -> str:
    """Return the letters of the options, as one upper-case text."""
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
    """Return the valid values, and the problems of the others. The caller handles unknown names."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        try:
            values[name] = readers[name](value)
        except ValueError as error:
            problems.append(f"{name}={value!r} {error}")
    return values, problems


class Options(NamedTuple):
    """A matcher's options, and the required ones; the first may be given without its name."""

    readers: Mapping[str, Reader] = {}
    needed: tuple[str, ...] = ()


OPTIONS: Mapping[str, Options] = {
    "choice": Options({"letters": letters}),
    "number": Options({"rel": fraction, "abs": fraction}),
    "math": Options({"timeout_s": seconds, "workers": count}),
    "json": Options({"ignore": str, "lists": one_of("ordered", "unordered")}),
    "tool_calls": Options(
        {"order": one_of("any", "kept"), "words": one_of("ignored", "compared")},
    ),
    "label": Options({"labels": str}),
    "code": Options({"command": str, "timeout_s": seconds}),
    "function": Options({"function": function_or_name}, needed=("function",)),
    "judge": Options({"ask": function}, needed=("ask",)),
}
"""The options of the built-in matchers. An installed matcher checks its own."""


def names() -> tuple[str, ...]:
    """Return every matcher that can be named, built in or installed."""
    return MATCHERS.names


def get_matcher(spec: str, **given: Any) -> Matcher:
    """Return the matcher that a spec names.

    A spec is a name, or a name with options after a colon: "number:rel=1e-3,abs=0.5",
    "function:my_module.is_right". Options that are not texts, such as the judge's `ask`, are given as keywords.

    Raises:
        UsageError: the matcher or an option does not exist, or an installed matcher cannot be loaded; it lists every
        problem.
        MissingExtraError: the matcher's package is not installed; it has the pip command.

    >>> get_matcher("number:rel=1e-2").matches("about 4.98 km", ["5 km"])
    True
    """
    name, _, written = spec.partition(":")
    name = name.strip()
    chosen, problems = _options(written, given)
    factory = MATCHERS.find(name)
    if factory is None:
        raise UsageError(f"There is no matcher {name!r}{did_you_mean(name, names())}")
    if name in MATCHERS.built_in:
        return factory(**_values(name, OPTIONS.get(name, Options()), chosen, problems))
    _raise_any(spec, problems)
    return _make_installed(name, factory, {key or "argument": value for key, value in chosen.items()})


def get_comparator(spec: str, **given: Any) -> Comparator:
    """Return the comparator that a spec names, as `get_matcher` reads it; any matcher can compare two outputs.

    >>> get_comparator("label:labels=spam|ham").same("Spam.", "it is spam")
    True
    """
    made = get_matcher(spec, **given)
    return made if isinstance(made, Comparator) else ByMatching(made)


def _options(written: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a spec and of the call together; an option without a name has the key ""."""
    chosen: dict[str, Any] = {}
    problems = []
    for item in filter(None, map(str.strip, written.split(","))):
        key, equals, value = item.partition("=")
        key, value = (key.strip(), value.strip()) if equals else ("", item)
        if key in chosen or key in given:
            problems.append(f"{key or value} is given twice")
        chosen[key] = value
    return chosen | dict(given), problems


def _values(name: str, takes: Options, chosen: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the options of a built-in matcher as values; raise UsageError that lists all problems."""
    if "" in chosen and takes.needed and takes.needed[0] not in chosen:
        chosen[takes.needed[0]] = chosen.pop("")
    missing = [one for one in takes.needed if one not in chosen]
    problems += [f"it needs the option {one}; see docs/matching.md" for one in missing]
    for key in [key for key in chosen if key not in takes.readers]:
        hint = did_you_mean(key, takes.readers) if takes.readers else "; it takes none"
        said = f"there is no option {key!r}" if key else f"{chosen[key]!r} is not an option; write name=value"
        problems.append(said + hint)
        del chosen[key]
    values, wrong = read_all(chosen, takes.readers)
    _raise_any(name, [*problems, *wrong])
    return values


def _make_installed(name: str, factory: Callable[..., Matcher], chosen: Mapping[str, Any]) -> Matcher:
    """Make the matcher of an installed package. Any failure in it becomes one error that names it."""
    try:
        made = factory(**chosen)
    except CascadeError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {quote(str(error))}"
        raise UsageError(
            f"The matcher {name!r} cannot be made: {said}. Repair or uninstall its package, or check its options."
        ) from error
    if not callable(getattr(made, "matches", None)):
        raise UsageError(
            f"{name!r} is not a matcher: its factory must return an object "
            f"with a method matches(answer, gold), but returned {type(made).__name__}."
        )
    return made


def _raise_any(name: str, problems: list[str]) -> None:
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise UsageError(f"The matcher {name!r} cannot be made:{lines}")
