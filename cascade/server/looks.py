"""Looks at the modes' state: `/v1/cascades` shows and changes it, and the server takes looks by itself.

A look runs in a process of its own, one at a time for a cascade, whichever replica started it (`CascadeState.leased`).
It uses only the store, so killing the replica loses nothing: any replica resumes the look on its next turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cascade.errors import CascadeError
from cascade.modes.plan import plan_of
from cascade.modes.state import CascadeState
from cascade.modes.store import LOST_S
from cascade.safety import redact
from cascade.server import auth
from cascade.server.dialects import encoded
from cascade.server.errors import GatewayError
from cascade.server.limits import read_object
from cascade.server.modes import Modes

logger = logging.getLogger("cascade")
EVERY_S = 15.0
"""Seconds between a server's checks whether a look is due."""
_GROWTH = 1.1
"""A server tries again once a tenth more rows are settled than at its last try."""
_NICE = 10
_LONGEST_MESSAGE, _LONGEST_WHY = 1_000, 500
_NEWEST = 200
"""The most audits whose evidence is shown."""


async def run_promote(configuration: Path, *arguments: str) -> dict[str, Any]:
    """Run `cascade promote` in a process of its own, and return its result.

    Args:
        configuration: the file.
        arguments: of the command, beside the configuration.

    Raises:
        GatewayError: (409) it could not look; with its message.
    """
    command = [sys.executable, "-m", "cascade", "promote", str(configuration), "--json", *arguments]
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe)
    with suppress(AttributeError, OSError):  # requests have priority; Windows has no nice
        os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:  # the server stops
            process.kill()
            await process.wait()
    try:
        page: dict[str, Any] = json.loads(out)
    except ValueError:
        message = err.decode("utf-8", "replace").strip().removeprefix("error:").strip()[-_LONGEST_MESSAGE:]
        raise GatewayError(409, message or "The look ended without a result.", code="no_promotion") from None
    return page


