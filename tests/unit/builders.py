"""Small values that many tests need, made with one call."""

from __future__ import annotations

import math
import multiprocessing.reduction
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from cascade import engine
from cascade.errors import ProviderError
from cascade.money import Price
from cascade.plans.base import ModelUse
from cascade.plans.nodes import Plan
from cascade.plans.presets import BaseGuideConfig, ExitConfig
from cascade.plans.prompts import load
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.types import Answer, Call, Candidate, Completion, Decision, Message, Question, Request, Step, Token, Usage

RIVER = Question("Which river runs through Vienna?")
CHEAP = Price.per_million(input="0.1", output="0.4")
DEAR = Price.per_million(input="1", output="4")
PRICES = {"small": CHEAP, "large": DEAR}
TWO_MODELS: dict[str, Any] = {"models": {"base": "small", "guide": "large"}, "provider": "fake"}
TWO_RUNGS = TWO_MODELS | {"strategy": {"kind": "ladder", "models": ["base", "guide"]}}


def roundtrip(value: Any) -> Any:
    """Return what another process would get of a value."""
    packed = multiprocessing.reduction.ForkingPickler.dumps(value)
    return multiprocessing.reduction.ForkingPickler.loads(packed)


def request(**fields: Any) -> Request:
    given = {
        "model": "small",
        "messages": (Message("user", "Which river runs through Vienna?"),),
        "role": "base",
        "purpose": "answer",
        "step": 1,
        "question": RIVER,
        "max_tokens": 64,
    }
    return Request(**(given | fields))


def completion(text: str = "Answer: Danube", **fields: Any) -> Completion:
    given = {"text": text, "finish_reason": "stop", "usage": Usage(100, 10)}
    return Completion(**(given | fields))


def yes_no(p_yes: float, text: str | None = None) -> Completion:
    """Return a verdict with log-probs: P(yes) over {Yes, No} is `p_yes`."""
    verdict = text or ("Yes" if p_yes >= 0.5 else "No")
    top = tuple((word, math.log(p) if p > 0 else -math.inf) for word, p in (("Yes", p_yes), ("No", 1 - p_yes)))
    first = "Yes" if verdict.lower().startswith("yes") else "No"
    return completion(verdict, tokens=(Token(first, dict(top)[first], top),), usage=Usage(100, 1))


def candidate(text: str, source: str = "base", confidence: float | None = None) -> Candidate:
    return Candidate(text, source, "small" if source == "base" else "large", confidence)


def step(number: int, *candidates: Candidate, keep: tuple[int, ...] | None = None, **fields: Any) -> Step:
    decision = None if keep is None else Decision(keep, False, (), 0.0, 0.0)
    return Step(number, candidates, **({"signals": {}, "decision": decision} | fields))


def call(cost: int | None, bound: int | None = None, model: str = "small", **fields: Any) -> Call:
    """Return the record of a call; without a bound it is its cost."""
    return Call(request(model=model), completion(), cost, cost if bound is None else bound, **fields)


def payload(content: Any = "Danube", **fields: Any) -> dict[str, Any]:
    """Return a chat completion payload; `fields` replace its top level."""
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    return {"choices": [choice], "usage": {"prompt_tokens": 10, "completion_tokens": 2}, **fields}


def two_models(base: Reply | None = None, guide: Reply | None = None) -> FakeProvider:
    """Return a provider where "small" always answers with `base` and "large" with `guide`."""
    return FakeProvider(
        {
            "small": [base if base is not None else "Reasoning: it flows there.\nAnswer: Danube"],
            "large": [guide if guide is not None else reply("Yes", p_yes=0.97)],
        }
    )


def by_purpose(replies: Mapping[str, Any]) -> Callable[[Request], Any]:
    """Return a script that answers "base", "judge" and "direct" calls with fixed replies."""
    return lambda request: replies["base" if request.role == "base" else request.purpose]


def base_guide(base: ModelUse, guide: ModelUse, rounds: int = 4, **settings: Any) -> Plan:
    return BaseGuideConfig(rounds=rounds, **settings).build({"base": base, "guide": guide}, load())


def exits(use: ModelUse, role: str = "guide", rounds: int = 4) -> Plan:
    return ExitConfig(kind="exit", model=role, rounds=rounds).build({role: use}, load())


def walked(
    strategy: Plan, *replies: Completion | ProviderError | str, question: Question = RIVER
) -> tuple[list[Request], list[Step]]:
    """Drive a plan to its end with the given replies, in order; return what it asked and its steps."""
    plan, left = strategy.plan(question), list(replies)
    requests: list[Request] = []
    steps: list[Step] = []
    item = next(plan, None)
    while item is not None:
        if isinstance(item, Step):
            steps.append(item)
            item = next(plan, None)
            continue
        requests.append(item)
        given = left.pop(0)
        try:
            failed = isinstance(given, ProviderError)
            item = plan.throw(given) if failed else plan.send(completion(given) if isinstance(given, str) else given)
        except StopIteration:
            item = None
    assert not left, "every reply was asked for"
    return requests, steps


def caller(replies: Iterable[str | Completion | BaseException], requests: list[Request] | None = None) -> Any:
    """Return a function that answers each call with the next reply, and keeps what it was asked."""
    left = iter(replies)

    def call(request: Request) -> Completion:
        if requests is not None:
            requests.append(request)
        given = next(left, None)
        assert given is not None, f"nobody expected {request.role} to be asked ({request.purpose}, step {request.step})"
        if isinstance(given, BaseException):
            raise given
        return completion(given) if isinstance(given, str) else given

    return call


def drive(walk: Any, call: Callable[[Request], Completion]) -> Answer:
    """Run a question to its end with a function that answers at once."""

    async def answered(request: Request) -> Completion:
        return call(request)

    try:
        engine.drive(walk, answered).send(None)
    except StopIteration as end:
        answer: Answer = end.value
        return answer
    raise AssertionError("it waits")


class Failing:
    """A provider without streams that raises, in order, what it is given, and then answers."""

    def __init__(self, *errors: ProviderError, then: Any = None) -> None:
        self.errors = list(errors)
        self.then = payload() if then is None else then
        self.requests: list[Request] = []
        self.timeouts: list[float] = []
        self.closed = 0

    async def complete(self, request: Request, timeout_s: float) -> Any:
        self.requests.append(request)
        self.timeouts.append(timeout_s)
        if self.errors:
            raise self.errors.pop(0)
        return self.then

    async def close(self) -> None:
        self.closed += 1
