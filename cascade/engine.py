"""One question as a generator: it yields requests and finished steps, is sent completions, and returns the answer.

The generator makes all decisions and performs no action: it does not wait and calls no provider. `drive` at the end of
the file runs it for a whole answer, `streaming.play` for a streamed one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cascade.budget.charges import Budget, failed_call, paid_call
from cascade.chat import ChatRequest
from cascade.errors import BudgetExceededError, ProviderError, ProviderTimeoutError, ProviderUnavailableError
from cascade.matching import answer_key
from cascade.money import Price
from cascade.plans.base import Conclusion, ModelUse, Walk
from cascade.plans.nodes import Plan
from cascade.policies.base import ALWAYS, NEVER, Observation, Scorer
from cascade.providers.fields import Fields
from cascade.resilience.event_loop import Deadline, Worker
from cascade.types import NO_CERTIFICATE, SKIP, Answer, Call, Completion, Decision, Question, Request, Run, Step, Usage

if TYPE_CHECKING:
    from cascade.conformal.certificate import Certificate
    from cascade.conformal.scope import Scope
    from cascade.policies.live import LivePolicy

BROKEN_OFF = frozenset({"budget", "deadline", "provider error"})
"""Reasons, other than the policy and the plan, for the end of a walk; no certificate covers such a walk."""

_UNSENT = "was not sent to every model: one does not know it, or the configuration sets its own"


class RunPlan(NamedTuple):
    """How one question is answered.

    Attributes:
        strategy: plans the calls and makes steps of them.
        policy: scores each step; None: every step is run, and every answer kept.
        certificate: the guarantee about the answer; left out if the walk is broken off, or has a step outside `scope`.
        audit: whether the steps after the decision to stop are run, too. They keep nothing and do not change the
            answer; they show what was missed.
        warnings: the first of the answer's warnings.
        walk: its name in the traces if a strategy other than the configured one runs.
        level: the level of the policy, if it has levels.
        scope: the scope of the certificate; None if it covers every walk that is not broken off.
    """

    strategy: Plan
    policy: Scorer | None = None
    certificate: Certificate | None = None
    audit: bool = False
    warnings: tuple[str, ...] = ()
    walk: str | None = None
    level: str | None = None
    scope: Scope | None = None

    @classmethod
    def of(cls, strategy: Plan, policy: LivePolicy) -> RunPlan:
        """Return the run plan of a policy that promises nothing, with the part of the strategy that it takes."""
        if (part := policy.selection) is None:
            return cls(strategy, policy)
        return cls(strategy.only(part), policy, walk=strategy.reference_walk if part.reference else None)


class RunTerms(NamedTuple):
    """The settings of a configuration that apply to every question.

    Attributes:
        prices: the prices of the strategy's models, None if unknown.
        on_exhausted: if the next call might exceed the cap, "refuse" raises, anything else returns the best so far.
        fallbacks: by a model's name, the model itself and then those that are asked in turn while it is down.
        fields: the fields of an application's request that each model is sent; by default the standard ones.
    """

    prices: Mapping[str, Price | None] = {}
    on_exhausted: str = "refuse"
    fallbacks: Mapping[str, tuple[ModelUse, ...]] = {}
    fields: Fields = Fields()


@dataclass(slots=True)
class _QuestionWalk:
    """A question in progress: its inputs and the record so far."""

    question: Question
    walk: Walk
    plan: RunPlan
    terms: RunTerms
    purse: Budget
    deadline: Deadline
    may_finish: bool  # if the budget is exhausted, the plan may still make a step of the calls it has paid for
    warnings: list[str]
    outside: list[str] = field(default_factory=list)  # why the certificate does not cover this question
    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # of the step in progress
    exhausted: BudgetExceededError | None = None
    late: ProviderTimeoutError | None = None  # set once the deadline has passed

    def follow(self) -> Generator[Request | Step, Completion | None, str]:
        """Follow the plan until the policy or the plan ends it; return why it stopped."""
        planned = yield from self._next()
        while planned is not None:
            observation = self._observed(planned)
            decision, step, last = decide(self.plan.policy, observation), observation.steps[-1], observation.last
            scope = None if self.plan.certificate is None else self.plan.scope
            if scope is not None and step.number:
                self.outside += scope.outside(step)
            if scope is not None and scope.insists and self.outside and not last:
                # Nothing is promised about an answer kept outside the certificate's scope: the last step answers.
                note = f"{self.outside[0]}: no certificate covers that, so the walk goes on"
                step = step._replace(notes=(*step.notes, note))
                decision = decision._replace(keep=(), proceed=True)
            if decision.buy is not None:
                decision = decision._replace(
                    buy_name=dict(enumerate(self.plan.strategy.step_names, 1)).get(decision.buy)
                )
            if step.number:  # before the first call there is nothing to record
                yield self._finish(step._replace(decision=decision))
            self._check()
            if not decision.proceed:
                return "horizon" if last else "policy"
            planned = yield from self._next(decision.buy)
        return "horizon"

    def run_on(self) -> Generator[Request | Step, Completion | None, None]:
        """Follow the plan to its end after the walk, for an audit. The steps keep nothing.

        An error here cuts the audit short and does not affect the answer.
        """
        self.may_finish = False
        try:
            while self.steps and not self._is_last(self.steps[-1]):
                planned = yield from self._next()
                if planned is None:
                    return
                observation = self._observed(planned)
                decision = decide(self.plan.policy, observation)._replace(keep=(), proceed=not observation.last)
                yield self._finish(observation.steps[-1]._replace(decision=decision, audited=True))
                self._check()
        except (BudgetExceededError, ProviderError) as error:
            self.warnings.append(f"the audit was cut short: {type(error).__name__}: {error}")

    def broken_off(self, error: BudgetExceededError | ProviderError) -> str:
        """Return why an error ended the walk; raise the error, with the calls, if no answer may be served."""
        error.calls = (*(call for step in self.steps for call in step.calls), *self.calls)
        of_budget = isinstance(error, BudgetExceededError)
        refuses = not self.may_finish if isinstance(error, BudgetExceededError) else error.shown
        if refuses or not any(step.candidates for step in self.steps):
            _name_first_failure(error)
            raise error
        self.warnings.append(str(error) if of_budget else f"{type(error).__name__}: {error}")
        return "budget" if of_budget else "deadline" if error is self.late else "provider error"

    def uncovered(self, stopped: str) -> list[str]:
        """Return why no certificate covers the answer of a walk that stopped for this reason; empty if one can."""
        reasons = list(dict.fromkeys(self.outside))
        if stopped in BROKEN_OFF:
            reasons.insert(0, f"the walk was not the policy's own to its end (stopped: {stopped})")
        return reasons

    def _observed(self, step: Step) -> Observation:
        """Return the steps so far and the one to decide on, with its calls, since a policy may read their cost."""
        steps = (*self.steps, step._replace(calls=tuple(self.calls)))
        return Observation(self.question, steps, self._is_last(step))

    def _is_last(self, step: Step) -> bool:
        return step.final or step.number >= self.plan.strategy.horizon

    def _finish(self, step: Step) -> Step:
        """Record a decided step and begin the calls of the next one."""
        self.calls.clear()
        self.steps.append(step)
        self.warnings += step.warnings
        return step

    def _check(self) -> None:
        """Raise the error, if there is one, that ends the walk even if the policy wants to go on."""
        if self.exhausted is not None:
            raise self.exhausted
        if self.late is not None:
            raise self.late

    # --- calls ---

    def _next(self, number: int | None = None) -> Generator[Request, Completion | None, Step | None]:
        """Make the calls of the next step, or of the step that the policy chose; return None after the last."""
        result: Completion | ProviderError | int | None = number
        while True:
            try:
                item = self.walk.throw(result) if isinstance(result, ProviderError) else self.walk.send(result)
            except StopIteration:
                return None
            if isinstance(item, Step):
                return item
            try:
                result = yield from self._reply(item)
            except ProviderError as error:
                result = error

    def _reply(self, request: Request | Conclusion) -> Generator[Request, Completion | None, Completion]:
        """Make a call or, if its model is down, the same call to its next fallback."""
        if isinstance(request, Conclusion):
            self.calls.append(Call(*request, 0, 0, "no"))
            return request.completion
        if request.purpose == SKIP:
            nothing = Completion("", "skipped", Usage(0, 0))
            self.calls.append(Call(request, nothing, 0, 0, "no"))
            return nothing
        if self.deadline.over:
            message = f"the deadline was over before {request.model} was asked."
            self.late = self.late or ProviderTimeoutError(message, model=request.model, billed="no")
            raise self.late
        attempt, waiting = request, list(self.terms.fallbacks.get(request.model, ())[1:])
        while True:
            try:
                return (yield from self._call(attempt))
            except BudgetExceededError as error:  # from the question's cap, or thrown in for a shared cap
                if not (self.may_finish and self.calls) or self.exhausted is not None:
                    raise  # there is no paid call of which the plan could make a step
                self.exhausted = error
                raise ProviderUnavailableError(f"not asked: {error}", model=request.model) from None
            except ProviderError as error:
                following = self._fallback(attempt, error, waiting)
                if following is None:
                    raise
                attempt = following

    def _fallback(self, request: Request, error: ProviderError, waiting: list[ModelUse]) -> Request | None:
        """Return the call of the next fallback for a model that is down, taken from `waiting`."""
        while waiting and error.another_may_answer and not self.deadline.over:
            use = waiting.pop(0)
            if use.lacks(request) is None:
                following = use.in_place_of(self.terms.fallbacks[request.model][0], request)
                return following._replace(instead_of=request.instead_of or request.model)
        if isinstance(error, ProviderTimeoutError) and self.deadline.over:
            self.late = error
        return None

    def _call(self, request: Request) -> Generator[Request, Completion | None, Completion]:
        """Hold the money, make the call, settle, and record it."""
        request = self.terms.fields.sent(request)
        price, purse = self.terms.prices.get(request.model), self.purse
        hold = purse.hold(request, price)
        try:
            completion = yield request if purse.limit_nano_usd is None else request._replace(at_most_once=True)
        except BudgetExceededError:  # from a shared cap: the call was not made
            raise
        except ProviderError as error:
            call = failed_call(request, error, price)
            self.calls.append(call)
            purse.settle(hold, call.cost_nano_usd if call.billed != "maybe" else None)
            raise
        except BaseException:
            purse.settle(hold, None)  # cancelled: it may be billed
            raise
        assert completion is not None  # noqa: S101 - drivers answer a request with a completion
        call = paid_call(request, completion, price)
        self.calls.append(call)
        if call.unpriced is not None:
            self.warnings.append(f"the cost is unknown: {request.model} has no known price for {call.unpriced}")
        known = call.cost_nano_usd is not None
        purse.settle(hold, call.cost_nano_usd if known else max(hold, call.cost_bound_nano_usd or 0))
        if request.instead_of is not None:
            self.warnings.append(f"{request.model} answered in place of {request.instead_of}")
        return completion


def run(
    question: Question,
    plan: RunPlan,
    terms: RunTerms = RunTerms(),  # noqa: B008 - frozen
    *,
    budget: Budget | None = None,
    deadline: Deadline | None = None,
) -> Run:
    """Answer one question.

    Args:
        question: the question.
        plan: what answers it.
        terms: the settings that apply to every question.
        budget: what this question may cost; no limit by default.
        deadline: the time at which the best answer so far is returned, even if the policy wants to go on.

    Yields:
        Requests, to which the driver sends a `Completion` or throws a `ProviderError`; and decided `Step`s, after which
        the driver resumes with None.

    Returns:
        The answer, as the generator's value.

    Raises:
        BudgetExceededError: as `RunTerms.on_exhausted` says; `calls` has the paid calls.
        ProviderError: every model that could have answered failed, or the deadline came before any answer; `calls` has
            the paid calls.
        RefusedFieldError: an application's request has fields that no model may be sent.
    """
    started, certificate = time.monotonic(), plan.certificate
    unsent = () if question.chat is None else terms.fields.unsent(question.chat, plan.strategy.models)
    walk = _QuestionWalk(
        question,
        plan.strategy.plan(question),
        plan,
        terms,
        budget or Budget(),
        deadline or Deadline(),
        may_finish=terms.on_exhausted != "refuse",
        warnings=[*plan.warnings, *(f"{name} {_UNSENT}" for name in unsent)],
    )
    try:
        stopped = yield from walk.follow()
        if plan.audit:
            yield from walk.run_on()
    except (BudgetExceededError, ProviderError) as error:
        stopped = walk.broken_off(error)
    finally:
        walk.walk.close()
    walk.warnings += _failed_calls(walk.steps)
    answers = tuple(map(surest_text, by_answer(walk.steps, question.chat)))
    walk.warnings += _unkept(walk.steps, answers, stopped)
    reasons = [] if certificate is None else walk.uncovered(stopped)
    walk.warnings += [f"{NO_CERTIFICATE}{reason}" for reason in reasons]
    return Answer(
        question=question,
        text=answers[0] if answers else None,
        answers=answers,
        steps=tuple(walk.steps),
        stopped=stopped,
        latency_s=time.monotonic() - started,
        warnings=tuple(walk.warnings),
        certificate=None if reasons else certificate,
        loose_calls=tuple(walk.calls),
        audited=plan.audit,
        level=plan.level,
    )


def _failed_calls(steps: Sequence[Step]) -> list[str]:
    """Return which calls of the walk failed, and at which steps: one sentence for each error."""
    failures: dict[tuple[str, str], list[int]] = {}
    for step in steps:
        for call in () if step.audited else step.calls:
            if call.error is not None:
                failures.setdefault((call.request.role, call.error), []).append(step.number)
    return [
        f"the call of {role} failed at step {', '.join(map(str, dict.fromkeys(numbers)))}: {error}"
        for (role, error), numbers in failures.items()
    ]


def _unkept(steps: Sequence[Step], answers: Sequence[str], stopped: str) -> list[str]:
    """Return why the answer is not one that the policy kept, or why there is none; empty if it kept the answer.

    Walks that were broken off have another warning.
    """
    if stopped in BROKEN_OFF or any(step.decision and step.decision.keep for step in steps):
        return []
    if answers:
        return ["the policy kept no answer, and the last step gave none: the best answer is served"]
    return ["no step gave an answer"]


def _name_first_failure(error: ProviderError | BudgetExceededError) -> None:
    """Put the first failure before the last one in an error's message, since the later calls replaced the first."""
    first = next((call for call in error.calls if call.error is not None), None)
    if first is not None and str(error) not in str(first.error):
        reason = str(first.error).rstrip(".")
        failure = f"The call of {first.request.role} failed at step {first.request.step}: {reason}."
        error.args = (f"{failure} After that: {error}",)


