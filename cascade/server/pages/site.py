"""Sends a page: templates with every value escaped, and headers that forbid all other sources.

A page loads one script and one style sheet of this package. Its security policy allows no other source, no inline code
and no frame, so text from a log can never run as code.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from starlette.responses import Response

from cascade.server.pages import words
from cascade.text import spelled

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_TYPES = {"ui.css": "text/css", "ui.js": "text/javascript", "ui.svg": "image/svg+xml"}
STATIC = "/ui/static/"


class _File(NamedTuple):
    """A file that a page loads, with its hash, which is part of its address."""

    data: bytes
    version: str


@cache
def _static() -> dict[str, _File]:
    folder = resources.files("cascade.server.pages").joinpath("static")
    files = {name: folder.joinpath(name).read_bytes() for name in _TYPES}
    return {name: _File(data, hashlib.sha256(data).hexdigest()[:12]) for name, data in files.items()}


def static(name: str) -> Response | None:
    """Return a file of the package; None for any other name. The name is never used as a path."""
    file = _static().get(name)
    if file is None:
        return None
    headers = {**HEADERS, "cache-control": "public, max-age=31536000, immutable"}
    return Response(file.data, headers=headers, media_type=_TYPES[name])


def _address(name: str) -> str:
    return f"{STATIC}{name}?{_static()[name].version}"


@cache
def _templates() -> Any:
    """Return the templates; they escape every value and write control characters as escapes."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    templates = Environment(
        loader=PackageLoader("cascade.server.pages"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_spelled,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(words.FILTERS)
    templates.globals.update(static=_address)
    return templates


def _spelled(value: Any) -> Any:
    """Write control characters of plain text as escapes; markup comes from a template and stays."""
    return spelled(value) if type(value) is str else value


def page(template: str, status: int = 200, **values: Any) -> Response:
    """Return a page.

    Args:
        template: its name in `templates`.
        status: HTTP's.
        values: the plain values that the template shows.
    """
    text = _templates().get_template(template).render(**values)
    return Response(text, status, headers=HEADERS, media_type="text/html; charset=utf-8")
