"""The only way to call a provider; the clock, retries and checks are the same for all providers.

`Guard` wraps a provider. It gives each attempt the rest of the question's time, retries errors that can be retried,
checks every payload (`reading`), leaves out the additions that a model refuses (`refused`, F24), and warns
once about a model that answers under another name (F22). It is safe to share between threads and tasks.
"""

from __future__ import annotations

import asyncio
import re
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from cascade.chat import text_of
from cascade.errors import (
    BadRequestError,
    BadResponseError,
    CascadeError,
    ContextTooLongError,
    HistoryRefusedError,
    ProviderError,
    ProviderTimeoutError,
    ProviderUnavailableError,
    StreamInterruptedError,
    logger,
    quote,
)
from cascade.providers.base import Payload, Provider, Streams
from cascade.providers.fields import added, refused
from cascade.providers.histories import conversation_of, packed
from cascade.providers.reading import read_completion, with_tool_calls
from cascade.registry import raised_by
from cascade.resilience.event_loop import NOT_BEGUN, Deadline
from cascade.types import Completion, Request, TextDelta

if TYPE_CHECKING:  # loaded where they are needed: after a failed call, in a server with circuit breakers, in a stream
    from cascade.providers.assembling import Assembler
    from cascade.resilience.health import Health, RetryPolicy
_DIGITS = re.compile(r"\b\d+\b")
_MAX_WARNINGS = 1_000
"""The most distinct warnings: a server with a new oddity in every answer must not fill the memory or the log."""
_REFUSED_S = 3_600.0
"""How long a refused addition is left out: a passing fault of a deployment must not cost the addition for good."""
_FAIR = 0.5
"""A time-out does not count against a server if the try had less than this share of its limit."""
_OF_HISTORY = re.compile(r"reasoning|thinking|signature|encrypted|redacted", re.IGNORECASE)
"""Words in errors about the thinking in a history."""
_MOST_UNREAD = 10_000
_LATE_S = 1.0
"""How long after its limit a provider is cut off: its own error says more, including whether the call was billed."""


@dataclass(slots=True)
class _Tries:
    """The request, its deadline, and the failed tries."""

    request: Request
    deadline: Deadline
    limit_s: float
    """The limit of the tries at one deployment."""
    ends_s: float
    """When the tries at all deployments must end."""
    others: list[Request] = field(default_factory=list)
    """The same request to deployments that were not asked yet, the next one first."""
    caller_s: float = inf
    """When the caller no longer waits."""
    failed: list[ProviderError] = field(default_factory=list)
    began_s: float = field(default_factory=time.monotonic)

    def go_on(self, request: Request) -> None:
        """Continue at another deployment, with as much time as the one before, but not beyond `ends_s`."""
        self.request, self.began_s = request, time.monotonic()
        self.deadline = Deadline(min(self.ends_s, self.began_s + self.limit_s))

    def left_s(self, now_s: float, *, billed: str = "no") -> float:
        """Return how much time is left. Raises ProviderTimeoutError if none is."""
        remaining = self.deadline.at_s - now_s
        if remaining <= 0:
            says = f"{self.request.model} did not finish in time. Raise timeouts.per_call_s or timeouts.per_question_s."
            raise ProviderTimeoutError(says, model=self.request.model, billed=billed)
        return remaining


class Pace(NamedTuple):
    """The limits of a stream in seconds: until its first piece, retries included; between pieces; and as a whole."""

    first_s: float
    idle_s: float
    whole_s: float


