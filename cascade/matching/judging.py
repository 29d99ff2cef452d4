"""The truth of logged rows, row by row."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from cascade.errors import UsageError, quote
from cascade.matching.base import Matcher, QuestionMatcher


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

    >>> from cascade.matching import get_matcher
    >>> log = [{"answer": "The Danube.", "gold": ["Danube"], "correct": None}]
    >>> list(judge_rows(log, get_matcher("exact")))
    [{'answer': 'The Danube.', 'gold': ['Danube'], 'correct': True}]
    """
    for number, row in enumerate(rows, 1):
        gold, answer = _gold(row, number), row.get("answer")
        if answer is None or not gold or not (overwrite or row.get("correct") is None):
            yield dict(row)
            continue
        if not isinstance(answer, str):
            raise UsageError(f"{_place(row, number)}: the answer is not a text but {type(answer).__name__}.")
        yield {**row, "correct": _verdict(matcher, row, answer, gold)}


def _verdict(matcher: Matcher, row: Mapping[str, Any], answer: str, gold: tuple[str, ...]) -> bool | None:
    question = row.get("question")
    if isinstance(question, str) and isinstance(matcher, QuestionMatcher):
        return matcher.matches_question(question, answer, gold)
    return matcher.matches(answer, gold)


def _gold(row: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Return a row's accepted answers. A number is taken as written: data sets have 42 as well as "42"."""
    gold = row.get("gold")
    if gold is None:
        return ()
    listed = gold if isinstance(gold, list | tuple) else [gold]
    if all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in listed):
        return tuple([str(one) for one in listed])
    raise UsageError(f'{_place(row, number)}: gold must be a list of texts. Write it as ["…"].')


def _place(row: Mapping[str, Any], number: int) -> str:
    name = row.get("episode_id")
    return f"row {number}" if name is None else f"row {number} ({quote(str(name))})"
