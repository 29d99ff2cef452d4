"""The application: which endpoint answers each path, and what holds for every request.

`Edge` checks every request's key, limits and time, and answers every failure in the client's dialect.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, MutableMapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, TypeAlias

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from cascade.config import CascadeConfig, ledger_url, modes_url, traces_url
from cascade.errors import CascadeError
from cascade.orchestrator import Orchestrator
from cascade.runtime import Runtime
from cascade.safety import redact
from cascade.server import auth
from cascade.server.admission import Admission
from cascade.server.budgets import Budgets
from cascade.server.catalog import Catalog
from cascade.server.chat import ChatEndpoint, HttpExchange, Scope, Send
from cascade.server.dialects import ChatCompletions, Dialect, encoded
from cascade.server.dialects.messages import Messages
from cascade.server.dialects.responses import Responses
from cascade.server.errors import GatewayError, Refusal, refusal_of, unexpected
from cascade.server.feedback import FeedbackEndpoint
from cascade.server.limits import ClientLeftError, Receive
from cascade.server.meters import Instruments
from cascade.server.pages import Pages, needs_no_key
from cascade.server.receipts import CONTENT_TYPE, family, of_stores, of_uncovered
from cascade.telemetry import Traceparent, request_span, tracer

if TYPE_CHECKING:
    from cascade.server.modes import Modes

logger = logging.getLogger("cascade")
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]
_DIALECTS: dict[str, type[Dialect]] = {kind.path: kind for kind in (ChatCompletions, Responses, Messages)}
_OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key: they show only whether the process is healthy."""
_CLIENT_LEFT = 499
"""nginx's status for a client that hung up; it is counted and never sent."""
_LEFT = "client_left"
_GRACE_S = 1.0
"""Seconds after its deadline (when the best answer is served) at which an unfinished request is cut off."""
_POLL_S = 0.1
"""How often it is seen whether the last request of an edge has ended."""
_PROBE_S, _PROBES_S = 0.5, 2.0
"""Seconds that a write may wait for its locks, and `/readyz` for all stores, before a store counts as failing."""
_TABLES = {
    "traces": ("episodes", "feedback"),
    "modes": ("cascade_modes", "cascade_draws", "cascade_written"),
    "budget": ("cascade_accounts", "cascade_holds"),
}
"""What requests write, by the store."""


def application(orchestrator: Orchestrator, instruments: Instruments | None = None) -> Gateway:
    """Return the ASGI application that serves an orchestrator. It is closed when the application shuts down.

    Args:
        orchestrator: answers the requests.
        instruments: what is measured with, which the caller closes; by default without an access log.

    Raises:
        ConfigError: no chat request can be served with its configuration.
    """
    return Gateway(edge(orchestrator, instruments or Instruments()))


def _warn_of_questions(runtime: Runtime) -> None:
    if runtime.service is not None and runtime.service.covers_no_chat:
        logger.warning("policy: its certificates are of questions, and none covers a chat request: fit a log of chats")