@dataclass(slots=True)
class Guard:
    """A checked provider: it returns valid `Completion`s or raises `ProviderError`s, in time.

    Args:
        provider: the provider.
        per_call_s: wall clock of one call at one deployment, including its retries.
        retry: when a failed call is retried; None: `RetryPolicy()`.
        sleep: waits some seconds; tests pass their own.
        secrets: keys that no error may repeat.
        shared: whether callers retry themselves, as a server's clients do (`Health`).
        quotes: whether the log may have what providers write about errors, in which a request's text may be.
        refuses: what cascade must not add to a model's requests (`fields.REFUSABLE`), by the model's name.
        pace: the limits of a stream; None: `per_call_s` for each.
        deployments: for each model that has several, their weights by their names.

    Attributes:
        retried: how often calls were retried after a failure, by the model's name.
        health: the health of each model or deployment (`Request.site`), kept from its first failure on.
        tried: counts of tries at deployments, by the model, the deployment, and "answered" or the class of the error.
    """

    provider: Provider
    per_call_s: float = 120.0
    retry: RetryPolicy | None = None
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    secrets: tuple[str, ...] = field(default=(), repr=False)
    shared: bool = False
    quotes: bool = True
    refuses: Mapping[str, frozenset[str]] = field(default_factory=dict)
    pace: Pace | None = None
    deployments: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    retried: Counter[str] = field(default_factory=Counter)
    tried: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    health: dict[str, Health] = field(default_factory=dict)
    _refused: dict[tuple[Any, ...], tuple[frozenset[str], float]] = field(default_factory=dict)
    """By `sort_of`: the additions that a site refuses, known once a request without them succeeded, and until when."""
    _unread: dict[tuple[str, str | None], None] = field(default_factory=dict)
    """The latest conversations, with the site that refused their history: it would refuse later requests, too."""
    _warned: set[str] = field(default_factory=set)

    async def complete(self, request: Request, deadline: Deadline) -> Completion:
        """Answer a request, checked and in time."""
        whole_s = self.per_call_s if self.pace is None else max(self.per_call_s, self.pace.whole_s)
        tries = self._begun(request, deadline, self.per_call_s, whole_s)
        while True:
            started = time.monotonic()
            try:
                left_s = tries.left_s(started)
                try:
                    async with asyncio.timeout(left_s + _LATE_S):
                        payload = await self.provider.complete(tries.request, left_s)
                except Exception as error:  # noqa: BLE001 - a user's own provider may raise anything
                    self._fail(tries.request, error)
                if request.chat is not None and isinstance(payload, dict):  # not streamed: no text was shown yet
                    payload = with_tool_calls(payload, request.chat)
                return self._checked(payload, request, started, tries)
            except ProviderError as error:
                await self._wait(tries, error)

    def _fail(self, request: Request, error: Exception) -> NoReturn:
        """Raise the ProviderError for a provider's exception: a time-out or a bug, both of which may be billed.

        Only the log has the text of a bug, since a client may read the error.
        """
        about: dict[str, Any] = {"model": request.model, "billed": "maybe"}
        if isinstance(error, CascadeError):
            raise error
        if isinstance(error, TimeoutError):
            advice = "Raise timeouts.per_call_s, first_token_s or idle_s."
            raise ProviderTimeoutError(f"{request.model} was silent for too long. {advice}", **about) from None
        if (task := asyncio.current_task()) is not None and task.cancelling():  # it turned that into an error
            raise asyncio.CancelledError from None
        failed = f"{request.model} failed: {raised_by(self.provider, error)}"
        self._warn(request.model, f"{failed}: {quote(error, self.secrets)}" if self.quotes else failed)
        advice = "; the log has its text." if self.quotes else "; traces.content: full logs its text."
        raise ProviderUnavailableError(f"{failed}{advice}", max_retries=0, **about) from None

    async def _wait(self, tries: _Tries, error: ProviderError) -> None:
        """Wait for the next try, or raise the error if there is none."""
        wait_s = self._wait_s(tries, error)
        try:
            await self.sleep(wait_s)
        except asyncio.CancelledError as cancelled:
            if all(failed.billed == "no" for failed in tries.failed):
                cancelled.args = (NOT_BEGUN,)
            raise
        if tries.request.caller is not None and tries.request.caller.gone:
            raise error

    def _wait_s(self, tries: _Tries, error: ProviderError) -> float:
        """Return how long to wait before the next try, or raise the error if there is none.

        If the model refuses an addition, the next try is made at once without it; if a deployment failed, at once at
        the next one. That takes no token from the budget: it is another server, and a call moves to each at most once.
        """
        from cascade.resilience.health import RetryPolicy

        if gone := refused(tries.request, error):
            tries.request = tries.request._replace(without=tuple(sorted(gone.union(tries.request.without))))
            return 0.0
        self._note_history(tries.request, error)
        tries.failed.append(error)
        health, policy = self._broke(tries, error), self.retry or RetryPolicy()
        forbidden = tries.request.at_most_once and error.billed != "no"
        if tries.others and not forbidden and self._goes_on(tries, error, policy):
            return 0.0
        until = Deadline(min(tries.deadline.at_s, tries.caller_s))
        delay = policy.delay_s(error, len(tries.failed) - 1, until)
        if delay is None:
            health.gave_up(error)
        if delay is None or forbidden or health.open or not health.allows(error):
            error.maybe_billed = sum(failure.billed != "no" for failure in tries.failed)
            if error.maybe_billed and error.billed == "no":
                error.billed = "maybe"
            if isinstance(error, BadRequestError) and tries.request.chat is not None and (ours := added(tries.request)):
                error.args = (f"{error} cascade added to the request: {', '.join(ours)}.",)
            raise error
        error.__traceback__ = error.__context__ = None  # only its class is needed; its frames hold data
        self.retried[tries.request.model] += 1
        return delay

    def _goes_on(self, tries: _Tries, error: ProviderError, policy: RetryPolicy) -> bool:
        """Move to the next deployment that may be asked, if the error is about the server; return whether it did."""
        over = Deadline(min(tries.ends_s, tries.caller_s)).over
        if over or len(tries.failed) > policy.max_retries or not error.another_may_answer:
            return False
        if (following := self._admitted(tries.others, [])) is None:
            return False
        tries.go_on(following)
        self.retried[following.model] += 1
        return True

    def _note_history(self, request: Request, error: ProviderError) -> None:
        bad = isinstance(error, BadRequestError) and not isinstance(error, ContextTooLongError)
        if not bad or request.chat is None or _OF_HISTORY.search(str(error)) is None:
            return
        if (conversation := conversation_of(request.chat.messages)) is not None:
            self._unread[request.site, conversation] = None
            while len(self._unread) > _MOST_UNREAD:
                del self._unread[next(iter(self._unread))]

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[TextDelta | Completion, None]:
        """Yield text as it is written and end with the checked completion.

        Failures are retried as in `complete` until the first text: text that was shown cannot be taken back.
        """
        if not isinstance(self.provider, Streams):
            completion = await self.complete(request, deadline)
            thinking = packed(completion.message or {}, request.wire_model)
            yield TextDelta(_written(completion), request.role, request.step, request.model, thinking)
            yield completion
            return
        from cascade.providers.assembling import Assembler

        first_s, idle_s, whole_s = self.pace or (self.per_call_s,) * 3
        tries = self._begun(request, deadline, first_s, whole_s)
        ends_s = tries.ends_s
        while True:
            started, assembler = time.monotonic(), Assembler(tries.request, self.secrets)
            try:
                limit_s = max(tries.left_s(started), ends_s - started)
                try:
                    async with aclosing(self.provider.stream(tries.request, limit_s)) as chunks:
                        while True:
                            async with asyncio.timeout(tries.left_s(time.monotonic(), billed="maybe")):
                                chunk = await anext(chunks, None)
                            if chunk is None:
                                break
                            if text := assembler.add(chunk):
                                yield assembler.delta(text)
                            if assembler.began:
                                tries.deadline = Deadline(min(ends_s, time.monotonic() + idle_s))
                            tries.left_s(time.monotonic(), billed="maybe")
                except Exception as error:  # noqa: BLE001 - as in `complete`
                    self._fail(tries.request, error)
                completion = self._checked(assembler.payload(), request, started, tries, assembler.notes)
                break
            except ProviderError as error:
                if assembler.text:
                    self._broke(tries, error)
                    raise _interrupted(error, assembler, tries.failed) from None
                await self._wait(tries, error)
        yield completion

    async def close(self) -> None:
        """Close the provider."""
        await self.provider.close()

    def circuits(self, model: str) -> dict[str, Health | None]:
        """Return the health of a model by the names of its deployments, or under "" if it has none."""
        sites = [(name, f"{model} at {name}") for name in self.deployments.get(model, ())] or [("", model)]
        return {name: self.health.get(site) for name, site in sites}

    def _broke(self, tries: _Tries, error: ProviderError) -> Health:
        """Count a failure, except a time-out of a try that had too little time; return the health of the site."""
        from cascade.resilience.health import Health

        request, health = tries.request, self.health.setdefault(tries.request.site, Health(shared=self.shared))
        error.deployment = request.deployment
        if request.deployment is not None:
            self.tried[request.model, request.deployment, type(error).__name__] += 1
        had_s = time.monotonic() - tries.began_s
        if not isinstance(error, ProviderTimeoutError) or had_s >= _FAIR * tries.limit_s:
            health.failed(error, lost=request.deployment is not None and error.another_may_answer)
        if self.shared and health.outage(warned_before=request.site in self._warned):
            self._warned.add(request.site)
            plain = f"{type(error).__name__}, status {error.status or 'unknown'}. {error.advice}"
            logger.warning("calls to %s fail: %s", request.site, error if self.quotes else plain)
        return health

    def _begun(self, request: Request, deadline: Deadline, limit_s: float, whole_s: float) -> _Tries:
        """Return the request at the first deployment that may be asked, to be answered there within `limit_s`."""
        first, sites, now_s = request, list[Request](), time.monotonic()
        if self.deployments or self.health or self._unread or self.refuses or self._refused:  # else it may be asked
            first, sites = self._first(request)
        waits_s = inf if request.caller is not None else deadline.at_s  # a call may outlast its caller
        first_ends = Deadline(min(waits_s, now_s + limit_s))
        return _Tries(first, first_ends, limit_s, min(waits_s, now_s + whole_s), sites, deadline.at_s, began_s=now_s)

    def _first(self, request: Request) -> tuple[Request, list[Request]]:
        """Return the request at the first deployment that may be asked, and at those after it.

        Raises:
            ProviderUnavailableError: the circuit of the model, or of all its deployments, is open.
            HistoryRefusedError: they refused this conversation's history before.
        """
        sites, waits = [request], list[float]()
        if weights := self.deployments.get(request.model):
            from cascade.providers.deployments import ranked

            sites = ranked(request, weights)
            sites.sort(key=lambda at: (health := self.health.get(at.site)) is not None and health.limited)
        if (first := self._admitted(sites, waits)) is not None:
            return first, sites
        if waits:
            from cascade.resilience.health import resting

            raise resting(request.model, min(waits))
        says = f"{request.model} refused the thinking in this conversation before. {HistoryRefusedError.advice}"
        raise HistoryRefusedError(says, model=request.model, status=400)

    def _admitted(self, sites: list[Request], waits: list[float]) -> Request | None:
        """Remove requests from a list up to the first whose site may be asked, and return that; None if there is none.

        Additions that the site refuses are left out. For each open circuit, the seconds until a probe go to `waits`.
        """
        while sites:
            request = sites.pop(0)
            site, health, chat = request.site, self.health.get(request.site), request.chat if self._unread else None
            if chat is not None and (site, conversation_of(chat.messages)) in self._unread:
                continue
            if health is not None and (wait_s := health.pause_s()) is not None:
                waits.append(wait_s)
                continue
            return request._replace(without=tuple(sorted(gone))) if (gone := self._left_out(request)) else request
        return None

    def _left_out(self, request: Request) -> frozenset[str]:
        """Return the additions that a site is not sent in requests of this kind."""
        gone = self.refuses.get(request.model, frozenset())
        learned, until_s = self._refused.get(sort_of(request), (gone, 0.0)) if self._refused else (gone, 0.0)
        return gone | learned if time.monotonic() < until_s else gone

    def _checked(
        self, payload: Payload, request: Request, started: float, tries: _Tries, of_stream: Sequence[str] = ()
    ) -> Completion:
        completion = read_completion(payload, request, time.monotonic() - started, self.secrets)
        notes = [*dict.fromkeys(of_stream), *completion.notes]
        if (deployment := tries.request.deployment) is not None:
            self.tried[request.model, deployment, "answered"] += 1
        if self.health and (health := self.health.get(tries.request.site)) is not None:
            health.succeeded()
        if request.top_logprobs is not None and completion.tokens is None and _written(completion):
            notes.append(f"{request.model} sent no log-probs")
        if tries.request.without:
            if (without := frozenset(tries.request.without)) != self._left_out(tries.request):
                if len(self._refused) >= _MAX_WARNINGS:
                    self._refused.clear()
                self._refused[sort_of(tries.request)] = without, time.monotonic() + _REFUSED_S
            notes.append(f"{request.model} was asked without what it refuses: {', '.join(tries.request.without)}")
        maybe = 0
        if tries.failed:
            notes.append(f"earlier tries failed: {', '.join(map(_named, tries.failed))}")
            maybe = sum(error.billed != "no" for error in tries.failed)
        for note in notes:
            self._warn(request.model, note)
        return completion._replace(notes=tuple(notes), deployment=deployment, maybe_billed=maybe)

    def _warn(self, model: str, note: str) -> None:
        kind = f"{model}: {_DIGITS.sub('', note)}"
        if kind not in self._warned and len(self._warned) < _MAX_WARNINGS:
            self._warned.add(kind)
            logger.warning("%s: %s", model, note)


