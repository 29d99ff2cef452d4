"""Routes that ask no model: the number of tokens of a request in Anthropic's form, and the root."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cascade.budget.tokens import estimate_chat
from cascade.config.schema import ServerConfig
from cascade.server.asking import Asked
from cascade.server.bodies import read_object
from cascade.server.catalog import Catalog
from cascade.server.dialects.base import encoded
from cascade.server.dialects.messages import Messages


def counting_routes(catalog: Catalog, settings: ServerConfig) -> list[Route]:
    """Return the routes. The count is the upper estimate that also bounds prices: each model counts in its own way."""

    async def count_tokens(request: Request) -> Response:
        body = await read_object(request.receive, request.headers.get("content-type", ""), settings)
        asked = Asked.of(body, request.headers, catalog, Messages())
        return Response(encoded({"input_tokens": estimate_chat(asked.request)}), media_type="application/json")

    async def root(_: Request) -> Response:
        found = {"name": settings.name, "api": "/v1", "description": "/openapi.json", "pages": "/ui"}
        return Response(encoded(found), media_type="application/json")

    return [Route(f"{Messages.path}/count_tokens", count_tokens, methods=["POST"]), Route("/", root)]
