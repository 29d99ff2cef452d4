"""`POST /v1/feedback`: stores a client's later judgement of an answer beside the traces.

An audited answer with a certificate is kept in memory until its feedback comes; the certificate's monitor then counts
it once. Another process, or this one after a restart, can store the feedback but not count it.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from starlette.datastructures import Headers

from cascade.config import traces_url
from cascade.config.schema import ServerConfig
from cascade.orchestrator import Orchestrator
from cascade.records.database import LIMIT_S
from cascade.records.traces import Store
from cascade.server.access import allows
from cascade.server.bodies import Receive, read_object
from cascade.server.dialects.base import encoded
from cascade.server.edge import HttpExchange, Scope, Send
from cascade.server.refusals import Refused
from cascade.serving.monitors import AuditOutcome
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.server.modes import Modes

MOST_HELD = 1_000
"""The most audited answers that wait for feedback; beyond that the oldest is dropped."""
_FLUSH_S = 10.0
"""How long feedback waits for its trace, which is written 50 ms after the response, or when a drawn one is complete."""
_AGAIN_S = 1
"""After how many seconds a client may repeat feedback that came before its trace."""
_NEITHER = frozenset({"equal", "neither"})


class _NoTraceError(Exception):
    """The trace named by the feedback does not exist."""


class Feedback(NamedTuple):
    """A client's feedback on an answer.

    Attributes:
        trace_id: the trace of the answer.
        right: whether it is right.
        score: how good it is, in [0, 1].
        better: the name of the model that answered better; or "equal", or "neither".
    """

    trace_id: str
    right: bool | None = None
    score: float | None = None
    better: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Feedback:
        """Read feedback.

        Raises:
            Refused: it has no feedback, or is malformed.

        >>> Feedback.of({"trace_id": "0197", "right": True}).right
        True
        """
        trace_id, right, score, better = (body.get(name) for name in cls._fields)
        if not isinstance(trace_id, str) or not 0 < len(trace_id) <= 100 or not trace_id.isprintable():
            raise Refused(400, "trace_id must be the x-cascade-trace-id of a response.", param="trace_id")
        if right is None and score is None and better is None:
            raise Refused(400, "Say right (true or false), score (0 to 1), or better (a model).", param="right")
        if right is not None and not isinstance(right, bool):
            raise Refused(400, "right must be true or false.", param="right")
        number = isinstance(score, int | float) and not isinstance(score, bool)
        if score is not None and not (number and math.isfinite(score) and 0 <= score <= 1):
            raise Refused(400, "score must be a number from 0 to 1.", param="score")
        if better is not None and not isinstance(better, str):
            raise Refused(400, "better must be a model's name, equal, or neither.", param="better")
        return cls(trace_id, right, score, better)


class FeedbackEndpoint:
    """Takes feedback.

    Args:
        orchestrator: the orchestrator that gave the answers.
        settings: the limits, and the keys.
        modes: the cascade's modes, if it has any: they count the feedback instead.
    """

    def __init__(self, orchestrator: Orchestrator, settings: ServerConfig, modes: Modes | None = None) -> None:
        self._modes = modes
        self._orchestrator, self._settings = orchestrator, settings
        self._url = traces_url(orchestrator.runtime.config.traces)
        self._held: OrderedDict[str, Answer] = OrderedDict()

    def hold(self, trace_id: str, answer: Answer) -> None:
        """Keep an answer whose feedback would be counted."""
        if answer.audited and answer.certificate is not None:
            self._held[trace_id] = answer
            while len(self._held) > MOST_HELD:
                self._held.popitem(last=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's
        """Handle one feedback request."""
        exchange: HttpExchange = scope["exchange"]
        headers = Headers(scope=scope)
        said = Feedback.of(await read_object(receive, headers.get("content-type", ""), self._settings))
        if self._url is None:
            raise Refused(409, "Traces are off, so feedback cannot be stored: set traces.", code="no_traces")
        whole = self._modes is None or await self._modes.completed(said.trace_id, _FLUSH_S)
        try:
            served_by = await asyncio.to_thread(self._kept, said, exchange.key, self._url)
        except _NoTraceError:
            if whole:
                raise Refused(404, "There is no such trace.", code="trace_not_found", param="trace_id") from None
            late = "The trace is not complete yet: other models are still being asked. Send the feedback again."
            raise Refused(503, late, code="trace_pending", retry_after_s=_AGAIN_S) from None
        if self._modes is None:
            counted, reason = self._counted(said)
        elif not allows(self._settings, exchange.key, "view", "admin"):
            counted, reason = False, "only a key that may judge, with the scope view or admin, settles a drawn request"
        else:
            why = await self._modes.told(said.trace_id, said.right, said.better, served_by)
            counted, reason = why is None, why or ""
        data = {"object": "feedback", "trace_id": said.trace_id, "counted": counted, "reason": reason}
        await exchange.respond(200, encoded(data), [])

    def _kept(self, said: Feedback, reviewer: str | None, url: str) -> str | None:
        """Keep feedback; return the model whose answer it is about. Raises _NoTraceError if there is no trace."""
        row = {**said._asdict(), "episode_id": said.trace_id, "reviewer": reviewer}
        del row["trace_id"]
        with Store.open(url, limit_s=LIMIT_S) as store:
            models = store.models_of(said.trace_id)
            if not models:  # wait only for a trace that does not exist yet
                self._orchestrator.runtime.flush_traces(_FLUSH_S)
                models = store.models_of(said.trace_id)
            if not models:
                raise _NoTraceError
            if said.better is not None and said.better not in {*models, *_NEITHER}:
                known = ", ".join([*models, *sorted(_NEITHER)])
                raise Refused(400, f"better: for this answer it must be one of {known}.", param="better")
            store.add_feedback({**row, "created_at": datetime.now(UTC).isoformat(timespec="milliseconds")})
            return store.served_by(said.trace_id)

    def _counted(self, said: Feedback) -> tuple[bool, str]:
        """Report the feedback to the certificate's monitor, if it counts this answer."""
        if said.right is None:
            return False, "it does not say whether the answer is right"
        answer = self._held.pop(said.trace_id, None)
        if answer is None:
            return False, "the answer was not audited here, or was counted before"
        text, right = answer.text, said.right
        found: AuditOutcome = self._orchestrator.record_outcome(answer, lambda one: right if one == text else None)
        return found.counted, found.reason
