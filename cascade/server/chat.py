"""Answers a chat request with the served model's message, whole or streamed, in any dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

from cascade.config.schema import ServerKeyConfig
from cascade.money import usd
from cascade.orchestrator import Orchestrator
from cascade.records.link import LATE_S
from cascade.runtime import AskOptions, PendingAnswer
from cascade.safety import redact
from cascade.server.admission import Visit
from cascade.server.auth import new_trace
from cascade.server.body import Receive, connected, read_object
from cascade.server.catalog import Catalog, ClientRequest, Names
from cascade.server.dialects import ChatCompletions, Dialect, ServedMessage, encoded
from cascade.server.errors import Refusal
from cascade.server.feedback import AnswerFeedback
from cascade.server.metrics import Metrics
from cascade.server.receipts import Receipt
from cascade.telemetry import Traceparent
from cascade.text import now_utc
from cascade.types import Answer, Question

if TYPE_CHECKING:
    from cascade.server.modes import Turn

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Scope: TypeAlias = MutableMapping[str, Any]
_JSON, _EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
_STREAM_HEADERS = [("cache-control", "no-cache"), ("x-accel-buffering", "no")]
_SHORTEST_S = 1e-3


@dataclass
class HttpExchange:
    """One request and its response so far.

    Attributes:
        headers: the request's, by their names in lower case; of several with one name, the first.
        dialect: the form of its errors.
        model: the model that was asked for; "" until it is known to exist, None if the path takes none.
        owner: the server's key that the request carries; None before it is checked, or without keys.
        visit: what it has taken of the server's limits; None before it is admitted.
        receipt: the outcome, once it is answered.
        metrics: the counts of the cascade that it names; None until that is known.
        caller: the trace that its client names.
        reason: why it was refused or ended early: the code or the type of its error, or "client_left".
        writer: writes its stream; None until one may begin.
        calls: its calls that go on without it; until they end, it keeps its place.
    """

    send: Send
    headers: Mapping[str, str] = field(default_factory=dict)
    dialect: type[Dialect] = ChatCompletions
    model: str | None = None
    status: int | None = None
    owner: ServerKeyConfig | None = None
    visit: Visit | None = None
    receipt: Receipt | None = None
    metrics: Metrics | None = None
    caller: Traceparent | None = None
    reason: str | None = None
    writer: Dialect | None = None
    calls: set[asyncio.Task[None]] = field(default_factory=set)
    started_s: float = field(default_factory=time.monotonic)
    sent_s: float = field(default_factory=time.monotonic)
    """When a part of the body was last sent."""

    @cached_property
    def trace_id(self) -> str:
        """The request's id in the traces and in its response, signed with its key."""
        return new_trace(self.owner)

    @property
    def key(self) -> str | None:
        """The name of the request's key."""
        return None if self.owner is None else self.owner.name

    def sees(self, catalog: Catalog) -> bool:
        """Return whether the request's key may see a cascade: it is an admin's, or may name one of the models."""
        names = None if self.visit is None else self.visit.limits.models
        is_admin = self.owner is not None and "admin" in self.owner.scopes
        return names is None or is_admin or not catalog.routes.keys().isdisjoint(names)

    @property
    def duration_s(self) -> float:
        """How long the request has taken so far."""
        return time.monotonic() - self.started_s

    def logged(self, method: str, path: str, status: int) -> dict[str, Any]:
        """Return the request's line for the access log, once it has ended."""
        receipt, now = self.receipt, now_utc()
        cost = None if receipt is None or receipt.cost_nano_usd is None else float(usd(receipt.cost_nano_usd))
        return {
            "time": now, "trace_id": self.trace_id, "key": self.key, "method": method,
            "client_trace_id": None if self.caller is None else self.caller.trace_id,
            "path": redact(path[:200]), "status": status, "model": self.model or None,
            "served_by": None if receipt is None else receipt.served_by, "cost_usd": cost,
            "duration_s": round(self.duration_s, 4), "reason": self.reason or (receipt and receipt.broken_off),
        }  # fmt: skip

    async def begin(self, status: int, content_type: bytes, headers: list[tuple[str, str]]) -> None:
        """Send the head of the response."""
        self.status = status
        raw = [
            (b"content-type", content_type),
            (self.dialect.id_header, self.trace_id.encode("ascii")),
            *[(name.encode("ascii"), value.encode("ascii")) for name, value in headers],
        ]
        await self.send({"type": "http.response.start", "status": status, "headers": raw})

    async def more(self, data: bytes) -> None:
        """Send a piece of the body."""
        self.sent_s = time.monotonic()
        await self.send({"type": "http.response.body", "body": data, "more_body": True})

    async def end(self, data: bytes = b"") -> None:
        """Send the last piece of the body."""
        await self.send({"type": "http.response.body", "body": data, "more_body": False})

    async def respond(self, status: int, value: object, headers: list[tuple[str, str]]) -> None:
        """Send a whole response."""
        data = encoded(value)
        await self.begin(status, _JSON, [*headers, ("content-length", str(len(data)))])
        await self.end(data)

    async def refuse(self, refusal: Refusal) -> None:
        """Send an error: as the response, or as the last event of a stream that has begun."""
        if self.status is None:
            headers = [*refusal.headers, *Receipt(self.trace_id).headers()]
            await self.respond(refusal.status, self.dialect.refused(refusal, self.trace_id), headers)
        else:
            await self.end(b"" if self.writer is None else self.writer.broken(refusal))
        self.status = refusal.status
        self.reason = refusal.body["error"]["code"] or refusal.body["error"]["type"]