def edge(orchestrator: Orchestrator, tools: Instruments) -> Edge:
    """Return what serves the requests of one configuration. Raises as `application` does."""
    runtime, settings = orchestrator.runtime, orchestrator.runtime.config.server
    catalog, stores = Catalog.of(runtime.config, runtime.levels), Stores(runtime.config)
    metrics, admission = tools.metrics, Admission(settings, catalog.routes)
    runtime.break_circuits()
    runtime.wrap(tools.meters.around)
    runtime.finishes = True
    for guard in runtime.guards.values():
        guard.retried, guard.tried = tools.meters.retried, tools.meters.tried
    _warn_of_questions(runtime)
    modes = _modes(orchestrator, catalog)
    feedback = FeedbackEndpoint(orchestrator, modes)
    budgets = Budgets(runtime, tools) if runtime.config.budget.caps else None
    chats = [ChatEndpoint(kind, orchestrator, catalog, metrics, feedback.hold, modes) for kind in _DIALECTS.values()]
    ready = False

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        nonlocal ready
        works = [*tools.works(counted), *(room.forever() for room in (modes, budgets) if room is not None)]
        whole.tasks, ready = [asyncio.create_task(work) for work in works], True
        yield
        ready = False
        await whole.leave()
        if modes is not None:
            await modes.drain(settings.drain_s)
        await asyncio.to_thread(runtime.halt.wait_idle, settings.drain_s)  # calls whose clients have left
        await orchestrator.aclose()

    async def readyz(_: Request) -> Response:
        if not ready:
            return _json({"status": "stopping"}, 503)
        states, traces = await stores.states(), runtime.traces
        states |= {name: "failing" for name, link in runtime.links.items() if link.rests}
        if traces is not None and traces.problem is not None:
            states["traces"] = "failing"
        states["models"] = runtime.models_state
        serves = "failing" not in {states.get(name) for name in stores.needed}
        return _json({"status": "ready" if serves else "failing", **states}, 200 if serves else 503)

    async def counted() -> str:
        text = metrics.text(alarm=runtime.alarm is not None, traces=runtime.traces) + of_stores(runtime)
        text += of_uncovered({} if runtime.service is None else runtime.service.monitors.uncovered)
        text += await tools.text(runtime) + ("" if budgets is None else budgets.metrics())
        text += family("buffered_bytes", "gauge", "Bodies of requests under way.", admission.buffered.used)
        return text + ("" if modes is None else modes.metrics())

    async def counts(_: Request) -> Response:
        return Response(await tools.whole(await counted()), headers={"content-type": CONTENT_TYPE})

    async def model(request: Request) -> Response:
        return _json(catalog.entry(request.path_params["name"]))

    routes = [
        *(Route(chat.dialect.path, chat, methods=["POST"]) for chat in chats),
        Route("/v1/feedback", feedback.post, methods=["POST"]),
        Route("/v1/models", _always(catalog.listing())),
        Route("/v1/models/{name:path}", model),
        Route("/healthz", _always({"status": "ok"})),
        Route("/readyz", readyz),
        Route("/metrics", counts),
        *Pages(orchestrator, catalog, metrics).routes,
        *([] if modes is None else modes.routes),
        *([] if budgets is None else budgets.routes),
    ]
    paths = [f"{' '.join(sorted((route.methods or set()) - {'HEAD'}))} {route.path}" for route in routes]
    routes.append(Route("/", _always({"name": settings.name, "paths": paths})))
    whole = Edge(Router(routes, redirect_slashes=False), admission, tools, runtime, feedback, modes)
    whole.life = lifespan(None)
    return whole


class Gateway:
    """The ASGI application: each request is served by the latest edge, and ends on the one that it began on.

    Args:
        edge: serves the requests, until `swap`.
    """

    def __init__(self, edge: Edge) -> None:
        self.edge, self._stops, self._ending = edge, False, set[asyncio.Task[None]]()
        self._life = Router([], lifespan=self._living)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or begin and end with the server."""
        await (self.edge if scope["type"] == "http" else self._life)(scope, receive, send)

    @asynccontextmanager
    async def _living(self, _: object) -> AsyncIterator[None]:
        await self.edge.life.__aenter__()
        yield
        self._stops = True
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self.edge.life.__aexit__(None, None, None)

    async def swap(self, edge: Edge) -> None:
        """Serve further requests with another edge, which takes over what must not be forgotten.

        The one before ends once its requests and calls have, each within its own limits.
        """
        await self.edge.leave()
        edge.take_over(self.edge)
        task = asyncio.create_task(self._end(self.edge))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self.edge = edge
        await edge.life.__aenter__()

    async def _end(self, edge: Edge) -> None:
        while edge.busy and not self._stops:  # noqa: ASYNC110 - three rooms would have to tell an event
            await asyncio.sleep(_POLL_S)
        await edge.life.__aexit__(None, None, None)


def _modes(orchestrator: Orchestrator, catalog: Catalog) -> Modes | None:
    """Return the modes, if the configuration has the section."""
    if orchestrator.runtime.config.modes is None:
        return None
    from cascade.server.modes import Modes  # loads numpy, which a server without modes does not need

    return Modes(orchestrator, catalog)


def _json(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


def _always(value: Any) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint with one answer."""

    async def respond(_: Request) -> Response:
        return _json(value)

    return respond


