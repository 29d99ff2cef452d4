"""How a model is asked for an answer, and how its reply is read: with cascade's prompt, or as an application's chat.

A question is asked with the prompt `answer`, and its reply read as "Reasoning: … Answer: …". A chat request is sent
unchanged, and the whole message is the answer.
"""

from __future__ import annotations

from typing import NamedTuple

from cascade.plans import reply
from cascade.plans.base import ModelUse
from cascade.plans.prompts import Prompts, question_text
from cascade.policies.signals import logprob_signals, message_signals
from cascade.types import Candidate, Completion, Question, Request


class ParsedReply(NamedTuple):
    """The result of reading a reply: its answer as a candidate, or None with a warning; its signals and its trace."""

    candidate: Candidate | None
    signals: dict[str, float | None]
    warnings: tuple[str, ...] = ()
    trace: str = ""


def ask(question: Question, prompts: Prompts, use: ModelUse, role: str, step: int) -> Request:
    """Return the call that asks a model for its answer."""
    chat = question.chat
    if chat is None:
        messages, most = prompts.answer.fill(question_text(question)), use.max_tokens
        return Request(use.name, messages, role, "answer", step, question, most, use.temperature, 1, use.seed)
    most, alternatives = chat.max_tokens or use.chat_max_tokens, chat.top_logprobs or 1
    return Request(use.name, (), role, "answer", step, question, most, top_logprobs=alternatives, chat=chat)


def read(completion: Completion, request: Request, *, last: bool = False) -> ParsedReply:
    """Read a reply. `last`: no other model is left that could answer instead.

    An answer that cannot be read is no candidate, even at the last step. A message with a fault is one, with a warning,
    only if no other can be served.
    """
    if request.chat is None:
        trace, answer = reply.split_reply(completion.text)
        unread = reply.unread(completion, answer, request)
        signals = logprob_signals(completion, answer)
        if unread is not None:
            return ParsedReply(None, signals, (unread,))
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
