"""The run plan of a policy that promises nothing. `certified` makes those under a certificate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cascade.checks import hint_at
from cascade.engine import RunPlan
from cascade.errors import UsageError
from cascade.plans.nodes import Plan
from cascade.types import GUIDE_ONLY, LAST_ONLY

if TYPE_CHECKING:
    from cascade.policies.live import Live


def reference_walk(strategy: Plan) -> str:
    """Return a log's name for the reference alone: a ladder's last model, or the guide asked outright."""
    return LAST_ONLY if strategy.ends_with_reference else GUIDE_ONLY


def plain_plan(strategy: Plan, policy: Live) -> RunPlan:
    """Return the run plan of a policy that promises nothing, with the part of the strategy that it takes."""
    part = policy.selection
    if part is None:
        return RunPlan(strategy, policy)
    return RunPlan(strategy.only(part), policy, walk=reference_walk(strategy) if part.reference else None)


def no_level(level: str, levels: Mapping[str, float]) -> UsageError:
    """Return the error of a level that is not among those of the policy, by name with their risk."""
    if not levels:
        command = "cascade fit LOG --promise agreement --confidence 0.9 --levels low=0.1,high=0.02 -o DIR"
        return UsageError(
            f"The policy has no levels, and the level {level!r} was asked for; one with levels is made with: {command}"
        )
    listed = ", ".join(f"{name} (risk {risk:g})" for name, risk in levels.items())
    return UsageError(f"There is no level {level!r}{hint_at(level, levels) or '.'} There is {listed}.")
