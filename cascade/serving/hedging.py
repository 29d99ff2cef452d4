"""Decides when to start the reference's call early, for one question.

A policy's walk ends in the reference if no earlier answer was good enough. A hedge decides, before each earlier call,
whether to start the reference's call at the same time (`policies.hedging`). If the walk reaches the reference, its
reply comes sooner; if the walk ends before, the call is cancelled. So a hedge changes time and money, and never the
answer served, the decisions, or the certificate.

`Hedging` wraps a walk of `engine.run` and makes no call itself. It yields `Begin` to start a call together with the
next one, and `End` if a call is not needed; `early_calls` acts on them.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, TypeAlias

from cascade.budget.charges import QuestionBudget, failed_call, most_nano_usd, paid_call
from cascade.engine import Run
from cascade.errors import BudgetExceededError, ProviderError
from cascade.money import Price
from cascade.policies.base import Observation
from cascade.policies.hedging import Hedge
from cascade.resilience.retry import Deadline
from cascade.strategies.base import NOTHING_BOUGHT, Strategy
from cascade.types import SKIP, Answer, Call, Completion, Question, Request, Step

CANCELLED = "Cancelled: it was not needed."


class Begin(NamedTuple):
    """Asks the driver to start a call together with the next one, `beside`, without waiting. Resumed with None."""

    request: Request
    beside: Request


class End(NamedTuple):
    """Asks the driver to end an early call that is not needed. Resumed with its result, or None if stopped."""

    request: Request


Outcome: TypeAlias = Completion | ProviderError | None
HedgedRun: TypeAlias = Generator[Request | Step | Begin | End, Completion | ProviderError | None, Answer]


@dataclass(slots=True)
class Purse(QuestionBudget):
    """The cap of one question. It holds the highest cost of an early call until that call's step is reached."""

    held_nano_usd: int = 0
    held_for: Request | None = None

    def fits(self, nano_usd: int) -> bool:
        """Whether this amount still fits under the cap."""
        return self.limit_nano_usd is None or self.spent_nano_usd + nano_usd <= self.limit_nano_usd

    def begin(self, request: Request, nano_usd: int) -> None:
        """Hold the highest cost of an early call."""
        self.held_for, self.held_nano_usd = request, nano_usd
        self.spent_nano_usd += nano_usd

    def release(self) -> None:
        """Release the hold of a call that was begun early."""
        self.spent_nano_usd -= self.held_nano_usd
        self.held_for, self.held_nano_usd = None, 0

    def hold(self, request: Request, price: Price | None) -> int:
        """Hold as a question's budget does; the early call's step uses the money already held for it."""
        if self.held_for is not None and _same(self.held_for, request):
            self.release()
        return QuestionBudget.hold(self, request, price)


class _Begun(NamedTuple):
    """An early call: the step at which it started, and the time."""

    request: Request
    step: int
    at_s: float


