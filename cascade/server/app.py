"""The application: which endpoint answers each path."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from cascade.budget.tokens import estimate_chat
from cascade.orchestrator import Orchestrator
from cascade.server import metrics
from cascade.server.asking import Asked
from cascade.server.bodies import read_object
from cascade.server.catalog import Catalog
from cascade.server.chat import ChatEndpoint
from cascade.server.dialects.base import encoded
from cascade.server.dialects.completions import ChatCompletions
from cascade.server.dialects.messages import Messages
from cascade.server.dialects.responses import Responses
from cascade.server.edge import Edge
from cascade.server.feedback import FeedbackEndpoint
from cascade.server.metrics import Metrics
from cascade.server.openapi import document
from cascade.server.pages.endpoints import Pages
from cascade.server.promoter import Promoter
from cascade.server.switches import cascade_routes

if TYPE_CHECKING:
    from cascade.server.modes import Modes


def application(orchestrator: Orchestrator) -> Edge:
    """Return the ASGI application that serves an orchestrator. It is closed when the application shuts down.

    Raises:
        ConfigError: no chat request can be served with its configuration.
    """
    settings = orchestrator.runtime.config.server
    catalog, counts = Catalog.of(orchestrator.runtime.config, orchestrator.runtime.levels), Metrics()
    ready = False

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        nonlocal ready
        promoter = None if modes is None else Promoter(modes)
        if promoter is not None:
            promoter.start()
        ready = True
        yield
        ready = False
        if promoter is not None and modes is not None:
            await promoter.stop()
            await modes.drain(settings.drain_s)
        await orchestrator.aclose()

    async def model(request: Request) -> Response:
        return _json(catalog.entry(request.path_params["name"]))

    async def readyz(_: Request) -> Response:
        if not ready:
            return _json({"status": "stopping"}, 503)
        traces = orchestrator.runtime.traces  # a store that fails stops no request
        return _json({"status": "ready", "traces": "ok" if traces is None or traces.problem is None else "failing"})

    async def counted(_: Request) -> Response:
        text = counts.text(alarm=orchestrator.runtime.alarm is not None)
        text += "" if modes is None else modes.metrics()
        text += "" if (traces := orchestrator.runtime.traces) is None else metrics.of_traces(traces)
        return Response(text, headers={"content-type": metrics.CONTENT_TYPE})

    async def count_tokens(request: Request) -> Response:
        """Answer with the upper estimate that also bounds prices: each model counts in its own way."""
        body = await read_object(request.receive, request.headers.get("content-type", ""), settings)
        asked = Asked.of(body, request.headers, catalog, Messages())
        return _json({"input_tokens": estimate_chat(asked.request)})

    orchestrator.runtime.break_circuits()
    guide = orchestrator.runtime.config.prices()[catalog.guide]
    dialects = {one.path: one for one in (ChatCompletions(), Responses(), Messages())}
    modes = _modes(orchestrator, catalog)
    told = FeedbackEndpoint(orchestrator, settings, modes)
    chats = [
        ChatEndpoint(one, orchestrator, settings, catalog, counts, guide, told.hold, modes) for one in dialects.values()
    ]
    routes = [
        *(Route(one.dialect.path, one, methods=["POST"]) for one in chats),
        Route("/v1/feedback", told, methods=["POST"]),
        Route("/v1/models", _always(catalog.listing())),
        Route("/v1/models/{name:path}", model),
        Route(f"{Messages.path}/count_tokens", count_tokens, methods=["POST"]),
        Route("/", _always({"name": settings.name, "api": "/v1", "description": "/openapi.json", "pages": "/ui"})),
        Route("/healthz", _always({"status": "ok"})),
        Route("/readyz", readyz),
        Route("/metrics", counted),
        Route("/openapi.json", _always(document(catalog, modes=modes is not None))),
        *Pages(orchestrator, catalog, counts).routes,
        *([] if modes is None else cascade_routes(modes)),
    ]
    return Edge(Router(routes, redirect_slashes=False, lifespan=lifespan), settings, counts, dialects)


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

    async def answered(_: Request) -> Response:
        return _json(value)

    return answered
