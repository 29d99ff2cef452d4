"""The application: which endpoint answers each path, and the rules that apply to every request.

`Edge` checks every request's key, limits and time, and answers every failure in the client's dialect.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncIterator, Awaitable, Iterable, MutableMapping, Sequence
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from cascade.errors import CascadeError, logger
from cascade.orchestrator import Orchestrator
from cascade.resilience.health import CALLER
from cascade.runtime import Runtime
from cascade.safety import redact
from cascade.server import auth
from cascade.server.admission import ADMITTED, Admission
from cascade.server.body import ClientLeftError, Receive, read_object
from cascade.server.budgets import Budgets
from cascade.server.catalog import Catalog, Names
from cascade.server.chat import Cascade, HttpExchange, Scope, Send, answer_chat
from cascade.server.dialects import ChatCompletions, Dialect, encoded
from cascade.server.dialects.messages import Messages
from cascade.server.dialects.responses import Responses
from cascade.server.errors import GatewayError, Refusal, refusal_of
from cascade.server.feedback import endpoint
from cascade.server.metrics import CONTENT_TYPE, CountedGuard, Instruments, Metrics, family, labelled, total
from cascade.server.pages import Pages, needs_no_key
from cascade.serving.spending import OUTLIVING
from cascade.telemetry import Traceparent, request_span, tracer

if TYPE_CHECKING:
    from cascade.server.modes import Modes
_DIALECTS: dict[str, type[Dialect]] = {kind.path: kind for kind in (ChatCompletions, Responses, Messages)}
_OPEN = frozenset({"/healthz", "/readyz"})
"""Paths that need no key: they show only whether the process is healthy."""
_CLIENT_LEFT = 499
"""nginx's status for a client that hung up; it is counted and never sent."""
_GRACE_S = 1.0
"""Seconds after its deadline (when the best answer is served) at which an unfinished request is cut off."""
_POLL_S = 0.1
"""Seconds between checks whether the last request of an edge has ended."""
_PROBES_S = 2.0
"""Seconds that `/readyz` waits for all stores: one that has not answered by then counts as failing."""
_TABLES = {
    "traces": ("episodes", "feedback"),
    "modes": ("cascade_modes", "cascade_draws", "cascade_written"),
    "budget": ("cascade_accounts", "cascade_holds"),
}
"""The tables that requests write, by store."""


def application(*orchestrators: Orchestrator, instruments: Instruments | None = None) -> Gateway:
    """Return the ASGI application that serves cascades. They are closed when the application shuts down.

    Args:
        orchestrators: each answers the requests that name it or one of its models. The first one has the server's
            settings and the caps.
        instruments: the server's counts and access log, which the caller closes; by default there is no log.

    Raises:
        ConfigError: no chat request can be served with a configuration, or two share a name.
    """
    return Gateway(Edge(orchestrators, instruments or Instruments()))


def _cascade(orchestrator: Orchestrator, catalog: Catalog, metrics: Metrics) -> Cascade:
    """Return what serves the requests of one configuration. Raises as `application` does."""
    runtime = orchestrator.runtime
    runtime.wrap(partial(CountedGuard, metrics, runtime.config.prices()))
    runtime.finishes, traces = True, runtime.config.traces
    for guard in runtime.guards.values():
        guard.shared, guard.retried, guard.tried = True, metrics.retried, metrics.tried
        guard.quotes = traces is not None and traces.content == "full"
    if (service := runtime.service) is not None:
        if service.covers_no_chat:
            logger.warning(
                "policy: its certificates are for questions, and none covers a chat request; fit one on chats"
            )
        lapsed = [f"{certificate.id}: {reason}" for certificate, reasons in service.holding for reason in reasons]
        if lapsed:
            who = service.default.answers_uncovered
            logger.warning("the %s answers what these certificates covered: %s", who, "; ".join(lapsed))
    return Cascade(orchestrator, catalog, metrics)


