"""`/v1/cascades`: shows and changes the state of the cascade. Changes need a key with the scope `admin`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cascade.server import access
from cascade.server.bodies import read_object
from cascade.server.dialects.base import encoded
from cascade.server.promoter import run_promote
from cascade.server.refusals import Refused

if TYPE_CHECKING:
    from cascade.modes.state import CascadeState
    from cascade.server.modes import Modes

Act = Callable[["Modes", Mapping[str, Any], str], Awaitable[dict[str, Any]]]
_NEWEST = 200
"""The most audits whose evidence is shown."""


def cascade_routes(modes: Modes) -> list[Route]:
    """Return the paths."""

    async def listed(_: Request) -> Response:
        return _json({"object": "list", "data": [await shown(modes)]})

    def switch(act: Act) -> Callable[[Request], Awaitable[Response]]:
        async def acted(request: Request) -> Response:
            key: str | None = request.scope["exchange"].key
            access.refuse_without(modes.server, key, "admin")
            if request.path_params["name"] != modes.cascade:
                raise Refused(404, f"There is one cascade here: {modes.cascade}.", code="cascade_not_found")
            body = await read_object(request.receive, request.headers.get("content-type", ""), modes.server)
            return _json(await act(modes, body, key or "the admin page"))

        return acted

    acts: dict[str, Act] = {"promote": _promote, "mode": _set_mode, "kill": _kill}
    switches = [Route(f"/v1/cascades/{{name}}/{what}", switch(act), methods=["POST"]) for what, act in acts.items()]
    return [Route("/v1/cascades", listed), *switches]


def _json(document: Mapping[str, Any]) -> Response:
    return Response(encoded(document), media_type="application/json")


async def shown(modes: Modes) -> dict[str, Any]:
    """Return the state of the cascade as plain JSON values."""
    return await asyncio.to_thread(_document, modes, await modes.refreshed())


def _document(modes: Modes, state: CascadeState) -> dict[str, Any]:
    from cascade.modes.plan import plan_of

    store, settings = modes.store, modes.settings
    counts, monitor, certificate = store.counts(modes.cascade), state.monitor, state.in_force
    audits = (
        [] if certificate is None else store.draws(modes.cascade, newest=_NEWEST, counted_for=certificate.certificate)
    )
    return {
        "name": modes.cascade,
        "mode": state.mode,
        "killed": state.killed,
        "alarm": state.alarm,
        "certificate": None
        if certificate is None
        else {
            "id": certificate.certificate,
            "look": certificate.look,
            "risk": certificate.risk,
            "level": certificate.level,
            "n": certificate.n,
        },
        "monitor": None
        if monitor is None
        else {
            "audits": monitor.audits,
            "differing": monitor.misses,
            "unknown": counts.unknown,
            "e_value": monitor.e_value,
            "alarm_at": 1 / monitor.level,
            "alarmed_after": monitor.alarmed_after,
        },
        "audits": [{"trace_id": row.trace_id, "differs": row.differs, "e_value": row.e_value} for row in audits],
        "rows": {name: value for name, value in counts._asdict().items() if name != "unknown"},
        "looks": [
            {"look": look.look, "at": look.at, "by": look.by, "verdict": look.verdict, **look.page}
            for look in store.looks(modes.cascade)
        ],
        "promote": settings.promote,
        "plan": plan_of(state, counts, settings)._asdict(),
        "risk": settings.risk,
        "confidence": settings.confidence,
        "spent": state.spent,
        "changes": [change._asdict() for change in state.changes],
    }


async def _set_mode(modes: Modes, body: Mapping[str, Any], by: str) -> dict[str, Any]:
    mode, why = body.get("mode"), _why(body)
    if mode not in {"observe", "enforce", "fallback"}:
        raise Refused(400, "mode must be observe, enforce or fallback.", param="mode")
    await modes.changed(lambda state, at: state.set_mode(mode, by, why, at))
    return await shown(modes)


async def _kill(modes: Modes, body: Mapping[str, Any], by: str) -> dict[str, Any]:
    on, why = body.get("on"), _why(body)
    if not isinstance(on, bool):
        raise Refused(400, "on must be true or false.", param="on")
    await modes.changed(lambda state, at: state.switched(on, by, why, at))
    return await shown(modes)


def _why(body: Mapping[str, Any]) -> str:
    why = body.get("why", "by hand")
    if not isinstance(why, str) or len(why) > 500:
        raise Refused(400, "why must be a text of at most 500 characters.", param="why")
    return why


async def _promote(modes: Modes, _: Mapping[str, Any], by: str) -> dict[str, Any]:
    page = await asyncio.shield(run_promote(modes.configuration(), "--cascade", modes.cascade, "--by", by))
    return {"promotion": page, "cascade": await shown(modes)}
