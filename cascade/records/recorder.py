"""Follow one question until it is answered, fails or is cancelled. `writer.TraceWriter` writes the record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cascade.budget.charges import cut_call, paid_call
from cascade.errors import BudgetExceededError, ProviderError, UsageError, logger
from cascade.types import Answer, Call, Completion, Question, Request, Run, Step

if TYPE_CHECKING:  # not loaded if traces are off
    from cascade.money import Price
    from cascade.records.writer import TraceWriter


@dataclass(slots=True)
class TraceRecorder:
    """The record of one question.

    `horizon` is T. `prices`, by model, are needed for a walk that ends in the middle of a step. `walk` is its name, if
    it is not the configured strategy's own. `key` names the server's key, recorded as user if the request has none.
    `written` is done once the record is committed, if the writer is strict.
    """

    writer: TraceWriter
    horizon: int
    prices: Mapping[str, Price | None]
    walk: str | None = None
    episode_id: str | None = None
    key: str | None = None
    written: Future[None] | None = field(default=None, init=False)

    def follow(self, question: Question, walk: Run, *, later: bool = False) -> Run:
        """Run the walk unchanged, and pass its result to the writer when it ends; with `later`, only if it fails."""
        steps: list[Step] = []
        loose: list[tuple[Request, Completion]] = []  # since the last step
        event: Request | Step | None = None
        try:
            event = next(walk)
            while True:
                if isinstance(event, Step):
                    steps.append(event)
                    loose.clear()
                try:
                    sent = yield event
                except (ProviderError, BudgetExceededError) as error:
                    event = walk.throw(error)
                    continue
                if isinstance(event, Request) and sent is not None:
                    loose.append((event, sent))
                event = walk.send(sent)
        except StopIteration as end:
            answer: Answer = end.value
            if not later:
                self._submit(answer)
            return answer
        except (ProviderError, BudgetExceededError) as error:
            stepped = sum(len(step.calls) for step in steps)
            stopped = "budget" if isinstance(error, BudgetExceededError) else "provider error"
            self._submit(_broken_off(question, steps, error.calls[stepped:], stopped))
            raise
        except BaseException as error:  # if not an Exception, the driver was cancelled or interrupted
            stopped = "error" if isinstance(error, Exception) else "cancelled"
            calls = [paid_call(request, reply, self.prices.get(request.model)) for request, reply in loose]
            if isinstance(event, Request):
                calls.append(cut_call(event, self.prices.get(event.model)))
            self._submit(_broken_off(question, steps, calls, stopped))
            raise
        finally:
            walk.close()

    def _submit(self, answer: Answer) -> None:
        if not any(call.completion is not None or call.is_cut for call in answer.calls):
            return
        chat = answer.question.chat
        columns = {"horizon": self.horizon, "walk": self.walk, "split": "audit" if answer.audited else None}
        columns |= {} if self.episode_id is None else {"episode_id": self.episode_id}
        columns |= {"user": self.key} if chat is None or chat.user is None else {}
        try:
            self.written = self.writer.submit(answer, columns)
        except UsageError:
            logger.warning("traces: an answer was not recorded, since the writer was closed before")


def _broken_off(question: Question, steps: list[Step], loose: Iterable[Call], stopped: str) -> Answer:
    """Return the finished part of an interrupted walk, as an answer without an answer text."""
    return Answer(question, None, (), tuple(steps), stopped, 0.0, loose_calls=tuple(loose))
