"""Whether an answer is right: matchers by name, each a rule that says so.

`get_matcher(spec)` gives one, `judge_rows(rows, matcher)` fills the column `correct` of logged rows.
"""

from __future__ import annotations

from cascade.matching.base import Matcher, QuestionMatcher, Verdict
from cascade.matching.exact import exact_match, only_number
from cascade.matching.judging import judge_rows
from cascade.matching.registry import get_matcher, names

__all__ = [
    "Matcher",
    "QuestionMatcher",
    "Verdict",
    "exact_match",
    "get_matcher",
    "judge_rows",
    "names",
    "only_number",
]