def decide(policy: Scorer | None, observation: Observation) -> Decision:
    """Turn a policy's scores at its threshold into a decision; without a policy, go on and keep every answer."""
    last = observation.last
    if policy is None:
        every = tuple(range(len(observation.steps[-1].candidates)))
        return Decision(every, not last, (ALWAYS,) * len(every), NEVER if last else ALWAYS, 0.0)
    scores, kappa = policy.scores(observation), policy.kappa
    keep, proceed = actions(scores.candidates, scores.next, kappa, last=last)
    return Decision(
        keep, proceed, scores.candidates, scores.next, kappa, scores.confidences, scores.buy, sure=scores.sure
    )


class Actions(NamedTuple):
    """The set of actions at one step: the kept candidates' indices, and whether "next" is among them."""

    keep: tuple[int, ...]
    proceed: bool


def actions(scores: Sequence[float], next_score: float, kappa: float, *, last: bool) -> Actions:
    """Return the set of actions at threshold kappa: C(o_t) = {a : score(a) ≥ kappa} and {argmax}.

    "next" is impossible at the last step. The argmax is always in the set (ties: the lowest index, candidates before
    "next"). So the set is never empty, there is always an answer, and the sets grow as kappa falls. Any other fallback
    would break that nesting, and with it the guarantee (`design/path.md`).

    Args:
        scores: one score per candidate, higher = include; +inf always, −inf only as the last resort.
        next_score: the score of going on.
        kappa: the threshold.
        last: whether this is step T, where going on is impossible.

    A NaN never leads to a stop: it excludes a candidate and includes "next".

    >>> actions([0.7, 0.2], 0.1, kappa=0.15, last=False)
    Actions(keep=(0, 1), proceed=False)
    >>> actions([0.1, 0.2], 0.7, kappa=0.9, last=False)
    Actions(keep=(), proceed=True)
    """
    best = _argmax(scores)
    if best is None:
        return Actions((), proceed=not last)
    onward = ALWAYS if next_score != next_score else next_score  # noqa: PLR0124 - NaN
    argmax_is_next = not last and not onward <= scores[best]
    keep = tuple(
        [
            index
            for index, score in enumerate(scores)
            if (score >= kappa and score > NEVER) or (index == best and not argmax_is_next)
        ]
    )
    return Actions(keep, proceed=not last and (argmax_is_next or (onward >= kappa and onward > NEVER)))


