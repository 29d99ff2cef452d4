"""Matchers by name, loaded when they are first asked for: built in, or an installed package's entry point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote
from cascade.matching import options
from cascade.matching.base import ByMatching, Comparator, Matcher
from cascade.registry import Registry, callable_alone

_OFFICIAL = "cascade.matching.official"
MATCHERS: Registry[Callable[..., Matcher]] = Registry(
    "matcher",
    "cascade.matchers",
    {
        "text": "cascade.matching.exact:TextMatcher",
        "label": "cascade.matching.label:LabelMatcher",
        "exact": "cascade.matching.exact:ExactMatcher",
        "squad": f"{_OFFICIAL}:SquadMatcher",
        "hotpotqa": f"{_OFFICIAL}:HotpotQAMatcher",
        "choice": "cascade.matching.choice:ChoiceMatcher",
        "number": "cascade.matching.number:NumberMatcher",
        "date": "cascade.matching.date:DateMatcher",
        "math": "cascade.matching.maths:MathMatcher",
        "json": "cascade.matching.json_value:JsonMatcher",
        "tool_calls": "cascade.matching.tool_calls:ToolCallsMatcher",
        "code": "cascade.matching.code:CodeMatcher",
        "embedding": "cascade.matching.embedding:EmbeddingMatcher",
        "function": "cascade.matching.function:FunctionMatcher",
        "judge": "cascade.matching.judge:JudgeMatcher",
        "request": "cascade.matching.same:RequestMatcher",
    },
    callable_alone,
)


class Options(NamedTuple):
    """Which options a matcher takes, and those without which it cannot be; the first may stand without its name."""

    readers: Mapping[str, options.Reader] = {}
    needed: tuple[str, ...] = ()


OPTIONS: Mapping[str, Options] = {
    "squad": Options({"f1": options.share}),
    "hotpotqa": Options({"f1": options.share}),
    "choice": Options({"letters": options.letters}),
    "number": Options(
        {"rel": options.fraction, "abs": options.fraction, "units": options.one_of("yes", "no", "required")}
    ),
    "math": Options({"timeout_s": options.seconds, "workers": options.count}),
    "json": Options({"ignore": str, "lists": options.one_of("ordered", "unordered")}),
    "tool_calls": Options(
        {"order": options.one_of("any", "kept"), "words": options.one_of("ignored", "compared")},
    ),
    "label": Options({"labels": str}),
    "code": Options({"command": str, "timeout_s": options.seconds}),
    "embedding": Options(
        {"embed": options.function_or_name, "threshold": options.share}, needed=("embed", "threshold")
    ),
    "function": Options({"function": options.function_or_name, "at_least": options.share}, needed=("function",)),
    "judge": Options({"ask": options.function}, needed=("ask",)),
}
"""The options of the built-in matchers. An installed matcher checks its own."""


def names() -> tuple[str, ...]:
    """Return every matcher that can be named, built in or installed."""
    return MATCHERS.names


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
    factory = MATCHERS.find(name)
    if factory is None:
        raise UsageError(f"There is no matcher {name!r}{did_you_mean(name, names())}")
    if name in MATCHERS.built_in:
        return factory(**_values(name, OPTIONS.get(name, Options()), chosen, problems))
    _raise_any(spec, problems)
    return _make_installed(name, factory, {key or "argument": value for key, value in chosen.items()})


def get_comparator(spec: str, **given: Any) -> Comparator:
    """Return the comparator that a spec names, as `get_matcher` reads it; any matcher can compare two outputs.

    >>> get_comparator("label:labels=spam|ham").same("Spam.", "it is spam").correct
    True
    """
    made = get_matcher(spec, **given)
    return made if isinstance(made, Comparator) else ByMatching(made)


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


def _values(name: str, takes: Options, chosen: dict[str, Any], problems: list[str]) -> dict[str, Any]:
    """Return the options of a built-in matcher as values, or raise UsageError with all that is wrong with them."""
    if "" in chosen and takes.needed and takes.needed[0] not in chosen:
        chosen[takes.needed[0]] = chosen.pop("")
    missing = [one for one in takes.needed if one not in chosen]
    problems += [f"it needs the option {one}; see docs/matching.md" for one in missing]
    for key in [key for key in chosen if key not in takes.readers]:
        hint = did_you_mean(key, takes.readers) if takes.readers else "; it takes none"
        said = f"there is no option {key!r}" if key else f"{chosen[key]!r} is no option; options are written name=value"
        problems.append(said + hint)
        del chosen[key]
    values, wrong = options.read_all(chosen, takes.readers)
    _raise_any(name, [*problems, *wrong])
    return values


def _make_installed(name: str, factory: Callable[..., Matcher], chosen: Mapping[str, Any]) -> Matcher:
    """Make the matcher of an installed package. Whatever goes wrong in it is one error that names it."""
    try:
        made = factory(**chosen)
    except CascadeError:
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {quote(str(error))}"
        raise UsageError(
            f"The matcher {name!r} cannot be made: {said}. "
            "Mend or uninstall the package that brings it, or check its options."
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
