"""Strategies by name: built in, brought by an installed package, or a class of one's own as `module:Class`."""

from __future__ import annotations

from cascade.registry import Registry, subclass_of
from cascade.section import ByKind
from cascade.strategies.config import StrategyConfig

STRATEGIES: Registry[type[StrategyConfig]] = Registry(
    "strategy",
    "cascade.strategies",
    {
        "base_guide": "cascade.strategies.base_guide:BaseGuideConfig",
        "ladder": "cascade.strategies.ladder:LadderConfig",
        "exit": "cascade.strategies.exit:ExitConfig",
        "offers": "cascade.strategies.offers:OffersConfig",
        "verified": "cascade.strategies.verified:VerifiedConfig",
    },
    subclass_of(StrategyConfig),
    by_place=True,
)
WRITTEN = ByKind(STRATEGIES, "base_guide")
"""Reads a strategy's settings."""
