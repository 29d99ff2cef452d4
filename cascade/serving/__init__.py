"""Serves questions: certificates, audits, monitors, shared caps; `plan` has the run plans.

Certificates (`levels`, `certified`, `monitors`) and shared caps (`spending`) are imported only if a
configuration needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cascade.errors import UsageError
from cascade.plans.base import Strategy

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.serving.certified import CertifiedPolicy
    from cascade.serving.levels import ServingState
    from cascade.serving.spending import Spending


MAKE = "cascade fit LOG --promise agreement --confidence 0.9 --levels low=0.1,high=0.02 -o DIR"
"""The command that makes a policy with levels."""


def service_of(config: CascadeConfig, strategy: Strategy, before: ServingState | None = None) -> ServingState | None:
    """Return the policies in service with their certificates (`levels.in_service`); None without a promise."""
    if config.guarantee is None and config.policy.kind != "directory":
        return None
    from cascade.serving import levels

    return levels.in_service(config, strategy, before)


def at_level(service: ServingState | None, level: str) -> CertifiedPolicy:
    """Return the policy in service of a requested level.

    Raises:
        UsageError: there is no such level, or the policy has no levels.
    """
    if service is None or not service.levels:
        raise UsageError(
            f"The policy has no levels, and the level {level!r} was asked for; one with levels is made with: {MAKE}"
        )
    return service.at(level)


def caps_of(config: CascadeConfig) -> Spending | None:
    """Return the caps that are shared by many requests; None without any. Raises ConfigError for an invalid store."""
    if not config.budget.is_shared:
        return None
    from cascade.serving.spending import Spending

    return Spending.of(config)
