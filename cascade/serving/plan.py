"""The run plan of a question (its strategy, policy and certificate), and the calls of a question.

`certified` makes the plans under a certificate.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol

from cascade.policies.base import Policy
from cascade.resilience.halting import Halt
from cascade.resilience.retry import Deadline
from cascade.strategies.base import Strategy
from cascade.types import GUIDE_ONLY, LAST_ONLY, Certificate, Completion, Request, TextDelta

if TYPE_CHECKING:
    from cascade.conformal.scope import Scope
    from cascade.providers.guard import Guard
    from cascade.serving.spending import SpendingGuard
    from cascade.telemetry import TracedGuard


class RunPlan(NamedTuple):
    """The run plan of a question.

    `scope` is the scope of the certificate. `walk` is its name in the traces if another strategy than the configured
    one runs; `level` is the name of the policy's level.
    """

    strategy: Strategy
    policy: Policy
    certificate: Certificate | None = None
    abstain_below: float | None = None
    audit: bool = False
    warnings: tuple[str, ...] = ()
    walk: str | None = None
    level: str | None = None
    scope: Scope | None = None


class Guards(Protocol):
    """Finds the guard that makes a call for a key of the server."""

    def __call__(self, request: Request, key: str | None = None) -> Guard | TracedGuard | SpendingGuard:
        """Return the guard of a request's model."""
        ...


class Calls:
    """Makes the calls of one question, each by its model's guard.

    Args:
        guards: finds the guard of each call.
        deadline: the question's deadline.
        halt: the switch that stops its calls.
        key: the name of the server's key whose budget counts.
    """

    __slots__ = ("deadline", "guards", "halt", "key", "shows")

    def __init__(self, guards: Guards, deadline: Deadline, halt: Halt, key: str | None = None) -> None:
        self.guards, self.deadline, self.halt, self.key = guards, deadline, halt, key
        self.shows: Callable[[Request], bool] | None = None
        """Whether a reply may be streamed, if a caller asks for whole replies and for pieces."""

    def complete(self, request: Request) -> Completion:
        """Make a call, blocking."""
        return self.guards(request, self.key).complete(request, self.deadline, self.halt)

    def acomplete(self, request: Request) -> Awaitable[Completion]:
        """Make a call without blocking."""
        return self.guards(request, self.key).acomplete(request, self.deadline, self.halt)

    def stream(self, request: Request) -> Iterator[TextDelta | Completion]:
        """Make a call and yield the reply as it is written."""
        return self.guards(request, self.key).stream(request, self.deadline, self.halt)

    def astream(self, request: Request) -> AsyncGenerator[TextDelta | Completion, None]:
        """Do as `stream` without blocking."""
        return self.guards(request, self.key).astream(request, self.deadline, self.halt)


def outright(strategy: Strategy, walk: str) -> RunPlan:
    """Return the run plan of one model without a policy.

    Args:
        strategy: the strategy that asks only that model.
        walk: its name in a log.
    """
    from cascade.policies.fixed import FixedPolicy  # needed only for a single model; most questions have a policy

    return RunPlan(strategy, FixedPolicy(), walk=walk)


def reference_walk(strategy: Strategy) -> str:
    """Return a log's name for the reference alone: a ladder's last model, or the guide asked outright."""
    return LAST_ONLY if strategy.ends_with_reference else GUIDE_ONLY
