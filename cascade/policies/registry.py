"""Policies by name: built in, brought by an installed package, or a class of one's own as `module:Class`."""

from __future__ import annotations

from cascade.policies.config import PolicyConfig
from cascade.registry import Registry, subclass_of
from cascade.section import ByKind

POLICIES: Registry[type[PolicyConfig]] = Registry(
    "policy",
    "cascade.policies",
    {
        "fixed": "cascade.policies.fixed:FixedConfig",
        "random": "cascade.policies.fixed:RandomConfig",
        "threshold": "cascade.policies.threshold:ThresholdConfig",
        "prompted": "cascade.policies.prompted:PromptedConfig",
        "directory": "cascade.policies.directory:DirectoryConfig",
        "learned": "cascade.policies.learned_config:LearnedConfig",
        "cross": "cascade.policies.learned_config:CrossConfig",
    },
    subclass_of(PolicyConfig),
    by_place=True,
)
WRITTEN = ByKind(POLICIES, "threshold")
"""Reads a policy's settings as a configuration has them."""
HELD = ByKind(POLICIES, "threshold", held=True)
"""Reads them as a policy directory has them."""