def _argmax(scores: Sequence[float]) -> int | None:
    """Return the lowest index of the highest score, with NaN as −inf; None without scores."""
    best, highest = None, NEVER
    for index, score in enumerate(scores):
        if best is None or score > highest:
            best, highest = index, score if score == score else NEVER  # noqa: PLR0124 - NaN
    return best


class Choice(NamedTuple):
    """A kept candidate: its step, its position there from 0, and the confidence in it, −1 if unknown."""

    step: Step
    position: int
    confidence: float


def by_answer(steps: Sequence[Step], chat: ChatRequest | None) -> list[list[Choice]]:
    """Return the kept candidates of each distinct answer, the best answer first: by confidence, votes, the latest step.

    Every candidate counts if none was kept: the walk was broken off, or its last step gave no answer.
    """
    pairs = [(step, index) for step in steps for index in (step.decision.keep if step.decision else ())]
    if not pairs:
        pairs = [(step, index) for step in steps for index in range(len(step.candidates))]
    if len(pairs) == 1:  # nothing to compare
        return [[Choice(*pairs[0], -1.0)]]
    groups: dict[str, list[Choice]] = {}
    for step, index in pairs:
        confidence = step.confidence(index)
        candidate = Choice(step, index, -1.0 if confidence is None else confidence)
        groups.setdefault(answer_key(step.candidates[index].text, chat), []).append(candidate)

    def worth(group: list[Choice]) -> tuple[float, int, int]:
        return max(each.confidence for each in group), len(group), max(each.step.number for each in group)

    return sorted(groups.values(), key=worth, reverse=True)


