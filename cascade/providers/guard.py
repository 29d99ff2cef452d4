"""The one door to every provider: clock, retries and checks are the same whoever answers.

`Guard` wraps a provider. It gives each attempt what is left of the question's time, retries what can be retried,
checks every payload (`reading`), remembers which models give no log-probs (F24), and warns once of a model that
answers under another name (F22). It is safe to share between threads and tasks.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from cascade.chat import text_of
from cascade.errors import BadResponseError, ProviderError, ProviderTimeoutError, StreamInterruptedError
from cascade.providers.assembling import Assembler
from cascade.providers.base import Payload, Provider, Streams
from cascade.providers.reading import read_completion
from cascade.providers.written_calls import with_tool_calls
from cascade.resilience.breaker import Breaker
from cascade.resilience.halting import NEVER, Halt
from cascade.resilience.retry import Deadline, RetryBudget, RetryPolicy
from cascade.types import Completion, Request, TextDelta

logger = logging.getLogger("cascade")
_DIGITS = re.compile(r"\b\d+\b")
_MAX_WARNINGS = 1_000
"""A server that invents a new oddity with every answer must not fill the memory or the log."""


@dataclass(slots=True)
class Guard:
    """A provider that can be trusted: it returns checked `Completion`s or raises `ProviderError`s, in time.

    Args:
        provider: who answers.
        per_call_s: wall clock of one call, its retries included.
        retry: when a failed call is made again.
        sleep, asleep: how waits are spent; tests pass their own. By default a wait ends when the caller stops the call.
        secrets: keys that no error may repeat, whatever the server says.
        breakers: the circuit of each model; None to ask a model however often it fails, as batches do.
    """

    provider: Provider
    per_call_s: float = 120.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    sleep: Callable[[float], None] | None = None
    asleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    secrets: tuple[str, ...] = field(default=(), repr=False)
    breakers: dict[str, Breaker] | None = None
    _budgets: dict[str, RetryBudget] = field(default_factory=dict)
    _without_logprobs: set[str] = field(default_factory=set)
    _warned: set[str] = field(default_factory=set)

    def complete(self, request: Request, deadline: Deadline, halt: Halt = NEVER) -> Completion:
        """Answer a request, checked and in time. Raises ClosedError once `halt` is thrown."""
        deadline, asked = deadline.within(self.per_call_s), self._admitted(request)
        failed: list[ProviderError] = []
        while True:
            started = time.monotonic()
            try:
                with halt.ruling():
                    payload = self.provider.complete(asked, _time_left(asked, deadline, started))
                return self._checked(_with_calls(payload, request), request, started, failed)
            except ProviderError as error:
                failed.append(error)
                self._wait(self._wait_s(asked, failed, deadline), halt)

    async def acomplete(self, request: Request, deadline: Deadline, halt: Halt = NEVER) -> Completion:
        """Answer a request, checked and in time, without blocking the event loop."""
        deadline, asked = deadline.within(self.per_call_s), self._admitted(request)
        failed: list[ProviderError] = []
        async with halt.covering():
            while True:
                started = time.monotonic()
                try:
                    payload = await self.provider.acomplete(asked, _time_left(asked, deadline, started))
                    return self._checked(_with_calls(payload, request), request, started, failed)
                except ProviderError as error:
                    failed.append(error)
                    await self.asleep(self._wait_s(asked, failed, deadline))

    def _wait(self, seconds: float, halt: Halt) -> None:
        (halt.sleep if self.sleep is None else self.sleep)(seconds)

    def _wait_s(self, asked: Request, failed: list[ProviderError], deadline: Deadline) -> float:
        """Return how long to wait before the next try, or raise the last error if there is to be none."""
        last, budget, breaker = failed[-1], self._budget(asked), self._breaker(asked.model)
        self._broke(asked, last)
        delay = self.retry.delay_s(last, len(failed) - 1, deadline)
        if delay is None:
            budget.gave_up(last)
        forbidden = asked.at_most_once and last.billed != "no"
        broken = breaker is not None and breaker.open
        if delay is None or forbidden or broken or not budget.allows(last):
            last.maybe_billed = sum(error.billed != "no" for error in failed)
            if last.maybe_billed and last.billed == "no":
                last.billed = "maybe"
            raise last
        return delay

    def _budget(self, request: Request) -> RetryBudget:
        found = self._budgets.get(request.model)
        return self._budgets.setdefault(request.model, RetryBudget()) if found is None else found

    def stream(self, request: Request, deadline: Deadline, halt: Halt = NEVER) -> Iterator[TextDelta | Completion]:
        """Yield text as it is written and end with the checked completion.

        It is tried again as `complete` is, as long as no text came of it: text that is out cannot be taken back.
        """
        if not isinstance(self.provider, Streams):
            completion = self.complete(request, deadline, halt)
            yield TextDelta(_written(completion), request.role, request.step)
            yield completion
            return
        deadline, asked = deadline.within(self.per_call_s), self._admitted(request)
        failed: list[ProviderError] = []
        while True:
            started, assembler = time.monotonic(), Assembler(asked, self.secrets)
            try:
                chunks = self.provider.stream(asked, _time_left(asked, deadline, started))
                while (chunk := _next(chunks, halt)) is not None:
                    if text := assembler.add(chunk):
                        yield TextDelta(text, request.role, request.step)
                    _time_left(asked, deadline, time.monotonic(), billed="maybe")
                completion = self._checked(assembler.payload(), request, started, failed, assembler.notes)
                break
            except ProviderError as error:
                if assembler.text:
                    self._broke(asked, error)
                    raise _interrupted(error, assembler, failed) from None
                failed.append(error)
                self._wait(self._wait_s(asked, failed, deadline), halt)
        yield completion

    async def astream(
        self, request: Request, deadline: Deadline, halt: Halt = NEVER
    ) -> AsyncGenerator[TextDelta | Completion, None]:
        """Do as `stream` without blocking the event loop."""
        if not isinstance(self.provider, Streams):
            completion = await self.acomplete(request, deadline, halt)
            yield TextDelta(_written(completion), request.role, request.step)
            yield completion
            return
        deadline, asked = deadline.within(self.per_call_s), self._admitted(request)
        failed: list[ProviderError] = []
        while True:
            started, assembler = time.monotonic(), Assembler(asked, self.secrets)
            try:
                async with aclosing(self.provider.astream(asked, _time_left(asked, deadline, started))) as chunks:
                    while (chunk := await _anext(chunks, halt)) is not None:
                        if text := assembler.add(chunk):
                            yield TextDelta(text, request.role, request.step)
                        _time_left(asked, deadline, time.monotonic(), billed="maybe")
                completion = self._checked(assembler.payload(), request, started, failed, assembler.notes)
                break
            except ProviderError as error:
                if assembler.text:
                    self._broke(asked, error)
                    raise _interrupted(error, assembler, failed) from None
                failed.append(error)
                delay_s = self._wait_s(asked, failed, deadline)
            async with halt.covering():
                await self.asleep(delay_s)
        yield completion

    def close(self) -> None:
        """Close the provider."""
        self.provider.close()

    async def aclose(self) -> None:
        """Close the provider, and what it holds in the running event loop."""
        aclose = getattr(self.provider, "aclose", None)
        if aclose is None:
            self.provider.close()
        else:
            await aclose()

    def _breaker(self, model: str) -> Breaker | None:
        if self.breakers is None:
            return None
        found = self.breakers.get(model)
        return self.breakers.setdefault(model, Breaker()) if found is None else found

    def _broke(self, asked: Request, error: ProviderError) -> None:
        if (breaker := self._breaker(asked.model)) is not None:
            breaker.failed(error)

    def _admitted(self, request: Request) -> Request:
        """Leave out what the model was seen not to give. Raises ProviderUnavailableError while its circuit is open."""
        if (breaker := self._breaker(request.model)) is not None:
            breaker.admit(request.model)
        if request.top_logprobs is not None and request.model in self._without_logprobs:
            return request._replace(top_logprobs=None)
        return request

    def _checked(
        self,
        payload: Payload,
        request: Request,
        started: float,
        failed: list[ProviderError],
        notes: Sequence[str] = (),
    ) -> Completion:
        completion = read_completion(payload, request, time.monotonic() - started, self.secrets)
        completion = completion._replace(notes=(*dict.fromkeys(notes), *completion.notes))
        self._budget(request).succeeded()
        if (breaker := self._breaker(request.model)) is not None:
            breaker.succeeded()
        if request.top_logprobs is not None and completion.tokens is None and _written(completion):
            self._without_logprobs.add(request.model)
            note = f"{request.model} gives no log-probs"
            completion = completion._replace(notes=(*completion.notes, note))
        if failed:
            note = f"earlier tries failed: {', '.join(type(error).__name__ for error in failed)}"
            maybe = sum(error.billed != "no" for error in failed)
            completion = completion._replace(notes=(*completion.notes, note), maybe_billed=maybe)
        for note in completion.notes:
            self._warn_once(request.model, note)
        return completion

    def _warn_once(self, model: str, note: str) -> None:
        kind = f"{model}: {_DIGITS.sub('', note)}"
        if kind not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(kind)
            logger.warning("%s: %s", model, note)


def _with_calls(payload: Payload, request: Request) -> Payload:
    """Return a payload with the tool calls that the model wrote as text; of a stream the text was shown already."""
    return payload if request.chat is None or not isinstance(payload, dict) else with_tool_calls(payload, request.chat)


def _written(completion: Completion) -> str:
    """Return what a model wrote as text: of a message its content, without its tool calls."""
    return completion.text if completion.message is None else text_of(completion.message.get("content"))


def _time_left(request: Request, deadline: Deadline, now_s: float, *, billed: str = "no") -> float:
    remaining = deadline.at_s - now_s
    if remaining <= 0:
        says = f"{request.model} was not done in time. Raise timeouts.per_call_s or timeouts.per_question_s."
        raise ProviderTimeoutError(says, model=request.model, billed=billed)
    return remaining


def _next(chunks: Iterator[Payload], halt: Halt) -> Payload | None:
    """Return the next chunk of a stream, None at its end."""
    with halt.ruling():
        return next(chunks, None)


async def _anext(chunks: AsyncGenerator[Payload, None], halt: Halt) -> Payload | None:
    """Return the next chunk of a stream, None at its end."""
    async with halt.covering():
        return await anext(chunks, None)


def _interrupted(error: ProviderError, assembler: Assembler, failed: list[ProviderError]) -> ProviderError:
    """Return the error of a stream that broke after its first text, where it is an interruption."""
    broke = isinstance(error, StreamInterruptedError | BadResponseError | ProviderTimeoutError) or error.retryable
    error = assembler.interrupted(str(error)) if broke else error
    error.maybe_billed = sum(one.billed != "no" for one in (*failed, error))
    return error
