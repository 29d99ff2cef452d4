"""From the configuration's sections to the strategy and the policy that they describe: one maker for each kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cascade.config import CascadeConfig
from cascade.policies.base import Policy
from cascade.policies.fixed import FixedPolicy, RandomPolicy
from cascade.policies.prompted import PromptedPolicy
from cascade.policies.threshold import ThresholdPolicy
from cascade.sections import BaseGuideConfig, ExitConfig, LadderConfig, ModelConfig, PolicyConfig
from cascade.strategies import prompts
from cascade.strategies.base import ModelUse, Strategy
from cascade.strategies.base_guide import BaseGuide
from cascade.strategies.exit import Exit
from cascade.strategies.ladder import Ladder


def build_strategy(config: CascadeConfig) -> Strategy:
    """Return the strategy that a configuration describes."""
    uses = {name: _use(entry) for name, entry in config.models.items()}
    wanted = config.strategy
    templates = prompts.load(wanted.prompts)
    if isinstance(wanted, LadderConfig):
        return Ladder(tuple(uses[name] for name in wanted.models), templates)
    if isinstance(wanted, ExitConfig):
        return Exit(uses[wanted.model], wanted.model, wanted.rounds, templates)
    return _base_guide(wanted, uses, templates)


def _base_guide(wanted: BaseGuideConfig, uses: Mapping[str, ModelUse], templates: prompts.Prompts) -> BaseGuide:
    return BaseGuide(
        base=uses["base"],
        guide=uses["guide"],
        rounds=wanted.rounds,
        verdict=wanted.verdict,
        samples=wanted.samples,
        on_guide_error=wanted.on_guide_error,
        prompts=templates,
        decider=wanted.decider,
    )


_POLICIES: Mapping[str, Callable[[Any], Policy]] = {
    "fixed": lambda wanted: FixedPolicy(wanted.keep, wanted.depth),
    "random": lambda wanted: RandomPolicy(wanted.seed),
    "threshold": lambda wanted: ThresholdPolicy(wanted.threshold, wanted.keep, wanted.when),
    "prompted": lambda _: PromptedPolicy(),
}


def build_policy(config: CascadeConfig) -> Policy:
    """Return the policy that a configuration describes."""
    return policy_of(config.policy)


def policy_of(section: PolicyConfig) -> Policy:
    """Return the policy that a section describes."""
    return _POLICIES[section.kind](section)


def _use(entry: ModelConfig) -> ModelUse:
    return ModelUse(entry.model, entry.max_tokens, entry.temperature, entry.seed)
