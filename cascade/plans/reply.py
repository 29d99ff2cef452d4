"""Read a model's reply: split it into reasoning and answer, and decide whether the text can be an answer.

The answer is returned whole. The shipped prompts ask for two parts, "Reasoning: …" and "Answer: …"; what follows
"Answer:", over as many lines as it takes, is the answer. A reply in any other form is as a whole the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from cascade.errors import quote
from cascade.policies.signals import logprob_signals, message_signals
from cascade.types import Candidate, Completion, Request

_ANSWER_LINE = re.compile(
    r"^[^\w\n\"'“\u2018{\[]*(?:final\s+)?answer[^\w\n\"'“\u2018]*:\**[ \t]*", re.IGNORECASE | re.MULTILINE
)
_QUESTION_LINE = re.compile(r"^\W{0,8}q(?:uestion)?\W{0,4}\d{0,4}\W{0,4}:", re.IGNORECASE | re.MULTILINE)
_REASONING_HEAD = re.compile(r"^\W*reasoning\W*:\s*", re.IGNORECASE)
_FENCE = re.compile(r"^[ \t]{0,3}(`{3,}|~{3,})", re.MULTILINE)
_FENCED_FORM = re.compile(r"\s*(`{3,}|~{3,})\w*[ \t]*\n(?=\W*(?:reasoning|(?:final\s+)?answer)\W*:)", re.IGNORECASE)
_OPENERS = re.compile(
    r"^\W*(?:thought process|reasoning|answer|solution|let'?s (?:think|solve).*|step by step|n/?a|none|unknown)?\W*$",
    re.IGNORECASE,
)
_SAYS_NONE = re.compile(r"\W*(n/?a|none|unknown)\W*", re.IGNORECASE)
_LONGEST_OPENER_CHARS = 200
_BLANK_LINES = re.compile(r"\A(?:[ \t\r]*\n)+")
_ALNUM = re.compile(r"[^\W_]")
_QUOTES = (('"', '"'), ("`", "`"), ("“", "”"))
_AT_ENDS = ' \t*"`“”'
_SHOWN_CHARS = 100
"""The number of characters of a reply that a warning quotes."""


def split_reply(text: str) -> tuple[str, str]:
    r"""Return (reasoning, answer) of a reply; only blanks, and marks around a single line, are cut from the answer.

    If several lines begin with "Answer:", the last one counts, since a model may correct itself. Lines inside a fenced
    block do not count, nor do lines that answer a "Question:" inside the answer.

    >>> split_reply("Reasoning: It flows there.\nAnswer: The Danube.")
    ('It flows there.', 'The Danube')
    >>> split_reply("Reasoning: two of them.\nAnswer:\n- Danube\n- Rhine")
    ('two of them.', '- Danube\n- Rhine')
    >>> split_reply("Danube,\nthen the Rhine")
    ('', 'Danube,\nthen the Rhine')
    """
    fence = _FENCED_FORM.match(text)  # around the whole reply
    text = text if fence is None else text[fence.end() :].rstrip().removesuffix(fence[1])
    if (line := _answer_line(text)) is not None:
        head = _REASONING_HEAD.match(text, 0, line.start())
        begins = 0 if head is None else head.end()
        return text[begins : line.start()].strip(), tidy(text[line.end() :])
    if (head := _REASONING_HEAD.match(text)) is None:
        return "", tidy(text)
    reasoning, newline, answer = text[head.end() :].strip().partition("\n")
    return (reasoning.strip(), tidy(answer)) if newline else ("", tidy(reasoning))


def _answer_line(text: str) -> re.Match[str] | None:
    """Return the line that begins with "Answer:" and states the answer; None if the reply has no such line."""
    heads = list(_ANSWER_LINE.finditer(text))
    fences = _fence_ends(text) if heads else []
    questions = [line.start() for line in _QUESTION_LINE.finditer(text)] if len(heads) > 1 else []
    last, questions_before = None, 0
    for head in heads:
        if bisect_right(fences, head.start()) % 2:
            continue  # a fence is open here
        count = bisect_right(questions, head.start())
        if last is not None and count != questions_before:  # a list of questions with their answers
            return None if questions_before else last
        last, questions_before = head, count
    return last


def _fence_ends(text: str) -> list[int]:
    """Return the positions of fences, in order: after an odd number of them, a block is open."""
    if "```" not in text and "~~~" not in text:
        return []
    positions: list[int] = []
    opening = ""
    for fence in _FENCE.finditer(text):
        if not opening or fence[1].startswith(opening):
            positions.append(fence.start())
            opening = "" if opening else fence[1]
    return positions


def tidy(answer: str) -> str:
    r"""Return an answer of one line without the marks around it and the final full stop; any other answer unchanged.

    >>> tidy(' **"The Danube".** '), tidy('x = "a"'), tidy("```\nx = 1\n```")
    ('The Danube', 'x = "a"', '```\nx = 1\n```')
    """
    bare = answer.strip()
    if "\n" in bare:
        return _BLANK_LINES.sub("", answer).rstrip()
    return _unmarked(_unmarked(bare).removesuffix("."))


def _unmarked(line: str) -> str:
    """Return a line without asterisks and quotes at its ends, unless the quotes belong to the text inside."""
    before = line.strip(_AT_ENDS)  # without marks at the ends, nothing is left to do
    while line != before:
        before, line = line, line.strip(" \t*")
        for opening, closing in _QUOTES:
            inside = line.removeprefix(opening).removesuffix(closing)
            gone = len(line) - len(inside)
            if gone and gone == line.count(opening) + (line.count(closing) if closing != opening else 0):
                line = inside
    return line


def is_answer(text: str) -> bool:
    """Return whether a text can be an answer: ":" or "Thought process:" cannot, though judges accept them (F41).

    >>> is_answer("Danube"), is_answer(":"), is_answer("Thought process:")
    (True, False, False)
    """
    if _ALNUM.search(text) is None:
        return False
    return len(text) > _LONGEST_OPENER_CHARS or _OPENERS.match(text) is None


def is_offered(text: str, question: str) -> bool:
    """Return whether a text is "none", "unknown" or "n/a", and the question has that word: then it is an answer.

    >>> is_offered("None.", "Sort this into one of: refund, shipping, none."), is_offered("None", "Which river?")
    (True, False)
    """
    word = _SAYS_NONE.fullmatch(text)
    return word is not None and re.search(rf"(?<!\w){re.escape(word[1])}(?!\w)", question, re.IGNORECASE) is not None


def unread(completion: Completion, answer: str, request: Request) -> str | None:
    """Return a warning, with the start of the reply, if a reply has no complete answer; None if it has one.

    `answer` is what `split_reply` found.
    """
    if (is_answer(answer) or is_offered(answer, request.question.text)) and not completion.truncated:
        return None
    limit = f"was cut at its limit of {request.max_tokens} tokens; raise max_tokens of this model"
    reason = limit if completion.truncated else "cannot be read as an answer"
    begins = repr(quote(completion.text)[:_SHOWN_CHARS])
    return f"the reply of {request.model} at step {request.step} {reason}. It begins: {begins}"


_LONGEST_HEAD_CHARS = 40


class AnswerText:
    r"""Streams the answer of a reply while it is written, and withholds the reasoning before it.

    A reply that does not begin with "Reasoning:" or "Answer:" is passed on from its first character. The answer that
    is served in the end is that of `split_reply`.

    >>> shown = AnswerText()
    >>> [shown.add(piece) for piece in ("Reason", "ing: It flows.\nAns", "wer: The Da", "nube")], shown.rest()
    (['', '', 'The Da', 'nube'], '')
    """

    def __init__(self) -> None:
        self._text = ""
        self._looked_to = 0
        self._reasons = self._passes = self._began = False

    def add(self, piece: str) -> str:
        """Add a piece and return the part of the answer that can be shown now, possibly nothing."""
        if not self._passes:
            self._text += piece
            piece = self._opened()
        if not self._began:
            piece = piece.lstrip()
            self._began = bool(piece)
        return piece

    def rest(self) -> str:
        """Return the answer if the reply ended before any of it was shown."""
        return "" if self._passes else split_reply(self._text)[1]

    def _opened(self) -> str:
        """Return the part that can be shown, once the start of the answer is known."""
        self._reasons = self._reasons or _REASONING_HEAD.match(self._text) is not None
        find = _ANSWER_LINE.search if self._reasons else _ANSWER_LINE.match
        head = find(self._text, self._looked_to)
        if head is not None and head.end() == len(self._text):
            return ""  # marks that belong to the heading may follow
        if head is None and (self._reasons or _may_become_head(self._text)):
            self._looked_to = self._text.rfind("\n") + 1 if self._reasons else 0
            return ""
        self._passes = True
        return self._text if head is None else self._text[head.end() :]


def _may_become_head(text: str) -> bool:
    """Return whether the start of a reply can still become "Reasoning:" or "Answer:"."""
    letters = "".join([char for char in text.lower() if char.isalpha()])
    heads = ("reasoning", "answer", "finalanswer")
    return len(text) < _LONGEST_HEAD_CHARS and any(head.startswith(letters) for head in heads)


class ParsedReply(NamedTuple):
    """The result of reading a reply: its answer as a candidate, or None with a warning; its signals and its trace."""

    candidate: Candidate | None
    signals: dict[str, float | None]
    warnings: tuple[str, ...] = ()
    trace: str = ""


def read(completion: Completion, request: Request, *, last: bool = False) -> ParsedReply:
    """Read a reply. `last`: no other model is left that could answer instead.

    An answer that cannot be read is no candidate, even at the last step. A message with a fault is a candidate, with a
    warning, only if its text was already streamed or no other message can be served.
    """
    if request.chat is None:
        trace, answer = split_reply(completion.text)
        signals = logprob_signals(completion, answer)
        if (warning := unread(completion, answer, request)) is not None:
            return ParsedReply(None, signals, (warning,))
        return ParsedReply(Candidate(answer, request.role, request.model), signals, trace=trace)
    signals, faults = message_signals(request.chat, completion), "; ".join(completion.faults)
    candidate = Candidate(completion.text, request.role, request.model, None, completion.message)
    if not faults:
        return ParsedReply(candidate, signals)
    warning = f"the message of {request.model} at step {request.step} has a fault: {faults}"
    if completion.shown:
        return ParsedReply(candidate, signals, (f"{warning}; its text was streamed before the fault was known",))
    if last:
        return ParsedReply(candidate, signals, (f"{warning}; it is served, since no other model is left",))
    return ParsedReply(None, signals, (warning,))
