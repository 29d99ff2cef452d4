"""The run plan of a question (its strategy, policy and certificate), and the calls of a question.

`certified` makes the plans under a certificate.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cascade.plans.base import Strategy
from cascade.types import GUIDE_ONLY, LAST_ONLY

if TYPE_CHECKING:
    from cascade.conformal.certificate import Certificate
    from cascade.conformal.scope import Scope
    from cascade.policies.live import Live


class RunPlan(NamedTuple):
    """The run plan of a question.

    Without a policy every step is run, and every answer kept.

    `scope` is the scope of the certificate. `walk` is its name in the traces if another strategy than the configured
    one runs; `level` is the name of the policy's level.
    """

    strategy: Strategy
    policy: Live | None = None
    certificate: Certificate | None = None
    audit: bool = False
    warnings: tuple[str, ...] = ()
    walk: str | None = None
    level: str | None = None
    scope: Scope | None = None


def reference_walk(strategy: Strategy) -> str:
    """Return a log's name for the reference alone: a ladder's last model, or the guide asked outright."""
    return LAST_ONLY if strategy.ends_with_reference else GUIDE_ONLY
