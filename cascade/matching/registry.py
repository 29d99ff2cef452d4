"""Matchers by name, built in or an installed package's entry point, and the truth of logged rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError

from cascade.checks import did_you_mean
from cascade.errors import CascadeError, UsageError, quote
from cascade.matching.base import ByMatching, Comparator, Matcher, QuestionMatcher
from cascade.registry import Registry, callable_alone

MATCHERS: Registry[Callable[..., Matcher]] = Registry(
    "matcher",
    "cascade.matchers",
    {
        "text": "cascade.matching.text:TextMatcher",
        "label": "cascade.matching.text:LabelMatcher",
        "exact": "cascade.matching.text:ExactMatcher",
        "choice": "cascade.matching.text:ChoiceMatcher",
        "number": "cascade.matching.number:NumberMatcher",
        "math": "cascade.matching.maths:MathMatcher",
        "json": "cascade.matching.structured:JsonMatcher",
        "tool_calls": "cascade.matching.structured:ToolCallsMatcher",
        "code": "cascade.matching.code:CodeMatcher",
        "function": "cascade.matching.base:FunctionMatcher",
        "judge": "cascade.matching.judge:JudgeMatcher",
        "request": "cascade.matching.requests:RequestMatcher",
    },
    callable_alone,
)


def names() -> tuple[str, ...]:
    """Return every matcher that can be named, built in or installed."""
    return MATCHERS.names


def get_matcher(spec: str, **options: Any) -> Matcher:
    """Return the matcher that a spec names.

    A spec is a name, or a name with options after a colon: "number:rel=1e-3,abs=0.5". The first option needs no name:
    "function:my_module.is_right". Options that are not texts, such as the judge's `ask`, are given as keywords.

    Raises:
        UsageError: the matcher or an option does not exist, or an installed matcher cannot be loaded; it lists every
            problem.
        MissingExtraError: the matcher's package is not installed; it has the pip command.

    >>> get_matcher("number:rel=1e-2").matches("about 4.98 km", ["5 km"])
    True
    """
    name, _, written = (text.strip() for text in spec.partition(":"))
    factory = MATCHERS.find(name)
    if factory is None:
        raise UsageError(f"There is no matcher {name!r}{did_you_mean(name, names())}")
    items = [item.strip() for item in written.split(",") if item.strip()]
    unnamed = [item for item in items if "=" not in item]
    pairs = [(key.strip(), value.strip()) for key, mark, value in (item.partition("=") for item in items) if mark]
    keys = [*(key for key, _ in pairs), *options]
    twice = [f"\n  - {key} is given twice" for key in dict.fromkeys(keys) if keys.count(key) > 1]
    try:
        matcher = factory(*unnamed, **dict(pairs), **{key: options[key] for key in options if key not in dict(pairs)})
    except CascadeError:
        raise
    except ValidationError as error:
        raise UsageError(f"The matcher {spec!r} cannot be made:{''.join([*twice, *_problems(error)])}") from None
    except Exception as error:
        shown = f"{type(error).__name__}: {quote(str(error))}"
        raise UsageError(
            f"The matcher {name!r} cannot be made: {shown}. Check its options, or repair its package."
        ) from error
    if twice:
        raise UsageError(f"The matcher {spec!r} cannot be made:{''.join(twice)}")
    if not callable(getattr(matcher, "matches", None)):
        raise UsageError(
            f"{name!r} is not a matcher: its factory must return an object "
            f"with a method matches(answer, gold), but returned {type(matcher).__name__}."
        )
    return matcher


def _problems(error: ValidationError) -> list[str]:
    """Return a line for each option that a built-in matcher refuses."""
    return [
        f"\n  - {'.'.join(map(str, problem['loc']))}: {problem['msg'].removeprefix('Value error, ')}"
        for problem in error.errors()
    ]


def get_comparator(spec: str, **options: Any) -> Comparator:
    """Return the comparator that a spec names, as `get_matcher` reads it; any matcher can compare two outputs.

    >>> get_comparator("label:spam|ham").same("Spam.", "it is spam")
    True
    """
    matcher = get_matcher(spec, **options)
    return matcher if isinstance(matcher, Comparator) else ByMatching(matcher)


def judge_rows(
    rows: Iterable[Mapping[str, Any]], matcher: Matcher, *, overwrite: bool = False
) -> Iterator[dict[str, Any]]:
    """Yield the rows with `correct` filled in from `answer` and `gold`, and nothing else changed.

    One row is in memory at a time. A row without an answer or an accepted answer is not changed: its truth stays the
    same, unknown if it was unknown.

    Args:
        rows: episode rows, in the form of `cascade.logs.schema`.
        matcher: the rule, from `get_matcher`.
        overwrite: also judge rows whose `correct` is already known.

    Raises:
        UsageError: an answer is not a text, or accepted answers are not a list of texts; it names the row.

    >>> log = [{"answer": "The Danube.", "gold": ["Danube"], "correct": None}]
    >>> list(judge_rows(log, get_matcher("exact")))
    [{'answer': 'The Danube.', 'gold': ['Danube'], 'correct': True}]
    """
    for number, row in enumerate(rows, 1):
        gold, answer, question = _gold(row, number), row.get("answer"), row.get("question")
        if answer is None or not gold or not (overwrite or row.get("correct") is None):
            yield dict(row)
            continue
        if not isinstance(answer, str):
            raise UsageError(f"{_row_name(row, number)}: the answer is not a text but {type(answer).__name__}.")
        if isinstance(question, str) and isinstance(matcher, QuestionMatcher):
            yield {**row, "correct": matcher.matches_question(question, answer, gold)}
        else:
            yield {**row, "correct": matcher.matches(answer, gold)}


def _gold(row: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Return a row's accepted answers. A number is taken as written: data sets have 42 as well as "42"."""
    gold = row.get("gold")
    if gold is None:
        return ()
    listed = gold if isinstance(gold, list | tuple) else [gold]
    if all(isinstance(text, str | int | float) and not isinstance(text, bool) for text in listed):
        return tuple([str(text) for text in listed])
    raise UsageError(f'{_row_name(row, number)}: gold must be a list of texts. Write it as ["…"].')


def _row_name(row: Mapping[str, Any], number: int) -> str:
    name = row.get("episode_id")
    return f"row {number}" if name is None else f"row {number} ({quote(str(name))})"
