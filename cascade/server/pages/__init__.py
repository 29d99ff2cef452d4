"""The pages `/ui` and `/ui/review`: who may see them, and how they are sent.

The page's own script sends keys as a header, never as a cookie, so no other site can make a browser act with a key. If
the server has no keys, a change must be JSON and must not come from another site. A page loads one script and one style
sheet of this package. Its security policy allows no other source, no inline code and no frame, and every value is
escaped, so text from a log can never run as code.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from cascade.errors import CascadeError
from cascade.money import dollars, usd
from cascade.safety import redact
from cascade.server.body import read_object
from cascade.server.chat import Cascade
from cascade.server.errors import GatewayError
from cascade.text import escaped

if TYPE_CHECKING:
    from cascade.server.pages.review import ReviewPage

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_TYPES = {"ui.css": "text/css", "ui.js": "text/javascript", "ui.svg": "image/svg+xml"}
_STATIC = "/ui/static/"
_SHELLS = frozenset({"/ui", "/ui/", "/ui/review"})
_LONGEST_NAME = 60
_MOST_KEYS = 50
"""The most keys since the last judgement: answers, and moves back."""
_MINUS, _SPACE = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"


def needs_no_key(method: str, path: str, *, has_key: bool) -> bool:
    """Return whether a request needs no key: one for the files of a page, or for a page, which then asks for a key."""
    return method in {"GET", "HEAD"} and (path.startswith(_STATIC) or (path in _SHELLS and not has_key))


class Pages:
    """The pages of a server: `?cascade=NAME` chooses one of several."""

    def __init__(self, cascades: Mapping[str, Cascade]) -> None:
        self._cascades, self._first = cascades, next(iter(cascades))
        self._reviews: dict[str, ReviewPage] = {}
        self._settings = cascades[self._first].runtime.config.server
        self._reading = asyncio.Lock()  # one read at a time: other requests need the threads

    def _names(self, request: Request) -> list[str]:
        """Return the names of the cascades that a key may see."""
        return [name for name, at in self._cascades.items() if request.scope["exchange"].sees(at.catalog)]

    def _name(self, request: Request) -> str:
        """Return the name of the cascade that a page is about. Raises GatewayError (404)."""
        names = self._names(request)
        if (name := request.query_params.get("cascade", *names[:1])) not in names:
            raise GatewayError(404, "There is no such cascade.")
        return name

    async def _view(self, request: Request, *pressed: str) -> dict[str, Any]:
        from cascade.server.pages.review import ReviewPage  # loads numpy, which only an opened page needs

        if (name := self._name(request)) not in self._reviews:
            self._reviews[name] = ReviewPage(self._cascades[name].runtime.config)
        async with self._reading:
            return await asyncio.to_thread(self._reviews[name].view, *pressed)

    @property
    def routes(self) -> list[Route]:
        """The routes of the pages."""
        return [
            Route("/ui", self._status),
            Route("/ui/", RedirectResponse("/ui", 308), methods=["GET"]),
            Route("/ui/review", self._review),
            Route("/ui/review/press", self._press, methods=["POST"]),
            Route(f"{_STATIC}{{name:path}}", _file),
        ]

    async def _status(self, request: Request) -> Response:
        if self._locked(request):
            return self._page(request, "login.html", "status")
        from cascade.server.pages.status import status  # loads numpy

        cascade = self._cascades[self._name(request)]
        try:
            async with self._reading:
                if cascade.modes is not None:
                    await cascade.modes.refreshed()
                values = cascade.runtime, cascade.catalog.guide, datetime.now(UTC), cascade.modes
                contents = await asyncio.to_thread(status, *values)
        except CascadeError as error:
            return self._problem(request, "status", 503, "The traces cannot be read", error)
        return self._page(request, "status.html", "status", errors=cascade.metrics.unserved, **contents)

    async def _review(self, request: Request) -> Response:
        if self._locked(request):
            return self._page(request, "login.html", "review")
        reviewer = request.scope["exchange"].key or _name(request.query_params.get("as", ""))
        if reviewer is None:
            return self._page(request, "review.html", "review", view=None)
        try:
            view = await self._view(request, reviewer)
        except CascadeError as error:
            return self._problem(request, "review", 409, "Nothing can be judged", error)
        return self._page(request, "review.html", "review", view=view, keyed=bool(self._settings.keys))

    async def _press(self, request: Request) -> Response:
        # A browser sends the origin in a header that no page can change. A client that is not a browser has no
        # credentials that another site could use.
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise GatewayError(403, "Another site sent this request.", code="cross_site")
        exchange = request.scope["exchange"]
        reviewer, pair, keys = await read_object(request.receive, request.headers, exchange.visit, _pressed)
        view = await self._view(request, exchange.key or reviewer, pair, keys)
        return self._page(request, "review.html", "review", view=view, keyed=bool(self._settings.keys))

    def _locked(self, request: Request) -> bool:
        """Return whether a page has to ask for a key; a key without the scope was refused before (`auth.SCOPES`)."""
        return bool(self._settings.keys) and request.scope["exchange"].owner is None

    def _problem(self, request: Request, here: str, status: int, heading: str, error: CascadeError) -> Response:
        return self._page(request, "problem.html", here, status, heading=heading, message=redact(str(error)))

    def _page(self, request: Request, template: str, here: str, status: int = 200, **values: Any) -> Response:
        chosen, unlocked = request.query_params.get("cascade"), template != "login.html"
        values |= {"here": here, "chosen": chosen, "query": "" if chosen is None else f"?cascade={quote(chosen)}"}
        values |= {"name": self._name(request) if unlocked else self._first, "names": self._names(request)}
        text = _templates().get_template(template).render(values)
        return Response(text, status, headers=HEADERS, media_type="text/html; charset=utf-8")


def _pressed(body: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return a reviewer's name, the pair on the screen, and the keys since the last judgement."""
    name, pair, keys = (body.get(field) for field in ("reviewer", "pair", "keys"))
    reviewer = _name(name) if isinstance(name, str) else None
    if reviewer is None or not isinstance(pair, str):
        raise GatewayError(400, "reviewer and pair are required.")
    if not isinstance(keys, str) or not 0 < len(keys) <= _MOST_KEYS:
        raise GatewayError(400, f"keys must be 1 to {_MOST_KEYS} keys.", param="keys")
    if "q" in keys:
        raise GatewayError(400, "To end a review, close the page.", param="keys")
    return reviewer, pair, keys