async def answer_chat(cascades: Mapping[str, Cascade], names: Names, exchange: HttpExchange, receive: Receive) -> None:
    """Answer a chat request of any dialect, by the cascade that it names.

    Raises as `read_object`, `ClientRequest.of`, `Visit.refuse_model` and `Fields` do.
    """
    exchange.model, visit = "", exchange.visit
    assert visit is not None  # noqa: S101 - it was admitted

    def request_of(body: dict[str, Any]) -> tuple[Cascade, ClientRequest, tuple[str, ...]]:
        visit.refuse_model(body.get("model"))  # before the client can learn whether it exists
        request = ClientRequest.of(exchange.dialect(body, exchange.trace_id), exchange.headers, names)
        cascade = cascades[request.route.cascade]
        exchange.model, exchange.metrics = request.name, cascade.metrics
        return cascade, request, cascade.runtime.fields.unsent(request.chat)

    cascade, request, unsent = await read_object(receive, exchange.headers, visit, request_of)
    await cascade.answer(request, exchange, receive, Receipt(exchange.trace_id, unsent=unsent))


class Cascade:
    """One cascade of a server.

    Attributes:
        runtime: makes the calls.
        modes: its modes, if it has any.
        feedback: takes feedback on its answers.

    Raises:
        ConfigError: it cannot have the configured modes.
    """

    def __init__(self, orchestrator: Orchestrator, catalog: Catalog, metrics: Metrics) -> None:
        self.orchestrator, self.catalog, self.metrics = orchestrator, catalog, metrics
        self.runtime, config, self.modes = orchestrator.runtime, orchestrator.runtime.config, None
        if config.modes is not None:
            from cascade.server.modes import Modes  # loads numpy, which a server without modes does not need

            self.modes = Modes(orchestrator, self.catalog)
        self.feedback = AnswerFeedback(orchestrator, self.modes)

    def take_over(self, before: Cascade) -> None:
        """Take over the state of the cascade of an earlier configuration."""
        self.runtime.take_over(before.runtime)
        self.feedback.waiting = before.feedback.waiting
        if self.modes is not None and before.modes is not None:
            self.modes.take_over(before.modes)

    async def counted(self) -> str:
        """Return the cascade's counts in Prometheus' text form."""
        alarm, of_modes = (None, "") if self.modes is None else (self.modes.state.alarm, self.modes.metrics())
        return await self.metrics.text(self.runtime, alarm) + of_modes

    async def answer(self, request: ClientRequest, exchange: HttpExchange, receive: Receive, draft: Receipt) -> None:
        """Answer one request, as its mode says."""
        reply = _ChatReply(self, request, exchange, draft)
        if self.modes is None:
            await reply.send(receive)
            return
        within_s = reply.left_s / 2  # the rest is for the answer
        async with self.modes.turn(request, exchange.trace_id, exchange.key, exchange.headers, within_s) as turn:
            if turn is not None:
                draft = draft._replace(mode=turn.mode, uncovered=turn.uncovered)
                reply = replace(reply, request=turn.request, draft=draft, turn=turn)
            await reply.send(receive)


