"""Baselines that `collect` logs besides the steps: the guide alone, and models that decide when to stop."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cascade.checks import did_you_mean
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.factory import build_policy, build_strategy
from cascade.policies import config as policies
from cascade.policies.base import Policy
from cascade.strategies import config as strategies
from cascade.strategies.base import Strategy
from cascade.strategies.base_guide import BaseGuideConfig

BASELINES = BaseGuideConfig.baselines
"""The names of the baselines of rounds of base and guide."""


@dataclass(frozen=True, slots=True)
class RecordedBaseline:
    """A strategy with a policy. `name` is None for the walk of all steps, on which policies are evaluated."""

    name: str | None
    strategy: Strategy
    policy: Policy


def recorded_baselines(config: CascadeConfig, names: Iterable[str] | None = None) -> tuple[RecordedBaseline, ...]:
    """Return the named baselines (by default all) of the configured strategy (`StrategyConfig.baselines`).

    Raises:
        UsageError: there is no walk of such a name.
    """
    own = config.strategy.baselines
    wanted = own if names is None else tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in {*BASELINES, *own}:
            raise UsageError(f"There is no walk {name!r}{did_you_mean(name, {*BASELINES, *own})}.")
    return tuple([_named(name, config) for name in wanted if name in own])


def _named(name: str, config: CascadeConfig) -> RecordedBaseline:
    strategy, policy = config.strategy.baseline(name)
    update = {"strategy": strategies.WRITTEN.read(strategy), "policy": policies.WRITTEN.read(policy)}
    changed = config.model_copy(update=update)
    return RecordedBaseline(name, build_strategy(changed), build_policy(changed))
