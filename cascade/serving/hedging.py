"""Begin the reference's call early: the decision, for one question.

A policy's walk ends in the reference where nothing before it was good enough. A hedge says, before an earlier call is
made, whether the reference's call is begun at the same moment (`policies.hedging`). Where the walk then comes to the
reference, its reply is there already, or sooner; where it ends before, the call is cancelled. So a hedge changes time
and money, and never which answer is served, the decisions, or the certificate.

`Hedging` follows a walk of `engine.run` from outside and does nothing itself. It yields `Begin` where a call is to be
begun beside the next one, and `End` where one is not needed; `begun` acts.
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
    """Begin a call at the same moment as the next one, `beside`, and do not wait for it. Is resumed with None."""

    request: Request
    beside: Request


class End(NamedTuple):
    """End a call that was begun and is not needed. Is resumed with its completion or error, None where it is cut."""

    request: Request


Outcome: TypeAlias = Completion | ProviderError | None
HedgedRun: TypeAlias = Generator[Request | Step | Begin | End, Completion | ProviderError | None, Answer]


@dataclass(slots=True)
class Purse(QuestionBudget):
    """The cap of one question. It holds the most that a call begun early can cost until that call's step is reached."""

    held_nano_usd: int = 0
    held_for: Request | None = None

    def fits(self, nano_usd: int) -> bool:
        """Whether there is room for so much more."""
        return self.limit_nano_usd is None or self.spent_nano_usd + nano_usd <= self.limit_nano_usd

    def begin(self, request: Request, nano_usd: int) -> None:
        """Hold the most that a call begun early can cost."""
        self.held_for, self.held_nano_usd = request, nano_usd
        self.spent_nano_usd += nano_usd

    def release(self) -> None:
        """Give back what is held for a call begun early."""
        self.spent_nano_usd -= self.held_nano_usd
        self.held_for, self.held_nano_usd = None, 0

    def hold(self, request: Request, price: Price | None) -> int:
        """Do as a question's budget does; the step of the call begun early finds its money again."""
        if self.held_for is not None and _same(self.held_for, request):
            self.release()
        return QuestionBudget.hold(self, request, price)


class _Begun(NamedTuple):
    """A call that was begun early: at which step, and when by the clock."""

    request: Request
    step: int
    at_s: float


@dataclass(slots=True)
class Hedging:
    """The hedge of one question.

    Args:
        question: what is asked.
        strategy: whose plan is walked.
        hedge: when the reference is begun early.
        prices: of the models, None where unknown.
        purse: the question's cap, which the walk spends from too.
        deadline: of the question.
        per_call_s: how long a call may take. Where less is left, no call is begun early: the deadline may cut the walk
            off, and what is served would depend on the reference's being early.
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
        """Return the same walk with calls that are begun early, which stand on record in the answer, or in `calls`."""
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
        """Return the reference's call if it is to be begun beside this one."""
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
        """Whether the question's cap has room for this call, all that may follow, and the reference twice; hold it.

        Less could refuse the walk a call that it would make without a hedge: later offers, or the reference where the
        call begun early fails and may be billed.
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
        """Take the reply of the call begun early; where it failed, ask again as if it had not been begun."""
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
        """End a call that was begun and not needed, and put down what it cost."""
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
        """Return a step with the call that was begun early marked as such."""
        if self._used is None:
            return step
        begun, reply = self._used
        calls = [call._replace(begun=begun) if call.completion is reply else call for call in step.calls]
        return step._replace(calls=tuple(calls))


def _asked(walk: Run, item: Request) -> Generator[Request, Completion | ProviderError | None, Request | Step]:
    """Have a call made as usual."""
    try:
        sent = yield item
    except (ProviderError, BudgetExceededError) as error:
        return walk.throw(error)
    assert not isinstance(sent, ProviderError)  # noqa: S101 - an error is thrown in
    return walk.send(sent)


def _same(begun: Request, asked: Request) -> bool:
    """Whether a call is the one that was begun."""
    return begun._replace(at_most_once=False) == asked._replace(at_most_once=False)