def surest_text(group: Sequence[Choice]) -> str:
    """Return the text to serve for an answer: that of its surest candidate, among equals the one kept first."""
    surest = max(group, key=lambda candidate: candidate.confidence)
    return surest.step.candidates[surest.position].text


class Steps:
    """Resumes a question's walk, in a thread of its own if its plan runs code that may block."""

    def __init__(self, walk: Run, *, blocks: bool = False) -> None:
        self._walk, self._worker = walk, Worker() if blocks else None

    async def after(self, result: Completion | Exception | None) -> Request | Step | Answer:
        """Resume with a reply or an error; return what the walk yields next, or the answer at its end."""
        if self._worker is None:
            return self._resumed(result)
        work = asyncio.ensure_future(self._worker.do(partial(self._resumed, result)))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            await asyncio.wait([work])  # a generator cannot be closed while it runs
            raise

    def _resumed(self, result: Completion | Exception | None) -> Request | Step | Answer:
        try:
            return self._walk.throw(result) if isinstance(result, Exception) else self._walk.send(result)
        except StopIteration as end:
            answer: Answer = end.value
            return answer

    def close(self) -> None:
        """Close the walk."""
        self._walk.close()
        if self._worker is not None:
            self._worker.close()


async def drive(walk: Run, call: Callable[[Request], Awaitable[Completion]], *, blocks: bool = False) -> Answer:
    """Run a question to its end and return the answer; cancelling closes it."""
    result: Completion | Exception | None = None
    with closing(Steps(walk, blocks=blocks)) as steps:
        while isinstance(item := await steps.after(result), Request | Step):
            result = None
            if isinstance(item, Request):
                try:
                    result = await call(item)
                except (ProviderError, BudgetExceededError) as error:
                    result = error
    return item
