"""The endpoints `/ui` and `/ui/review`: access control, and the requests of the pages.

The page's own script sends keys as a header, never as a cookie, so no other site can make a browser act with a key. If
the server has no keys, a change must be JSON and must not come from another site.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cascade.errors import CascadeError
from cascade.orchestrator import Orchestrator
from cascade.safety import redact
from cascade.server import access
from cascade.server.bodies import read_object
from cascade.server.catalog import Catalog
from cascade.server.metrics import Metrics
from cascade.server.pages.site import STATIC, page, static
from cascade.server.refusals import Refused

if TYPE_CHECKING:
    from cascade.server.pages.desk import Desk

_SHELLS = frozenset({"/ui", "/ui/", "/ui/review"})
_LONGEST_NAME = 60
_MOST_KEYS = 50
"""The most keys since the last judgement: those that go back, and the answers."""


def needs_no_key(method: str, path: str, *, has_key: bool) -> bool:
    """Whether a request needs no key: the files of a page, and the page itself, which then asks for a key."""
    return method in {"GET", "HEAD"} and (path.startswith(STATIC) or (path in _SHELLS and not has_key))


class Pages:
    """The pages of a server.

    Args:
        orchestrator: the orchestrator that serves.
        catalog: the models that clients see.
        metrics: the counts of this process.
    """

    def __init__(self, orchestrator: Orchestrator, catalog: Catalog, metrics: Metrics) -> None:
        self._orchestrator, self._catalog, self._metrics = orchestrator, catalog, metrics
        self._settings = orchestrator.runtime.config.server
        self._reading = asyncio.Lock()

    @cached_property
    def _desk(self) -> Desk:
        from cascade.server.pages.desk import Desk  # numpy and the readers of logs: once somebody opens a page

        return Desk(self._orchestrator.runtime.config)

    @property
    def routes(self) -> list[Route]:
        """The routes of the pages."""
        return [
            Route("/ui", self._status),
            Route("/ui/", self._slash),
            Route("/ui/review", self._review),
            Route("/ui/review/press", self._press, methods=["POST"]),
            Route(f"{STATIC}{{name:path}}", self._static),
        ]

    async def _slash(self, _: Request) -> Response:
        return RedirectResponse("/ui", 308)

    async def _static(self, request: Request) -> Response:
        file = static(request.path_params["name"])
        if file is None:
            raise Refused(404, "There is no such file.")
        return file

    async def _status(self, request: Request) -> Response:
        if self._locked(request):
            return self._page("login.html", "status")
        from cascade.server.pages.status import status  # the same

        served, guide, now = self._orchestrator, self._catalog.guide, datetime.now(UTC)
        try:
            async with self._reading:  # one at a time, however many people look
                contents = await asyncio.to_thread(status, served, guide, now)
        except CascadeError as error:
            return self._page("problem.html", "status", 503, heading="The traces cannot be read", said=_said(error))
        return self._page("status.html", "status", errors=self._metrics.unserved, **contents)

    async def _review(self, request: Request) -> Response:
        if self._locked(request):
            return self._page("login.html", "review")
        reviewer = _name(request.query_params.get("as", ""))
        if reviewer is None:
            return self._page("review.html", "review", view=None, suggested=_key_of(request) or "")
        try:
            view = await asyncio.to_thread(self._desk.view, reviewer)
        except CascadeError as error:
            return self._page("problem.html", "review", 409, heading="Nothing can be judged", said=_said(error))
        return self._page("review.html", "review", view=view, along=self._settings.review.policy is not None)

    async def _press(self, request: Request) -> Response:
        # A browser tells the origin, and no page can change that header. A client that is not a browser has no
        # credentials that another site could use.
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise Refused(403, "Another site asked for this.", code="cross_site")
        access.refuse_without(self._settings, _key_of(request), "view", "admin")
        body = await read_object(request.receive, request.headers.get("content-type", ""), self._settings)
        reviewer, pair, keys = (body.get(name) for name in ("reviewer", "pair", "keys"))
        reviewer = _name(reviewer) if isinstance(reviewer, str) else None
        if reviewer is None or not isinstance(pair, str):
            raise Refused(400, "Say reviewer and pair.")
        if not isinstance(keys, str) or not 0 < len(keys) <= _MOST_KEYS:
            raise Refused(400, f"keys must be 1 to {_MOST_KEYS} keys.", param="keys")
        if "q" in keys:
            raise Refused(400, "To end a review, close the page.", param="keys")
        view = await asyncio.to_thread(self._desk.press, reviewer, pair, keys)
        return self._page("review.html", "review", view=view, along=self._settings.review.policy is not None)

    def _locked(self, request: Request) -> bool:
        """Whether a page has to ask for a key. Raises Refused (403) for a key that may not look."""
        key = _key_of(request)
        if self._settings.keys and key is None:
            return True
        access.refuse_without(self._settings, key, "view", "admin")
        return False

    def _page(self, template: str, here: str, status: int = 200, **values: Any) -> Response:
        return page(template, status, here=here, name=self._settings.name, **values)


def _key_of(request: Request) -> str | None:
    name: str | None = request.scope["exchange"].key
    return name


def _name(text: str) -> str | None:
    """Return a reviewer's name; None for an invalid one."""
    name = " ".join(text.split())
    return name if name.isprintable() and 0 < len(name) <= _LONGEST_NAME else None


def _said(error: CascadeError) -> str:
    return redact(str(error))
