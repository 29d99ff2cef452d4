"""The guide's verdict on an answer: P(yes), and its own answer after a no.

With log-probs, P(yes) is the probability of "Yes" as the first token, renormalised over {Yes, No}. Without, it is the
share of yes among samples. Prose, both words at once, or another language is no verdict (F42), and a missing verdict is
never read as a yes. A yes with more text counts only if the text confirms or repeats the answer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from cascade.matching.text import normalize_answer
from cascade.types import Completion, Token

MIN_MASS = 0.5
"""If Yes and No together have less probability than this, the guide did not answer yes or no."""
_TOKENS_LOOKED_AT = 3
"""Some tokenizers begin an answer with an empty or blank token; the verdict is the first other token."""

_SAYS = re.compile(r"^\W*(yes|no)\b(?:[\s\"'`*:;,.–—]|-(?!\d))*(.*)", re.IGNORECASE | re.DOTALL)
_ONLY_SAYS_WRONG = re.compile(
    r"^(?:(?:the|that|this|it|your)\b[\w\s']*\b)?(?:is|was|'s)?\s*(?:not (?:correct|right|true)|incorrect|wrong)\W*$",
    re.IGNORECASE,
)
_CONTRADICTS_YES = re.compile(
    r"\b(?:no|nope|not|never|neither|nor|cannot|but|however|although|though|except|unless|instead|rather|actually"
    r"|should|ought|could|might|almost|nearly|partly|partially|incomplete|imprecise|misleading|mistaken|mistakes?|errors?"
    r"|incorrect|inaccurate|inexact|invalid|untrue|wrong|false)\b|n['’]t\b",
    re.IGNORECASE,
)
_CONFIRMS_YES = re.compile(
    r"\b(?:correct|right|true|accurate|exact|indeed|agreed?|valid|precise|proper|good|fine|ok|okay|perfect|confirmed"
    r"|supported|consistent|matches)(?:ly)?\b",
    re.IGNORECASE,
)
_NAMES_ANSWER = re.compile(r"\banswer\s*(?:is|was|would be|must be|[:=])\s*:?\s*(.+)", re.IGNORECASE)
_CONTRADICTS_NO = re.compile(r"\byes\b", re.IGNORECASE)
_NO_HEAD = re.compile(r"^\W*no\b[*_\"'`]{0,3}[ \t:;,.–—]*", re.IGNORECASE)
_LONGEST_REMARK_CHARS = 500
"""The most characters of a remark such as "that is wrong", which is not a correction."""
_SAYS_WRONG_FIRST = re.compile(
    r"^(?:(?:it|that|this|the (?:given |proposed )?answer)(?:'s| is)\s+)?"
    r"(?:not (?:correct|right)|incorrect|wrong)[.,;:!]\s*",
    re.IGNORECASE,
)
_LEAD_IN = re.compile(
    r"^(?:(?:the|a)\s+)?(?:correct|right|actual)?\s*answer\s*(?:is|should be|would be|:)\s*:?\s*|^it(?:'s| is)\s+",
    re.IGNORECASE,
)


class Verdict(NamedTuple):
    """A guide's judgement.

    `p_yes` in [0, 1] is None without a verdict. `says_yes` is read from the text. `correction` is the guide's own
    answer after a no. `mass` is the probability of Yes and No together, None without log-probs. `method` is
    "logprobs", "sampled" or "none".
    """

    p_yes: float | None
    says_yes: bool | None
    correction: str | None
    mass: float | None
    method: str

    def favoured(self, answer: str) -> str | None:
        """Return the answer that the guide favours: the judged one after a yes, its own after a no; None if unknown."""
        return answer if self.says_yes else self.correction


NO_VERDICT = Verdict(None, None, None, None, "none")


def read(completion: Completion, answer: str | None = None) -> Verdict:
    """Read a verdict on an answer from text and log-probs.

    >>> from cascade.types import Usage
    >>> read(Completion("No, the correct answer is Vienna.", "stop", Usage(9, 8))).correction
    'Vienna'
    """
    says_yes, correction = read_text(completion.text, answer)
    p_yes, mass = (None, None) if completion.tokens is None else read_logprobs(completion.tokens)
    if says_yes is None or (mass is not None and mass < MIN_MASS):
        return Verdict(None, None, None, mass, "none")
    return Verdict(p_yes, says_yes, correction, mass, "none" if p_yes is None else "logprobs")


def without_alternatives(completion: Completion) -> bool:
    """Whether the model gave no log-probs, or only those of the chosen tokens: P(yes) then needs samples.

    A value that is not a log-prob (F25) gives no verdict instead.
    """
    return completion.tokens is None or all(token.logprob is not None and not token.top for token in completion.tokens)


def sensible(verdict: Verdict, answer: str) -> Verdict:
    """Return the verdict, or no verdict if the correction is a bare "yes" to an answer that was not "no"."""
    correction = verdict.correction
    if correction is not None and normalize_answer(correction) == "yes" and normalize_answer(answer) != "no":
        return NO_VERDICT
    return verdict


def combine(completions: Sequence[Completion], answer: str | None = None) -> Verdict:
    """Return the verdict of several samples: P(yes) = (yeses + ½) / (verdicts + 1), the commonest correction.

    With the half, a few equal samples do not give a probability of 0 or 1.
    """
    readings = [read_text(completion.text, answer) for completion in completions]
    verdicts = [says_yes for says_yes, _ in readings if says_yes is not None]
    if not verdicts:
        return NO_VERDICT
    p_yes = (sum(verdicts) + 0.5) / (len(verdicts) + 1)
    corrections = [answer for says_yes, answer in readings if says_yes is False and answer is not None]
    keys = [normalize_answer(answer) for answer in corrections]
    commonest = max(range(len(keys)), key=lambda index: (keys.count(keys[index]), -index), default=None)
    says_yes = sum(verdicts) * 2 > len(verdicts)
    correction = None if says_yes or commonest is None else corrections[commonest]
    return Verdict(p_yes, says_yes, correction, None, "sampled")


def read_text(text: str, answer: str | None = None) -> tuple[bool | None, str | None]:
    """Return (says yes, correction); (None, None) if the text is not a verdict.

    Args:
        text: the guide's reply.
        answer: the answer that it judges. A yes that names another answer is no verdict. The correction of an answer
            of one line is one line, and the rest counts as an explanation; the correction of a longer answer is all
            the text after the no. None: unknown, taken as one line.

    >>> read_text("Yes."), read_text("No: 42"), read_text("Yes and no"), read_text("I think so")
    ((True, None), (False, '42'), (None, None), (None, None))
    """
    word = None if text.lstrip().startswith("{") else _SAYS.match(text)
    if word is None:
        return None, None
    rest = word[2].strip()
    if word[1].lower() == "yes":
        return (True, None) if _stays_yes(rest, answer) else (None, None)
    correction = _clean_whole(_NO_HEAD.sub("", text)) if _is_long(answer) else _clean(rest)
    if correction is not None and _CONTRADICTS_NO.search(correction) and normalize_answer(correction) != "yes":
        return None, None
    return False, correction


def explains(text: str, answer: str) -> bool:
    r"""Whether a no to an answer of one line goes on after its correction, with lines that do not belong to it.

    >>> explains("No, Vienna.\nIt lies on the Danube.", "Linz"), explains("No, Vienna.", "Linz")
    (True, False)
    """
    word = _SAYS.match(text)
    if word is None or word[1].lower() == "yes" or _is_long(answer):
        return False
    return sum(1 for line in word[2].splitlines() if line.strip()) > 1


def _is_long(answer: str | None) -> bool:
    return answer is not None and "\n" in answer


def _stays_yes(rest: str, answer: str | None) -> bool:
    """Whether a yes is still a yes with the text after it: there is none, or it confirms or repeats the answer."""
    if answer is None:
        return not _CONTRADICTS_YES.search(rest)
    if not rest:
        return True
    if _CONTRADICTS_YES.search(rest.replace(answer, " ")):
        return False
    named = _NAMES_ANSWER.search(rest)
    if named is not None and not (_CONFIRMS_YES.match(named[1]) or _holds(named[1], answer)):
        return False
    return bool(_CONFIRMS_YES.search(rest)) or _holds(rest, answer)


def _holds(text: str, answer: str) -> bool:
    """Whether a text contains an answer, compared word by word after normalisation."""
    return f" {normalize_answer(answer)} " in f" {normalize_answer(text)} "


def _clean_whole(rest: str) -> str | None:
    """Return the correction of a longer answer: all text after a "No", without a lead-in and blank lines."""
    bare = _LEAD_IN.sub("", _SAYS_WRONG_FIRST.sub("", rest.strip("\r\n"))).strip("\r\n").rstrip()
    return bare if _corrects(bare) else None


def _corrects(text: str) -> bool:
    """Whether a text is more than the remark that something is wrong."""
    if not any(map(str.isalnum, text)):
        return False
    return len(text) > _LONGEST_REMARK_CHARS or not _ONLY_SAYS_WRONG.match(text)


def _clean(rest: str) -> str | None:
    """Return the correction after a "No": one line, without lead-in, quotes and full stop."""
    line = next((line for line in rest.splitlines() if line.strip()), "")
    bare = (
        _LEAD_IN.sub("", _SAYS_WRONG_FIRST.sub("", line.strip()))
        .strip(" \t\"'`*“”")
        .removesuffix(".")
        .strip(" \t\"'`*“”")
    )
    return bare if _corrects(line.strip()) and _corrects(bare) else None


def read_logprobs(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return (P(yes) over {Yes, No}, their mass) at the first token that is not blank; None if unknown.

    −inf is p = 0; a verdict token whose own log-prob is not one is no verdict (F25).
    """
    for token in tokens[:_TOKENS_LOOKED_AT]:
        if not token.text.strip(" \t\r\n▁Ġ\"'`*"):
            continue
        if not token.top:
            return None, None  # the rest of the probability may be anywhere
        yes = no = 0.0
        for text, value in token.top:
            word = text.strip(" \t\r\n▁Ġ\"'`*.,:;").lower()
            if word == "yes":
                yes += math.exp(value)
            elif word == "no":
                no += math.exp(value)
        mass = yes + no
        if token.logprob is None or mass <= 0.0:
            return None, None if token.logprob is None else 0.0
        return yes / mass, min(1.0, mass)
    return None, None
