"""One question as a generator: it yields requests and finished steps, is sent completions, and returns the answer.

Everything is decided here and nothing is done: no clock is waited for, no provider is known. Two small drivers at the
end of the file run the same generator, one blocking and one not; `orchestrator` has the same two for streams.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from cascade.budget.ledger import QuestionBudget, most_nano_usd
from cascade.conformal.actions import actions
from cascade.errors import BudgetExceededError, ProviderError, ProviderUnavailableError
from cascade.money import Price
from cascade.policies.base import Observation, Policy
from cascade.strategies.base import Plan, Strategy
from cascade.text import normalize_answer
from cascade.types import Answer, Call, Candidate, Certificate, Completion, Decision, Question, Request, Step, Usage

Run: TypeAlias = Generator[Request | Step, Completion | None, Answer]


@dataclass(slots=True)
class _Record:
    """What has happened so far."""

    steps: list[Step] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)  # of the step in the making
    warnings: list[str] = field(default_factory=list)
    may_finish: bool = False  # where the money ends, the plan may still make a step of what it has paid for
    exhausted: BudgetExceededError | None = None

    def all_calls(self) -> tuple[Call, ...]:
        return tuple(call for step in self.steps for call in step.calls) + tuple(self.calls)


def run(
    question: Question,
    *,
    strategy: Strategy,
    policy: Policy,
    prices: Mapping[str, Price | None],
    budget: QuestionBudget | None = None,
    on_exhausted: str = "refuse",
    certificate: Certificate | None = None,
) -> Run:
    """Answer one question.

    Args:
        question: what is asked.
        strategy: plans the calls and makes steps of them.
        policy: scores what each step brought.
        prices: of the strategy's models, None where unknown.
        budget: what this question may cost; no limit by default.
        on_exhausted: when the next call might pass the cap: "refuse" raises, "answer" returns the best so far.
        certificate: what is guaranteed about the answer, passed through.

    Yields:
        Requests, to be answered by sending a `Completion` or throwing a `ProviderError` in; and decided `Step`s, to be
        looked at and resumed with None.

    Returns:
        The answer, as the generator's value.

    Raises:
        BudgetExceededError: as `on_exhausted` says; `calls` holds what was paid.
        ProviderError: every model that could have answered failed; `calls` holds what was paid.
    """
    started = time.monotonic()
    record = _Record(may_finish=on_exhausted == "answer")
    purse = budget or QuestionBudget()
    plan = strategy.plan(question)
    try:
        stopped = yield from _walk(question, plan, strategy.horizon, policy, prices, purse, record)
    except BudgetExceededError as error:
        error.calls = record.all_calls()
        if on_exhausted == "refuse" or not any(step.candidates for step in record.steps):
            raise
        stopped = "budget"
        record.warnings.append(str(error))
    except ProviderError as error:
        error.calls = record.all_calls()
        if not any(step.candidates for step in record.steps):
            raise
        stopped = "provider error"
        record.warnings.append(f"{type(error).__name__}: {error}")
    finally:
        plan.close()
    ranked = rank(record.steps, at_any_cost=stopped in {"budget", "provider error"})
    return Answer(
        question=question,
        text=ranked[0] if ranked else None,
        answers=ranked,
        steps=tuple(record.steps),
        stopped=stopped,
        latency_s=time.monotonic() - started,
        warnings=tuple(record.warnings),
        certificate=certificate,
        loose_calls=tuple(record.calls),
    )


def _walk(
    question: Question,
    plan: Plan,
    horizon: int,
    policy: Policy,
    prices: Mapping[str, Price | None],
    purse: QuestionBudget,
    record: _Record,
) -> Generator[Request | Step, Completion | None, str]:
    """Follow the plan until the policy or the plan ends it; return why it stopped."""
    item = next(plan, None)
    while item is not None:
        if isinstance(item, Request):
            item = yield from _pay(item, plan, prices, purse, record)
            continue
        observation = Observation(question, (*record.steps, item), horizon)
        decision = decide(policy, observation)
        step = item._replace(calls=tuple(record.calls), decision=decision)
        record.calls.clear()
        record.steps.append(step)
        yield step
        if record.exhausted is not None:
            raise record.exhausted
        if not decision.proceed:
            if item.forced is not None:
                return "forced"
            return "horizon" if observation.last else "policy"
        item = next(plan, None)
    return "horizon"


def _pay(
    request: Request, plan: Plan, prices: Mapping[str, Price | None], purse: QuestionBudget, record: _Record
) -> Generator[Request, Completion | None, Request | Step | None]:
    """Hold the money, make the call, settle, write it down, and resume the plan with what came of it."""
    price = prices.get(request.model)
    try:
        hold = purse.hold(request, price)
    except BudgetExceededError as error:
        if not (record.may_finish and record.calls) or record.exhausted is not None:
            raise
        record.exhausted = error
        return _resume(plan, ProviderUnavailableError(f"not asked: {error}", model=request.model))
    try:
        completion = yield request if purse.limit_nano_usd is None else request._replace(at_most_once=True)
    except ProviderError as error:
        call = failed_call(request, error, price)
        record.calls.append(call)
        purse.settle(hold, call.cost_nano_usd if call.billed != "maybe" else None)
        return _resume(plan, error)
    except BaseException:
        purse.settle(hold, None)  # cancelled: it may be billed
        raise
    assert completion is not None  # noqa: S101 - drivers answer a request with a completion
    call = paid_call(request, completion, price)
    record.calls.append(call)
    purse.settle(
        hold, call.cost_nano_usd if call.cost_nano_usd is not None else max(hold, call.cost_bound_nano_usd or 0)
    )
    try:
        return plan.send(completion)
    except StopIteration:
        return None


def _resume(plan: Plan, error: ProviderError) -> Request | Step | None:
    try:
        return plan.throw(error)
    except StopIteration:
        return None


def paid_call(request: Request, completion: Completion, price: Price | None) -> Call:
    """Return the record of a call that was answered.

    An estimated usage (F20), or an earlier try that may be billed (F10), gives a bound instead of a cost.
    """
    cost = None if price is None else price.cost_nano_usd(completion.usage)
    if cost is None or price is None or not (completion.usage.estimated or completion.maybe_billed):
        return Call(request, completion, cost, cost)
    return Call(request, completion, None, cost + completion.maybe_billed * most_nano_usd(request, price))


def failed_call(request: Request, error: ProviderError, price: Price | None) -> Call:
    """Return the record of a call that failed: free, charged by its usage, or perhaps charged."""
    said = f"{type(error).__name__}: {error}"
    if error.billed == "no":
        return Call(request, None, 0, 0, "no", said)
    if price is None:
        return Call(request, None, None, None, error.billed, said)
    usage, tries = error.usage if isinstance(error.usage, Usage) else None, max(1, error.maybe_billed)
    cost = None if usage is None or usage.estimated or tries > 1 else price.cost_nano_usd(usage)
    return Call(
        request, None, cost, tries * most_nano_usd(request, price) if cost is None else cost, error.billed, said
    )


def decide(policy: Policy, observation: Observation) -> Decision:
    """Turn a policy's scores at its threshold into a decision."""
    step = observation.step
    if step.forced is not None:
        keep = tuple(range(len(step.candidates))) if step.forced.action == "accept" else ()
        return Decision(keep, proceed=False, scores=(), next_score=0.0, kappa=policy.kappa)
    scores = policy.scores(observation)
    keep, proceed = actions(scores.candidates, scores.next, policy.kappa, last=observation.last)
    return Decision(keep, proceed, scores.candidates, scores.next, policy.kappa)