def _name(text: str) -> str | None:
    """Return a reviewer's name; None for an invalid one."""
    name = " ".join(text.split())
    return name if name.isprintable() and 0 < len(name) <= _LONGEST_NAME else None


@cache
def _files() -> dict[str, bytes]:
    folder = resources.files("cascade.server.pages").joinpath("static")
    return {name: folder.joinpath(name).read_bytes() for name in _TYPES}


async def _file(request: Request) -> Response:
    """Return a file of the package. The name in the path is never used as a path."""
    name = request.path_params["name"]
    if name not in _TYPES:
        raise GatewayError(404, "There is no such file.")
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(_files()[name], headers=headers, media_type=_TYPES[name])


def _address(name: str) -> str:
    """Return the address of a file, with its hash, so that a browser keeps the file until it changes."""
    return f"{_STATIC}{name}?{hashlib.sha256(_files()[name]).hexdigest()[:12]}"


@cache
def _templates() -> Any:
    """Return the templates; they escape every value and write control characters as escapes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("cascade.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        # Markup comes from a template and stays.
        finalize=lambda value: escaped(value) if type(value) is str else value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(money=money, share=share, time=time_of, whole=lambda count: f"{count:,}")
    templates.globals.update(static=_address)
    return templates


def money(nano: int | None) -> str:
    """Return nano-dollars in USD with three significant digits.

    >>> money(1_234_567_890), money(-20_000_000), money(None)
    ('$1.23', '−$0.0200', 'unknown')
    """
    return "unknown" if nano is None else f"{_MINUS if nano < 0 else ''}{dollars(usd(abs(nano)))}"


def share(value: float | None) -> str:
    r"""Return a share as a rounded percentage.

    >>> share(0.6049), share(0.0123), share(-0.2), share(None)
    ('60\xa0%', '1.2\xa0%', '−20\xa0%', 'unknown')
    """
    if value is None:
        return "unknown"
    digits = 0 if abs(value) >= 0.1 or value == 0 else 1
    return f"{_MINUS if value < 0 else ''}{abs(value) * 100:.{digits}f}{_SPACE}%"


def time_of(text: str) -> str:
    """Return an ISO time as UTC to the second, or an ISO date, as the pages show it.

    >>> time_of("2026-11-12T10:00:00.123+00:00"), time_of("2026-11-12"), time_of("")
    ('12 Nov 2026 10:00:00', '12 Nov 2026', 'unknown')
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return "unknown"
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC)
    return f"{moment.day} {moment:%b %Y}" + (f" {moment:%H:%M:%S}" if len(text) > len("2026-11-12") else "")
