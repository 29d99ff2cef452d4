"""A policy directory with a hedge, and a provider whose calls end in a given order."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cascade.errors import ClosedError
from cascade.orchestrator import Orchestrator
from cascade.policies.artifact import HEDGE_FILE, PolicyArtifact, write
from cascade.policies.estimators import Constant
from cascade.policies.features import FeatureSet
from cascade.policies.hedging import Hedge, HedgeRule
from cascade.providers.base import Payload
from cascade.providers.fake import FakeProvider, Reply, reply
from cascade.resilience.halting import ruling_halt
from cascade.types import Answer, Request

SURE = reply("Reasoning: it flows there.\nAnswer: Danube", logprobs=[-0.01] * 6)
UNSURE = reply("Reasoning: it flows there.\nAnswer: Rhine", logprobs=[-3.0] * 6)
GUIDE = reply("Reasoning: it flows there.\nAnswer: the Danube", logprobs=[-0.01] * 7)
WAIT_S = 10.0


def hedge(*states: tuple[int, ...], horizon: int = 2, worth: float = 1.0) -> Hedge:
    """Return a hedge that begins the reference in these states; by default before the first call."""
    nothing = FeatureSet((), ("answer",))
    rules = tuple([HedgeRule(state, nothing, Constant(worth)) for state in states or ((),)])
    return Hedge(horizon, ("answer",), 0.001, rules)


def config(folder: Path, made: Hedge | None, **settings: Any) -> dict[str, Any]:
    """Write a policy directory; return a configuration of it."""
    files = {} if made is None else {HEDGE_FILE: made.dumps()}
    policy = {"kind": "threshold", "when": "reply_logprob", "threshold": 0.16}
    write(folder / "policy", PolicyArtifact(policy, files=files))
    price = {"input": 1.0, "output": 4.0}
    models = {"base": {"model": "small", "price": price}, "guide": {"model": "large", "price": price}}
    chosen: dict[str, Any] = {
        "models": models,
        "strategy": {"kind": "ladder", "models": ["base", "guide"]},
        "policy": {"kind": "directory", "path": str(folder / "policy")},
        "provider": "fake",
        "traces": "off",
    }
    return chosen | settings


def wired(folder: Path, provider: Any, made: Hedge | None, **settings: Any) -> Orchestrator:
    return Orchestrator.from_config(config(folder, made, **settings), providers={"fake": provider})


def alike(one: Answer, other: Answer) -> bool:
    """Whether two answers have the same texts, decisions, reasons and certificate."""

    def kept(answer: Answer) -> Any:
        steps = [(step.number, step.candidates, step.signals, step.decision) for step in answer.steps]
        return answer.text, answer.answers, answer.stopped, answer.certificate, answer.warnings, steps

    return bool(kept(one) == kept(other))


@dataclass(slots=True)
class InOrder(FakeProvider):
    """Calls end in the order of `ends`, by their models; one that is not in it does not end by itself.

    The first call waits until `least` calls have begun.
    """

    ends: list[str] = field(default_factory=list)
    least: int = 1
    ended: list[str] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    _changed: threading.Condition = field(default_factory=threading.Condition)

    def _turn(self, request: Request) -> bool:
        return len(self.requests) >= self.least and bool(self.ends) and self.ends[0] == request.model

    def complete(self, request: Request, timeout_s: float) -> Payload:
        halt = ruling_halt()
        with self._changed:
            self.requests.append(request)
            self._changed.notify_all()
        with halt.over(self._wake), self._changed:
            assert self._changed.wait_for(lambda: halt.stopped or self._turn(request), WAIT_S)
            if halt.stopped:
                self.cancelled.append(request.model)
                raise ClosedError("stopped")
        for thread in threading.enumerate():
            if thread.name == "cascade-early" and "large" in self.ended and request.model == "small":
                thread.join(WAIT_S)  # its reply was read, too
        with self._changed:
            self.ended.append(self.ends.pop(0))
            self._changed.notify_all()
        return _said(self, request)

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    async def acomplete(self, request: Request, timeout_s: float) -> Payload:
        self.requests.append(request)
        try:
            while not self._turn(request):  # noqa: ASYNC110 - it is what is waited for
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(request.model)
            raise
        self.ends.pop(0)
        return _said(self, request)

    async def astream(self, request: Request, timeout_s: float) -> AsyncGenerator[Payload, None]:
        said = await self.acomplete(request, timeout_s)
        for chunk in FakeProvider(lambda _: said).stream(request, timeout_s):
            yield chunk


def _said(provider: InOrder, request: Request) -> Payload:
    said = provider._next(request)
    if isinstance(said, BaseException):
        raise said
    return reply(said) if isinstance(said, str) else said


def in_order(*ends: str, base: Reply = UNSURE, guide: Reply | Sequence[Reply] = GUIDE, least: int = 2) -> InOrder:
    """Return a provider whose calls end in this order."""
    guides = [guide] if isinstance(guide, str | Mapping | BaseException) else [*guide]
    return InOrder({"small": [base], "large": guides}, ends=list(ends), least=least)