class Stores:
    """Whether the stores of a configuration take writes now.

    Attributes:
        needed: those without which requests are refused.
    """

    def __init__(self, config: CascadeConfig) -> None:
        urls = {
            "traces": traces_url(config.traces),
            "modes": None if config.modes is None else modes_url(config),
            "budget": ledger_url(config.budget) if config.budget.caps else None,
        }
        self._urls = {name: url for name, url in urls.items() if url is not None}
        strict, refuses = config.traces is not None and config.traces.strict, config.budget.on_unreachable == "refuse"
        self.needed = ("models", *(("budget",) if refuses else ()), *(("traces",) if strict else ()))
        self._probes: dict[str, asyncio.Task[bool]] = {}

    async def states(self) -> dict[str, str]:
        """Return "ok" or "failing" for each store. At most one probe of each is under way."""
        for name, url in self._urls.items():
            if name not in self._probes or self._probes[name].done():
                self._probes[name] = asyncio.create_task(asyncio.to_thread(_takes_writes, url, _TABLES[name]))
        if self._probes:
            await asyncio.wait(self._probes.values(), timeout=_PROBES_S)
        return {name: "ok" if task.done() and task.result() else "failing" for name, task in self._probes.items()}


def _takes_writes(url: str, tables: Iterable[str]) -> bool:
    """Return whether a database takes a write now, and gives locks on some tables."""
    import sqlalchemy as sa

    from cascade.records.database import Database, formats, metadata

    try:
        with closing(Database(url, limit_s=_PROBE_S)) as database, database.transaction() as connection:
            for table in tables:
                connection.execute(sa.delete(metadata.tables[table]).where(sa.false()))
            connection.execute(sa.update(formats).values(version=formats.c.version))
    except CascadeError:
        return False
    return True