@dataclass(frozen=True, slots=True)
class _ChatReply:
    """The answer of a cascade to one request.

    Attributes:
        draft: the receipt, as far as it is known before the answer.
        turn: how the cascade's mode serves the request; None if no mode applies.
    """

    cascade: Cascade
    request: ClientRequest
    exchange: HttpExchange
    draft: Receipt
    turn: Turn | None = None

    @property
    def left_s(self) -> float:
        """How long the answer may take: the rest of the request's time, or less if client or configuration say so."""
        config, asked_s = self.cascade.runtime.config, self.request.deadline_s
        whole_s = config.server.request_s if asked_s is None else min(asked_s, config.server.request_s)
        left_s, question_s = max(_SHORTEST_S, whole_s - self.exchange.duration_s), config.timeouts.per_question_s
        return left_s if question_s is None else min(left_s, question_s)

    async def send(self, receive: Receive) -> None:
        """Send the answer in one piece, or as server-sent events. An error before any byte has its own status."""
        request, exchange = self.request, self.exchange
        options = AskOptions(
            level=request.route.level,
            deadline_s=self.left_s,
            model=request.route.model,
            trace_id=exchange.trace_id,
            later=self.turn is not None and self.turn.row is not None and not self.turn.passed,
            key=exchange.key,
        )
        pending = self.cascade.runtime.start(request.chat, options)
        if request.stream:
            exchange.writer = request.dialect
            await connected(receive, self._stream(pending))
            await exchange.end()
            return
        answer, receipt = await connected(receive, self._whole(pending))
        extension = receipt.extension(answer) if request.explain else None
        await exchange.respond(200, request.dialect.whole(ServedMessage(answer), extension), receipt.headers())

    async def _whole(self, pending: PendingAnswer) -> tuple[Answer, Receipt]:
        answer = await pending.answer()
        return answer, await self._receipt(answer)

    async def _stream(self, pending: PendingAnswer) -> None:
        writer, exchange, beats = self.request.dialect, self.exchange, asyncio.create_task(self._beat())
        try:
            async with aclosing(pending.served()) as events:
                async for event in events:
                    if isinstance(event, Answer):
                        answer = event
                        continue
                    model = event.model or event.role
                    if not writer.begun:
                        self.cascade.metrics.first_text.observe(exchange.duration_s)
                        await self._begin(self.draft._replace(served_by=model))
                    if exchange.visit is not None:
                        exchange.visit.sent += len(event.text.encode("utf-8", "replace"))
                    await exchange.more(writer.text(event.text, model, event.thinking))
            await self._end(answer)
        finally:
            beats.cancel()

    async def _beat(self) -> None:
        """Send a comment whenever the stream is silent, since load balancers close idle connections."""
        exchange, every_s = self.exchange, self.cascade.runtime.config.server.heartbeat_s
        while True:
            silent_s = time.monotonic() - exchange.sent_s
            if silent_s < every_s:
                await asyncio.sleep(every_s - silent_s)
                continue
            await self._begin(self.draft)
            await exchange.more(b": \n\n")

    async def _begin(self, receipt: Receipt) -> None:
        if self.exchange.status is None:  # else a comment has begun the stream
            failing, uncovered = self.cascade.runtime.failing_stores, receipt.uncovered or self._uncovered()
            receipt = receipt._replace(failing=failing, uncovered=uncovered)
            await self.exchange.begin(200, _EVENTS, [*_STREAM_HEADERS, *receipt.headers()])

    async def _end(self, answer: Answer) -> None:
        """Send the rest of an answer: all of it if no text was sent before the decision."""
        receipt, writer, explain = await self._receipt(answer), self.request.dialect, self.request.explain
        extension = receipt.extension(answer if explain else None) if explain or writer.counts else None
        rest = b"".join(writer.ending(ServedMessage(answer), extension))
        if not writer.begun:
            self.cascade.metrics.first_text.observe(self.exchange.duration_s)
            await self._begin(receipt)
        await self.exchange.more(rest)

    def _uncovered(self) -> str | None:
        """Return why no certificate covers the request, as far as it is known before it is answered."""
        route, runtime = self.request.route, self.cascade.runtime
        serving = None if route.model is not None else runtime.serves(route.level)
        return None if serving is None else "; ".join(serving.uncovered(Question.of_chat(self.request.chat))) or None

    async def _receipt(self, answer: Answer) -> Receipt:
        """Return the receipt of an answer, after the cascade's mode has recorded it."""
        cascade, exchange = self.cascade, self.exchange
        if self.turn is not None and cascade.modes is not None:
            await cascade.modes.answered(self.turn, answer, self.left_s + LATE_S)
        cascade.feedback.hold(exchange.trace_id, answer)
        if exchange.visit is not None:
            usages = [call.completion.usage for call in answer.calls if call.completion is not None]
            exchange.visit.tokens = sum([(usage.input_tokens or 0) + (usage.output_tokens or 0) for usage in usages])
        exchange.receipt = self.draft._replace(failing=cascade.runtime.failing_stores).of(answer)
        return exchange.receipt
