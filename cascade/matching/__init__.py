"""Whether an answer is right, and whether two outputs are the same: matchers and comparators by name.

`get_matcher(spec)` gives a matcher, `judge_rows(rows, matcher)` fills the column `correct` of logged rows.
`get_comparator(spec)` gives a comparator, `default_for(request)` the one that a request asks for,
`default_of(requests)` the one for a log of requests. Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade._names import loaded_on_use

if TYPE_CHECKING:
    from cascade.matching.base import Comparator, KeyedComparator, Matcher, QuestionMatcher
    from cascade.matching.judging import judge_rows
    from cascade.matching.registry import get_comparator, get_matcher, names
    from cascade.matching.same import answer_key, default_for, default_of
    from cascade.matching.words import exact_match, only_number

_HOMES = {
    "base": "Comparator KeyedComparator Matcher QuestionMatcher",
    "words": "exact_match only_number",
    "judging": "judge_rows",
    "registry": "get_comparator get_matcher names",
    "same": "answer_key default_for default_of",
}

__all__ = [
    "Comparator",
    "KeyedComparator",
    "Matcher",
    "QuestionMatcher",
    "answer_key",
    "default_for",
    "default_of",
    "exact_match",
    "get_comparator",
    "get_matcher",
    "judge_rows",
    "names",
    "only_number",
]

__getattr__ = loaded_on_use(__name__, _HOMES)