class Edge:
    """Wraps the application. `scope["exchange"]` is the request's `HttpExchange`.

    Args:
        app: the application that answers.
        admission: the limits, and the keys.
        instruments: count the requests for a model, and log all.
        runtime: makes the calls.
        feedback: takes feedback.
        modes: the cascade's modes, if it has any.

    Attributes:
        life: begins and ends it.
        tasks: what runs beside the requests.
    """

    life: AbstractAsyncContextManager[None]

    def __init__(
        self,
        app: App,
        admission: Admission,
        instruments: Instruments,
        runtime: Runtime,
        feedback: FeedbackEndpoint,
        modes: Modes | None,
    ) -> None:
        self._tracer = tracer() if runtime.config.telemetry.spans else None
        self._app, self._admission, self._instruments = app, admission, instruments
        self._feedback, self._modes, self._settings = feedback, modes, admission.settings
        self.runtime, self.tasks, self._under_way = runtime, list[asyncio.Task[None]](), 0

    @property
    def busy(self) -> bool:
        """Whether requests, calls whose clients have left, or calls for drawn requests are under way."""
        completing = self._modes is not None and bool(self._modes.completing)
        return self._under_way > 0 or completing or not self.runtime.halt.wait_idle(0.0)

    async def leave(self) -> None:
        """End what runs beside the requests."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def take_over(self, before: Edge) -> None:
        """Go on where another edge leaves off."""
        self.runtime.take_over(before.runtime)
        self._admission.take_over(before._admission)
        self._feedback.waiting = before._feedback.waiting
        if self._modes is not None and before._modes is not None:
            self._modes.take_over(before._modes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["path"]  # that of a dialect, or below it; on other paths errors have OpenAI's form
        kinds = (kind for base, kind in _DIALECTS.items() if path == base or path.startswith(f"{base}/"))
        caller = Traceparent.of(Headers(scope=scope).get("traceparent"))
        exchange = HttpExchange(send, next(kinds, ChatCompletions), caller=caller)
        scope["exchange"], scope["app"] = exchange, self

        async def noting(message: MutableMapping[str, Any]) -> None:
            exchange.status = message.get("status", exchange.status)
            await send(message)

        self._under_way += 1
        try:
            refusal = await self._answered(scope, receive, noting)
            if refusal is not None:
                await exchange.refuse(refusal)
        except ClientLeftError:
            exchange.status, exchange.reason = _CLIENT_LEFT, _LEFT
        finally:
            self._under_way -= 1
            self._ended(exchange, scope["method"], path)

    def _ended(self, exchange: HttpExchange, method: str, path: str) -> None:
        """Count a request that has ended, log it, and give back what it took."""
        if exchange.visit is not None:
            exchange.visit.end()
        status, access = _CLIENT_LEFT if exchange.status is None else exchange.status, self._instruments.access
        if exchange.model is not None:
            took_s, receipt = exchange.duration_s, exchange.receipt
            self._instruments.metrics.count(exchange.model, status, took_s, receipt, exchange.key)
        if access is not None and path not in _OPEN:
            access.write(exchange, method, path, status)

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        """Answer a request; if it fails, return the refusal. Raises ClientLeftError."""
        limit_s = self._settings.request_s
        try:
            async with asyncio.timeout(limit_s + _GRACE_S) as clock:
                self._admit(scope)
                exchange: HttpExchange = scope["exchange"]
                traced = self._tracer if scope["path"] in _DIALECTS else None
                name = f"{scope['method']} {scope['path']}"
                with request_span(traced, name, exchange.trace_id, exchange.caller, exchange.key) as span:
                    await self._app(scope, receive, send)
                    if span is not None and exchange.status is not None:
                        span.set_attribute("http.response.status_code", exchange.status)
        except ClientLeftError:
            raise
        except (CascadeError, GatewayError) as error:
            _let_go(error)
            return refusal_of(error)
        except HTTPException as error:
            paths = f"there is no such path. Chat requests go to {', '.join(_DIALECTS)}; GET / lists all paths"
            why = paths if error.status_code == HTTPStatus.NOT_FOUND else error.detail
            return refusal_of(GatewayError(error.status_code, f"{scope['method']} {scope['path'][:200]}: {why}"))
        except Exception as error:  # noqa: BLE001 - a mistake of ours must not end in silence, nor in a page of its own
            if isinstance(error, TimeoutError) and clock.expired():
                return refusal_of(GatewayError(504, f"No answer within {limit_s:g} s.", code="request_timeout"))
            logger.error("a request failed: %s", redact("".join(traceback.format_exception(error))))  # noqa: TRY400
            _let_go(error)
            return unexpected()
        return None

    def _admit(self, scope: Scope) -> None:
        """Check a request's key and its scope. Raises GatewayError as `auth.check` does, and with 403 and 404."""
        path, settings = scope["path"], self._settings
        if not path.isprintable():  # the router also takes "/metrics\n" for /metrics, which needs a scope
            raise GatewayError(404, "There is no such path: it has control characters.")
        headers = Headers(scope=scope)
        if path in _OPEN:
            return
        if settings.keys:
            has_key = "authorization" in headers or "x-api-key" in headers
            if needs_no_key(scope["method"], path, has_key=has_key):
                return
        exchange = scope["exchange"]
        exchange.owner = key = auth.check(headers, settings)
        exchange.trace_id = auth.new_trace(key)
        exchange.visit = self._admission.visit(key)
        if scopes := ("ask",) if path in _DIALECTS else auth.SCOPES.get(path):
            auth.refuse_without(settings, key, *scopes)


def _let_go(error: BaseException | None) -> None:
    """Break the reference cycles between an error and the frames that it passed through.

    Otherwise a full garbage collection frees them much later, and every request waits for it.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
