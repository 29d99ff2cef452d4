"""How a model is asked for an answer, and how its reply is read: with cascade's prompt, or as an application's chat.

A strategy uses either form in the same way. `TextForm` asks with the prompts of the strategy and reads
"Reasoning: … Answer: …". `ChatForm` sends the application's request unchanged and reads the whole message.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

from cascade.chat import ChatRequest
from cascade.plans import reply
from cascade.plans.base import ModelUse
from cascade.plans.prompts import Prompts, question_text
from cascade.policies.signals import logprob_signals, message_signals
from cascade.types import Candidate, Completion, Question, Request


class Reading(NamedTuple):
    """The result of reading a reply: its answer as a candidate, or None with a warning; and its signals."""

    candidate: Candidate | None
    signals: dict[str, float | None]
    warning: str | None = None


class Form(Protocol):
    """Asks one model for an answer to one question, and reads its reply."""

    def request(self, use: ModelUse, role: str, step: int) -> Request:
        """Return the call that asks a model for its answer."""
        ...

    def read(self, completion: Completion, request: Request, *, last: bool) -> Reading:
        """Read a reply. `last`: no other model is left that could answer instead."""
        ...


def form_of(question: Question, prompts: Prompts) -> Form:
    """Return the form of a question."""
    return TextForm(question, prompts) if question.chat is None else ChatForm(question, question.chat)


class TextForm:
    """A question in the strategy's own prompt."""

    def __init__(self, question: Question, prompts: Prompts) -> None:
        self._question = question
        self._messages = prompts.answer.fill(question_text(question))

    def request(self, use: ModelUse, role: str, step: int) -> Request:
        """Ask with the prompt."""
        return use.request(self._messages, role, "answer", step, self._question, 1)

    def read(self, completion: Completion, request: Request, *, last: bool) -> Reading:  # noqa: ARG002 - the Protocol's
        """Read the answer of a reply. An answer that cannot be read is not a candidate, even at the last step."""
        _, answer = reply.split_reply(completion.text)
        numbers = logprob_signals(completion, answer)
        unread = reply.unread(completion, answer, request)
        return Reading(Candidate(answer, request.role, request.model) if unread is None else None, numbers, unread)


class ChatForm:
    """An application's own request."""

    def __init__(self, question: Question, chat: ChatRequest) -> None:
        self._question = question
        self.chat = chat

    def request(self, use: ModelUse, role: str, step: int) -> Request:
        """Send the request as it is."""
        most = self.chat.max_tokens or use.chat_max_tokens
        wanted = self.chat.top_logprobs or 1
        return Request(use.name, (), role, "answer", step, self._question, most, top_logprobs=wanted, chat=self.chat)

    def read(self, completion: Completion, request: Request, *, last: bool) -> Reading:
        """Read a message. A message with a fault is a candidate, with a warning, only if no other can be served."""
        numbers = message_signals(self.chat, completion)
        faults = "; ".join(completion.faults)
        candidate = Candidate(completion.text, request.role, request.model, None, completion.message)
        if not faults:
            return Reading(candidate, numbers)
        said = f"the message of {request.model} at step {request.step} has a fault: {faults}"
        if completion.shown:
            return Reading(candidate, numbers, f"{said}; its text was streamed before the fault was known")
        if last:
            return Reading(candidate, numbers, f"{said}; it is served, since no other model is left")
        return Reading(None, numbers, said)
