"""Runs looks in processes of their own: those that a person asks for, and those that the server starts.

One process at a time looks at a cascade, whichever replica started it (`CascadeState.leased`). It uses only the store,
so killing the replica loses nothing: any replica resumes the look on its next turn.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cascade.errors import CascadeError
from cascade.modes.plan import plan_of
from cascade.modes.store import LOST_S
from cascade.safety import redact
from cascade.server.refusals import Refused

if TYPE_CHECKING:
    from cascade.modes.state import CascadeState
    from cascade.server.modes import Modes

logger = logging.getLogger("cascade")
EVERY_S = 15.0
"""Seconds between a server's checks whether a look is due."""
_GROWTH = 1.1
"""A server tries again once a tenth more rows are settled than at its last try."""
_NICE = 10
_LONGEST_MESSAGE = 1_000


async def run_promote(configuration: Path, *arguments: str) -> dict[str, Any]:
    """Run `cascade promote` in a process of its own, and return its result.

    Args:
        configuration: the file.
        arguments: of the command, beside the configuration.

    Raises:
        Refused: (409) it could not look; with its message.
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
        raise Refused(409, message or "The look ended without a result.", code="no_promotion") from None
    return page


class Promoter:
    """Expires rows and counts audits while the server runs, and promotes if `modes.promote` is automatic.

    Args:
        modes: of the cascade.
        every_s: seconds between its turns.
    """

    def __init__(self, modes: Modes, every_s: float = EVERY_S) -> None:
        self._modes, self._every_s = modes, every_s
        self._tried: tuple[int, int] = (-1, 0)
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, in the running event loop."""
        self._task = asyncio.get_running_loop().create_task(self._forever())

    async def stop(self) -> None:
        """Stop; a process that is looking is killed, and its look is resumed later."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _forever(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            try:
                await self.turn()
            except (CascadeError, Refused) as error:
                logger.warning("modes: the server could not promote: %s", redact(str(error)))

    async def turn(self) -> dict[str, Any] | None:
        """Promote if that is configured and due; None if it is not.

        Raises:
            Refused, StoreError: it failed; the next turn tries again.
        """
        modes = self._modes
        state = await asyncio.to_thread(modes.store.state, modes.cascade, modes.state)
        await asyncio.to_thread(modes.store.expire, modes.cascade, _now_s() - LOST_S)
        await modes.count(state)
        if modes.settings.promote == "manual" or _is_leased(state) or not await asyncio.to_thread(self._is_due, state):
            return None
        try:
            page = await run_promote(
                modes.configuration(), "--cascade", modes.cascade, "--if-ready", "--by", "the server"
            )
        except Refused:
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


def _now_s() -> float:
    return datetime.now(UTC).timestamp()


def _is_leased(state: CascadeState) -> bool:
    return state.lease is not None and state.lease.until_s > _now_s()
