"""`POST /v1/feedback`: stores a client's later judgement of an answer beside the traces.

`docs/serve.md#who-may-judge` says whose feedback is kept, and whose counts. An audited answer with a certificate is
kept in memory until its feedback comes; the certificate's monitor then counts it once. Another process, or this one
after a restart, can store the feedback but not count it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from cascade.config.schema import ServerConfig, ServerKeyConfig
from cascade.errors import StoreError, UsageError
from cascade.orchestrator import Orchestrator
from cascade.records import link
from cascade.records.traces import Store
from cascade.server import auth
from cascade.server.body import read_object
from cascade.server.dialects import encoded
from cascade.server.errors import GatewayError
from cascade.text import now_utc
from cascade.types import Answer

if TYPE_CHECKING:
    from cascade.server.catalog import Catalog
    from cascade.server.modes import Modes

MOST_WAITING, MOST_CHARS = 1_000, 50_000_000
"""The most audited answers that wait for feedback, and characters of their requests; the oldest is dropped first."""
_FLUSH_S = 10.0
"""How long feedback waits for its trace, written 50 ms after the response, or once a drawn request is complete."""
_THREADS = 4
"""How many pieces of feedback wait for a store at once, in threads apart from those that other requests need."""
_NOT_HERE = ("trace_not_found", "no_traces")
"""Error codes of a cascade that did not give the answer."""
_JUDGED = "this key has judged the answer before, and its first judgement stands"
_NEITHER = frozenset({"equal", "neither"})


class Feedback(BaseModel):
    """A client's feedback on an answer.

    Attributes:
        trace_id: the trace of the answer.
        right: whether it is right.
        score: how good it is, in [0, 1].
        better: the name of the model that answered better; or "equal", or "neither".

    >>> Feedback.of({"trace_id": "0197", "right": True}).right
    True
    """

    model_config = ConfigDict(strict=True, frozen=True)
    trace_id: Annotated[str, Field(max_length=100, pattern=r"^[ -~]+$")]
    right: bool | None = None
    score: Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)] | None = None
    better: str | None = None

    @classmethod
    def of(cls, body: Mapping[str, Any]) -> Feedback:
        """Read feedback from the body of a request. Raises GatewayError if it has none, or is malformed."""
        try:
            feedback = cls.model_validate(body)
        except ValidationError as error:
            problem = error.errors(include_url=False, include_input=False)[0]
            name = str(problem["loc"][0])
            raise GatewayError(400, f"{name}: {problem['msg']}.", param=name) from None
        if feedback.right is None and feedback.score is None and feedback.better is None:
            raise GatewayError(400, "Give right (true or false), score (0 to 1), or better (a model).", param="right")
        return feedback


def _unknown() -> GatewayError:
    return GatewayError(404, "There is no such trace.", code=_NOT_HERE[0], param="trace_id")


def endpoint(
    cascades: Sequence[tuple[Catalog, AnswerFeedback]], settings: ServerConfig
) -> Callable[[Request], Awaitable[Response]]:
    """Return the handler of feedback requests: the cascade that gave the answer takes it, if the key may see that."""

    async def post(request: Request) -> Response:
        exchange, failures = request.scope["exchange"], list[StoreError | GatewayError]()
        feedback = await read_object(request.receive, request.headers, exchange.visit, Feedback.of)
        key, judges = exchange.owner, auth.allows(settings, exchange.owner, *auth.JUDGES)
        if not judges and not auth.owns(key, feedback.trace_id):  # a key learns nothing about another's traces
            raise _unknown()
        for cascade in [cascade for catalog, cascade in cascades if exchange.sees(catalog)]:
            try:
                document = await cascade.take(feedback, key, judges=judges)
                return Response(encoded(document), media_type="application/json")
            except (StoreError, GatewayError) as error:
                failures.append(error)
        raise min(failures, key=lambda error: getattr(error, "code", None) in _NOT_HERE, default=_unknown())

    return post


class AnswerFeedback:
    """Takes feedback on the answers of one cascade.

    With modes, audits compare answers with the guide's, and no feedback is counted.

    Attributes:
        waiting: the answers whose feedback would be counted, by trace.
    """

    def __init__(self, orchestrator: Orchestrator, modes: Modes | None = None) -> None:
        self._orchestrator, self._modes = orchestrator, modes
        self._url = orchestrator.runtime.config.traces_url
        self.waiting: OrderedDict[str, Answer] = OrderedDict()
        self._threads = ThreadPoolExecutor(_THREADS, "cascade-feedback")

    def hold(self, trace_id: str, answer: Answer) -> None:
        """Keep an answer whose feedback would be counted."""
        if answer.audited and answer.certificate is not None:
            self.waiting[trace_id] = answer
            chars = sum([len(waiting.question.context or "") for waiting in self.waiting.values()])
            while len(self.waiting) > MOST_WAITING or chars > MOST_CHARS:
                chars -= len(self.waiting.popitem(last=False)[1].question.context or "")

    async def take(self, feedback: Feedback, key: ServerKeyConfig | None, *, judges: bool) -> dict[str, Any]:
        """Store a key's feedback; return what its response says.

        Raises:
            GatewayError: the trace is not here (404), not complete (503) or not judged so (400); traces are off (409).
            StoreError: the store of the traces does not answer.
        """
        if self._url is None:
            raise GatewayError(409, "Traces are off, so feedback cannot be stored: set traces.", code="no_traces")
        complete = self._modes is None or await self._modes.completed(feedback.trace_id, _FLUSH_S)
        try:
            models, new = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._store, feedback, key, self._url
            )
        except UsageError as error:  # its message names the store
            raise StoreError(str(error)) from None
        if not models and complete:
            raise _unknown()
        if not models:
            late = "The trace is not complete yet: other models are still being asked. Send the feedback again."
            raise GatewayError(503, late, code="trace_pending", retry_after_s=1)
        counted, reason = self._counted(feedback, judges=judges) if new else (False, _JUDGED)
        return {"object": "feedback", "trace_id": feedback.trace_id, "counted": counted, "reason": reason}

    def _store(self, feedback: Feedback, key: ServerKeyConfig | None, url: str) -> tuple[list[str], bool]:
        """Store feedback; return the models that were asked, and whether it is the key's first on this trace.

        If there is no such trace, no models are returned and nothing is stored.
        """
        reviewer = "" if key is None else key.name
        row = {**feedback.model_dump(exclude={"trace_id"}), "episode_id": feedback.trace_id, "reviewer": reviewer}
        with Store(url, durable=False, limit_s=link.LIMIT_S) as store:
            models = store.models_of(feedback.trace_id)
            if not models:  # wait only for a trace that does not exist yet
                self._orchestrator.runtime.flush_traces(_FLUSH_S)
                models = store.models_of(feedback.trace_id)
            if not models:
                return [], False
            if feedback.better is not None and feedback.better not in {*models, *_NEITHER}:
                choices = ", ".join([*models, *sorted(_NEITHER)])
                raise GatewayError(400, f"better: for this answer it must be one of {choices}.", param="better")
            new = store.add_feedback({**row, "created_at": now_utc()})
            return list(models), new

    def _counted(self, feedback: Feedback, *, judges: bool) -> tuple[bool, str]:
        """Report feedback to the certificate's monitor, if it counts this answer; return whether, or why not."""
        if not judges:
            return False, "only the feedback of a key with the scope feedback counts for a certificate"
        if self._modes is not None:
            return False, "the promise is that answers equal the guide's, which needs no feedback"
        if feedback.right is None:
            return False, "it does not say whether the answer is right"
        answer = self.waiting.pop(feedback.trace_id, None)
        if answer is None or answer.certificate is None:
            return False, "the answer was not audited here, or was counted before"
        if not answer.certificate.promise.rules.covers_all:
            return False, "it does not say whether the guide's answer is right, on which the promise depends"
        text, right = answer.text, feedback.right
        outcome = self._orchestrator.record_outcome(answer, lambda output: right if output == text else None)
        return outcome.counted, outcome.reason
