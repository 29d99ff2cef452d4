"""How a model is asked about an answer, and how its verdict is read: P(yes), and its own answer after a no.

With log-probs, P(yes) is the probability of "Yes" as the first token, renormalised over {Yes, No}. Without, it is the
smoothed share of yes among samples (`combine`). Prose, both words at once, or another language is no verdict (F42), and
a missing verdict is never read as a yes. A yes with more text counts only if the text confirms or repeats the answer.

Reference of LLM-exit: Lu et al., Runaway is ashamed, but helpful (2025); the prompts are our own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from cascade.chat import ChatRequest, part_texts
from cascade.matching.text import normalize_answer
from cascade.plans.prompts import Prompts, question_data, question_fields
from cascade.providers.histories import without_thinking
from cascade.text import counted, data_block, data_object
from cascade.types import Candidate, Completion, Message, Question, Request, Token

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
_AT_ENDS = " \t\"'`*“”"
_LONGEST_REMARK_CHARS = 500
"""The most characters of a remark such as "that is wrong", which does not count as a correction."""
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
    answer after a no. `mass` is the probability of Yes and No together, None without log-probs.
    """

    p_yes: float | None
    says_yes: bool | None
    correction: str | None
    mass: float | None

    def favoured(self, answer: str) -> str | None:
        """Return the answer that the guide favours: the judged one after a yes, its own after a no; None if unknown."""
        return answer if self.says_yes else self.correction


NO_VERDICT = Verdict(None, None, None, None)


def read(completion: Completion, answer: str | None = None) -> Verdict:
    """Read a verdict on an answer from text and log-probs.

    >>> from cascade.types import Usage
    >>> read(Completion("No, the correct answer is Vienna.", "stop", Usage(9, 8))).correction
    'Vienna'
    """
    says_yes, correction = read_text(completion.text, answer)
    p_yes, mass = (None, None) if completion.tokens is None else read_logprobs(completion.tokens)
    if says_yes is None or (mass is not None and mass < MIN_MASS):
        return Verdict(None, None, None, mass)
    return Verdict(p_yes, says_yes, correction, mass)


def without_alternatives(completion: Completion) -> bool:
    """Return whether the model gave no log-probs, or only those of the chosen tokens: P(yes) then needs samples.

    A value that is not a log-prob (F25) leads to no verdict instead.
    """
    return completion.tokens is None or all(token.logprob is not None and not token.top for token in completion.tokens)


def sensible(verdict: Verdict, answer: str) -> Verdict:
    """Return the verdict, or no verdict if the correction is a bare "yes" to an answer that was not "no"."""
    correction = verdict.correction
    if correction is not None and normalize_answer(correction) == "yes" and normalize_answer(answer) != "no":
        return NO_VERDICT
    return verdict


def combine(completions: Sequence[Completion], answer: str | None = None) -> Verdict:
    """Return the verdict of several samples: P(yes) = (yeses + ½) / (verdicts + 1), and the commonest correction.

    The ½ keeps a few equal samples from giving a probability of 0 or 1.
    """
    readings = [read_text(completion.text, answer) for completion in completions]
    if not (verdicts := [says_yes for says_yes, _ in readings if says_yes is not None]):
        return NO_VERDICT
    p_yes = (sum(verdicts) + 0.5) / (len(verdicts) + 1)
    corrections = [answer for says_yes, answer in readings if says_yes is False and answer is not None]
    keys = [normalize_answer(answer) for answer in corrections]
    commonest = max(range(len(keys)), key=lambda index: (keys.count(keys[index]), -index), default=None)
    says_yes = sum(verdicts) * 2 > len(verdicts)
    correction = None if says_yes or commonest is None else corrections[commonest]
    return Verdict(p_yes, says_yes, correction, None)


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
    whole = "\n" in (answer or "")
    correction = _correction(_NO_HEAD.sub("", text) if whole else rest, whole=whole)
    if correction is not None and _CONTRADICTS_NO.search(correction) and normalize_answer(correction) != "yes":
        return None, None
    return False, correction


def explains(text: str, answer: str) -> bool:
    r"""Return whether a no to an answer of one line goes on after its correction, with lines that are no part of it.

    >>> explains("No, Vienna.\nIt lies on the Danube.", "Linz"), explains("No, Vienna.", "Linz")
    (True, False)
    """
    word = _SAYS.match(text)
    if word is None or word[1].lower() == "yes" or "\n" in (answer or ""):
        return False
    return sum(1 for line in word[2].splitlines() if line.strip()) > 1


def _stays_yes(rest: str, answer: str | None) -> bool:
    """Return whether a yes stays a yes, given the text after it: none, or text that confirms or repeats the answer."""
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
    """Return whether a text contains an answer, compared word by word after normalisation."""
    return f" {normalize_answer(answer)} " in f" {normalize_answer(text)} "


def _corrects(text: str) -> bool:
    """Return whether a text is more than a remark that something is wrong."""
    if not any(map(str.isalnum, text)):
        return False
    return len(text) > _LONGEST_REMARK_CHARS or not _ONLY_SAYS_WRONG.match(text)


