"""Matchers by name, loaded when they are first asked for: built in, or an installed package's entry point."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, NamedTuple

from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote
from cascade.matching import options
from cascade.matching.base import Matcher

ENTRY_POINT_GROUP = "cascade.matchers"


class _BuiltIn(NamedTuple):
    """Where a matcher's class stands, which options it takes, and the one without which it cannot be.

    That one may stand in a spec without its name.
    """

    place: str
    readers: Mapping[str, options.Reader] = {}
    needed: str | None = None


_OFFICIAL = "cascade.matching.official"
_BUILT_IN: Mapping[str, _BuiltIn] = {
    "exact": _BuiltIn("cascade.matching.exact:ExactMatcher"),
    "squad": _BuiltIn(f"{_OFFICIAL}:SquadMatcher", {"f1": options.share}),
    "hotpotqa": _BuiltIn(f"{_OFFICIAL}:HotpotQAMatcher", {"f1": options.share}),
    "choice": _BuiltIn("cascade.matching.choice:ChoiceMatcher", {"letters": options.letters}),
    "number": _BuiltIn(
        "cascade.matching.number:NumberMatcher",
        {"rel": options.fraction, "abs": options.fraction, "units": options.one_of("yes", "no", "required")},
    ),
    "date": _BuiltIn("cascade.matching.date:DateMatcher"),
    "math": _BuiltIn("cascade.matching.maths:MathMatcher", {"timeout_s": options.seconds, "workers": options.count}),
    "json": _BuiltIn(
        "cascade.matching.json_value:JsonMatcher", {"ignore": str, "lists": options.one_of("ordered", "unordered")}
    ),
    "tool_calls": _BuiltIn("cascade.matching.tool_calls:ToolCallsMatcher", {"order": options.one_of("any", "kept")}),
    "function": _BuiltIn(
        "cascade.matching.function:FunctionMatcher",
        {"function": options.function_or_name, "at_least": options.share},
        needed="function",
    ),
    "judge": _BuiltIn("cascade.matching.judge:JudgeMatcher", {"ask": options.function}, needed="ask"),
}


def names() -> tuple[str, ...]:
    """Return every matcher that can be named, built in or installed."""
    return tuple(dict.fromkeys([*_BUILT_IN, *(point.name for point in entry_points(group=ENTRY_POINT_GROUP))]))


def get_matcher(spec: str, **given: Any) -> Matcher:
    """Return the matcher that a spec names.

    A spec is a name, or a name with options behind a colon: "number:rel=1e-3,units=yes", "squad:f1=0.8",
    "function:my_module.is_right". What cannot be written, such as the judge's `ask`, is given as a keyword.

    Raises:
        UsageError: there is no such matcher or option, or an installed one cannot be loaded; it lists every problem.
        MissingExtraError: the matcher's package is not installed; it holds the pip command.

    >>> get_matcher("squad:f1=0.8").matches("the blue Danube", ["Danube"])
    Verdict(correct=False, score=0.6666666666666666)
    """
    name, _, written = spec.partition(":")
    name = name.strip()
    chosen, problems = _options(written, given)
    built_in = _BUILT_IN.get(name)
    if built_in is not None:
        return _make_built_in(name, built_in, chosen, problems)
    for point in entry_points(group=ENTRY_POINT_GROUP):
        if point.name == name:
            _raise_any(spec, problems)
            return _make_installed(point, {key or "argument": value for key, value in chosen.items()})
    raise UsageError(f"There is no matcher {name!r}{did_you_mean(name, names())}")


def _options(written: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the options of a spec and of the call together; the one without a name stands under ""."""
    chosen: dict[str, Any] = {}
    problems = []
    for item in filter(None, map(str.strip, written.split(","))):
        key, equals, value = item.partition("=")
        key, value = (key.strip(), value.strip()) if equals else ("", item)
        if key in chosen or key in given:
            problems.append(f"{key or value} is given twice")
        chosen[key] = value
    return chosen | dict(given), problems


def _make_built_in(name: str, built_in: _BuiltIn, chosen: dict[str, Any], problems: list[str]) -> Matcher:
    if "" in chosen and built_in.needed and built_in.needed not in chosen:
        chosen[built_in.needed] = chosen.pop("")
    if built_in.needed and built_in.needed not in chosen:
        problems.append(f"it needs the option {built_in.needed}; see docs/matching.md")
    for key in [key for key in chosen if key not in built_in.readers]:
        hint = did_you_mean(key, built_in.readers) if built_in.readers else "; it takes none"
        said = f"there is no option {key!r}" if key else f"{chosen[key]!r} is no option; options are written name=value"
        problems.append(said + hint)
        del chosen[key]
    values, wrong = options.read_all(chosen, built_in.readers)
    _raise_any(name, [*problems, *wrong])
    module, _, attribute = built_in.place.partition(":")
    made: Matcher = getattr(import_module(module), attribute)(**values)
    return made


def _make_installed(point: EntryPoint, chosen: Mapping[str, Any]) -> Matcher:
    """Make the matcher of an installed package. Whatever goes wrong in it is one error that names it."""
    try:
        made = point.load()(**chosen)
    except CascadeError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {quote(str(error))}"
        raise UsageError(
            f"The matcher {point.name!r} ({point.value}) cannot be made: {said}. "
            "Mend or uninstall the package that brings it, or check its options."
        ) from error
    if not callable(getattr(made, "matches", None)):
        raise UsageError(
            f"The matcher {point.name!r} ({point.value}) is none: its factory must return an object "
            f"with a method matches(answer, gold), but returned {type(made).__name__}."
        )
    matcher: Matcher = made
    return matcher


def _raise_any(name: str, problems: list[str]) -> None:
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise UsageError(f"The matcher {name!r} cannot be made:{lines}")
