"""One model answers and decides by itself, round after round, whether to stop: LLM-exit.

A step has one candidate, and the signal `says_exit`. `policies.prompted` follows what the model says. The strategy is a
baseline: a model that judges itself.

Reference: Lu et al., Runaway is ashamed, but helpful (2025); the prompt is our own.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from pydantic import Field

from cascade.errors import ProviderError, UsageError
from cascade.matching.requests import agreement
from cascade.plans import reply
from cascade.plans.base import ModelUse, Plan, Strategy
from cascade.plans.config import StrategyConfig
from cascade.plans.prompts import Prompts, load, question_text
from cascade.policies.signals import OF_ANSWERS, logprob_signals
from cascade.text import data_block, defuse
from cascade.types import Candidate, Completion, Message, Question, Request, Step

_SAYS = re.compile(r"\b(EXIT|CONTINUE)\b", re.IGNORECASE)
_DECISION_TOKENS = 8


def read_exit(text: str) -> bool | None:
    """Return whether a reply says to stop; None if it says neither or both.

    >>> read_exit("[EXIT]"), read_exit("continue."), read_exit("Exit or continue?")
    (True, False, None)
    """
    said = {word.upper() for word in _SAYS.findall(text[:200])}
    return None if len(said) != 1 else said == {"EXIT"}


@dataclass(frozen=True, slots=True)
class Exit(Strategy):
    """The exit strategy.

    `role` is the model's name in a log, and `rounds` T. Of the prompts, `answer`, `again` and `exit` are used.
    """

    use: ModelUse
    role: str = "guide"
    rounds: int = 4
    prompts: Prompts = field(default_factory=load)

    @property
    def horizon(self) -> int:
        """T."""
        return self.rounds

    @property
    def models(self) -> tuple[str, ...]:
        """The one model."""
        return (self.use.name,)

    def plan(self, question: Question) -> Plan:
        """Plan an answer and a decision a step."""
        if question.chat is not None:  # our prompt asks the model whether it may be wrong
            raise UsageError("The strategy exit answers no chat requests: use kind: ladder or kind: base_guide.")
        messages = self.prompts.answer.fill(question_text(question))
        again = self.prompts.again.fill(data_block({"opinion": "doubtful"}))
        answers: list[str] = []
        for number in range(1, self.rounds + 1):
            request = self.use.request(messages, self.role, "answer", number, question, 1)
            completion = yield request
            assert completion is not None  # noqa: S101 - a request is answered by a completion
            _, answer = reply.split_reply(completion.text)
            numbers = logprob_signals(completion, answer)
            unread = reply.unread(completion, answer, request)
            if unread is not None:
                notes = ("the reply has no complete answer",)
                yield Step(number, (), numbers | {"says_exit": None}, notes, warnings=(unread,))
                continue
            numbers["agrees_with_earlier"] = agreement(answer, answers, None)
            answers.append(answer)
            said: list[str] = []
            numbers["says_exit"] = yield from self._decides(question, number, answers, said)
            yield Step(number, (Candidate(answer, self.role, self.use.name),), numbers, tuple(said))
            messages = (*messages, Message("assistant", defuse(completion.text)), *again)

    def _decides(
        self, question: Question, number: int, answers: list[str], notes: list[str]
    ) -> Generator[Request, Completion, float | None]:
        """Ask whether to stop. If that call fails, the answer is still kept, since it is paid for."""
        block = data_block({"question": question.text, "answers": "\n".join(answers)})
        request = self.use.request(self.prompts.exit.fill(block), self.role, "exit", number, question)
        try:
            decision = yield request._replace(max_tokens=_DECISION_TOKENS)
        except ProviderError as error:
            notes.append(f"decider error: {type(error).__name__}: {error}")
            return None
        says = read_exit(decision.text)
        return None if says is None else float(says)


class ExitConfig(StrategyConfig):
    """One model that answers and says when to stop."""

    kind: Literal["exit"]
    model: str = "guide"
    rounds: int = Field(default=4, ge=1, le=100)

    signals = OF_ANSWERS | {"says_exit"}
    fitting_policy: ClassVar[Mapping[str, Any]] = {"kind": "prompted"}

    @property
    def places(self) -> tuple[str, ...]:
        """The entries under `models` that it needs."""
        return (self.model,)

    @property
    def horizon(self) -> int:
        """T, the most steps."""
        return self.rounds

    @property
    def decides(self) -> bool:
        """The model decides."""
        return True

    def build(self, uses: Mapping[str, ModelUse], prompts: Prompts) -> Exit:
        """Return the strategy."""
        return Exit(uses[self.model], self.model, self.rounds, prompts)
