"""Whether an answer is right, and whether two outputs are the same: matchers and comparators, loaded at first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade._names import loaded_on_use

if TYPE_CHECKING:
    from cascade.matching.base import Comparator, KeyedComparator, Matcher, QuestionMatcher
    from cascade.matching.registry import get_comparator, get_matcher, judge_rows, names
    from cascade.matching.requests import agreement, answer_key, default_for, default_of

_HOMES = {
    "base": "Comparator KeyedComparator Matcher QuestionMatcher",
    "registry": "get_comparator get_matcher judge_rows names",
    "requests": "agreement answer_key default_for default_of",
}

__all__ = [
    "Comparator",
    "KeyedComparator",
    "Matcher",
    "QuestionMatcher",
    "agreement",
    "answer_key",
    "default_for",
    "default_of",
    "get_comparator",
    "get_matcher",
    "judge_rows",
    "names",
]

__getattr__ = loaded_on_use(__name__, _HOMES)
