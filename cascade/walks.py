"""Other ways to answer the questions of a log, logged beside its steps: the guide alone, and models that decide."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from cascade.checks import did_you_mean
from cascade.config import CascadeConfig
from cascade.errors import UsageError
from cascade.orchestrator import build_strategy
from cascade.policies.base import Policy
from cascade.policies.fixed import FixedPolicy
from cascade.sections import BaseGuideConfig, LadderConfig
from cascade.strategies.base import Strategy


@dataclass(frozen=True, slots=True)
class NamedWalk:
    """A strategy with a policy. `name` is None for the walk of all steps that policies are judged on."""

    name: str | None
    strategy: Strategy
    policy: Policy


GUIDE_ONLY = "guide only"
WALKS = (GUIDE_ONLY,)


def named_walks(config: CascadeConfig, names: Iterable[str] = (GUIDE_ONLY,)) -> tuple[NamedWalk, ...]:
    """Return the walks of these names that the configuration's strategy can have.

    Raises:
        UsageError: there is no walk of such a name.
    """
    wanted = tuple(dict.fromkeys(names))
    for name in wanted:
        if name not in WALKS:
            raise UsageError(f"There is no walk {name!r}{did_you_mean(name, WALKS)}.")
    if not isinstance(config.strategy, BaseGuideConfig):
        return ()
    return tuple(_MAKERS[name](name, config) for name in wanted)


def _guide_only(name: str, config: CascadeConfig) -> NamedWalk:
    alone = LadderConfig(kind="ladder", models=("guide",), prompts=config.strategy.prompts)
    return NamedWalk(name, build_strategy(config.model_copy(update={"strategy": alone})), FixedPolicy())


_MAKERS = {GUIDE_ONLY: _guide_only}
