"""What a configuration asks for beside its policy, to serve questions with; `plan` says how each is run.

Certificates (`levels`, `certified`, `monitors`, `audits`), shared caps (`spending`) and prompt caches are loaded where
a configuration asks for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from cascade.errors import UsageError
from cascade.money import nano_usd
from cascade.serving.plan import Calls, RunPlan
from cascade.strategies.base import Strategy
from cascade.types import Question

if TYPE_CHECKING:
    from cascade.config import CascadeConfig
    from cascade.money import Price
    from cascade.serving.begun import HedgedCalls
    from cascade.serving.certified import CertifiedPolicy
    from cascade.serving.levels import ServingState
    from cascade.serving.prompt_caches import PromptCaches
    from cascade.serving.spending import Spending


def service_of(config: CascadeConfig, strategy: Strategy, before: ServingState | None = None) -> ServingState | None:
    """Return what serves under certificates (`levels.in_service`); None where nothing is promised."""
    if config.guarantee is None and config.policy.kind != "directory":
        return None
    from cascade.serving import levels

    return levels.in_service(config, strategy, before)


def at_level(service: ServingState | None, level: str | None, alpha: float | None) -> CertifiedPolicy:
    """Return what serves the level that is asked for.

    Raises:
        UsageError: there is none, both are given, or the policy has no levels.
    """
    if service is None or service.levels is None:
        from cascade.policies.levels import MAKE

        asked = f"the level {level!r}" if level is not None else f"alpha {alpha!r}"
        raise UsageError(f"The policy has no levels, and {asked} was asked for; one with levels is made with: {MAKE}")
    return service.by_name[service.levels.chosen(level, alpha).name]


def caches_of(config: CascadeConfig, prices: Mapping[str, Price | None]) -> PromptCaches | None:
    """Return what is known of prompts that providers hold; None where a configuration does not reckon with them."""
    if config.budget.prompt_cache_s is None:
        return None
    from cascade.serving.prompt_caches import PromptCaches

    return PromptCaches(config.budget.prompt_cache_s, prices)


def hedged_of(
    calls: Calls, question: Question, plan: RunPlan, config: CascadeConfig, prices: Mapping[str, Price | None]
) -> HedgedCalls | None:
    """Return the calls of a question whose reference may be begun early; None where the plan has no hedge."""
    if plan.hedge is None:
        return None
    from cascade.serving.begun import HedgedCalls
    from cascade.serving.hedging import Hedging, Purse

    cap = config.budget.per_question
    purse, per_call_s = Purse(None if cap is None else nano_usd(cap)), config.timeouts.per_call_s
    return HedgedCalls(calls, Hedging(question, plan.strategy, plan.hedge, prices, purse, calls.deadline, per_call_s))


def caps_of(config: CascadeConfig) -> Spending | None:
    """Return the caps that many requests share, None where there are none. Raises ConfigError for a wrong store."""
    if not config.budget.is_shared:
        return None
    from cascade.serving.spending import Spending

    return Spending.of(config)
