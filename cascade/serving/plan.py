"""How one question is to be run: by which strategy and policy, under which certificate.

`unpromised` plans where nothing is promised, `certified` under a certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cascade.policies.base import Policy, Takes
from cascade.strategies.base import Strategy
from cascade.types import GUIDE_ONLY, LAST_ONLY, Certificate

if TYPE_CHECKING:
    from cascade.policies.scope import Scope


class RunPlan(NamedTuple):
    """How one question is to be run.

    `scope` is what the certificate speaks of.
    `walk` is its name on record where it is not run by the strategy configured; `level` that of the policy's levels.
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


def unpromised(strategy: Strategy, policy: Policy, stays: bool) -> RunPlan:
    """Return how a question is run where nothing is promised: by the policy, or by the reference alone if it stays."""
    if stays:
        return outright(strategy.only(Takes(reference=True)), reference_walk(strategy))
    return RunPlan(strategy, policy)


def outright(strategy: Strategy, walk: str) -> RunPlan:
    """Return how one model answers without any policy.

    Args:
        strategy: asks that model alone.
        walk: what a log calls it.
    """
    from cascade.policies.fixed import FixedPolicy  # of use for a model alone; most questions have a policy

    return RunPlan(strategy, FixedPolicy(), walk=walk)


def reference_walk(strategy: Strategy) -> str:
    """Return what a log calls the reference alone: a ladder's last model, or the guide asked outright."""
    return LAST_ONLY if strategy.ends_with_reference else GUIDE_ONLY