def _correction(rest: str, *, whole: bool) -> str | None:
    """Return the correction after a "No", without lead-in: all of it, or one line without quotes and full stop."""
    if whole:
        bare = _LEAD_IN.sub("", _SAYS_WRONG_FIRST.sub("", rest.strip("\r\n"))).strip("\r\n").rstrip()
        return bare if _corrects(bare) else None
    line = next((line for line in rest.splitlines() if line.strip()), "").strip()
    bare = _LEAD_IN.sub("", _SAYS_WRONG_FIRST.sub("", line)).strip(_AT_ENDS).removesuffix(".").strip(_AT_ENDS)
    return bare if _corrects(line) and _corrects(bare) else None


def read_logprobs(tokens: Sequence[Token]) -> tuple[float | None, float | None]:
    """Return (P(yes) over {Yes, No}, their mass) at the first token that is not blank; None if unknown.

    −inf means p = 0; a verdict token whose own value is not a log-prob gives no verdict (F25).
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


ALTERNATIVES = 20
"""The number of log-probs requested: the most that hosted APIs allow, to find Yes and No even at low ranks."""
_SAMPLE_TEMPERATURE = 1.0
_EXITS = re.compile(r"\b(EXIT|CONTINUE)\b", re.IGNORECASE)
_ACTION = re.compile(r"^\W*([123])(?![\d.,]*\d)")
_MARK = {"type": "left out", "text": "a part that is no text"}


def ask_verdict(
    request: Request, samples: int, answer: str
) -> Generator[Request, Completion, tuple[Verdict, list[str]]]:
    """Ask for a verdict on an answer, `samples` times if there are no log-probs; return it with notes."""
    notes, role, chat = list[str](), request.role, request.question.chat
    replies = [(yield request)]
    if without_alternatives(replies[0]):
        bare = request._replace(top_logprobs=None, temperature=_SAMPLE_TEMPERATURE)
        for sample in range(1, samples):
            seed = None if request.seed is None else request.seed + sample
            replies.append((yield bare._replace(seed=seed, sample=sample)))
        verdict = combine(replies, answer)
    else:
        verdict = read(replies[0], answer)
    if chat is not None:  # only whole messages are served
        verdict = verdict._replace(correction=None)
        texts = [text for message in chat.messages for text in part_texts(message.get("content"))]
        if hidden := texts.count(None):
            notes.append(f"{role} does not see {counted(hidden, 'part')} of the messages: not text")
    elif any(explains(completion.text, answer) for completion in replies):
        notes.append(f"the reply of {role} goes on after its answer; the lines after the first are left out")
    verdict = sensible(verdict, answer)
    if verdict.p_yes is None:
        notes.append(f"no verdict: the reply of {role} was neither a clear yes nor a clear no")
    elif verdict.mass is None:
        notes.append(f"verdict from {counted(len(replies), 'sample')}, without log-probs")
    return verdict, notes


def judging_messages(
    prompts: Prompts, question: Question, judged: Candidate, trace: str, *, decides: bool
) -> tuple[Message, ...]:
    """Return the prompt that asks about an answer and the trace that led to it; for a decision model, its statement.

    A decision model is sent the data without marks, since its data and its statement are separate, and the answer last:
    what comes before is the same for each answer, so that a cache can hold it.
    """
    if decides:
        known = {"reasoning": trace} if trace else {}
        fields = question_fields(question, **known, answer=judged.text)
        return prompts.judge_decision.fill(
            data_object(fields if question.chat is None else judged_fields(question.chat, judged))
        )
    if question.chat is not None:
        return prompts.judge_chat.fill(data_block(judged_fields(question.chat, judged)))
    return prompts.judge.fill(question_data(question, reasoning=trace, answer=judged.text))


def example_verdicts(prompts: Prompts) -> list[tuple[Message, ...]]:
    """Return what a decision model is asked about a fixed question and about a fixed chat request with all fields."""
    chat = ChatRequest(
        [{"role": "user", "content": "Question?"}],
        {"tools": [{"type": "function", "function": {"name": "find"}}], "response_format": {"type": "json_object"}},
    )
    answer = Candidate("Answer.", "base", "base")
    questions = Question("Question?", "Context."), Question.of_chat(chat)
    return [judging_messages(prompts, question, answer, "Reason.", decides=True) for question in questions]


def judged_fields(chat: ChatRequest, candidate: Candidate) -> dict[str, Any]:
    """Return a chat request and the message that answers it as a judge reads them, as JSON values."""
    answer = {"content": candidate.text} if candidate.message is None else candidate.message
    *before, reply = without_thinking([*chat.messages, answer])  # thinking is for its writer only
    shown = {
        "tools": chat.options.get("tools"),
        "tool_choice": chat.options.get("tool_choice"),
        "format": chat.options.get("response_format"),
        "conversation": [{**message, "content": _shown(message.get("content"))} for message in before],
        "reply": {name: value for name, value in reply.items() if name != "role" and value is not None},
    }
    return {name: value for name, value in shown.items() if value}


def _shown(content: Any) -> Any:
    """Return a message's content with a mark in place of each part that is not text, such as an image."""
    if not isinstance(content, list | tuple):
        return content
    return [_MARK if text is None else block for block, text in zip(content, part_texts(content), strict=True)]


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
    """Return what a decider reads about a round, as data."""
    p_yes = verdict.p_yes
    return question_data(
        question,
        small_model_answer="none" if answer is None else answer.text,
        strong_model_agrees={True: "yes", False: "no", None: "no verdict"}[verdict.says_yes],
        strong_model_answer=correction,
        strong_model_uncertainty="unknown" if p_yes is None else f"{-math.log(max(p_yes, 1.0 - p_yes)):.2f}",
    )
