"""The rules of SQuAD and HotpotQA, as their published evaluation scripts behave.

References: Rajpurkar et al. 2016, `evaluate-v1.1.py`; Yang et al. 2018, `hotpot_evaluate_v1.py`. design/matching.md
lists where `exact` differs from them on purpose.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from cascade.matching.base import UNKNOWN, Verdict, accepted

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_CLOSED = frozenset({"yes", "no", "noanswer"})
"""HotpotQA's answers without a partial F1: they match completely or not at all."""


def official_normalize(text: str) -> str:
    """Return an answer in the form that both scripts compare.

    Lower case, then no ASCII punctuation, then no articles, then single spaces; in this order, so that "a.n." loses its
    points before it is seen to be an article, and nothing else: no Unicode punctuation, no width or accent is folded.

    >>> official_normalize("The  Danube."), official_normalize("1,851.5"), official_normalize("A.N.")
    ('danube', '18515', '')
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


class _Overlap:
    """The overlap of two normalised answers: their common tokens, with repeats."""

    __slots__ = ("said", "same", "wanted")

    def __init__(self, said: str, wanted: str) -> None:
        ours, theirs = said.split(), wanted.split()
        self.said, self.wanted = len(ours), len(theirs)
        self.same = sum((Counter(ours) & Counter(theirs)).values())

    def f1(self) -> float:
        """Return the harmonic mean of precision and recall, rounded as the scripts round: two empty answers have 0."""
        if not self.same:
            return 0.0
        precision, recall = self.same / self.said, self.same / self.wanted
        return 2 * precision * recall / (precision + recall)

    def reaches(self, threshold: Fraction) -> bool:
        """Whether the F1 = 2·same / (said + wanted) is at least the threshold, without rounding."""
        return bool(self.same) and 2 * self.same >= threshold * (self.said + self.wanted)


@dataclass(frozen=True, slots=True)
class SquadMatcher:
    """SQuAD v1.1: exact match after normalisation; the score is the F1 of tokens, the best over the accepted answers.

    Attributes:
        f1: if given, an answer is right from this F1 on, instead of when it matches exactly.

    >>> SquadMatcher().matches("the Blue Danube", ["Danube", "blue danube"])
    Verdict(correct=True, score=1.0)
    """

    f1: Fraction | None = None

    def matches(self, answer: str, gold: Sequence[str]) -> Verdict:
        """Return whether the answer matches, and its F1; unknown if there is no accepted answer."""
        golds = accepted(gold)
        if not golds:
            return UNKNOWN
        said = official_normalize(answer)
        wanted = [official_normalize(one) for one in golds]
        overlaps = [_Overlap(said, one) for one in wanted if not self._apart(said, one)]
        correct = said in wanted if self.f1 is None else any(one.reaches(self.f1) for one in overlaps)
        return Verdict(correct, max([one.f1() for one in overlaps], default=0.0))

    @staticmethod
    def _apart(_said: str, _wanted: str) -> bool:
        """Whether two normalised answers share nothing, whatever their tokens say."""
        return False


@dataclass(frozen=True, slots=True)
class HotpotQAMatcher(SquadMatcher):
    """HotpotQA: as SQuAD, but "yes", "no" and "noanswer" share nothing with an answer that is not the same.

    >>> SquadMatcher().matches("yes it is", ["yes"]), HotpotQAMatcher().matches("yes it is", ["yes"])
    (Verdict(correct=False, score=0.5), Verdict(correct=False, score=0.0))
    """

    @staticmethod
    def _apart(said: str, wanted: str) -> bool:
        return said != wanted and not _CLOSED.isdisjoint((said, wanted))