class Middleware(ABC):
    """A guard with something that surrounds each of its calls, such as a span or a hold on a budget."""

    def __init__(self, guard: Guard | Middleware) -> None:
        self._guard = guard

    @abstractmethod
    def around(self, request: Request, deadline: Deadline) -> AbstractAsyncContextManager[list[Completion]]:
        """Return the context in which a call is made; its completion is added to the list that the context yields."""

    def sent(self, request: Request) -> Request:
        """Return the request that the guard is given."""
        return request

    async def complete(self, request: Request, deadline: Deadline) -> Completion:
        """Answer a request, as `Guard.complete` does."""
        async with self.around(request, deadline) as replies:
            replies.append(await self._guard.complete(self.sent(request), deadline))
        return replies[0]

    async def stream(self, request: Request, deadline: Deadline) -> AsyncGenerator[TextDelta | Completion, None]:
        """Answer a request in pieces, as `Guard.stream` does."""
        pieces = self._guard.stream(self.sent(request), deadline)
        async with self.around(request, deadline) as replies, aclosing(pieces) as events:
            async for event in events:
                if isinstance(event, Completion):
                    replies.append(event)
                yield event


def sort_of(request: Request) -> tuple[Any, ...]:
    """Return the kind of request that a refusal holds for: a client's own field, absent elsewhere, may be its cause."""
    options = {} if request.chat is None else request.chat.options
    return request.site, frozenset(options), str(options.get("reasoning_effort"))[:20]


def _named(error: ProviderError) -> str:
    return type(error).__name__ + ("" if error.deployment is None else f" at {error.deployment}")


def _written(completion: Completion) -> str:
    """Return a model's text: for a message its content, without its tool calls."""
    return completion.text if completion.message is None else text_of(completion.message.get("content"))


def _interrupted(error: ProviderError, assembler: Assembler, failed: list[ProviderError]) -> ProviderError:
    """Return the error of a stream that failed after its first text: an interruption, unless it was a refusal."""
    broke = isinstance(error, StreamInterruptedError | BadResponseError | ProviderTimeoutError) or error.retryable
    broke = broke and not getattr(error, "partial", "")  # else the assembler made the error
    site, error = error.deployment, assembler.interrupted(str(error)) if broke else error
    error.deployment = site
    error.maybe_billed = sum(failure.billed != "no" for failure in (*failed, error))
    return error
