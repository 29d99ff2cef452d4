"""The old name of `cascade.config.schema`; the settings of strategies and policies stand in their own files."""

from __future__ import annotations

from typing import Any

from cascade._names import moved_attribute

_MOVED = {
    "BaseGuideConfig": "strategies.base_guide",
    "LadderConfig": "strategies.ladder",
    "ExitConfig": "strategies.exit",
    "FixedConfig": "policies.fixed",
    "RandomConfig": "policies.fixed",
    "ThresholdConfig": "policies.threshold",
    "PromptedConfig": "policies.prompted",
    "DirectoryConfig": "policies.config",
}


def __getattr__(name: str) -> Any:
    return moved_attribute(__name__, f"cascade.{_MOVED.get(name, 'config.schema')}", name)
