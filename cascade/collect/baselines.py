"""Other ways to answer the questions of a log, logged beside its steps: the guide alone, and models that decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cascade.checks import did_you_mean
from cascade.config import CascadeConfig
from cascade.config.schema import (
    BaseGuideConfig,
    ExitConfig,
    FixedConfig,
    LadderConfig,
    PolicyConfig,
    PromptedConfig,
    StrategyConfig,
)
from cascade.episodes.schema import GUIDE_ONLY
from cascade.errors import UsageError
from cascade.factory import build_policy, build_strategy
from cascade.policies.base import Policy
from cascade.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class RecordedBaseline:
    """A strategy with a policy. `name` is None for the walk of all steps that policies are judged on."""

    name: str | None
    strategy: Strategy
    policy: Policy


def recorded_baselines(config: CascadeConfig, names: Iterable[str] | None = None) -> tuple[RecordedBaseline, ...]:
    """Return the walks of these names (all by default) that a base-guide strategy can have; a ladder has none.

    Raises:
        UsageError: there is no walk of such a name.
    """
    wanted = BASELINES if names is None else tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in BASELINES:
            raise UsageError(f"There is no walk {name!r}{did_you_mean(name, BASELINES)}.")
    if not isinstance(config.strategy, BaseGuideConfig):
        return ()
    return tuple(_named(name, config, config.strategy) for name in wanted)


def _settings(strategy: BaseGuideConfig) -> dict[str, tuple[StrategyConfig, PolicyConfig]]:
    shared = {"prompts": strategy.prompts}
    rounds, prompted = strategy.rounds, PromptedConfig(kind="prompted")
    found: dict[str, tuple[StrategyConfig, PolicyConfig]] = {
        GUIDE_ONLY: (LadderConfig(kind="ladder", models=("guide",), **shared), FixedConfig(kind="fixed"))
    }
    for place in ("base", "guide"):
        found[f"LLM policy, {place}"] = strategy.model_copy(update={"decider": place}), prompted
        found[f"LLM-exit, {place}"] = ExitConfig(kind="exit", model=place, rounds=rounds, **shared), prompted
    return found


BASELINES = tuple(_settings(BaseGuideConfig()))


def _named(name: str, config: CascadeConfig, strategy: BaseGuideConfig) -> RecordedBaseline:
    own, policy = _settings(strategy)[name]
    changed = config.model_copy(update={"strategy": own, "policy": policy})
    return RecordedBaseline(name, build_strategy(changed), build_policy(changed))
