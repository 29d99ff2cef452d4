"""What a guide said of an answer: P(yes), and its own answer where it said no.

With log-probs, P(yes) is the probability of "Yes" as the first token, renormalised over {Yes, No}. Without, it is the
share of yes among samples. Prose, both words at once, or another language is no verdict (F42), and no verdict is never
read as a yes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from cascade.text import normalize_answer
from cascade.types import Completion, Token

MIN_MASS = 0.5
"""If Yes and No together have less than half of the probability, the guide was answering something else."""
MAX_CORRECTION_CHARS = 500
_TOKENS_LOOKED_AT = 3
"""Some tokenizers begin an answer with an empty or a blank token; the verdict is the first that says something."""

_SAYS = re.compile(r"^\W*(yes|no)\b(?:[\s\"'`*:;,.–—]|-(?!\d))*(.*)", re.IGNORECASE | re.DOTALL)
_ONLY_SAYS_WRONG = re.compile(
    r"^(?:(?:the|that|this|it|your)\b[\w\s']*\b)?(?:is|was|'s)?\s*(?:not (?:correct|right|true)|incorrect|wrong)\W*$",
    re.IGNORECASE,
)
_CONTRADICTS_YES = re.compile(r"\b(?:no|not|incorrect|wrong|false)\b", re.IGNORECASE)
_CONTRADICTS_NO = re.compile(r"\byes\b", re.IGNORECASE)
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

    `p_yes` in [0, 1] is None without a verdict. `says_yes` is what the text says. `correction` is the guide's own
    answer after a no. `mass` is the probability of Yes and No together, None without log-probs. `method` is
    "logprobs", "sampled" or "none".
    """

    p_yes: float | None
    says_yes: bool | None
    correction: str | None
    mass: float | None
    method: str


NO_VERDICT = Verdict(None, None, None, None, "none")


def read(completion: Completion) -> Verdict:
    """Read a verdict from text and log-probs.

    >>> from cascade.types import Usage
    >>> read(Completion("No, the correct answer is Vienna.", "stop", Usage(9, 8))).correction
    'Vienna'
    """
    says_yes, correction = read_text(completion.text)
    p_yes, mass = (None, None) if completion.tokens is None else read_logprobs(completion.tokens)
    if says_yes is None or (mass is not None and mass < MIN_MASS):
        return Verdict(None, None, None, mass, "none")
    return Verdict(p_yes, says_yes, correction, mass, "none" if p_yes is None else "logprobs")


def without_alternatives(completion: Completion) -> bool:
    """Whether the model gave no log-probs, or none but the chosen tokens' own: P(yes) then needs samples.

    A log-prob that is none (F25) is another matter: that is no verdict.
    """
    return completion.tokens is None or all(token.logprob is not None and not token.top for token in completion.tokens)


def sensible(verdict: Verdict, answer: str) -> Verdict:
    """Return the verdict, or none where the correction is a bare "yes" to an answer that was not "no"."""
    correction = verdict.correction
    if correction is not None and normalize_answer(correction) == "yes" and normalize_answer(answer) != "no":
        return NO_VERDICT
    return verdict


def combine(completions: Sequence[Completion]) -> Verdict:
    """Return the verdict of several samples: P(yes) = (yeses + ½) / (verdicts + 1), the commonest correction.

    The half keeps a handful of samples from looking like certainty.
    """
    readings = [read_text(completion.text) for completion in completions]
    verdicts = [says_yes for says_yes, _ in readings if says_yes is not None]
    if not verdicts:
        return NO_VERDICT
    p_yes = (sum(verdicts) + 0.5) / (len(verdicts) + 1)
    corrections = [said for says_yes, said in readings if says_yes is False and said is not None]
    keys = [normalize_answer(said) for said in corrections]
    commonest = max(range(len(keys)), key=lambda index: (keys.count(keys[index]), -index), default=None)
    says_yes = sum(verdicts) * 2 > len(verdicts)
    correction = None if says_yes or commonest is None else corrections[commonest]
    return Verdict(p_yes, says_yes, correction, None, "sampled")


def read_text(text: str) -> tuple[bool | None, str | None]:
    """Return (says yes, correction); (None, None) where the text is no verdict.

    >>> read_text("Yes."), read_text("No: 42"), read_text("Yes and no"), read_text("I think so")
    ((True, None), (False, '42'), (None, None), (None, None))
    """
    text = text[: 4 * MAX_CORRECTION_CHARS]
    if text.lstrip().startswith("{"):
        return _read_json(text)
    said = _SAYS.match(text)
    if said is None:
        return None, None
    rest = said[2].strip()
    if said[1].lower() == "yes":
        return (None, None) if _CONTRADICTS_YES.search(rest) else (True, None)
    correction = _clean(rest)
    if correction is not None and _CONTRADICTS_NO.search(correction) and normalize_answer(correction) != "yes":
        return None, None
    return False, correction


def _read_json(text: str) -> tuple[bool | None, str | None]:
    try:
        pairs = json.loads(text, object_pairs_hook=list)
        reply = dict(pairs)
        verdict = reply["verdict"].strip().lower()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None, None
    # A second "verdict" or a key that was not asked for is not the reply that was asked for (F42).
    if verdict not in {"yes", "no"} or len(pairs) != len(reply) or not reply.keys() <= {"verdict", "answer"}:
        return None, None
    answer = reply.get("answer")
    return verdict == "yes", _clean(answer) if verdict == "no" and isinstance(answer, str) else None


def _clean(rest: str) -> str | None:
    """Return the correction that stands after a "No": one line, without lead-in, quotes and full stop."""
    line = next((line for line in rest.splitlines() if line.strip()), "")
    bare = (
        _LEAD_IN.sub("", _SAYS_WRONG_FIRST.sub("", line.strip()))
        .strip(" \t\"'`*“”")
        .removesuffix(".")
        .strip(" \t\"'`*“”")
    )
    if _ONLY_SAYS_WRONG.match(line.strip()) or not any(char.isalnum() for char in bare):
        return None
    return bare[:MAX_CORRECTION_CHARS]


def read_logprobs(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return (P(yes) over {Yes, No}, their mass) at the first token that says something; None where unknown.

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
