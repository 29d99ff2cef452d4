"""Whether an answer is right, and whether two outputs are the same: matchers, loaded at first use."""

from __future__ import annotations

from cascade.matching.registry import (
    MATCHERS,
    KeyedMatcher,
    Matcher,
    agreement,
    answer_key,
    default_for,
    default_of,
    get_matcher,
    judge_rows,
)

__all__ = [
    "MATCHERS",
    "KeyedMatcher",
    "Matcher",
    "agreement",
    "answer_key",
    "default_for",
    "default_of",
    "get_matcher",
    "judge_rows",
]
