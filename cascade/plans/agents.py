"""Agents: a tool loop in place of a model, in any node that answers.

The loop yields calls to the model, reads the replies, uses its tools, and returns the reply that the node reads. Each
of its calls counts against the caps and is charged, traced and logged like any other, and `cascade collect` can resume
after it. Judging and deciding are left to the model itself.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeAlias

from cascade.errors import BadRequestError, ProviderError, quote
from cascade.plans.base import Conclusion
from cascade.registry import Registry, callable_alone
from cascade.types import ACT, Completion, Request, Usage

Loop: TypeAlias = Generator[Request, Completion, Completion]
"""Yields a `Request`, is sent its `Completion` (or has a `ProviderError` thrown in), and returns the last reply. The
loop may add to its text what else the node should read (what was searched, what was found)."""
Agent: TypeAlias = Callable[[Request], Loop]
"""Takes the request that the node would have sent, and returns the loop that answers it."""

AGENTS: Registry[Agent] = Registry("agent", "cascade.agents", {}, callable_alone, by_place=True)


def answered(agent: Agent, request: Request) -> Generator[Request | Conclusion, Any, Completion]:
    """Run an agent's loop and return its reply; an exception in it becomes an error of the call that it answers."""
    result: Any = None
    try:
        loop = agent(request)
        while True:
            call = loop.throw(result) if isinstance(result, ProviderError) else loop.send(result)
            try:
                result = yield call._replace(purpose=ACT)
            except ProviderError as error:
                result = error
    except StopIteration as end:
        reply: Completion = end.value
    except ProviderError:
        raise
    except Exception as error:
        message = f"the agent of {request.model} failed: {type(error).__name__}: {quote(error)}"
        raise BadRequestError(message, model=request.model) from error
    free = reply._replace(usage=Usage(0, 0), latency_s=0.0)  # the agent's own calls were paid and timed
    yield Conclusion(request, free)
    return free
