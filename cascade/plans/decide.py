"""What a model that decides for a policy reads, and how its reply is read: LLM as policy, and LLM-exit.

Reference: Lu et al., Runaway is ashamed, but helpful (2025); the prompts are our own.
"""

from __future__ import annotations

import math
import re

from cascade.plans.verdict import Verdict
from cascade.text import data_block
from cascade.types import Candidate, Question

_EXITS = re.compile(r"\b(EXIT|CONTINUE)\b", re.IGNORECASE)
_ACTION = re.compile(r"^\W*([123])(?![\d.,]*\d)")


def read_exit(text: str) -> bool | None:
    """Return whether a reply says to stop; None if it says neither or both.

    >>> read_exit("[EXIT]"), read_exit("continue."), read_exit("Exit or continue?")
    (True, False, None)
    """
    words = {word.upper() for word in _EXITS.findall(text[:200])}
    return None if len(words) != 1 else words == {"EXIT"}


def read_action(text: str) -> float | None:
    """Return the action (1, 2 or 3) that a decider's reply starts with; None if it starts with none of these.

    >>> read_action("2"), read_action("**3** - neither"), read_action("12"), read_action("I think 1")
    (2.0, 3.0, None, None)
    """
    action = _ACTION.match(text[:40])
    return None if action is None else float(action[1])


def decided_fields(question: Question, answer: Candidate | None, verdict: Verdict, correction: str) -> str:
    """Return what a decider reads of a round, as data."""
    p_yes = verdict.p_yes
    fields = {
        "question": question.text,
        "small_model_answer": "none" if answer is None else answer.text,
        "strong_model_agrees": {True: "yes", False: "no", None: "no verdict"}[verdict.says_yes],
        "strong_model_answer": correction,
        "strong_model_uncertainty": "unknown" if p_yes is None else f"{-math.log(max(p_yes, 1.0 - p_yes)):.2f}",
    }
    return data_block({"text": question.context, **fields} if question.context else fields)