@dataclass(slots=True)
class Hedging:
    """The hedge of one question.

    Args:
        question: the question.
        strategy: the strategy of the walk.
        hedge: the rules for starting the reference's call early.
        prices: the prices of the models; None if unknown.
        purse: the question's cap, from which the walk also spends.
        deadline: the question's deadline.
        per_call_s: the time limit of a call. If less time is left, no call is started early: the deadline might end the
            walk, and the answer served would then depend on the hedge.
    """

    question: Question
    strategy: Strategy
    hedge: Hedge
    prices: Mapping[str, Price | None]
    purse: Purse
    deadline: Deadline
    per_call_s: float
    _steps: list[Step] = field(default_factory=list)
    _begun: _Begun | None = None
    _used: tuple[int, Completion] | None = None
    _unused: list[Call] = field(default_factory=list)
    _decided: int = 0

    def follow(self, walk: Run) -> HedgedRun:
        """Return the same walk with calls that are begun early, which are recorded in the answer, or in `calls`."""
        try:
            item = next(walk)
            while True:
                if isinstance(item, Step):
                    if item.number:
                        item = self._marked(item)
                        self._steps.append(item)
                    yield item
                    item = next(walk)
                elif self._begun is not None and _same(self._begun.request, item):
                    item = yield from self._taken(walk, self._begun, item)
                else:
                    early = self._early(item)
                    if early is not None:
                        yield Begin(early, item)
                    item = yield from _asked(walk, item)
        except StopIteration as end:
            answer: Answer = end.value
            yield from self._ended()
            steps = tuple([self._marked(step) for step in answer.steps])
            return replace(answer, steps=steps, loose_calls=(*answer.loose_calls, *self._unused))
        except (ProviderError, BudgetExceededError) as error:
            yield from self._ended()
            error.calls = (*error.calls, *self._unused)
            raise
        finally:
            walk.close()

    def _early(self, item: Request) -> Request | None:
        """Return the reference's call if it should start together with this one."""
        first = item.step > self._decided
        self._decided = max(self._decided, item.step)
        over = bool(self._steps) and self._steps[-1].decision is not None and not self._steps[-1].decision.proceed
        if not first or over or self._begun is not None or item.step >= self.strategy.horizon:
            return None
        if self.deadline.at_s != float("inf") and self.deadline.remaining_s() < self.per_call_s:
            return None
        if not self.hedge.begins(
            Observation(self.question, tuple(self._steps) or (NOTHING_BOUGHT,), self.strategy.horizon)
        ):
            return None
        ahead = self.strategy.ahead(self.question)
        request = ahead[-1] if ahead else None
        if request is None or request.purpose == SKIP or not self._pays(item, ahead):
            return None
        request = request if self.purse.limit_nano_usd is None else request._replace(at_most_once=True)
        self._begun = _Begun(request, item.step, time.monotonic())
        return request

    def _pays(self, item: Request, ahead: Sequence[Request | None]) -> bool:
        """Whether this call, all later ones, and the reference twice fit under the question's cap; hold the money.

        With less, the walk might lack money for a call that it would make without a hedge: for later offers, or for the
        reference if the early call fails and may be billed.
        """
        if self.purse.limit_nano_usd is None:
            return True
        most = 0
        for request in (item, *ahead[item.step :], ahead[-1]):
            bound = None if request is None else 0 if request.purpose == SKIP else self._most(request)
            if bound is None:
                return False
            most += bound
        if not self.purse.fits(most):
            return False
        reference = ahead[-1]
        assert reference is not None  # noqa: S101 - it has a bound
        self.purse.begin(reference, self._most(reference) or 0)
        return True

    def _most(self, request: Request) -> int | None:
        return most_nano_usd(request, self.prices.get(request.model)).nano_usd

    def _taken(
        self, walk: Run, begun: _Begun, item: Request
    ) -> Generator[Request, Completion | ProviderError | None, Request | Step]:
        """Take the reply of the early call; if it failed, make the call again as if there had been no hedge."""
        self._begun = None
        try:
            completion = yield begun.request
        except (ProviderError, BudgetExceededError) as error:
            if not isinstance(error, ProviderError) or not error.early:
                return walk.throw(error)
            call = failed_call(begun.request, error, self.prices.get(item.model))
            self._unused.append(call._replace(begun=begun.step))
            if self.purse.limit_nano_usd is not None:
                most = call.cost_nano_usd if call.billed != "maybe" else self._most(begun.request)
                self.purse.settle(0, most or 0)
            return (yield from _asked(walk, item))
        assert isinstance(completion, Completion)  # noqa: S101 - drivers answer a request with a completion
        self._used = begun.step, completion
        return walk.send(completion)

    def _ended(self) -> Generator[End, Completion | ProviderError | None, None]:
        """End a call that was begun and not needed, and record its cost."""
        if self._begun is None:
            return
        begun, self._begun = self._begun, None
        outcome = yield End(begun.request)
        price = self.prices.get(begun.request.model)
        if isinstance(outcome, Completion):
            call = paid_call(begun.request, outcome, price)
        elif outcome is not None:
            call = failed_call(begun.request, outcome, price)
        else:
            most = self._most(begun.request)
            call = Call(begun.request, None, 0 if most == 0 else None, most, "maybe", CANCELLED)
        self._unused.append(call._replace(begun=begun.step))

    def _marked(self, step: Step) -> Step:
        """Return a step with its early call marked."""
        if self._used is None:
            return step
        begun, reply = self._used
        calls = [call._replace(begun=begun) if call.completion is reply else call for call in step.calls]
        return step._replace(calls=tuple(calls))


def _asked(walk: Run, item: Request) -> Generator[Request, Completion | ProviderError | None, Request | Step]:
    """Make a call in the usual way."""
    try:
        sent = yield item
    except (ProviderError, BudgetExceededError) as error:
        return walk.throw(error)
    assert not isinstance(sent, ProviderError)  # noqa: S101 - an error is thrown in
    return walk.send(sent)


def _same(begun: Request, asked: Request) -> bool:
    """Whether a call is the early call."""
    return begun._replace(at_most_once=False) == asked._replace(at_most_once=False)