class Looks:
    """Expires rows and counts audits while the server runs, promotes if `modes.promote` is automatic, serves the paths.

    Changes by a path need a key with the scope `admin`.

    Args:
        modes: of the cascade.
    """

    def __init__(self, modes: Modes) -> None:
        self._modes = modes
        self._tried: tuple[int, int] = (-1, 0)

    # --- by the server ---

    async def forever(self) -> None:
        """Take a turn from time to time, until it is cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                await self.turn()
            except (CascadeError, GatewayError) as error:
                logger.warning("modes: the server could not promote: %s", redact(str(error)))

    async def turn(self) -> dict[str, Any] | None:
        """Promote if that is configured and due; None if it is not.

        Raises:
            GatewayError, StoreError: it failed; the next turn tries again.
        """
        modes = self._modes
        state = await asyncio.to_thread(modes.store.state, modes.cascade, modes.state)
        await asyncio.to_thread(modes.store.expire, modes.cascade, _now_s() - LOST_S)
        await modes.count(state)
        if modes.settings.promote == "manual" or _is_leased(state) or not await asyncio.to_thread(self._is_due, state):
            return None
        arguments = ("--cascade", modes.cascade, "--if-ready", "--by", "the server")
        try:
            page = await run_promote(modes.configuration(), *arguments)
        except GatewayError:
            if _is_leased(await asyncio.to_thread(modes.store.state, modes.cascade)):  # another replica was faster
                return None
            raise
        counts = await asyncio.to_thread(modes.store.counts, modes.cascade)
        self._tried = state.era, counts.fit + counts.certify
        return page

    def _is_due(self, state: CascadeState) -> bool:
        """Whether a look was interrupted, or the next one has enough rows, and more than at the last try."""
        store, name = self._modes.store, self._modes.cascade
        if any(look.verdict == "open" for look in store.looks(name)):
            return True
        counts, (era, rows) = store.counts(name), self._tried
        if state.killed or state.mode == "enforce":
            return False
        more = era != state.era or counts.fit + counts.certify >= max(rows + 1, rows * _GROWTH)
        return more and plan_of(state, counts, self._modes.settings, unjudged=0.0).is_ready

    # --- by a path ---

    @property
    def routes(self) -> list[Route]:
        """The paths."""
        acts = {"promote": self._promote, "mode": self._set_mode, "kill": self._kill}
        changes = [
            Route(f"/v1/cascades/{{name}}/{name}", self._change(act), methods=["POST"]) for name, act in acts.items()
        ]
        return [Route("/v1/cascades", self._list), *changes]

    async def _list(self, _: Request) -> Response:
        return _json({"object": "list", "data": [await self._shown()]})

    def _change(
        self, act: Callable[[Mapping[str, Any], str], Awaitable[dict[str, Any] | None]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return the endpoint of a change; it answers with what the change returns, or with the new state."""

        async def endpoint(request: Request) -> Response:
            key: str | None = request.scope["exchange"].key
            auth.refuse_without(self._modes.server, key, "admin")
            if request.path_params["name"] != self._modes.cascade:
                raise GatewayError(404, f"There is one cascade here: {self._modes.cascade}.", code="cascade_not_found")
            kind = request.headers.get("content-type", "")
            body = await read_object(request.receive, kind, self._modes.server, dict)
            page = await act(body, key or "the admin page")
            state = await self._shown()
            return _json(state if page is None else {"promotion": page, "cascade": state})

        return endpoint

    async def _promote(self, _: Mapping[str, Any], by: str) -> dict[str, Any]:
        arguments = ("--cascade", self._modes.cascade, "--by", by)
        return await asyncio.shield(run_promote(self._modes.configuration(), *arguments))

    async def _set_mode(self, body: Mapping[str, Any], by: str) -> None:
        mode, why = body.get("mode"), _why(body)
        if mode not in ("observe", "enforce", "fallback"):
            raise GatewayError(400, "mode must be observe, enforce or fallback.", param="mode")
        await self._modes.changed(lambda state, at: state.set_mode(mode, by, why, at))

    async def _kill(self, body: Mapping[str, Any], by: str) -> None:
        on, why = body.get("on"), _why(body)
        if not isinstance(on, bool):
            raise GatewayError(400, "on must be true or false.", param="on")
        await self._modes.changed(lambda state, at: state.switched(on, by, why, at))

    async def _shown(self) -> dict[str, Any]:
        """Return the state of the cascade as plain JSON values."""
        return await asyncio.to_thread(self._document, await self._modes.refreshed())

    def _document(self, state: CascadeState) -> dict[str, Any]:
        store, settings, name = self._modes.store, self._modes.settings, self._modes.cascade
        counts, looks, monitor, certificate = store.counts(name), store.looks(name), state.monitor, state.in_force
        audits = [] if certificate is None else store.draws(name, newest=_NEWEST, counted_for=certificate.certificate)
        return {
            "name": name,
            "mode": state.mode,
            "killed": state.killed,
            "alarm": state.alarm,
            "certificate": _fields(certificate, "certificate", "look", "risk", "level", "n"),
            "monitor": _fields(monitor, "audits", "misses", "e_value", "level", "alarmed_after"),
            "audits": [_fields(row, "trace_id", "differs", "e_value") for row in audits],
            "rows": counts._asdict(),
            "looks": [{**(_fields(look, "look", "at", "by", "verdict") or {}), **look.page} for look in looks],
            "promote": settings.promote,
            "plan": plan_of(state, counts, settings)._asdict(),
            "risk": settings.risk,
            "confidence": settings.confidence,
            "spent": state.spent,
            "changes": [change._asdict() for change in state.changes],
        }


def _fields(value: object | None, *names: str) -> dict[str, Any] | None:
    """Return some attributes of a value; None for None."""
    return None if value is None else {name: getattr(value, name) for name in names}


def _json(document: Mapping[str, Any]) -> Response:
    return Response(encoded(document), media_type="application/json")


def _why(body: Mapping[str, Any]) -> str:
    why = body.get("why", "by hand")
    if not isinstance(why, str) or len(why) > _LONGEST_WHY:
        raise GatewayError(400, f"why must be a text of at most {_LONGEST_WHY} characters.", param="why")
    return why


def _now_s() -> float:
    return datetime.now(UTC).timestamp()


def _is_leased(state: CascadeState) -> bool:
    return state.lease is not None and state.lease.until_s > _now_s()
