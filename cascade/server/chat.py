"""Answers a chat request with the served model's message, whole or streamed, in any dialect."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from starlette.datastructures import Headers

from cascade.config.schema import ServerConfig
from cascade.money import Price
from cascade.orchestrator import Orchestrator
from cascade.server.asking import Asked
from cascade.server.bodies import Receive, connected, read_object
from cascade.server.catalog import Catalog
from cascade.server.dialects.base import Dialect, ReplyWriter, encoded
from cascade.server.edge import HttpExchange, Scope, Send
from cascade.server.metrics import Metrics
from cascade.server.receipt import Receipt
from cascade.server.refusals import Refused
from cascade.types import Answer, Question, TextDelta

if TYPE_CHECKING:
    from cascade.server.modes import Modes, Turn

_STREAM_HEADERS = [("cache-control", "no-cache"), ("x-accel-buffering", "no")]
_SHORTEST_S = 1e-3
_EVENTS = b"text/event-stream; charset=utf-8"


@dataclass
class ChatEndpoint:
    """Answers chat requests.

    Args:
        dialect: the form of requests and responses.
        orchestrator: answers the requests.
        settings: the limits.
        catalog: the models that a client can name.
        metrics: counts requests under way.
        guide: the guide's price, None if it is unknown.
        answered: is called with each answer and its trace's id.
        modes: the cascade's modes, if it has any.
    """

    dialect: Dialect
    orchestrator: Orchestrator
    settings: ServerConfig
    catalog: Catalog
    metrics: Metrics
    guide: Price | None
    answered: Callable[[str, Answer], None]
    modes: Modes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Answer one request."""
        exchange: HttpExchange = scope["exchange"]
        exchange.model = ""
        if self.metrics.in_flight >= self.settings.max_requests:
            said = f"{self.settings.max_requests} requests are under way (server.max_requests)."
            raise Refused(503, said, code="overloaded", retry_after_s=1)
        self.metrics.in_flight += 1
        try:
            headers = Headers(scope=scope)
            body = await read_object(receive, headers.get("content-type", ""), self.settings)
            asked = Asked.of(body, headers, self.catalog, self.dialect)
            exchange.model = asked.name
            exchange.unsent = self.orchestrator.runtime.fields.unsent(asked.request)
            if self.modes is None:
                await self._answer(asked, exchange, receive, None)
                return
            async with self.modes.turn(asked, exchange.trace_id, exchange.key, headers) as turn:
                exchange.mode = None if turn is None else turn.mode
                await self._answer(asked if turn is None else turn.asked, exchange, receive, turn)
        finally:
            self.metrics.in_flight -= 1

    async def _answer(self, asked: Asked, exchange: HttpExchange, receive: Receive, turn: Turn | None) -> None:
        await (self._streamed if asked.stream else self._whole)(asked, exchange, receive, turn)

    async def _whole(self, asked: Asked, exchange: HttpExchange, receive: Receive, turn: Turn | None) -> None:
        """Answer in one piece."""
        async with connected(receive), aclosing(self._serve(asked, exchange, turn)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    answer = event
        receipt = exchange.receipt = self._receipt(asked, exchange, answer)
        extension = receipt.extension(answer) if asked.explain else None
        data = encoded(self.dialect.whole(_served(answer), asked.body, exchange.trace_id, extension))
        await exchange.respond(200, data, receipt.headers())

    async def _streamed(self, asked: Asked, exchange: HttpExchange, receive: Receive, turn: Turn | None) -> None:
        """Answer in server-sent events. An error before the first text has its own status."""
        writer = exchange.writer = self.dialect.writer(asked.body, exchange.trace_id)
        async with connected(receive), aclosing(self._serve(asked, exchange, turn)) as events:
            async for event in events:
                if isinstance(event, Answer):
                    await self._end(asked, exchange, writer, event)
                    continue
                if exchange.status is None:
                    begun = Receipt(exchange.trace_id, event.model or event.role, mode=exchange.mode)
                    uncovered = self._uncovered(asked)
                    await self._begin(exchange, begun._replace(unsent=exchange.unsent, uncovered=uncovered))
                await exchange.more(writer.text(event.text, event.model or event.role))
        await exchange.end()

    async def _begin(self, exchange: HttpExchange, receipt: Receipt) -> None:
        self.metrics.first_text(exchange.seconds)
        await exchange.begin(200, _EVENTS, [*_STREAM_HEADERS, *receipt.headers()])

    async def _end(self, asked: Asked, exchange: HttpExchange, writer: ReplyWriter, answer: Answer) -> None:
        """Send the rest of an answer: all of it if no text was sent before the decision."""
        receipt = exchange.receipt = self._receipt(asked, exchange, answer)
        extension = None
        if asked.explain or writer.counts:
            extension = receipt.extension(answer if asked.explain else None)
        rest = b"".join(writer.ending(_served(answer), extension))
        if exchange.status is None:
            await self._begin(exchange, receipt)
        await exchange.more(rest)

    async def _serve(
        self, asked: Asked, exchange: HttpExchange, turn: Turn | None
    ) -> AsyncGenerator[TextDelta | Answer, None]:
        events = self.orchestrator.runtime.serve(
            asked.request,
            stream=asked.stream,
            level=asked.route.level,
            model=asked.route.model,
            trace_id=exchange.trace_id,
            key=exchange.key,
            deadline_s=self._left_s(asked, exchange),
            traced=turn is None or not turn.completed_later,
        )
        async with aclosing(events):
            async for event in events:
                if turn is not None and self.modes is not None and isinstance(event, Answer):
                    await self.modes.answered(turn, event)
                yield event

    def _uncovered(self, asked: Asked) -> str | None:
        """Return why no certificate covers a request, as far as it is known before it is answered."""
        serving = None if asked.route.model is not None else self.orchestrator.runtime.serves(asked.route.level)
        return None if serving is None else "; ".join(serving.uncovered(Question.of_chat(asked.request))) or None

    def _left_s(self, asked: Asked, exchange: HttpExchange) -> float:
        """Return how long an answer may take: the rest of the request's time, or less if the client asks for less."""
        wanted = (asked.deadline_s, self.orchestrator.runtime.config.timeouts.per_question_s)
        left_s = max(_SHORTEST_S, self.settings.request_s - exchange.seconds)
        return min([left_s, *(one for one in wanted if one is not None)])

    def _receipt(self, asked: Asked, exchange: HttpExchange, answer: Answer) -> Receipt:
        self.answered(exchange.trace_id, answer)
        receipt = Receipt.of(answer, exchange.trace_id, self.guide, cascaded=asked.route.cascaded)
        return receipt._replace(mode=exchange.mode, unsent=exchange.unsent)


def _served(answer: Answer) -> Answer:
    """Return an answer that serves a message. Raises Refused if the cascade abstained."""
    if answer.served is None:
        raise Refused(422, f"No answer is served: {answer.stopped}.", code="abstained")
    return answer