class Gateway:
    """The ASGI application: the latest edge serves each new request, and keeps it until the request ends."""

    def __init__(self, edge: Edge) -> None:
        self.edge, self._stops, self._ending = edge, False, set[asyncio.Task[None]]()
        self._life = Router([], lifespan=self._living)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request, or start and stop with the server."""
        return (self.edge if scope["type"] == "http" else self._life)(scope, receive, send)

    @asynccontextmanager
    async def _living(self, _: object) -> AsyncIterator[None]:
        await self.edge.life.__aenter__()
        yield
        self._stops = True
        await asyncio.gather(*self._ending, return_exceptions=True)
        await self.edge.life.__aexit__(None, None, None)

    async def swap(self, edge: Edge) -> None:
        """Serve further requests with another edge, which takes over the state that must not be lost.

        The earlier edge ends once its requests and calls have ended, each within its own limits.
        """
        await self.edge.leave()
        edge.take_over(self.edge)
        task = asyncio.create_task(self._end(self.edge))
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        self.edge = edge
        await edge.life.__aenter__()

    async def _end(self, edge: Edge) -> None:
        while edge.busy and not self._stops:  # noqa: ASYNC110 - three modules would have to set an event
            await asyncio.sleep(_POLL_S)
        await edge.life.__aexit__(None, None, None)


def _of_modes(cascades: Sequence[Modes]) -> list[Route]:
    """Return the paths that show and change the state of cascades with modes, if there are any."""

    async def show(request: Request) -> Response:
        sees = request.scope["exchange"].sees
        return _json({"object": "list", "data": [await modes.document() for modes in cascades if sees(modes.catalog)]})

    async def change(request: Request) -> Response:
        exchange = request.scope["exchange"]
        body = await read_object(request.receive, request.headers, exchange.visit, dict)
        chosen = [modes for modes in cascades if body.get("cascade") in (None, modes.cascade)]
        if len(chosen) != 1:
            raise GatewayError(400, "cascade must name a cascade that has modes.", param="cascade")
        await chosen[0].change(body, exchange.key or "the admin page")
        return await show(request)

    path = "/v1/cascades"
    return [Route(path, show), Route(path, change, methods=["POST"])] if cascades else []


def _json(value: Any, status: int = 200) -> Response:
    return Response(encoded(value), status, media_type="application/json")


class Stores:
    """Checks whether the stores of a cascade accept writes, and whether its models answer.

    Attributes:
        needed: the names of those without which requests are refused.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, config = runtime, runtime.config
        urls = {"traces": config.traces_url, "modes": config.modes_url}
        urls |= {"budget": config.ledger_url} if config.budget.caps else {}
        self._urls = {name: url for name, url in urls.items() if url is not None}
        strict, refuses = config.traces is not None and config.traces.strict, config.budget.on_unreachable == "refuse"
        self.needed = ("models", *(("budget",) if refuses else ()), *(("traces",) if strict else ()))
        self._probes: dict[str, asyncio.Task[bool]] = {}

    async def states(self) -> dict[str, str]:
        """Return "ok" or "failing" for each store and the models. At most one probe of each is under way."""
        traces, limit_s = self._runtime.traces, self._runtime.config.timeouts.per_store_s
        for name, url in self._urls.items():
            if name not in self._probes or self._probes[name].done():
                self._probes[name] = asyncio.create_task(asyncio.to_thread(_takes_writes, url, _TABLES[name], limit_s))
        if self._probes:
            await asyncio.wait(self._probes.values(), timeout=_PROBES_S)
        works = {name: task.done() and task.result() for name, task in self._probes.items()}
        works |= {name: False for name, link in self._runtime.links.items() if link.rests}
        works |= {"traces": False} if traces is not None and traces.problem and traces.counts.waiting else {}
        states = {name: "ok" if answers else "failing" for name, answers in works.items()}
        return states | {"models": self._runtime.models_state}


def _takes_writes(url: str, tables: Iterable[str], limit_s: float | None) -> bool:
    """Return whether a database accepts a write, and grants locks on tables, within the time that a request has."""
    import sqlalchemy as sa

    from cascade.records.database import Database, formats, metadata

    with (
        suppress(CascadeError),
        closing(Database.shared(url, limit_s)) as database,
        database.transaction() as connection,
    ):
        for table in tables:
            connection.execute(sa.delete(metadata.tables[table]).where(sa.false()))
        connection.execute(sa.update(formats).values(version=formats.c.version))
        return True
    return False


