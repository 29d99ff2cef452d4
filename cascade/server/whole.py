"""Makes, after the response, the calls that an answer left out."""

from __future__ import annotations

from cascade.chat import ChatRequest
from cascade.engine import adrive
from cascade.errors import ProviderUnavailableError
from cascade.orchestrator import Orchestrator
from cascade.serving.plan import RunPlan
from cascade.types import Answer, Completion, Question, Request


async def whole_of(
    orchestrator: Orchestrator, request: ChatRequest, served: Answer, *, audit: bool, trace_id: str, key: str | None
) -> Answer:
    """Make the calls that an answer left out, and record all calls. No call is made twice.

    Args:
        orchestrator: gave the answer.
        request: the request.
        served: the answer, not recorded yet.
        audit: whether the policy in service decided; if not, every step is run and kept.
        trace_id: the id of the episode in the traces.
        key: the name of the server's key whose budget the calls count for.

    Returns:
        The answer with all steps, including failed calls.

    Raises:
        ProviderError, BudgetExceededError, UsageError: as `Orchestrator.achat` does.
    """
    runtime = orchestrator.runtime
    plain, asked = runtime.configured, Question.of_chat(request)
    only = None if audit else RunPlan(plain)
    started = runtime.start(asked, only=only, trace_id=trace_id, audit=True)
    made = {call.request.model: call for call in served.calls}

    async def replied(one: Request) -> Completion:
        call = made.pop(one.model, None)
        if call is None:
            return await runtime.guard(one, key).acomplete(one, started.deadline, runtime.halt)
        if call.completion is None:
            raise ProviderUnavailableError(call.error or "the call failed", model=one.model)
        return call.completion

    with runtime.halt.working():
        answer = await adrive(started.walk, replied)
    return await started.asettle(answer)


def lost_traces(orchestrator: Orchestrator) -> int:
    """Return how many answers could not be recorded since the orchestrator was made."""
    traces = orchestrator.runtime.traces
    return 0 if traces is None else traces.counts.lost