def rank(steps: Sequence[Step], *, at_any_cost: bool = False) -> tuple[str, ...]:
    """Return the distinct kept answers, best first: by the highest confidence, then votes, then the later step.

    `at_any_cost` takes every candidate where the walk was broken off before anything was kept.
    """
    kept = [
        (step.number, step.candidates[index])
        for step in steps
        for index in (step.decision.keep if step.decision else ())
    ]
    if not kept and at_any_cost:
        kept = [(step.number, candidate) for step in steps for candidate in step.candidates]
    groups: dict[str, list[tuple[int, Candidate]]] = {}
    for number, candidate in kept:
        groups.setdefault(normalize_answer(candidate.text), []).append((number, candidate))

    def worth(group: list[tuple[int, Candidate]]) -> tuple[float, int, int]:
        best = max((c.confidence for _, c in group if c.confidence is not None), default=-1.0)
        return best, len(group), max(number for number, _ in group)

    return tuple(group[0][1].text for group in sorted(groups.values(), key=worth, reverse=True))


def drive(walk: Run, call: Callable[[Request], Completion]) -> Answer:
    """Run a question to its end, blocking."""
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                item = next(walk)
                continue
            try:
                completion = call(item)
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    finally:
        walk.close()


async def adrive(walk: Run, call: Callable[[Request], Awaitable[Completion]]) -> Answer:
    """Run a question to its end without blocking; cancelling closes it."""
    try:
        item = next(walk)
        while True:
            if not isinstance(item, Request):
                item = next(walk)
                continue
            try:
                completion = await call(item)
            except ProviderError as error:
                item = walk.throw(error)
            else:
                item = walk.send(completion)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    finally:
        walk.close()
