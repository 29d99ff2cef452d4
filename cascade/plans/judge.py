"""How a model is asked about answers: for a verdict, by log-probs or samples, or what to do next.

Reference of LLM-exit: Lu et al., Runaway is ashamed, but helpful (2025); the prompts are our own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Generator
from typing import Any, Literal, NamedTuple, TypeAlias

from cascade.chat import ChatRequest, part_texts
from cascade.plans import verdict as verdicts
from cascade.plans.base import ModelUse
from cascade.plans.prompts import Prompts
from cascade.plans.verdict import Verdict
from cascade.text import counted, data_block, encode_sorted
from cascade.types import Candidate, Completion, Message, Question, Request

OnGuideError: TypeAlias = Literal["escalate", "accept", "abstain"]
VerdictMode: TypeAlias = Literal["auto", "logprobs", "sampled"]

ALTERNATIVES = 20
"""The log-probs asked for: the most that hosted APIs allow, enough to find Yes and No at any rank."""
_SAMPLE_TEMPERATURE = 1.0
_EXITS = re.compile(r"\b(EXIT|CONTINUE)\b", re.IGNORECASE)
_ACTION = re.compile(r"^\W*([123])(?![\d.,]*\d)")
_MARK = {"type": "left out", "text": "a part that is no text"}


class VerdictSettings(NamedTuple):
    """How a verdict is asked for.

    Attributes:
        method: P(yes) from log-probs, from samples, or as the model allows.
        samples: how many verdicts are asked for if there are no log-probs.
        on_error: what to do if the judge cannot be reached: go on ("escalate"), keep the answer unjudged ("accept"), or
            stop without an answer ("abstain").
    """

    method: VerdictMode = "auto"
    samples: int = 1
    on_error: OnGuideError = "escalate"

    def ask(
        self, use: ModelUse, role: str, step: int, prompts: Prompts, question: Question, judged: Candidate, trace: str
    ) -> Generator[Request, Completion, tuple[Verdict, list[str]]]:
        """Ask for a verdict on an answer that was reached by a trace; return it, with notes for the step."""
        notes, answer, replies = list[str](), judged.text, list[Completion]()
        messages = self._messages(prompts, question, judged, trace)
        request = use.request(messages, role, "judge", step, question)
        verdict = None
        if self.method != "sampled":
            replies.append((yield request._replace(top_logprobs=ALTERNATIVES)))
            if self.method == "logprobs" or not verdicts.without_alternatives(replies[0]):
                verdict = verdicts.read(replies[0], answer)
        if verdict is None:
            for sample in range(len(replies), self.samples):
                replies.append((yield self._sample(request, use, sample)))
            verdict = verdicts.combine(replies, answer)
        if question.chat is not None:  # only whole messages are served
            verdict = verdict._replace(correction=None)
            texts = [text for message in question.chat.messages for text in part_texts(message.get("content"))]
            if hidden := texts.count(None):
                notes.append(f"{role} does not see {counted(hidden, 'part')} of the messages: not text")
        elif any(verdicts.explains(completion.text, answer) for completion in replies):
            notes.append(f"the reply of {role} goes on after its answer; the lines after the first are left out")
        verdict = verdicts.sensible(verdict, answer)
        if verdict.p_yes is None:
            notes.append(f"no verdict: the reply of {role} was neither a clear yes nor a clear no")
        elif verdict.method == "sampled":
            notes.append(f"verdict from {counted(len(replies), 'sample')}, without log-probs")
        return verdict, notes

    def _messages(self, prompts: Prompts, question: Question, judged: Candidate, trace: str) -> tuple[Message, ...]:
        if question.chat is not None:
            return prompts.judge_chat.fill(data_block(judged_fields(question.chat, judged)))
        fields = {"question": question.text, "reasoning": trace, "answer": judged.text}
        return prompts.judge.fill(data_block({"text": question.context, **fields} if question.context else fields))

    def _sample(self, request: Request, use: ModelUse, sample: int) -> Request:
        """Return the call for one of several verdicts."""
        return request._replace(
            temperature=_SAMPLE_TEMPERATURE if self.samples > 1 else use.temperature,
            seed=None if use.seed is None else use.seed + sample,
            sample=sample,
        )


PLAINLY = VerdictSettings()
"""One verdict, from log-probs if there are any."""


def judged_fields(chat: ChatRequest, candidate: Candidate) -> dict[str, str]:
    """Return a chat request and the message that answers it as a judge reads them, each as JSON text."""
    answer = {"content": candidate.text} if candidate.message is None else candidate.message
    shown = {
        "conversation": [{**message, "content": _shown(message.get("content"))} for message in chat.messages],
        "tools": chat.options.get("tools"),
        "tool_choice": chat.options.get("tool_choice"),
        "format": chat.options.get("response_format"),
        "reply": {name: value for name, value in answer.items() if name != "role" and value is not None},
    }
    return {name: encode_sorted(value) for name, value in shown.items() if value}


def _shown(content: Any) -> Any:
    """Return a message's content with a mark in place of each part that is not text, such as an image."""
    if not isinstance(content, list | tuple):
        return content
    return [_MARK if text is None else part for part, text in zip(content, part_texts(content), strict=True)]


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