class Edge:
    """Serves the requests of some configurations. `scope["exchange"]` is the request's `HttpExchange`.

    Attributes:
        life: the context manager that starts and stops the edge.
        admission: the limits of its requests.
        tasks: the tasks that run beside the requests.

    Raises:
        ConfigError: as `application` does.
    """

    def __init__(self, orchestrators: Sequence[Orchestrator], tools: Instruments) -> None:
        first = orchestrators[0].runtime
        catalogs = [Catalog.of(runtime.config, runtime.levels) for runtime in (at.runtime for at in orchestrators)]
        counts = [tools.counts[number] for number in range(len(catalogs))]
        self.settings, self._names, self._tools = first.config.server, Names(*catalogs), tools
        self.admission = Admission(self.settings, self._names.routes)
        self.cascades = [_cascade(*parts) for parts in zip(orchestrators, catalogs, counts, strict=True)]
        for cascade in self.cascades[1:]:
            cascade.runtime.spend_with(first)
        self._stores = [Stores(cascade.runtime) for cascade in self.cascades]
        self._modes = [cascade.modes for cascade in self.cascades if cascade.modes is not None]
        self._budgets = [Budgets(first, tools)] if first.config.budget.caps else []
        self._tracer = tracer() if any(at.runtime.config.telemetry.spans for at in self.cascades) else None
        self._by_name = {cascade.catalog.name: cascade for cascade in self.cascades}
        self._app = Router(self._routes(), redirect_slashes=False)
        self.life, self.tasks, self._under_way, self._ready = self._living(), list[asyncio.Task[None]](), 0, False
        for modes in self._modes:
            modes.begin()

    def _routes(self) -> list[Route]:
        routes = [
            *(Route(path, _json(None), methods=["POST"]) for path in _DIALECTS),  # `_answered` handles these itself
            Route(
                "/v1/feedback",
                endpoint([(cascade.catalog, cascade.feedback) for cascade in self.cascades], self.settings),
                methods=["POST"],
            ),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/healthz", _json({"status": "ok"}), methods=["GET"]),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            *Pages(self._by_name).routes,
            *_of_modes(self._modes),
            *(route for budget in self._budgets for route in budget.routes),
        ]
        paths = [f"{' '.join(sorted((route.methods or set()) - {'HEAD'}))} {route.path}" for route in routes]
        return [*routes, Route("/", _json({"paths": paths}), methods=["GET"])]

    @asynccontextmanager
    async def _living(self) -> AsyncIterator[None]:
        works = [*self._tools.works(self._counted), *(mode.forever() for mode in self._modes)]
        works += [budget.forever() for budget in self._budgets]
        self.tasks, self._ready, drain_s = [*map(asyncio.create_task, works)], True, self.settings.drain_s
        yield
        self._ready = False
        await self.leave()
        await asyncio.gather(*(mode.drain(drain_s) for mode in self._modes))
        await asyncio.gather(*(  # calls whose clients have left
            asyncio.to_thread(cascade.runtime.halt.wait_idle, drain_s) for cascade in self.cascades
        ))  # fmt: skip
        for cascade in reversed(self.cascades):  # all spend under the first one's caps
            await cascade.orchestrator.aclose()

    async def _readyz(self, _: Request) -> Response:
        if not self._ready:
            return _json({"status": "stopping"}, 503)
        states = await asyncio.gather(*(store.states() for store in self._stores))
        values = {name: {state[name] for state in states if name in state} for state in states for name in state}
        merged = {name: value.pop() if len(value) == 1 else "degraded" for name, value in values.items()}
        serves = any("failing" not in map(state.get, at.needed) for at, state in zip(self._stores, states, strict=True))
        return _json({"status": "ready" if serves else "failing", **merged}, 200 if serves else 503)

    async def _counted(self) -> str:
        """Return the counts of the server and of each cascade."""
        admission = self.admission
        shared = "".join([
            self._tools.text,
            family("buffered_bytes", "Bodies of requests under way.", admission.buffered.used),
            family("in_flight", "Requests under way.", admission.places.used),
            family("newcomers", "Connections without an admitted request.", len(admission.newcomers)),
            family("newcomers_closed_total", "Connections closed for newer ones.", admission.newcomers.closed),
            *(budget.metrics() for budget in self._budgets),
        ])  # fmt: skip
        texts = await asyncio.gather(*(cascade.counted() for cascade in self.cascades))
        return shared + texts[0] if len(texts) == 1 else total([shared, *map(labelled, texts, self._by_name)])

    async def _metrics(self, _: Request) -> Response:
        text, peers = await self._counted(), self._tools.peers
        text = text if peers is None else await asyncio.to_thread(peers.total, text)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def _models(self, request: Request) -> Response:
        allowed = request.scope["exchange"].visit.limits.models
        names = [name for name in self._names.routes if allowed is None or name in allowed]
        return _json({"object": "list", "data": [*map(self._names.entry, names)], "has_more": False})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        request.scope["exchange"].visit.refuse_model(name)
        return _json(self._names.entry(name))

    @property
    def busy(self) -> bool:
        """Whether requests, calls whose clients have left, or calls for drawn requests are under way."""
        return self._under_way > 0 or any(
            (cascade.modes is not None and cascade.modes.completing) or not cascade.runtime.halt.wait_idle(0.0)
            for cascade in self.cascades
        )

    async def leave(self) -> None:
        """Stop the tasks that run beside the requests."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def take_over(self, before: Edge) -> None:
        """Take over the state of an earlier edge."""
        self.admission.take_over(before.admission)
        for cascade, earlier in zip(self.cascades, before.cascades, strict=True):
            cascade.take_over(earlier)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope["path"]  # a dialect's, or one below it; on other paths errors have OpenAI's form
        kind = _DIALECTS.get(path) or next(
            (kind for base, kind in _DIALECTS.items() if path.startswith(f"{base}/")), ChatCompletions
        )
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        exchange = HttpExchange(send, headers, kind, caller=Traceparent.of(headers.get("traceparent")))
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
            exchange.status, exchange.reason = _CLIENT_LEFT, "client_left"
        finally:
            self._under_way -= 1
            self._ended(exchange, scope["method"], path)

    def _ended(self, exchange: HttpExchange, method: str, path: str) -> None:
        """Count a request that has ended, log it, and give back what it took."""
        if (visit := exchange.visit) is not None and not exchange.calls:
            visit.end()
        elif visit is not None:
            asyncio.gather(*exchange.calls, return_exceptions=True).add_done_callback(lambda _: visit.end())
        status, access = _CLIENT_LEFT if exchange.status is None else exchange.status, self._tools.access
        if exchange.model is not None:
            took_s, metrics = exchange.duration_s, exchange.metrics or self.cascades[0].metrics
            metrics.count(exchange.model, status, took_s, exchange.receipt)
        if access is not None and path not in _OPEN:
            access.write(exchange.logged(method, path, status))

    async def _answered(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        """Answer a request; if it fails, return the refusal. Raises ClientLeftError."""
        limit_s = self.settings.request_s
        try:
            async with asyncio.timeout(limit_s + _GRACE_S) as clock:
                self._admit(scope)
                exchange: HttpExchange = scope["exchange"]
                asks, name = scope["path"] in _DIALECTS, f"{scope['method']} {scope['path']}"
                traced = self._tracer if asks else None
                with request_span(traced, name, exchange.trace_id, exchange.caller, exchange.key) as span:
                    if asks and scope["method"] == "POST":
                        await answer_chat(self._by_name, self._names, exchange, receive)
                    else:
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
        except Exception as error:  # noqa: BLE001 - a bug of ours must not stay silent, nor show a page of its own
            if isinstance(error, TimeoutError) and clock.expired():
                return refusal_of(GatewayError(504, f"No answer within {limit_s:g} s.", code="request_timeout"))
            logger.error("a request failed: %s", redact("".join(traceback.format_exception(error))))
            _let_go(error)
            return refusal_of(GatewayError(500, "The gateway failed. See its log.", code="internal_error"))
        return None

    def _admit(self, scope: Scope) -> None:
        """Check a request's path, key, rate and scope. Raises GatewayError (401, 403, 404 or 429)."""
        path, settings, exchange = scope["path"], self.settings, scope["exchange"]
        if not path.isprintable():  # the router also takes "/metrics\n" for /metrics, which needs a scope
            raise GatewayError(404, "There is no such path: it has control characters.")
        if path in _OPEN:
            return
        has_key = not exchange.headers.keys().isdisjoint(("authorization", "x-api-key"))
        if settings.keys and needs_no_key(scope["method"], path, has_key=has_key):
            return
        exchange.owner = key = auth.check(exchange.headers, settings)
        CALLER.set(exchange.key)
        OUTLIVING.set(exchange.calls)
        exchange.visit = self.admission.visit(key)
        if ADMITTED in scope:
            scope[ADMITTED]()
        opens = auth.SCOPES.get(f"{scope['method']} {path}", auth.SCOPES.get(path))
        scopes = ("ask",) if path in _DIALECTS else opens or ()
        if scopes and key is not None and not auth.allows(settings, key, *scopes):
            message = f"The key {key.name} lacks the scope {' or '.join(scopes)}: server.keys[].scopes."
            raise GatewayError(403, message, code="missing_scope")


def _let_go(error: BaseException | None) -> None:
    """Break the reference cycles between an error and the frames that it passed through.

    Otherwise a full garbage collection frees them much later, and every request waits for it.
    """
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__context__
