"""Agents: a tool loop in place of a model, under any strategy.

If a strategy asks a model for an answer and the model has an agent, the agent's loop runs instead: it yields calls to
the model, reads the replies, uses its tools, and returns the reply that the strategy reads. Each of its calls counts
against the caps, is charged, traced and logged like any other, and `cascade collect` can resume after it. So an agent
can be a rung of a ladder, a base that a guide judges, or any node that answers, and the strategies need no code for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeAlias

from cascade.errors import BadRequestError, ProviderError, quote
from cascade.plans.base import Conclusion, Strategy, Walk
from cascade.policies.base import Selection
from cascade.registry import Registry, callable_alone, passes_on
from cascade.types import ACT, Completion, Question, Request, Step, Usage

Loop: TypeAlias = Generator[Request, Completion, Completion]
"""Yields a `Request`, is sent its `Completion` (or has a `ProviderError` thrown in), and returns the last reply. The
loop may add to its text what else the strategy should read (what was searched, what was found)."""
Agent: TypeAlias = Callable[[Request], Loop]
"""Selection the request that the strategy would have sent, and returns the loop that answers it."""

_Item: TypeAlias = Request | Step | Conclusion

AGENTS: Registry[Agent] = Registry("agent", "cascade.agents", {}, callable_alone, by_place=True)
ANSWERING = frozenset({"answer", "direct", "sample", "outright"})
"""The purposes of calls that an agent answers; judging and deciding are left to the model itself."""


@passes_on("strategy", "prompts", "step_names", "ends_with_reference")
@dataclass(frozen=True, slots=True)
class WithAgents(Strategy):
    """A strategy some of whose models answer through agents."""

    blocks: ClassVar[bool] = True
    strategy: Strategy
    agents: Mapping[str, Agent]

    @property
    def horizon(self) -> int:
        """T, of the strategy."""
        return self.strategy.horizon

    @property
    def models(self) -> tuple[str, ...]:
        """The models of the strategy."""
        return self.strategy.models

    def only(self, selection: Selection) -> Strategy:
        """Return a part of the strategy, with the same agents."""
        return replace(self, strategy=self.strategy.only(selection))

    def plan(self, question: Question) -> Walk:
        """Walk as the strategy does, with an agent's calls in place of each answer of its model."""
        result: Completion | ProviderError | int | None = None
        with closing(self.strategy.plan(question)) as walk:
            while True:
                try:
                    item = walk.throw(result) if isinstance(result, ProviderError) else walk.send(result)
                except StopIteration:
                    return
                try:
                    result = yield from self._done(item)
                except ProviderError as error:
                    result = error

    def _done(self, item: _Item) -> Generator[_Item, Completion | None, Completion | None]:
        """Yield an item of the plan, or the calls of the agent that replaces it, and return the reply."""
        agent = self.agents.get(item.model) if isinstance(item, Request) and item.purpose in ANSWERING else None
        if agent is None or not isinstance(item, Request):
            return (yield item)
        reply = yield from _run(agent, item)
        free = reply._replace(usage=Usage(0, 0), latency_s=0.0)  # the agent's own calls were paid and timed
        yield Conclusion(item, free)
        return free


def _run(agent: Agent, request: Request) -> Generator[Request, Completion | None, Completion]:
    """Run an agent's loop; an exception in it becomes an error of the call that it answers."""
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
        return reply
    except ProviderError:
        raise
    except Exception as error:
        message = f"the agent of {request.model} failed: {type(error).__name__}: {quote(str(error))}"
        raise BadRequestError(message, model=request.model) from error
