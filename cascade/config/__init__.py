"""The configuration: YAML, a dict or an object becomes one frozen `CascadeConfig`, or one error with every problem.

`schema` has the sections, `loading` reads and checks them, `problems` puts into words what is wrong.
"""

from __future__ import annotations

from cascade.config.loading import (
    DEFAULT_BASE_VARIABLE,
    DEFAULT_KEY_VARIABLE,
    CascadeConfig,
    default_traces_url,
    environment,
    ledger_url,
    load,
    modes_url,
    policy_section,
    strategy_problems,
    traces_url,
)

__all__ = [
    "DEFAULT_BASE_VARIABLE",
    "DEFAULT_KEY_VARIABLE",
    "CascadeConfig",
    "default_traces_url",
    "environment",
    "ledger_url",
    "load",
    "modes_url",
    "policy_section",
    "strategy_problems",
    "traces_url",
]
